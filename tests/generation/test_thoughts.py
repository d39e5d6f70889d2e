"""Results of conversations have the thought and the answer apart, beside the whole text."""

from __future__ import annotations

import pytest
from tiny_tokenizers import tiny_tokenizer

from ipex_assist.generation.result import Identity
from ipex_assist.generation.stream import Generation, OwnRounds
from ipex_assist.speculative.round import Round
from ipex_assist.tokenization.thinking import conversation_reader

pytestmark = pytest.mark.one_stack

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("output", "stop", "reasoning", "answer"),
    [
        ("Where is it?\n</think>\n\nRome.", (), "Where is it?", "Rome."),
        ("Where is it?", (), "Where is it?", ""),
        ("Hm</think>Rome. END more", ("END",), "Hm", "Rome. "),
    ],
)
def test_apart(output: str, stop: tuple[str, ...], reasoning: str, answer: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    prompt = tokenizer("Hi<|im_start|>assistant\n<think>\n")["input_ids"]
    tokens = [*tokenizer(output)["input_ids"], 2]
    rounds = OwnRounds(Round([token], 0, 0, draft_s=0.0, target_s=0.0) for token in tokens)
    generation = Generation(
        rounds,
        tokenizer,
        Identity("a", None, "bf16", None, "native"),
        prompt_tokens=len(prompt),
        max_new_tokens=500,
        eos=frozenset([2]),
        stop=stop,
        thoughts=conversation_reader(tokenizer, prompt),
    )
    for _ in generation:
        pass
    for _ in range(2):  # asking twice changes nothing
        result = generation.result()
        assert (result.reasoning, result.answer) == (reasoning, answer)
        assert result.text == output.partition("END")[0]
    tokenizer.chat_template = None
    assert conversation_reader(tokenizer, prompt) is None

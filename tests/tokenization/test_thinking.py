"""Formats of thoughts: every cut of an output gives the same, special tokens mark and their names as text do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipex_assist.tokenization.thinking import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FORMATS,
    HARMONY,
    MESSAGE,
    RETURN,
    START,
    SpecialWords,
    ThinkingFormat,
    reader_of,
    thinking_format,
    thought_begun,
    thought_words,
)

pytestmark = pytest.mark.one_stack

PLAIN = SimpleNamespace(added_tokens_decoder={})
BY_NAME = {form.name: form for form in FORMATS}
HEADED = f"{CHANNEL}analysis{MESSAGE}Hm.{END}{START}assistant"


def read(form: ThinkingFormat, pieces: list[Any], began: bool = False, tokenizer: Any = PLAIN) -> dict[str, str]:
    """What an output has of each kind. pieces: texts, or pairs of a text and a token."""
    reader = reader_of(SpecialWords(tokenizer, thought_words(form)), form, began)
    found: dict[str, str] = {}
    told = [each for piece in pieces for each in reader.push(*(piece if isinstance(piece, tuple) else (piece,)))]
    for kind, text in [*told, *reader.finish()]:
        found[kind] = found.get(kind, "") + reader.words.shown(text)
    return found


CASES: list[tuple[str, bool, str, dict[str, str]]] = [
    *((f.name, False, f"{f.opened}Hm <b\n{f.closed}\n\nSo.", {"thought": "Hm <b", "text": "So."}) for f in FORMATS[1:]),
    *((f.name, True, f"\nHm.{f.closed}So. ", {"thought": "Hm.", "text": "So. "}) for f in FORMATS[1:]),
    ("think", False, "a</thin <think>b</think>", {"text": "a</thin <think>b</think>"}),
    ("think", False, "<think>a<b</thin</think>\n\nc</think>", {"thought": "a<b</thin", "text": "c</think>"}),
    ("think", False, "<think>never\n closed </thi", {"thought": "never\n closed </thi"}),
    ("think", False, "<think>\n\n</think>\n\nSo.", {"text": "So."}),
    ("think", False, "<thin", {"text": "<thin"}),
    ("think", False, " \n", {"text": " \n"}),
    ("mistral", False, "a[THINK]b[/THINK]c[THI", {"text": "ac[THI", "thought": "b"}),
    ("gemma", False, "<|channel>thought\n<channel|>So", {"text": "So"}),
    ("response", False, "<think>a</think><response>b</response>", {"thought": "a", "text": "b"}),
    ("command", True, "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", {"thought": "a", "text": "b"}),
    ("harmony", False, f"{HEADED}{CHANNEL}final{MESSAGE}Hello!{RETURN}", {"thought": "Hm.", "text": "Hello!"}),
    ("harmony", True, f"Hm.{END}{START}assistant{CHANNEL}final{MESSAGE}Hello!", {"thought": "Hm.", "text": "Hello!"}),
    ("harmony", False, "Hello < there.", {"text": "Hello < there."}),
    (
        "harmony",
        False,
        f"{HEADED}{CHANNEL}commentary{MESSAGE}Let me see.{END}{START}assistant{CHANNEL}commentary to=functions.f.x "
        f'{CONSTRAIN}json{MESSAGE}{{"a": "<|"}}{CALL}',
        {"thought": "Hm.", "text": "Let me see.", "call": "f.x", "arguments": '{"a": "<|"}'},
    ),
    (
        "harmony",
        False,
        f"{HEADED} to=functions.f{CHANNEL}commentary json{MESSAGE}{{}}",
        {"thought": "Hm.", "call": "f", "arguments": "{}"},
    ),
    ("harmony", False, f"{CHANNEL}commentary to=python{MESSAGE}1+1{CALL}", {"thought": "1+1"}),
]


@pytest.mark.parametrize(("name", "began", "output", "expected"), CASES)
def test_every_cut_reads_the_same(name: str, began: bool, output: str, expected: dict[str, str]) -> None:
    """In pieces of each size, and in every two."""
    form = BY_NAME[name]
    for size in range(1, len(output) + 1):
        assert read(form, [output[at : at + size] for at in range(0, len(output), size)], began) == expected, size
    for cut in range(len(output)):
        assert read(form, [output[:cut], output[cut:]], began) == expected, cut


def test_tokens_mark_and_their_names_do_not() -> None:
    """gpt-oss's markers are special: they have no text, and a text that spells them is text."""
    names = dict(enumerate((START, CHANNEL, MESSAGE, END, RETURN)))
    added = {number: SimpleNamespace(content=name, special=True) for number, name in names.items()}
    tokenizer = SimpleNamespace(added_tokens_decoder=added)
    of = {name: ("", number) for number, name in names.items()}
    output = [
        *(of[CHANNEL], ("analysis", 50), of[MESSAGE], ("We ", 51), ("<|end|> is it.", 52), of[END], of[START]),
        *(("assistant", 53), of[CHANNEL], ("final", 54), of[MESSAGE], ("Say <|message|>", 55), of[RETURN]),
    ]
    assert read(HARMONY, output, tokenizer=tokenizer) == {"thought": "We <|end|> is it.", "text": "Say <|message|>"}
    reader = reader_of(SpecialWords(tokenizer, thought_words(HARMONY)), HARMONY, False)
    for piece in output:
        reader.push(*piece)
    assert reader.tokens == 4  # the message's, those of its text, and its end


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
TEMPLATES = {
    "think": "{% for m in messages %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}{% endfor %}",
    "seed": "{% for m in messages %}{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>"
    "{% endif %}{{ m.content }}{% endfor %}",
    "response": CHATML + "{% if thinking %}<think></think> and <response></response>{% endif %}",
    "mistral": "{% for m in messages %}{{ m.content.split('[/THINK]')[-1] }}{% endfor %}",
    "apriel": CHATML + "Here are my reasoning steps:\n",
    "gemma": CHATML + "{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}",
    "harmony": "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>"
    "{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}",
}


@pytest.mark.parametrize(
    ("name", "template"), [*TEMPLATES.items(), (None, CHATML), (None, "{{ raise_exception('x') }}")]
)
def test_the_format_is_what_the_template_writes(name: str | None, template: str) -> None:
    tokenizer: Any = SimpleNamespace(chat_template=template, special_tokens_map={})
    form = thinking_format(tokenizer)
    assert (form and form.name) == name


def test_a_thought_may_begin_in_the_prompt() -> None:
    tokenizer: Any = SimpleNamespace(decode=lambda tokens: "".join(map(chr, tokens)))
    for end, begun in (("assistant\n<think>\n", True), ("<think>\n\n</think>\n\n", False), ("assistant\n", False)):
        assert thought_begun(tokenizer, BY_NAME["think"], [*map(ord, end)]) is begun

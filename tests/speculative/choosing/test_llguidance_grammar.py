"""Grammars over the vocabularies of real kinds of tokenizers: files of Hugging Face, and both kinds in GGUF files."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.choosing.grammar import GrammarSpec, follow
from ipex_assist.tokenization.gguf_tokenizer import tokenizer_from

pytest.importorskip("llguidance")

from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

pytestmark = pytest.mark.one_stack

WORDS = ['{"', "na", "name", '":', "the", "he", "th", "Ġthe", 'Ġ"', '":Ġ"', "yes", "no", "may", "be", "maybe"]


class Header:
    """The metadata of a GGUF file, as far as a tokenizer needs them."""

    path = "invented.gguf"

    def __init__(self, **fields: Any) -> None:
        self._fields = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields.get(key, default)

    def strings(self, key: str) -> list[str]:
        return list(self._fields.get(key, []))


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's, its special tokens first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = ["<pad>", "<s>", "</s>", *alphabet, *(word for word in WORDS if len(word) > 1)]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special)


def gguf_byte_level() -> PreTrainedTokenizerFast:
    """The same in a GGUF file."""
    texts = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *WORDS]
    kinds = [3, 3, 3] + [1] * (len(texts) - 3)
    header = Header(model="gpt2", tokens=texts, token_type=kinds, merges=[], pre="qwen2", eos_token_id=2)
    return tokenizer_from(header)  # type: ignore[arg-type]


def gguf_sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2's: spaces are "▁", and what has no token is spelt by bytes."""
    pieces = [word.replace("Ġ", "▁") for word in WORDS]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *'abcdehmnosty{}:"', *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(texts) - 259)
    scores = [-float(number) for number in range(len(texts))]
    header = Header(
        model="llama", tokens=texts, token_type=kinds, scores=scores, bos_token_id=1, eos_token_id=2, unknown_token_id=0
    )
    return tokenizer_from(header)  # type: ignore[arg-type]


KINDS = [byte_level, gguf_byte_level, gguf_sentencepiece]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["the", "é😀", "maybe"]}, "no": {"type": "boolean"}},
    "required": ["name", "no"],
    "additionalProperties": False,
}
TEXTS = [
    (GrammarSpec("json_schema", json.dumps(SCHEMA)), '{"name": "é😀", "no": true}', '{"name": "é", "no": true}'),
    (GrammarSpec("choice", '["the yes", "the no", "é😀"]'), "é😀", "the maybe"),
    (GrammarSpec("regex", "[a-z ]+é?"), "yes maybe theé", "yes1"),
]


@pytest.mark.parametrize("make", KINDS, ids=lambda each: each.__name__)
@pytest.mark.parametrize(("spec", "allowed", "forbidden"), TEXTS, ids=lambda each: str(each)[:20])
def test_texts_in_tokens(make: Any, spec: GrammarSpec, allowed: str, forbidden: str) -> None:
    """What is allowed may be spelt by tokens, and ends; what is not may not; padded rows never follow."""
    tokenizer = make()
    size = len(tokenizer) + 13
    start = GrammarCompiler.of(tokenizer, size, [2]).grammar(spec)
    tokens = spelt(tokenizer, allowed)
    assert start.allows(tokens) == len(tokens)
    state = start.copy()
    for token in tokens:
        mask = state.mask()
        assert mask.shape == (size,)
        assert mask[token]
        assert not mask[len(tokenizer) :].any()
        assert not mask[:2].any()
        assert state.allows(state.forced()) == len(state.forced())
        state.advance(token)
    assert state.mask()[2]
    state.advance(2)
    assert state.ended
    wrong = spelt(tokenizer, forbidden)
    assert start.allows(wrong) < len(wrong)


def spelt(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """A text by its tokens, without what a tokenizer puts in front of one."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.decode(tokens) == text and not tokenizer.convert_ids_to_tokens(tokens[0]).startswith("▁"):
        return list(tokens)
    with_anchor = tokenizer("\n" + text, add_special_tokens=False)["input_ids"]
    anchor = tokenizer("\n", add_special_tokens=False)["input_ids"]
    return list(with_anchor[len(anchor) :])


def test_forced_tokens_are_the_tokenizers_own() -> None:
    """Of what must come, as many as are certain: the next one may spell more than that."""
    tokenizer = gguf_sentencepiece()
    state = GrammarCompiler.of(tokenizer, 320, [2]).grammar(TEXTS[0][0])
    forced = state.forced()
    assert '{"name": "'.startswith(tokenizer.decode(forced))
    assert len(forced) >= 2
    follow(state, forced)
    assert list(state.tokens) == forced


def test_models_that_cannot() -> None:
    """Without an end, or with a tokenizer of another library: said so."""
    with pytest.raises(UsageError, match="no end-of-text token"):
        GrammarCompiler.of(byte_level(), 320, [])
    with pytest.raises(UsageError, match="tokenizers library"):
        GrammarCompiler.of(SimpleNamespace(backend_tokenizer=None), 320, [2])  # type: ignore[arg-type]


def test_the_same_grammar_is_compiled_once() -> None:
    """And each text has a state of its own."""
    grammars = GrammarCompiler.of(byte_level(), 320, [2])
    first, second = (grammars.grammar(TEXTS[1][0]) for _ in range(2))
    first.advance(first.forced()[0] if first.forced() else int(first.mask().nonzero()[0][0]))
    assert list(second.tokens) == []
    assert len(grammars._compiled) == 1

"""Grammars for tiny models: a vocabulary of as many tokens, letters and pieces of JSON among them."""

from __future__ import annotations

from typing import Any

import tiny_models

from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

EOS = 2
# Tokens of several characters, some the beginnings of others, so that one text may be spelt by different tokens.
PIECES = (
    *('{"', '"}', '": ', '": "', '", "', ", ", "[", "]", "true", "false", "null", "na", "name", "me", "age", '{"na'),
    *("the", "th", "an", "and", "or", "12", "00", "yes", "no", "  ", "ab", "abc", "bc", "maybe", "may"),
)
CHARACTERS = '{}[]":,.-+ \\_' + "".join(map(chr, [*range(48, 58), *range(97, 123), *range(65, 91)]))


class Vocabulary:
    """What llguidance wants to know of a tokenizer; ids below 3 are special ones, as the tiny models have them."""

    is_tokenizer_wrapper = True
    eos_token_id, bos_token_id = EOS, 1
    special_token_ids = (0, 1, 2)

    def __init__(self, size: int = tiny_models.VOCAB) -> None:
        texts = ["<pad>", "<s>", "</s>", *PIECES, *CHARACTERS]
        texts += [f"<unused{i}>" for i in range(len(texts), size)]
        self.tokens = [text.encode() for text in texts]
        self._by_length = sorted(
            ((token, i) for i, token in enumerate(self.tokens) if i > EOS), key=lambda each: -len(each[0])
        )

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text, the longest first."""
        left, ids = text.encode() if isinstance(text, str) else text, []
        while left:
            token, number = next(each for each in self._by_length if left.startswith(each[0]))
            ids.append(number)
            left = left[len(token) :]
        return ids

    def text(self, tokens: Any) -> str:
        """The text of tokens, without special ones."""
        return b"".join(self.tokens[token] for token in tokens if token > EOS).decode()


VOCABULARY = Vocabulary()


def tiny_grammars() -> GrammarCompiler:
    """Of the tiny models."""
    from llguidance import LLTokenizer

    return GrammarCompiler(
        LLTokenizer(VOCABULARY, n_vocab=tiny_models.VOCAB, eos_token=[EOS]), tiny_models.VOCAB, [EOS]
    )


# Of every kind; some hardly leave a choice, some leave nearly all.
SPECS = [
    GrammarSpec("json_schema", '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, '
                '"age": {"type": "integer", "minimum": 0, "maximum": 120}, "and": {"enum": [true, null, "maybe"]}}, '
                '"required": ["name", "age", "and"], "additionalProperties": false}'),
    GrammarSpec("json_schema", '{"type": "array", "items": {"enum": ["abc", "abcab", 12]}, '
                '"minItems": 2, "maxItems": 4}'),
    GrammarSpec("json_object"),
    GrammarSpec("regex", "(the|and|or)( [a-c]{2,5}){1,6}"),
    GrammarSpec("regex", "[a-z 0-9]*"),
    GrammarSpec("choice", '["yes", "no", "maybe the name", "maybe the age", "nothing"]'),
    GrammarSpec("lark", 'start: "name is " NAME ("," " age is " /[0-9]+/)?\nNAME: /[A-Z][a-z]{1,6}/'),
]  # fmt: skip

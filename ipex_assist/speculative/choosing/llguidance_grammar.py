"""Grammars by llguidance: one compiler per model vocabulary, one compilation per grammar."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ipex_assist.env.errors import UsageError
from ipex_assist.env.versions import install_command
from ipex_assist.speculative.choosing.grammar import KINDS, Grammar, GrammarError, GrammarSpec, Mask, ThoughtSpec
from ipex_assist.speculative.choosing.thought_grammar import ThoughtGrammar

LLMatcher: Any = None
LLParserLimits: Any = None
LLTokenizer: Any = None
with contextlib.suppress(ImportError):  # reported when a grammar is requested
    import llguidance

    LLMatcher, LLParserLimits, LLTokenizer = llguidance.LLMatcher, llguidance.LLParserLimits, llguidance.LLTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COMPILED = 64  # compiled grammars in the cache
# JSON on one line, as Python and most training data write it. With free white space a model could emit spaces for ever,
# and hardly any token would be forced.
JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# Schemas that llguidance cannot enforce are rejected.
JSON_STRICT = {"lenient": False, "coerce_one_of": False}


def need_llguidance() -> None:
    """Raise UsageError if llguidance is not installed."""
    if LLMatcher is None:
        raise UsageError(f"grammars (structured output, forced tool calls) need llguidance: {install_command('serve')}")


def grammar_source(spec: GrammarSpec) -> str:
    """Return the source that llguidance compiles. Raises GrammarError, for example for invalid JSON."""
    need_llguidance()
    try:
        if spec.kind == "json_object":
            return str(LLMatcher.grammar_from_json_schema({"type": "object"}, JSON_STYLE, JSON_STRICT))
        if spec.kind == "json_schema":
            return str(LLMatcher.grammar_from_json_schema(spec.value, JSON_STYLE, JSON_STRICT))
        if spec.kind == "regex":
            return str(LLMatcher.grammar_from_regex(spec.value))
        if spec.kind == "choice":
            choices = json.loads(spec.value)
            return str(LLMatcher.grammar_from_lark("start: TEXT\nTEXT: " + " | ".join(map(literal, choices))))
        if spec.kind == "lark":
            return str(LLMatcher.grammar_from_lark(spec.value))
    except ValueError as error:
        raise GrammarError(f"the {spec.kind} grammar cannot be compiled: {_reason(error)}") from None
    raise GrammarError(f"there is no kind of grammar {spec.kind!r}; there are {', '.join(KINDS)}")


def literal(text: str) -> str:
    """Return a string literal in Lark."""
    return json.dumps(text, ensure_ascii=False)


def initial_matcher(spec: GrammarSpec, tokenizer: Any) -> Any:
    """Return the initial LLMatcher. tokenizer: an LLTokenizer. Raises GrammarError if it cannot be compiled."""
    matcher = LLMatcher(tokenizer, grammar_source(spec), log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        raise GrammarError(f"the {spec.kind} grammar cannot be compiled: {_reason(matcher.get_error())}")
    return matcher


def _reason(error: object) -> str:
    """Return the first line of an error, and the "error:" line of a regular expression's."""
    lines = str(error).strip().splitlines() or ["no reason was given"]
    more = next((line for line in lines[1:] if line.startswith("error:")), "")
    return f"{lines[0][:300]} {more[:200]}".strip()


class Words(Protocol):
    """The part of a `tokenizers.Tokenizer` that thoughts need."""

    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> Any: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool = ...) -> Any: ...


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary. Thread-safe."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos: Iterable[int], words: Words | None = None) -> None:
        """tokenizer: an LLTokenizer of at least `vocab_size` tokens, with the end-of-text tokens `eos`. words: encodes
        and decodes the words around thoughts."""
        self._tokenizer, self._vocab_size, self._eos, self._words = tokenizer, vocab_size, frozenset(eos), words
        self._compiled: OrderedDict[GrammarSpec, Any] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: Iterable[int]) -> GrammarCompiler:
        """Make it for a model with `vocab_size` logits and the end-of-text tokens `eos`. Takes a second.

        Raises UsageError if the tokenizer is not of the `tokenizers` library, or there is no end-of-text token.
        """
        need_llguidance()
        backend = getattr(tokenizer, "backend_tokenizer", None)
        ends = sorted(token for token in eos if token < vocab_size)
        if backend is None or not ends:
            what = "its tokenizer is not one of the tokenizers library" if ends else "it has no end-of-text token"
            raise UsageError(f"this model cannot write by a grammar: {what}. Leave the grammar out")
        if backend.padding is not None or backend.truncation is not None:
            backend = copy.copy(backend)
            backend.no_padding()
            backend.no_truncation()
        try:
            made = LLTokenizer(backend.to_str(), n_vocab=max(vocab_size, len(tokenizer)), eos_token=ends)
        except Exception as error:  # llguidance raises various types for tokenizers it cannot read
            raise UsageError(
                f"this model cannot write by a grammar: llguidance cannot read its tokenizer ({_reason(error)}). "
                "Leave the grammar out"
            ) from error
        return cls(made, vocab_size, ends, backend)

    def grammar(self, spec: GrammarSpec) -> Grammar:
        """Return a grammar in its initial state. Raises GrammarError if it cannot be compiled."""
        if spec.thought is None:
            return self._inner(spec)
        return self._after_thought(None if spec.kind == "text" else self._inner(spec), spec.thought)

    def _after_thought(self, inner: Grammar | None, thought: ThoughtSpec) -> ThoughtGrammar:
        assert self._words is not None
        words, text = self._words, thought.closed
        opened, closed = (words.encode(each, add_special_tokens=False).ids for each in (thought.opened, thought.closed))

        def closes(tokens: Sequence[int]) -> bool:
            return bool(words.decode(list(tokens), skip_special_tokens=False).endswith(text))

        return ThoughtGrammar(
            inner,
            opened,
            closed,
            begun=thought.begun,
            budget=thought.budget,
            vocab_size=self._vocab_size,
            eos=self._eos,
            closes=closes if len(closed) > 1 else None,
        )

    def _inner(self, spec: GrammarSpec) -> LlguidanceGrammar:
        spec = replace(spec, thought=None)
        with self._lock:
            start = self._compiled.pop(spec, None)
            if start is None:
                start = initial_matcher(spec, self._tokenizer)
            self._compiled[spec] = start
            if len(self._compiled) > COMPILED:
                self._compiled.popitem(last=False)
            return LlguidanceGrammar(start.deep_copy(), self._vocab_size, self._eos)


class LlguidanceGrammar:
    """A `Grammar` (see grammar.py). End-of-text tokens are tracked here and never passed to llguidance."""

    def __init__(self, matcher: Any, vocab_size: int, eos: frozenset[int], tokens: Sequence[int] = ()) -> None:
        self._matcher, self._vocab_size, self._eos = matcher, vocab_size, eos
        self._tokens = list(tokens)

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens it was advanced by."""
        return self._tokens

    @property
    def ended(self) -> bool:
        """Whether the last token was an end-of-text token."""
        return bool(self._tokens) and self._tokens[-1] in self._eos

    def mask(self) -> Mask:
        """Which tokens may come next, (vocab,)."""
        if self.ended:
            raise self._error("the text has ended")
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed: Mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if not allowed.any():
            raise self._error("no token of the model may follow")
        return allowed

    def forced(self) -> list[int]:
        """The tokens of the text that must come next."""
        if self.ended:
            return []
        tokens = list(self._matcher.compute_ff_tokens())
        self._check()
        return tokens[: self._first_end(tokens)]

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may follow."""
        if self.ended:
            return 0
        count = int(self._matcher.validate_tokens(list(tokens[: self._first_end(tokens)])))
        self._check()
        return count

    def _first_end(self, tokens: Sequence[int]) -> int:
        return next(
            (i for i, token in enumerate(tokens) if token in self._eos or token >= self._vocab_size), len(tokens)
        )

    def advance(self, token: int) -> None:
        """Advance by the next token."""
        if self.ended:
            raise self._error("the text has ended")
        if token in self._eos:
            if not self._matcher.is_accepting():
                raise self._error("the text is not complete")
        elif not self._matcher.consume_token(token):
            self._check()
        self._tokens.append(token)

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens."""
        forgotten = len(self._tokens) - length
        back = forgotten - self.ended if forgotten else 0
        del self._tokens[length:]
        if length == 0:
            self._matcher.reset()
        elif back:
            self._matcher.rollback(back)
        self._check()

    def copy(self) -> LlguidanceGrammar:
        """An independent copy in the same state."""
        return LlguidanceGrammar(self._matcher.deep_copy(), self._vocab_size, self._eos, self._tokens)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise self._error(_reason(self._matcher.get_error()))

    def _error(self, reason: str) -> GrammarError:
        return GrammarError(f"the grammar cannot go on after {len(self._tokens)} tokens of the text: {reason}")

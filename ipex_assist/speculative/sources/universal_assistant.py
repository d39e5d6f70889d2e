"""Universal assisted decoding: an assistant with another tokenizer, by way of the text.

The target's tokens are decoded to text and encoded as the assistant's tokens; its draft takes the same way back.
Source: Timor et al. 2025 (arXiv:2502.05202), "exact match"; transformers' assistant_tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipex_assist.executors.interface import Model
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.tokenization.detokenizer import REPLACEMENT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Tokens before new text that are encoded again, since the tokenizer may merge across the boundary.
OVERLAP = 8
_ANCHOR = "\n"  # put before a fragment, so that tokenizers do not treat it as the beginning of a text


class UniversalAssistant(DraftSource):
    """Drafts greedily, as the sampling noise belongs to the target's tokens and the assistant has others.

    Output does not depend on it, since the target verifies every draft.
    """

    def __init__(
        self,
        model: Model,
        assistant_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        target_vocab_size: int,
        capacity: int,
        draft_vocabulary: int | None = None,
    ) -> None:
        """capacity: nothing is drafted beyond this many of the assistant's tokens."""
        vocab_size = model.spec.vocab_size
        self._model = AssistantModel(model, Sampling(), vocab_size, draft_vocabulary, capacity)
        self._assistant, self._target = FragmentTokenizer(assistant_tokenizer), FragmentTokenizer(target_tokenizer)
        self._target_vocab_size = target_vocab_size
        self._ids: list[int] = []  # the context in the assistant's tokens …
        self._drafted: list[int] = []  # … and the draft that follows it, whose keys and values are cached too
        self._known = 0  # number of target tokens that `_ids` corresponds to

    def unread(self, tokens: Sequence[int]) -> int:
        """Return the unread tokens, counted in the assistant's tokens."""
        self._follow(tokens)
        return max(1, self._model.unread(self._ids))

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Draft at most `k` of the target's tokens; nothing while the text ends inside a character."""
        if not self._follow(tokens) or not self._ids:
            return Proposal([])
        proposal = yield from self._model.steps(self._ids, plan)
        self._drafted = proposal.tokens
        special = self._assistant.special
        end = next((i for i, token in enumerate(self._drafted) if token in special), len(self._drafted))
        text = self._assistant.text_after(self._ids, self._drafted[:end]).rstrip(REPLACEMENT)
        drafted = self._target.tokens_after(tokens, text)[: plan.k]
        end = next((i for i, token in enumerate(drafted) if token >= self._target_vocab_size), len(drafted))
        return Proposal(drafted[:end], read=proposal.read)

    def accept(self, count: int) -> None:
        """Nothing to do: `_follow` sees from the next tokens what was accepted."""

    def _follow(self, tokens: Sequence[int]) -> bool:
        """Bring `_ids` up to date with `tokens`. Returns False if they end inside a character."""
        if self._known == len(tokens):
            return True
        text = self._target.text_after(tokens[: self._known], tokens[self._known :])
        if text.endswith(REPLACEMENT):
            return False
        kept = max(0, len(self._ids) - OVERLAP)
        seam = self._assistant.text(self._ids[kept:])
        ids = self._assistant.tokens(seam + text) if self._ids else self._assistant.first_tokens(text)
        before = self._ids[kept:] + self._drafted
        same = next(
            (i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids))
        )
        self._ids[kept:] = ids
        self._drafted = []
        # Leave the last token unread: a pass needs at least one row.
        self._model.rewind(min(kept + same, len(self._ids) - 1))
        self._known = len(tokens)
        return True


class FragmentTokenizer:
    """Encodes and decodes fragments from the middle of a text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.special = frozenset(tokenizer.all_special_ids)
        self._anchor: list[int] = self._encode(_ANCHOR)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def first_tokens(self, text: str) -> list[int]:
        """Encode a text from its beginning, with special tokens."""
        return list(self._tokenizer(text)["input_ids"]) or self._encode(text)

    def tokens(self, text: str) -> list[int]:
        """Encode a fragment, without special tokens."""
        tokens = self._encode(_ANCHOR + text)
        count = len(self._anchor)
        return tokens[count:] if tokens[:count] == self._anchor else self._encode(text)

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens, including special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def text_after(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        """Return the text that `tokens` add to the text of `before`."""
        context = list(before[-OVERLAP:])
        return self.text([*context, *tokens])[len(self.text(context)) :]

    def tokens_after(self, before: Sequence[int], text: str) -> list[int]:
        """Return the tokens of `text` when it follows the tokens `before`."""
        context = list(before[-OVERLAP:])
        tokens = self.tokens(self.text(context) + text)
        return tokens[len(context) :] if tokens[: len(context)] == context else self.tokens(text)

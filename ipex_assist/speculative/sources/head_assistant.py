"""A draft head as a draft source: it reads the hidden states that its target's passes give."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors import interface
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, LogitsError, Model, Rows, truncate_or_clear
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.speculative.choosing.grammar import Grammar
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.schedule import DraftPlan, longest_draft
from ipex_assist.speculative.sources.batched_proposals import Call, DraftCall, HeadRowsCall, Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.hidden_window import HiddenStates, HiddenWindow
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.step_drafts import Reader, StepDrafts

if TYPE_CHECKING:
    import torch

# Of a request's hidden states that its head has not read, the last are kept: as many as fit into the bytes, within
# these numbers of rows. Up to twice as many wait before the others are dropped.
KEPT_BYTES, FEWEST_KEPT, MOST_KEPT = 4 << 20, 64, 256


READY_ROWS = 16  # of the last tokens, that a head reads after a pause: one pass of the decode path


class HeadAssistant(DraftSource):
    """A head whose row p is (token p + 1, the target's hidden state at p), and predicts token p + 2.

    Its sequence holds rows from position `_start` on, and those before `_true` have the target's hidden states. A draft
    reads the rows that it lacks; rows of drafted tokens are dropped once the target has verified them. Where hidden
    states are missing (a cached prefix has none, those that wait too long are dropped, and in a long pause of drafting
    the target's passes give none but before its last READY_ROWS tokens), the head starts again with the next one, as if
    the text began there.
    """

    may_pause = True

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        vocab_size: int,
        draft_vocabulary: int | None = None,
        capacity: int | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """sampling, vocab_size: the target's. capacity: of prompt and output. The rest is as of an AssistantModel."""
        assert model.spec.head is not None
        self.model, self.spec = model, model.spec.head
        choices = vocab_size if self.spec.draft_vocab_size else min(vocab_size, model.spec.vocab_size)
        self._vocabulary = None if self.spec.draft_vocab_size else min(draft_vocabulary or choices, choices)
        self._drafts = StepDrafts(sampling, self._vocabulary or choices, (), grammar)
        self._chooses = chooses_each(self.spec)
        self._in_one_call = self._drafts.in_one_call(model) if self._chooses else isinstance(model, DraftsInOneCall)
        context = model.spec.context_length
        self._sequence = model.new_sequence(min((capacity or context) + self.spec.block_size, context))
        self._longest = min(longest_draft(model.spec), self.spec.block_size - 1 if self.spec.block_size else 1 << 30)
        self._window, self._most_kept = HiddenWindow(), kept_rows(self.spec)
        self._start = self._true = 0
        self.reads_ahead: bool | None = None  # all rows, as they come; None: not decided yet
        self._keeps_prompt = True  # the last rows of it at least
        self.target: interface.Sequence | None = None  # the request's; some heads attend to its keys and values

    # ---- hidden states

    def keeps_chunk(self, left: int) -> bool:
        """Whether hidden states of a prompt's chunk are of use, after which `left` tokens of it come."""
        return self._keeps_prompt and (self.reads_ahead is not False or left < self._most_kept)

    def skip_prompt(self) -> None:
        """Read nothing of the prompt: the head starts with what is generated, as if the text began there."""
        self.reads_ahead, self._keeps_prompt = False, False

    def observe(self, first: int, rows: HiddenStates) -> bool:
        """Take the target's hidden states at positions from `first` on, in place of any that were there.

        rows: (tokens, input_size). Returns whether more wait than may: then `was_read` or `drop` must follow before the
        target's next pass, which writes to the memory of `rows` again.
        """
        if self.reads_one:
            first, rows = first + len(rows) - 1, rows[-1:]
        too_many = len(rows) > self._most_kept or len(self._window) + len(rows) > 2 * self._most_kept
        self._window.add(first, rows if too_many else rows.copy())
        return too_many

    def drop(self) -> None:
        """Keep only the last of the hidden states that wait."""
        self._window.keep_last(self._most_kept)

    def unread(self, tokens: Sequence[int]) -> int:
        """Return how many rows the next draft reads first: at least 1, since a head is never free."""
        return 1 if self.reads_one else max(1, len(tokens) - 1 - max(self._held, self._window.first))

    def waiting(self, tokens: Sequence[int]) -> Rows | None:
        """Return the rows that wait, as far as `tokens` go, without logits: for a pass, and `was_read` after it."""
        end = min(self._window.end, len(tokens) - 1)
        if self.reads_one or end <= max(self._window.first, self._held):
            return None
        first = self._continue(end)
        return Rows(self._sequence, list(tokens[first + 1 : end + 1]), 0, self._window.rows(first, end))

    def was_read(self) -> None:
        """The pass over the rows of `waiting` has ended."""
        self._true = self._start + self._sequence.length
        self._forget()

    @property
    def first_known(self) -> int:
        """The position of the first row that the head holds or could read."""
        return self._window.first if self._window.first > self._held else self._start

    @property
    def reads_one(self) -> bool:
        """Whether a draft needs the last hidden state alone, which is always that of a row with logits."""
        return self.spec.kind == "shared_kv"

    @property
    def _held(self) -> int:
        """The position after the last row that the sequence holds and that has the target's hidden state."""
        return min(self._start + self._sequence.length, self._true)

    def _continue(self, end: int, most: int | None = None) -> int:
        """Return the first of the rows before `end` to read next; the sequence then ends before it.

        most: start again with the last `most` rows if more are unread. One row at least is left: after a draft that an
        interrupt ended, all of them may have been read.
        """
        kept = max(0, min(self._held, end - 1) - self._start)
        truncate_or_clear(self._sequence, kept)
        self._true = self._start + self._sequence.length
        if self._true < self._window.first or (most is not None and end - self._true > most):
            self._sequence.truncate(0)
            self._start = self._true = max(self._window.first, end - most if most else 0)
        return self._true

    def _forget(self) -> None:
        """Drop hidden states that were read, but for the last one, with which a draft can be made again."""
        self._window.keep_last(max(1, self._window.end - self._held))

    # ---- drafting

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Draft up to `plan.k` tokens; none where the hidden state before the last token is missing."""
        end = len(tokens) - 1
        if not len(self._window) or self._window.end != end:
            return Proposal([])
        first = end - 1 if self.reads_one else self._continue(end, plan.context)
        k = min(plan.k, self._longest, self._sequence.capacity - (0 if self.reads_one else end - self._start))
        if k <= 0:
            return Proposal([])
        hidden, pending = self._window.rows(first, end), list(tokens[first + 1 :])
        self._true = end
        try:
            if self._in_one_call:
                return (yield from self._in_call(tokens, pending, hidden, k, plan.min_confidence))
            read = self._reader(pending, hidden)
            return (yield from self._drafts.draft(tokens, k, plan.min_confidence, read, len(pending)))
        except IpexAssistError:  # for example no free block: the tokens drafted so far are discarded
            self._true = first
            self.accept(0)
            raise

    def _in_call(
        self, tokens: Sequence[int], pending: list[int], hidden: HiddenStates, k: int, min_confidence: float
    ) -> Steps:
        """Draft in one call of the model, or a block in one pass of it."""
        read = pending[-1:] if self.spec.kind == "dflash" else pending
        choice = self._drafts.choice(tokens) if self._chooses else None
        request = DraftInput(self._sequence, read, k, min_confidence, hidden, self.target, choice)
        try:
            drafted, confidence = yield DraftCall(self.model, request, self._vocabulary)
        except LogitsError:
            raise LogitsError("the draft head", len(tokens)) from None
        return Proposal(drafted, confidence, len(pending))

    def _reader(self, unread: list[int], hidden: HiddenStates) -> Reader:
        """Read `unread` first, then drafted tokens, each with the head's own hidden state before it."""
        own: HiddenStates | None = None

        def read(drafted: list[int]) -> Generator[Call, Any, torch.Tensor]:
            nonlocal own
            passes = [] if own is not None else [Rows(self._sequence, unread, 1, hidden)]
            passes += [Rows(self._sequence, [token], 1) for token in drafted]
            for rows in passes:
                call = HeadRowsCall(self.model, rows if own is None else rows._replace(hidden=own), self._vocabulary)
                logits, own = yield call
            return self._of_target(logits)

        return read

    def _of_target(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits (1, vocabulary) by the target's ids, where the head has fewer tokens of its own."""
        if self.spec.draft_vocab_size is None:
            return logits
        wide = logits.new_full((1, self._drafts.choices), -math.inf)
        assert self.model.target_tokens is not None
        wide[:, self.model.target_tokens.tolist()] = logits
        return wide

    def accept(self, count: int) -> None:
        """Drop the rows of drafted tokens: `observe` brings the target's hidden states of those that were accepted."""
        truncate_or_clear(self._sequence, max(0, self._held - self._start))
        self._forget()


def chooses_each(spec: HeadSpec) -> bool:
    """Whether each token can be chosen before the next is drafted; otherwise drafts are greedy, whatever the request.

    A block's tokens are drafted at once; layers with a token each, and a head that reads its target's keys and values,
    draft in one call.
    """
    return spec.kind in ("mtp", "eagle3") and not spec.block_size


def kept_rows(spec: HeadSpec) -> int:
    """How many of a request's last hidden states are kept for its head."""
    return 1 if spec.kind == "shared_kv" else min(max(KEPT_BYTES // (4 * spec.input_size), FEWEST_KEPT), MOST_KEPT)

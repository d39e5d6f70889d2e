"""A target and a draft head without weights, whose hidden states say which tokens they are of: a head checks its rows.

The target's next token is a number made of all tokens before it (`digest`). Its hidden state at position p holds p and
the digest of tokens 0 to p, so that a head which is given the wrong row, or the right one beside the wrong token, or
out of order, fails an assertion; given the right ones it can tell the next token, and errs as often as it is told to.
"""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np
import torch
from model_specs import fake_spec
from numpy.typing import NDArray

from ipex_assist.executors.blocks import BlockPool, NoBlocksError
from ipex_assist.executors.interface import ANY_ROWS, DraftInput, HiddenRows, Model, Rows, check_length, check_rows
from ipex_assist.executors.row_choice import RowChoice, SampledRows
from ipex_assist.models.draft_head import HeadKind, HeadSpec, Taps

VOCAB = 40
MODULUS = 1_000_003  # digests are exact in fp32
WIDTH = 4  # of a hidden state: position, digest, 1 of the target's or 0 of the head's own, nothing
TAPS = Taps((1, 3))
BLOCK_SIZE = 6


def advance(digest: int, token: int) -> int:
    """The digest after one more token."""
    return (digest * 31 + token * 17 + 7) % MODULUS


def digest_of(tokens: abc.Iterable[int]) -> int:
    digest = 1
    for token in tokens:
        digest = advance(digest, token)
    return digest


def logits_of(digest: int, wrong: bool = False) -> NDArray[np.float32]:
    """(vocabulary,): a few likely tokens, whose order a wrong head turns around."""
    row = np.full(VOCAB, -6.0, np.float32)
    for place in range(4):
        token = 3 + (digest // 7**place + 5 * place) % (VOCAB - 3)
        row[token] = (place if wrong else 3 - place) * 1.5
    return row


class FakeSequence:
    """Tokens in blocks of a pool; the fake's keys and values are the tokens themselves, kept by block."""

    def __init__(self, model: FakeModel, capacity: int, blocks: abc.Sequence[int] = ()) -> None:
        self.model, self.capacity, self.length = model, capacity, 0
        self.blocks: list[int] = list(blocks)
        for block in blocks:
            model.blocks.share(block)
        self.length = sum(len(model.stored[block]) for block in blocks)

    @property
    def entries(self) -> list[Any]:
        return [entry for block in self.blocks for entry in self.model.stored[block]][: self.length]

    def blocks_for(self, rows: int) -> int:
        needed = -(-(self.length + rows) // self.model.blocks.size) - len(self.blocks)
        return max(0, needed) + self._writes_to_a_shared_block

    @property
    def _writes_to_a_shared_block(self) -> bool:
        place, filled = divmod(self.length, self.model.blocks.size)
        return bool(filled and self.model.blocks.references(self.blocks[place]) > 1)

    def append(self, entries: abc.Sequence[Any]) -> None:
        pool = self.model.blocks
        check_rows(self, len(entries))
        place, filled = divmod(self.length, pool.size)
        copied = self._writes_to_a_shared_block
        taken = pool.take_many(self.blocks_for(len(entries)))
        if copied:
            old, self.blocks[place] = self.blocks[place], taken.pop()
            self.model.stored[self.blocks[place]] = self.model.stored[old][:filled]
            pool.release(old)
        for block in taken:
            self.model.stored[block] = []
        self.blocks += taken
        for entry in entries:
            block = self.model.stored[self.blocks[self.length // pool.size]]
            del block[self.length % pool.size :]
            block.append(entry)
            self.length += 1

    def truncate(self, length: int) -> None:
        check_length(self, length)
        self.length = length
        kept = -(-length // self.model.blocks.size)
        self.model.blocks.release_many(self.blocks[kept:])
        del self.blocks[kept:]

    def fork(self, length: int | None = None) -> FakeSequence:
        made = FakeSequence(self.model, self.capacity, self.blocks)
        made.truncate(self.length if length is None else length)
        return made

    def __del__(self) -> None:
        self.model.blocks.release_soon(self.blocks)


class FakeModel(Model):
    """What target and head have in common. size: positions of a block; count: blocks."""

    kv_precision = "fp32"
    exact_rows = ANY_ROWS

    def __init__(self, head: HeadSpec | None, count: int, size: int) -> None:
        self._pool = BlockPool(count, size)
        self.stored: dict[int, list[Any]] = {}
        self.calls = 0
        self.spec = fake_spec(VOCAB, layers=1 if head else 3, hidden_size=WIDTH, head=head)

    @property
    def blocks(self) -> BlockPool:
        return self._pool

    def new_sequence(
        self, capacity: int, prompt_length: int | None = None, blocks: abc.Sequence[int] = (), state: Any = None
    ) -> Any:
        return FakeSequence(self, capacity, blocks)

    def reserve(self, wants: abc.Sequence[tuple[Any, int]]) -> None:
        """Raise NoBlocksError before any change, as the interface says."""
        needed = 0
        for sequence, rows in wants:
            check_rows(sequence, rows)
            place, filled = divmod(sequence.length, self._pool.size)
            needed += max(0, -(-(sequence.length + rows) // self._pool.size) - len(sequence.blocks))
            needed += bool(filled and self._pool.references(sequence.blocks[place]) > 1)
        if needed > self._pool.free:
            raise NoBlocksError(needed, self._pool.free, self._pool.count, self._pool.size)


class FakeTarget(FakeModel):
    """samples: whether it has `sample`, as the native core, or returns logits alone."""

    def __init__(self, count: int = 4096, size: int = 16) -> None:
        super().__init__(None, count, size)

    def _append(self, rows: abc.Sequence[Rows], hidden: HiddenRows | None) -> list[int]:
        """Returns the digest after each row of logits."""
        self.calls += 1
        self.reserve([(each.sequence, len(each.tokens)) for each in rows])
        digests, states = [], []
        for each in rows:
            sequence: Any = each.sequence
            first, digest = sequence.length, digest_of(sequence.entries)
            sequence.append(each.tokens)
            for i, token in enumerate(each.tokens):
                digest = advance(digest, token)
                with_logits = i >= len(each.tokens) - each.last
                if with_logits or not (hidden and hidden.of_logit_rows):
                    states.append([first + i, digest, 1, 0] * 2)
                if with_logits:
                    digests.append(digest)
        if hidden is not None:
            assert hidden.taps == TAPS
            hidden.rows = np.array(states, np.float32).reshape(len(states), 2 * WIDTH)
        return digests

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        digests = self._append(rows, hidden)
        logits = [torch.from_numpy(logits_of(digest)) for digest in digests]
        return torch.stack(logits)[:, :vocabulary] if logits else torch.empty(0, VOCAB)


class SamplingTarget(FakeTarget):
    """One that chooses greedy tokens itself."""

    def sample(
        self, rows: abc.Sequence[Rows], choices: abc.Sequence[RowChoice], hidden: HiddenRows | None = None
    ) -> SampledRows:
        logits = self._append(rows, hidden)
        return SampledRows([int(logits_of(digest).argmax()) for digest in logits], [None] * len(logits))


class FakeHead(FakeModel):
    """A head of one kind. wrong: whether it errs after tokens with this digest. seconds: what its calls let go by."""

    def __init__(self, kind: HeadKind = "mtp", wrong: Any = lambda digest: False, count: int = 4096, size: int = 16):
        block = BLOCK_SIZE if kind == "dflash" else 0
        super().__init__(HeadSpec(kind, TAPS, WIDTH, block_size=block), count, size)
        self.wrong, self.kind = wrong, kind

    def _read(self, sequence: Any, hidden: NDArray[np.float32] | None, tokens: abc.Sequence[int]) -> None:
        """Append rows after having checked each. An entry is a position, and the digest of all tokens of the row."""
        assert hidden is not None
        own, entries = hidden.shape[1] == WIDTH, []
        last = sequence.entries[-1] if sequence.length else None
        for i, row in enumerate(hidden):
            position, digest, of_target, _ = (int(number) for number in row[-WIDTH:])
            assert of_target == (not own), "the target's hidden states and the head's own"
            if self.kind == "dflash":
                assert last is None or position == last[0] + 1, (position, last)
                last = position, digest
            else:
                assert last is None or (position, digest) == (last[0] + 1, last[1]), "hidden states of other tokens"
                last = position, advance(digest, tokens[i])
            entries.append(last)
        sequence.append(entries)

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        self.calls += 1
        assert self.kind != "shared_kv"
        assert len({each.hidden.shape[1] for each in rows if each.hidden is not None}) == 1, "rows of two kinds"
        self.reserve([(each.sequence, len(each.tokens)) for each in rows])
        states, logits = [], []
        for each in rows:
            assert each.hidden is not None
            assert len(each.hidden) == len(each.tokens)
            assert not each.last or self.kind != "dflash"
            self._read(each.sequence, each.hidden, each.tokens)
            entries = each.sequence.entries[-len(each.tokens) :]  # type: ignore[attr-defined]
            states += [[position + 1, digest, 0, 0] for position, digest in entries]
            if each.last:
                logits.append(torch.from_numpy(logits_of(entries[-1][1], self.wrong(entries[-1][1]))))
        if hidden is not None:
            hidden.rows = np.array(states, np.float32)
        return torch.stack(logits)[:, :vocabulary] if logits else torch.empty(0, VOCAB)

    def draft(
        self, sequence: Any, tokens: Any, count: int, vocabulary: int | None = None, min_confidence: float = 0.0
    ) -> Any:
        raise AssertionError("a head drafts with hidden states")

    def draft_many(self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None) -> Any:
        self.calls += 1
        if self.kind != "shared_kv":
            self.reserve([(each.sequence, self._rows(each)) for each in requests])
        return [self._draft(each) for each in requests]

    def _rows(self, each: DraftInput) -> int:
        assert each.hidden is not None
        return len(each.hidden) + (0 if self.kind == "dflash" else each.count - 1)

    def _draft(self, each: DraftInput) -> tuple[list[int], list[float]]:
        assert each.hidden is not None
        sequence: Any = each.sequence
        steps = self.kind in ("mtp", "eagle3")
        assert len(each.tokens) == (len(each.hidden) if steps else 1)
        if self.kind == "shared_kv":
            [state], known = each.hidden, each.shared_kv.entries  # type: ignore[union-attr]
            assert (int(state[-4]), int(state[-3])) == (len(known) - 1, digest_of(known)), "the last token but one"
            digest = advance(digest_of(known), each.tokens[0])
        else:
            self._read(sequence, each.hidden, each.tokens)
            digest = sequence.entries[-1][1] if steps else advance(sequence.entries[-1][1], each.tokens[0])
        drafted: list[int] = []
        confidence: list[float] = []
        while True:
            logits = logits_of(digest, self.wrong(digest))
            drafted.append(int(logits.argmax()))
            confidence.append(float(1 / np.exp(logits - logits.max()).sum()))
            if len(drafted) == each.count or confidence[-1] < each.min_confidence:
                return drafted, confidence
            digest = advance(digest, drafted[-1])
            if steps:
                sequence.append([(sequence.entries[-1][0] + 1, digest)])

"""Draft heads whose drafted tokens have a layer each (MTP with several layers): heads of one layer, run in turn."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ipex_assist.executors.adapters import AdapterChoice
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import (
    ALL_THREADS,
    DraftInput,
    FewerThreads,
    HiddenRows,
    LogitsError,
    Model,
    PassThreads,
    Rows,
    Sequence,
    Tokens,
    check_length,
    check_rollback,
    check_rows,
)
from ipex_assist.models.draft_head import HeadSpec

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from ipex_assist.executors.adapters import AdapterChoice
    from ipex_assist.executors.recurrent_states import RecurrentState

    Hidden = NDArray[np.float32]
    Draft = tuple[list[int], list[float]]

KEPT_ROWS = 16  # of each layer's outputs, which the next one may have to read again after tokens were rejected


class ChainSequence:
    """A sequence of each layer's. Layer k reads, at position p, token p + 1 + k, so it has read k positions fewer.

    What it reads next is the output of the layer before it at that position, which is kept.
    """

    def __init__(self, parts: abc.Sequence[Sequence]) -> None:
        """parts: a sequence of each layer's model, empty."""
        self.parts, self.length, self.capacity = list(parts), 0, parts[0].capacity
        self._outputs: list[tuple[int, Hidden | None]] = [(0, None)] * (len(self.parts) - 1)  # from a position on

    @property
    def settled(self) -> int:
        """The fewest tokens that it can be truncated to, but for 0: those whose outputs and states are still there."""
        states = [getattr(part, "settled", 0) for part in self.parts]  # which have read drafted tokens, too
        settled = [*enumerate(states), *enumerate((first for first, _ in self._outputs), 1)]
        return max((first + layer for layer, first in settled if first), default=0)

    def output(self, layer: int) -> Hidden | None:
        """What `layer` reads first, the output (1, hidden) of the one before it; None where it has read nothing."""
        position, (first, rows) = self.length - layer, self._outputs[layer - 1]
        return None if position < 0 or rows is None else rows[position - first : position - first + 1]

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        check_length(self, length)
        check_rollback(length, self.settled)
        self.length = length
        for layer, part in enumerate(self.parts):
            part.truncate(min(part.length, max(0, length - layer)))
        for layer, (first, rows) in enumerate(self._outputs):
            kept = max(0, length - layer)
            self._outputs[layer] = (0, None) if kept <= first or rows is None else (first, rows[: kept - first])

    def read(self, count: int, outputs: abc.Sequence[Hidden | None]) -> None:
        """`count` tokens were read, and each layer gave `outputs` for the positions that it read; some are no more."""
        starts = [max(0, self.length - layer) for layer in range(len(self.parts))]
        self.length += count
        for layer, part in enumerate(self.parts):
            part.truncate(min(part.length, max(0, self.length - layer)))
        for layer, (_, rows) in enumerate(self._outputs):
            new, end = outputs[layer], max(0, self.length - layer)
            new = None if new is None else new[: end - starts[layer]]
            all_rows = [each for each in (rows, new) if each is not None and len(each)]
            if not all_rows:
                continue
            whole = np.concatenate(all_rows)[-KEPT_ROWS:]
            self._outputs[layer] = end - len(whole), whole

    def fork(self, length: int | None = None) -> ChainSequence:
        """A sequence with the same tokens, up to `length`."""
        made = ChainSequence([part.fork() for part in self.parts])
        made.length, made._outputs = self.length, list(self._outputs)
        if length is not None:
            made.truncate(length)
        return made


@dataclass
class _Asked:
    """What is read and drafted for one sequence."""

    sequence: ChainSequence
    tokens: Tokens
    hidden: Hidden
    count: int
    min_confidence: float = 0.0
    drafted: list[int] = field(default_factory=list)
    likely: list[float] = field(default_factory=list)
    outputs: list[Hidden | None] = field(default_factory=list)

    def drafts(self, layer: int) -> bool:
        """Whether a layer drafts a token."""
        if layer >= self.count or len(self.drafted) < layer:
            return False
        return layer == 0 or (self.drafted[-1] >= 0 and self.likely[-1] >= self.min_confidence)

    def rows(self, layer: int) -> Rows | None:
        """What a layer reads; None where it knows no further token."""
        length = self.sequence.length
        start, end = max(0, length - layer), length + len(self.tokens)
        drafts = self.drafts(layer)
        tokens = [*self.tokens, *self.drafted[:layer]][max(0, layer - length) :]
        tokens = tokens[: end - start] if drafts else tokens[: max(0, end - layer - start)]
        if not tokens:
            return None
        given: list[Hidden | None] = [self.hidden]
        if layer > 0:
            given = [self.sequence.output(layer), self.outputs[layer - 1]]
        hidden = np.concatenate([each for each in given if each is not None])[: len(tokens)]
        return Rows(self.sequence.parts[layer], tokens, int(drafts), hidden)

    def choose(self, logits: NDArray[np.float32]) -> None:
        """Note the likeliest token by logits (vocab,)."""
        if not np.isfinite(logits).all():
            self.drafted.append(-1)
            self.likely.append(float("nan"))
            return
        token = int(logits.argmax())
        self.drafted.append(token)
        self.likely.append(float(1 / np.exp(logits - logits[token]).sum()))


class LayerChain(Model):
    """Token i of a draft is that of layer i, whose rows are the outputs of the layer before it and one token later.

    A layer reads again what it read with drafted tokens, as soon as the target has said which they are. So a draft
    depends on its text alone, as in transformers' MtpModel. Every draft costs a pass of each layer, like a block's.
    """

    def __init__(self, layers: abc.Sequence[Model]) -> None:
        """layers: heads of kind "mtp", in the order of their tokens."""
        self.layers = list(layers)
        first = layers[0].spec
        assert first.head is not None
        self.head_spec: HeadSpec = replace(first.head, block_size=len(layers) + 1)
        self.spec = replace(first, layers=tuple(each for layer in layers for each in layer.spec.layers))
        self.spec = replace(self.spec, head=self.head_spec)
        self.kv_precision = layers[0].kv_precision

    @property
    def exact_rows(self) -> int:
        """That of each layer."""
        return self.layers[0].exact_rows

    @property
    def experts_read(self) -> int:
        """Of the last passes of all layers."""
        return sum(layer.experts_read for layer in self.layers)

    @property
    def blocks(self) -> BlockPool | None:
        """The first layer's: others have as many."""
        return self.layers[0].blocks

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """Those of a layer; a single one where there is no choice."""
        first = self.layers[0]
        return first.thread_choices if isinstance(first, FewerThreads) else (0,)

    @property
    def pass_threads(self) -> PassThreads:
        """Those of a layer."""
        first = self.layers[0]
        return first.pass_threads if isinstance(first, FewerThreads) else ALL_THREADS

    @pass_threads.setter
    def pass_threads(self, threads: PassThreads) -> None:
        for layer in self.layers:
            if isinstance(layer, FewerThreads):
                layer.pass_threads = threads

    def use_threads(self, number: int) -> None:
        """Run all decode passes of all layers on `number` threads from now on."""
        for layer in self.layers:
            if isinstance(layer, FewerThreads):
                layer.use_threads(number)

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
        adapter: AdapterChoice | None = None,
        images: PromptImages | None = None,
    ) -> ChainSequence:
        """A sequence that may hold up to `capacity` tokens."""
        assert not blocks
        assert state is None
        assert adapter is None, "drafts are the base model's"
        assert images is None, "and of tokens"
        return ChainSequence([layer.new_sequence(capacity, prompt_length) for layer in self.layers])

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        """Append tokens to each sequence, without logits: tokens beyond these are drafted by `draft_many` alone."""
        assert hidden is None, "hidden states of a chain"
        assert not any(each.last for each in rows), "logits of a chain"
        self._run([self._asked(each.sequence, each.tokens, each.hidden, 0) for each in rows], vocabulary)
        from ipex_assist.deferred_imports import torch_module

        return torch_module().empty(0, self.spec.lm_head_rows)

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
        hidden: Hidden | None = None,
    ) -> Draft:
        """`draft_many` of one sequence. Raises LogitsError."""
        before = sequence.length
        [(drafted, likely)] = self.draft_many([DraftInput(sequence, tokens, count, min_confidence, hidden)], vocabulary)
        if drafted[-1] < 0:
            raise LogitsError("the draft head", before + len(tokens) + len(drafted) - 1)
        return drafted, likely

    def draft_many(self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None) -> list[Draft]:
        """Read tokens and draft up to `count`, as many as there are layers at most; see executors/interface.py.

        Drafted tokens are not in the sequence after it.
        """
        asked = [
            self._asked(each.sequence, each.tokens, each.hidden, each.count, each.min_confidence) for each in requests
        ]
        self._run(asked, vocabulary)
        return [(each.drafted, each.likely) for each in asked]

    def _asked(
        self, sequence: Sequence, tokens: Tokens, hidden: Hidden | None, count: int, min_confidence: float = 0.0
    ) -> _Asked:
        assert isinstance(sequence, ChainSequence), f"a sequence of {type(sequence).__name__}"
        assert hidden is not None, "a draft head without hidden states"
        assert tokens
        assert len(hidden) == len(tokens), f"{len(hidden)} hidden states of {len(tokens)} tokens"
        assert count <= len(self.layers), f"{count} tokens of {len(self.layers)} layers"
        check_rows(cast(Sequence, sequence), len(tokens))
        return _Asked(sequence, tokens, hidden, count, min_confidence)

    def _run(self, asked: abc.Sequence[_Asked], vocabulary: int | None) -> None:
        """A pass of each layer in turn. Sequences are as they were where one fails."""
        try:
            for layer in range(len(self.layers)):
                self._run_layer(layer, asked, vocabulary)
        except BaseException:
            for each in asked:
                each.sequence.read(0, [None] * len(self.layers))
            raise
        for each in asked:
            each.sequence.read(len(each.tokens), each.outputs)

    def _run_layer(self, layer: int, asked: abc.Sequence[_Asked], vocabulary: int | None) -> None:
        model = self.layers[layer]
        found = [(each, rows) for each in asked if (rows := each.rows(layer)) is not None]
        for each in asked:
            each.outputs.append(None)
        if not found:
            return
        own = HiddenRows(self.head_spec.fed_back(model.spec.num_hidden_layers))
        logits = model.forward([rows for _, rows in found], vocabulary, own)
        assert own.rows is not None
        numbers: NDArray[np.float32] = logits.float().numpy()
        row = first = 0
        for each, rows in found:
            each.outputs[layer] = own.rows[first : first + len(rows.tokens)].copy()
            first += len(rows.tokens)
            if rows.last:
                each.choose(numbers[row])
                row += 1

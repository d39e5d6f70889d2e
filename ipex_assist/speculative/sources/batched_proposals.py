"""Drafting for one request or several: their sources run as generators, whose model calls are batched."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, LogitsError, Model, Rows
from ipex_assist.models.draft_head import Taps
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.speculative.sources.proposal import Proposal

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray


Answer: TypeAlias = (
    "tuple[list[int], list[float]] | torch.Tensor | tuple[torch.Tensor, NDArray[np.float32]] | IpexAssistError"
)


@dataclass(frozen=True)
class DraftCall:
    """Asks a model for drafted tokens with ids below `vocabulary`; answered with tokens and confidences."""

    model: Model
    request: DraftInput
    vocabulary: int | None

    def together(self, calls: Sequence[DraftCall]) -> list[Answer]:
        """Answer several such calls to one model in shared passes."""
        assert isinstance(self.model, DraftsInOneCall)
        requests = [call.request for call in calls]
        if len(calls) == 1 and self.request.hidden is None and self.request.choice is None:
            asked = self.request
            return [self.model.draft(asked.sequence, asked.tokens, asked.count, self.vocabulary, asked.min_confidence)]
        drafts = self.model.draft_many(requests, self.vocabulary)
        return [
            LogitsError("the model", request.sequence.length) if draft[0][-1] < 0 else draft
            for request, draft in zip(requests, drafts, strict=True)
        ]


@dataclass(frozen=True)
class RowsCall:
    """Asks a model to read tokens; answered with the logits (1, vocabulary) of the last one."""

    model: Model
    rows: Rows
    vocabulary: int

    def together(self, calls: Sequence[RowsCall]) -> list[Answer]:
        """Answer several such calls in one pass."""
        return list(self.model.forward([call.rows for call in calls], self.vocabulary).split(1))


@dataclass(frozen=True)
class HeadRowsCall:
    """A RowsCall to a draft head; answered with the logits, and the head's own hidden state (1, hidden_size)."""

    model: Model
    rows: Rows
    vocabulary: int | None

    @property
    def width(self) -> int:
        """Of its hidden states: those of a pass are all the target's, or all the head's own."""
        assert self.rows.hidden is not None
        return self.rows.hidden.shape[1]

    def together(self, calls: Sequence[HeadRowsCall]) -> list[Answer]:
        """Answer several such calls in one pass."""
        hidden = HiddenRows(own_taps(self.model.spec))
        logits = self.model.forward([call.rows for call in calls], self.vocabulary, hidden).split(1)
        assert hidden.rows is not None
        ends = accumulate(len(call.rows.tokens) for call in calls)
        return [(row, hidden.rows[end - 1 : end].copy()) for row, end in zip(logits, ends, strict=True)]


def own_taps(spec: DecoderSpec) -> Taps:
    """The hidden state of a draft head that takes the place of its target's for tokens that it drafted."""
    assert spec.head is not None
    return spec.head.fed_back(spec.num_hidden_layers)


Call: TypeAlias = "DraftCall | RowsCall | HeadRowsCall"
Steps: TypeAlias = "Generator[Call, Any, Proposal]"


def propose_alone(steps: Steps) -> Proposal:
    """Run a proposal's generator to its end, answering its calls one by one."""
    call = _begun(steps)
    while not isinstance(call, Proposal):
        call = _answered(steps, _answer([call])[0])
    return call


def propose_together(making: Sequence[Steps]) -> list[Proposal | IpexAssistError]:
    """Return the proposals of several requests, of each by its source's generator.

    The error of a source that fails takes its proposal's place, nothing is raised.

    A source without free blocks for its model proposes nothing.
    """
    at: list[Call | Proposal | IpexAssistError] = [_caught(lambda each=each: _begun(each)) for each in making]  # type: ignore[misc]
    while waiting := [index for index, call in enumerate(at) if isinstance(call, (DraftCall, RowsCall, HeadRowsCall))]:
        for group in _groups(at, waiting):
            answers = _answer([at[index] for index in group])  # type: ignore[misc]
            for index, answer in zip(group, answers, strict=True):
                at[index] = _caught(lambda index=index, answer=answer: _answered(making[index], answer))  # type: ignore[misc]
    return [Proposal([]) if isinstance(each, NoBlocksError) else each for each in at]  # type: ignore[misc]


def _groups(at: Sequence[Any], waiting: Sequence[int]) -> list[list[int]]:
    """Group the calls that can be answered together: of one kind, to one model, with the same vocabulary."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index in waiting:
        call = at[index]
        width = call.width if isinstance(call, HeadRowsCall) else 0
        groups.setdefault((type(call), id(call.model), call.vocabulary, width), []).append(index)
    return list(groups.values())


def _answer(calls: Sequence[Any]) -> list[Any]:
    """Return the calls' answers. If they fail together, each is tried alone and answered with its own error."""
    try:
        return list(calls[0].together(calls))
    except IpexAssistError as error:
        if len(calls) == 1:
            return [_without_frames(error)]
    return [_answer([call])[0] for call in calls]


def _begun(steps: Steps) -> Call | Proposal:
    try:
        return next(steps)
    except StopIteration as end:
        return _proposal(end)


def _answered(steps: Steps, answer: Any) -> Call | Proposal:
    try:
        return steps.throw(answer) if isinstance(answer, IpexAssistError) else steps.send(answer)
    except StopIteration as end:
        return _proposal(end)


def _proposal(end: StopIteration) -> Proposal:
    assert isinstance(end.value, Proposal)
    return end.value


def _caught(run: Callable[[], Call | Proposal]) -> Call | Proposal | IpexAssistError:
    try:
        return run()
    except IpexAssistError as error:
        return _without_frames(error)


def _without_frames(error: IpexAssistError) -> IpexAssistError:
    """An error that is kept as a value: its frames hold sequences, and with them blocks that others wait for."""
    error.__context__ = None
    return error.with_traceback(None)

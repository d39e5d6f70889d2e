"""One pass of the target, and what each request gets from it: its tokens, and logits where it asked for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.executors.interface import HiddenRows, LogitsError, Meanwhile, Model, Rows, samples_in_one_call
from ipex_assist.speculative.choosing.logprobs import of_rows
from ipex_assist.speculative.choosing.row_choices import PlannedChoices, likeliest, plan_choices
from ipex_assist.speculative.choosing.sampling import Row
from ipex_assist.speculative.choosing.verify import choices
from ipex_assist.speculative.sources.hidden_window import HiddenStates

if TYPE_CHECKING:
    import torch


class RequestOutput(NamedTuple):
    """What a pass computed for a request.

    tokens: the target's choice after each row that decides, lazily: verification may end before the last. logits:
    (vocab,) of each row with logits, in order; empty where the request needs none. hidden: (rows, taps · hidden_size)
    of its rows from number `hidden_start` on, where its draft source reads them.
    """

    tokens: Iterable[int]
    logits: Sequence[Row | None]
    hidden: HiddenStates | None = None
    hidden_start: int = 0

    def hidden_before(self, row: int) -> HiddenStates | None:
        """Hidden states of the rows from `hidden_start` on, before this one."""
        return None if self.hidden is None else self.hidden[: max(0, row - self.hidden_start)]


@dataclass(frozen=True)
class PlannedPass:
    """Which rows a pass has, and how the token after each of them is chosen; made before the pass.

    planned: None where the target returns logits. hidden: what draft heads read of the pass; None without one.
    """

    target: Model
    batch: Sequence[ScheduledRequest]
    rows: Sequence[Rows]
    planned: list[PlannedChoices] | None
    hidden: HiddenRows | None = None

    @classmethod
    def of(cls, target: Model, batch: Sequence[ScheduledRequest], rows: Sequence[Rows]) -> PlannedPass:
        """Plan a pass of `target` over the rows of each request of the batch."""
        heads = (scheduled.head for scheduled in batch if scheduled.request.draft is not None)
        hidden = next((HiddenRows(head.spec.taps, head.reads_one) for head in heads if head is not None), None)
        if not samples_in_one_call(target):
            return cls(target, batch, rows, None, hidden)
        width = target.spec.lm_head_rows
        return cls(target, batch, rows, [_planned(*each, width) for each in zip(batch, rows, strict=True)], hidden)

    def run(self, meanwhile: Meanwhile | None = None) -> list[RequestOutput]:
        """Run the pass. Returns the output of each request of the batch. meanwhile: called while it runs."""
        outputs = self._run(meanwhile)
        if self.hidden is None:
            return outputs
        assert self.hidden.rows is not None
        starts = [len(each.tokens) - each.last if self.hidden.of_logit_rows else 0 for each in self.rows]
        counts = [len(each.tokens) - start for each, start in zip(self.rows, starts, strict=True)]
        parts = [self.hidden.rows[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
        return [
            output._replace(hidden=part, hidden_start=start)
            for output, part, start in zip(outputs, parts, starts, strict=True)
        ]

    def _run(self, meanwhile: Meanwhile | None) -> list[RequestOutput]:
        taps: dict[str, Any] = {} if self.hidden is None else {"hidden": self.hidden}
        if self.planned is None:
            while meanwhile is not None and meanwhile():
                pass
            logits = self.target.forward(self.rows, **taps)
            parts = logits.split([each.last for each in self.rows])
            return [_of_logits(scheduled, part) for scheduled, part in zip(self.batch, parts, strict=True)]
        assert samples_in_one_call(self.target)
        if meanwhile is not None:
            taps["meanwhile"] = meanwhile
        found = self.target.sample(self.rows, [choice for planned in self.planned for choice in planned.rows], **taps)
        if all(len(planned.rows) == 1 for planned in self.planned):  # steps, and ends of prompts
            taken = zip(self.planned, found.tokens, found.logits, strict=True)
            return [RequestOutput(planned.tokens((token,)), (row,)) for planned, token, row in taken]
        outputs, first = [], 0
        for scheduled, planned in zip(self.batch, self.planned, strict=True):
            end = first + len(planned.rows)
            deciding = max(first, end - 1 - len(scheduled.proposal.tokens))
            outputs.append(RequestOutput(planned.tokens(found.tokens[deciding:end]), found.logits[first:end]))
            first = end
        return outputs


def _planned(scheduled: ScheduledRequest, rows: Rows, width: int) -> PlannedChoices:
    """The choices after a request's rows with logits; those after prompt tokens are not asked for."""
    request = scheduled.request
    keep = request.logprobs is not None or (scheduled.is_prefill and request.needs_prompt_logits)
    if not scheduled.reads_all_pending:
        return likeliest(rows.last, keep)
    if request.takes_likeliest and not scheduled.is_prefill:
        return likeliest(rows.last, keep)
    planned = plan_choices(
        request.sampling,
        request.tokens,
        scheduled.proposal.tokens,
        seen=request.seen_tokens(width),
        grammar=request.grammar,
        keep_logits=keep,
    )
    if rows.last > len(planned.rows):  # of prompt tokens, which are not asked for
        before = likeliest(rows.last - len(planned.rows), keep)
        return planned._replace(rows=[*before.rows, *planned.rows])
    return planned


def _of_logits(scheduled: ScheduledRequest, logits: torch.Tensor) -> RequestOutput:
    request, drafted = scheduled.request, scheduled.proposal.tokens
    deciding = logits[max(0, len(logits) - 1 - len(drafted)) :]
    keep = request.needs_prompt_logits or request.logprobs is not None
    listed = [row.float().numpy() for row in logits] if keep else []
    return RequestOutput(choices(deciding, request.sampling, request.tokens, drafted, request.grammar), listed)


def add_prompt_logprobs(request: Request, count: int, output: RequestOutput) -> None:
    """Add the log-probabilities of the prompt tokens that follow the last `count` rows. Raises LogitsError.

    Rows that a preempted request reads again are not added twice.
    """
    assert request.sequence is not None
    first = request.sequence.length - count  # the position of the first row
    known = len(request.prompt_choices) - first
    following = request.tokens[first + 1 : min(request.prompt_length, first + count + 1)]
    found = of_rows(output.logits[known:], following[known:], request.prompt_logprobs) or []
    wrong = next((place for place, each in enumerate(found) if math.isnan(each.log_probability)), None)
    if wrong is not None:
        raise LogitsError("the target", first + known + wrong + 1)
    request.prompt_choices += found

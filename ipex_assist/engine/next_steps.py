"""The next pass, where it is a step of the requests of this one: put together while this one runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.executors.interface import Meanwhile, Model, PreparesSteps, RunSteps
from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.speculative.choosing.row_choices import likeliest, plan_choices

OPEN = (0,)  # stands for the token that the running pass chooses


@dataclass(eq=False)
class PreparedPass:
    """A pass that was put together before it was known that it comes.

    drafting: any of its requests might have drafts in it. takes: give each request a token. fewest: output tokens that
    may come of each request at least, with the one of this pass. eos: tokens that may end one of them. tokens: of each,
    after the pass.
    """

    batch: list[ScheduledRequest]
    requests: list[Request]
    run: RunSteps
    drafting: bool
    takes: list[Callable[[int], None]]
    fewest: int
    eos: frozenset[int]
    tokens: list[int] = field(default_factory=list)

    @property
    def ends_nothing(self) -> bool:
        """Whether no token is the last of its request."""
        return self.fewest > 1 and self.eos.isdisjoint(self.tokens)


class NextSteps:
    """Plain steps of the same requests, as nearly all passes of many streams are.

    What is not known before the end of the running pass is its tokens, and whether a request ends, comes or leaves:
    then what was prepared is dropped.
    """

    def __init__(self, target: Model) -> None:
        self._target = target if isinstance(target, PreparesSteps) else None
        self._width = target.spec.lm_head_rows
        self._prepared: PreparedPass | None = None
        self._taken: PreparedPass | None = None  # of the running pass; released beside it

    def drop(self) -> None:
        """Forget what was prepared."""
        self._prepared = self._taken = None

    def prepared(self, requests: list[Request]) -> list[ScheduledRequest]:
        """Their shares in the next pass, if the last one was of the same requests and prepared it; else none."""
        if self._prepared is None or self._prepared.requests != requests:
            return []
        if self._prepared.drafting:
            for each in self._prepared.batch:
                each.remaining, each.rests = each.request.remaining, False
        return self._prepared.batch

    def run(self, batch: Sequence[ScheduledRequest], meanwhile: Meanwhile | None) -> PreparedPass | None:
        """Run the pass of `batch` as prepared, and prepare its successor; returns it with its tokens.

        None where it was not prepared, or is not of plain steps alone any more.
        """
        made = self._prepared
        if made is None or meanwhile is None or batch is not made.batch:
            return None
        if made.drafting and not all(each.is_plain_step for each in batch):
            return None
        found = made.run([request.tokens[-1] for request in made.requests], self.beside(batch, meanwhile))
        if found is None:
            return None
        made.tokens, self._taken = found.tokens, made
        return made

    def beside(self, batch: Sequence[ScheduledRequest], meanwhile: Meanwhile) -> Meanwhile:
        """What is to be called while a pass of `batch` runs, in place of `meanwhile`."""
        self._prepared = None
        if self._target is None:
            return meanwhile
        done = False

        def prepare_and_go_on() -> bool:
            nonlocal done
            if not done:
                self._prepared, self._taken, done = self._prepare(list(batch)), None, True
            return meanwhile()

        return prepare_and_go_on

    def _prepare(self, batch: list[ScheduledRequest]) -> PreparedPass | None:
        assert self._target is not None
        if not all(each.is_plain_step and each.request.remaining > 1 for each in batch):
            return None
        requests = [each.request for each in batch]
        run = self._target.prepare_steps([self._choice(request) for request in requests])
        if run is None:
            return None
        return PreparedPass(
            batch,
            requests,
            run,
            drafting=any(request.draft is not None for request in requests),
            takes=[request.tokens.append for request in requests],
            fewest=min([request.remaining for request in requests]) - 1,
            eos=frozenset[int]().union(*{request.eos for request in requests}),
        )

    def _choice(self, request: Request) -> RowChoice:
        """How the token after the one that the running pass chooses is chosen."""
        if request.takes_likeliest:
            return likeliest(1, keep_logits=False).rows[0]
        request.seen, request.seen_before = request.seen_before, request.seen  # the core reads the edits of the one
        seen = request.seen_tokens(self._width)
        return plan_choices(request.sampling, request.tokens, OPEN, seen=seen).rows[1]

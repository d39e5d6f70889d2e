"""The requests of an engine, and its passes: who takes part, what is drafted, what comes of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ipex_assist.engine.chunks import ChunkSizes
from ipex_assist.engine.limits import EngineLimits
from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.request import Request
from ipex_assist.engine.room import Room
from ipex_assist.engine.shared_costs import SharedCosts
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import ANY_ROWS, Choice, ChoosesInOneCall, Model, Rows
from ipex_assist.speculative.draft import Proposal
from ipex_assist.speculative.logprobs import of_rows
from ipex_assist.speculative.propose import Asked, propose_together
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import RoundResult
from ipex_assist.speculative.verify import choices, verify

if TYPE_CHECKING:
    import torch

Clock = Callable[[], float]
Answers: TypeAlias = "list[Choice] | torch.Tensor"  # of a pass: a choice a row, or logits (rows, vocab)
UNSHARED_REQUESTS = 8  # at a time, of a model whose passes are of one text each


@dataclass
class Part:
    """What a pass holds of one request: so many of its pending tokens, then drafted ones."""

    request: Request
    pending: int
    proposal: Proposal
    remaining: int  # before the pass

    @property
    def whole(self) -> bool:
        """Whether all pending tokens are in it, so that the text goes on."""
        return self.pending == self.request.pending

    @property
    def reads(self) -> bool:
        """Whether it is of a prompt, or of a text that is read again."""
        return self.pending > 1 or not self.request.begun

    def rows(self) -> Rows:
        """Return the tokens, and of how many logits are wanted."""
        assert self.request.sequence is not None
        tokens = [*self.request.unread(self.pending), *self.proposal.tokens]
        return Rows(self.request.sequence, tokens, len(self.proposal.tokens) + 1 if self.whole else 0)


class Work:
    """Requests that wait and that run. One thread uses it at a time."""

    def __init__(
        self, target: Model, limits: EngineLimits, prefixes: Prefixes | None, stats: EngineStats, clock: Clock
    ) -> None:
        self.target, self.limits, self.stats, self.clock = target, limits, stats, clock
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.costs: SharedCosts | None = None
        self.room = Room(target, prefixes)
        self._chunks = ChunkSizes(limits)

    @property
    def busy(self) -> bool:
        """Whether any request is under way."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Take in a request; it runs as soon as there is room."""
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """End a request that may be anywhere, or over."""
        if request.over:
            return
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)
        self.stats.cancelled += 1
        request.ended(request)
        request.finish()

    def end_all(self) -> None:
        """Cancel everything."""
        for request in [*self.running, *self.waiting]:
            self.cancel(request)

    def step(self) -> bool:
        """Run one pass of the target. False where there is nothing to do.

        A request that fails ends by its error; where a pass of several fails, each is tried alone, so that only the one
        that is at fault does.
        """
        self._admit()
        self.stats.running, self.stats.waiting = len(self.running), len(self.waiting)
        self.stats.most_running = max(self.stats.most_running, len(self.running))
        if not self.running:
            return False
        try:
            self._run(list(self.running))
        except Exception as error:
            self._settle()
            if len(self.running) == 1:
                self._fail(self.running[0], error)
            else:
                self._run_alone()
        except BaseException:  # an interrupt: what is under way goes on when somebody asks again
            self._settle()
            raise
        return True

    def _settle(self) -> None:
        for request in self.running:
            request.settle()

    def _run_alone(self) -> None:
        for request in list(self.running):
            try:
                self._run([request])
            except Exception as error:
                request.settle()
                self._fail(request, error)

    def _admit(self) -> None:
        # Rows of several texts that pass one after the other win nothing, and each text takes its memory as a whole.
        most = self.limits.requests if self.target.blocks is not None else min(self.limits.requests, UNSHARED_REQUESTS)
        while self.waiting and len(self.running) < most:
            request = self.waiting[0]
            if self.running and not self.room.admits(request):
                return
            self.waiting.popleft()
            try:
                self.stats.prefix_tokens += self.room.begin(request)
                request.draft = request.new_draft()
            except IpexAssistError as error:
                self._fail(request, error)
            else:
                self.running.append(request)

    def _run(self, requests: list[Request]) -> None:
        going = [request for request in requests if request.begun and request.pending == 1]
        reading = [request for request in requests if request not in going]
        chunk = self._chunk_rows(len(going))
        parts = [Part(request, 1, Proposal([]), request.remaining) for request in going]
        for request in sorted(reading, key=lambda each: each.number):
            if chunk <= 0:
                break
            parts.append(Part(request, min(chunk, request.pending), Proposal([]), request.remaining))
            chunk -= parts[-1].pending
        draft_s = self._draft(parts[: len(going)], sum(part.pending for part in parts[len(going) :]))
        parts = self._make_room(parts)
        if parts:
            self._pass(parts, draft_s)

    def _chunk_rows(self, going: int) -> int:
        if self.target.exact_rows < ANY_ROWS:  # whose prompts must pass as a whole
            return 1 << 30
        return self._chunks.rows(going, self._pass_s)

    @property
    def _pass_s(self) -> float | None:
        """Seconds of a pass in which nothing is drafted; None where no schedule measures."""
        return None if self.costs is None else self.costs.pass_s

    def _draft(self, parts: list[Part], others: int) -> float:
        """Let every text that goes on draft as its schedule says; returns the seconds that took."""
        drafters = [part for part in parts if part.request.draft is not None and part.remaining > 1]
        if self.costs is not None:
            self.costs.share(len(parts), len(drafters), others)
        if not drafters:
            return 0.0
        started = self.clock()
        asked = []
        for part in drafters:
            request = part.request
            plan = request.schedule.plan(request.state())
            k = min(plan.k, part.remaining - 1)
            if k > 0 and request.draft is not None:
                asked.append((part, Asked(request.draft, request.tokens, k, plan)))
        for (part, _), proposal in zip(asked, propose_together([each for _, each in asked]), strict=True):
            if isinstance(proposal, IpexAssistError):
                self._fail(part.request, proposal)
                continue
            part.proposal = part.request.proposal = proposal
        return self.clock() - started

    def _make_room(self, parts: list[Part]) -> list[Part]:
        """Return the parts for which there are blocks: drafts go first, then the youngest request is put back."""
        parts = [part for part in parts if not part.request.over]
        if self.room.make(sum(self.room.needs(part.rows()) for part in parts)):
            return parts
        for part in parts:
            part.request.settle()
            part.proposal = Proposal([])
        while len(parts) > 1 and not self.room.make(sum(self.room.needs(part.rows()) for part in parts)):
            youngest = max(parts, key=lambda part: part.request.number)
            parts.remove(youngest)
            self._put_back(youngest.request)
        return parts

    def _put_back(self, request: Request) -> None:
        """Give up a request's memory; it is computed again later."""
        request.settle()
        self._leave(request)
        self.stats.preempted += 1
        at = next((i for i, other in enumerate(self.waiting) if other.number > request.number), len(self.waiting))
        self.waiting.insert(at, request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.room.keep(request)
        request.release()

    def _fail(self, request: Request, error: Exception) -> None:
        if request in self.running:
            self.running.remove(request)
        self.stats.failed += 1
        request.ended(request)
        request.finish(error)

    def _pass(self, parts: list[Part], draft_s: float) -> None:
        rows = [part.rows() for part in parts]
        started = self.clock()
        answers = self._answers(parts, rows)
        seconds = self.clock() - started
        count = sum(len(each.tokens) for each in rows)
        self.stats.count_pass(count, seconds)
        self.stats.draft_s += draft_s
        self._learn(parts, count, seconds, draft_s)
        shares = self._shares(parts, seconds, draft_s)
        place = 0
        for part, each, share in zip(parts, rows, shares, strict=True):
            part.request.prompt_s += 0.0 if part.request.begun else seconds
            self.stats.prompt_tokens += part.pending if part.reads else 0
            if each.last:
                self._go_on(part, answers[place : place + each.last], seconds, draft_s, share)
            place += each.last

    def _answers(self, parts: list[Part], rows: list[Rows]) -> Answers:
        """Run the pass: what is likeliest behind each row, where no text's choice needs more, else the rows' logits."""
        wanting = [part.request for part, each in zip(parts, rows, strict=True) if each.last]
        if isinstance(self.target, ChoosesInOneCall) and all(request.takes_likeliest for request in wanting):
            return self.target.choose(rows)
        return self.target.forward(rows)

    def _learn(self, parts: list[Part], rows: int, seconds: float, draft_s: float) -> None:
        """Hear what the pass took."""
        read = sum(part.pending for part in parts if part.reads)
        going = sum(not part.reads for part in parts)
        self._chunks.observe(read, going, seconds, self._pass_s)
        if self.costs is not None and not read and going > 1:
            self.costs.observe_pass(rows, seconds, [len(part.proposal.tokens) for part in parts], draft_s)

    def _shares(self, parts: list[Part], seconds: float, draft_s: float) -> list[tuple[float, float]]:
        """Return the seconds of draft and target that each request has to answer for."""
        drafted = [len(part.proposal.tokens) for part in parts]
        if len(parts) == 1 or self.costs is None:
            return [(draft_s / len(parts), seconds / len(parts))] * len(parts)
        costs = self.costs.costs
        weights = [costs.verifying(number + 1) for number in drafted]
        reads = any(part.pending > 1 for part in parts)
        scale = 1.0 if reads else seconds / sum(weights)
        each = draft_s / sum(drafted) if sum(drafted) else 0.0
        return [(each * number, scale * weight) for number, weight in zip(drafted, weights, strict=True)]

    def _go_on(self, part: Part, answers: Answers, seconds: float, draft_s: float, share: tuple[float, float]) -> None:
        """Choose the tokens by which a text goes on, and tell its owner."""
        request, proposal, started = part.request, part.proposal, self.clock()
        try:
            if isinstance(answers, list):
                chosen: Iterator[int] = (choice.token for choice in answers)
            else:
                chosen = choices(answers, request.sampling, request.tokens, proposal.tokens)
            new, accepted = verify(chosen, proposal.tokens, len(request.tokens))
            listed = None if isinstance(answers, list) else of_rows(answers, new, request.logprobs)
        except IpexAssistError as error:
            self._fail(request, error)
            return
        choose_s = self.clock() - started
        self.stats.choose_s += choose_s
        if proposal.tokens and request.draft is not None:
            request.draft.accept(accepted)
        request.proposal = None
        prompt = not request.begun
        request.tokens += new
        assert request.sequence is not None
        request.sequence.truncate(len(request.tokens) - 1)
        self._count(part, new, accepted)
        if prompt:
            first_s = request.prompt_s + choose_s
            request.put(Round(new, target_s=first_s, prompt=True, choose_s=choose_s, logprobs=listed))
            self.room.keep(request)
        else:
            target_s = share[1] + self.clock() - started
            drafted = len(proposal.tokens)
            if request.draft is not None and part.remaining > 1:
                request.schedule.observe(RoundResult(drafted, accepted, proposal.confidence, share[0], target_s))
            took = draft_s if drafted else 0.0, seconds + choose_s, False, self._plain_s(request), choose_s
            request.put(Round(new, drafted, accepted, *took, listed))
        if request.remaining <= 0 or not request.eos.isdisjoint(new):
            self._leave(request)
            self.stats.finished += 1
            request.ended(request)
            request.finish()

    def _plain_s(self, request: Request) -> float | None:
        """Seconds of a pass with nothing drafted at this time; None where nobody measures."""
        alone = request.schedule.plain_s
        return alone if alone is None or self.costs is None else self.costs.pass_s

    def _count(self, part: Part, new: list[int], accepted: int) -> None:
        self.stats.new_tokens += len(new)
        self.stats.drafted += len(part.proposal.tokens)
        self.stats.accepted += accepted

"""The requests of an engine, and its passes: who takes part, what is drafted, what comes of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from ipex_assist.engine.chunks import ChunkSizes
from ipex_assist.engine.drafts import Drafts
from ipex_assist.engine.limits import EngineLimits
from ipex_assist.engine.part import Part
from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.request import Request
from ipex_assist.engine.room import Room
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import (
    ANY_ROWS,
    ChoosesInOneCall,
    LogitsError,
    Model,
    Rows,
    TokenLogprob,
    experts_a_layer,
)
from ipex_assist.speculative.logprobs import of_rows
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.verify import choices, verify

if TYPE_CHECKING:
    import torch

Clock = Callable[[], float]
Answers: TypeAlias = "list[TokenLogprob] | torch.Tensor"  # of a pass: a choice a row, or logits (rows, vocab)
LISTED_ROWS = 64  # of a prompt in one pass, where logits of all of them are wanted: bounds the memory
UNSHARED_REQUESTS = 8  # at a time, of a model whose passes are of one text each


class Work:
    """Requests that wait and that run. One thread uses it at a time."""

    def __init__(
        self, target: Model, limits: EngineLimits, prefixes: Prefixes | None, stats: EngineStats, clock: Clock
    ) -> None:
        self.target, self.limits, self.stats, self.clock = target, limits, stats, clock
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.drafts = Drafts(target.blocks is not None, clock)
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
            request.recover()

    def _run_alone(self) -> None:
        for request in list(self.running):
            if request not in self.running:  # it was put back for another
                continue
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
        chunk = self._chunk_rows(len(going)) if reading else 0
        parts = [Part(request, 1, request.remaining) for request in going]
        for request in sorted(reading, key=lambda each: each.number):
            if chunk <= 0:
                break
            most = LISTED_ROWS if request.lists_prompt and self._cuts_prompts else chunk
            parts.append(Part(request, min(chunk, most, request.pending), request.remaining))
            chunk -= parts[-1].pending
        rows = sum(part.pending for part in parts[len(going) :])
        going_on = parts[: len(going)]
        draft_s = self.drafts.draft(going_on, rows, len(reading), lambda part, error: self._fail(part.request, error))
        parts = self._make_room(parts)
        if parts:
            self._pass(parts, draft_s)

    @property
    def _cuts_prompts(self) -> bool:
        """Whether a prompt may be read in chunks: else it must pass as a whole."""
        return self.target.exact_rows >= ANY_ROWS

    def _chunk_rows(self, going: int) -> int:
        return self._chunks.rows(going) if self._cuts_prompts else 1 << 30

    def _make_room(self, parts: list[Part]) -> list[Part]:
        """Return the parts for which there are blocks: drafts go first, then the youngest request is put back.

        That may be one which waits for its turn in a later pass, and holds blocks of a beginning meanwhile.
        """
        parts = [part for part in parts if not part.request.over]
        if self._room_for(parts):
            return parts
        for part in parts:
            part.drop_proposal()
        while not self._room_for(parts):
            passing = [part.request for part in parts]
            holding = [request for request in self.running if request in passing or self.room.holds(request)]
            if len(holding) < 2:
                break
            youngest = max(holding, key=lambda request: request.number)
            parts = [part for part in parts if part.request is not youngest]
            self._put_back(youngest)
        return parts

    def _room_for(self, parts: list[Part]) -> bool:
        return self.room.make_for([part.rows() for part in parts])

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
        rows, whole = [part.rows() for part in parts], [part.whole for part in parts]
        started = self.clock()
        answers = self._answers(parts, rows)
        seconds = self.clock() - started
        experts = experts_a_layer(self.target)
        count = sum(len(each.tokens) for each in rows)
        self.stats.count_pass(count, seconds)
        self.stats.draft_s += draft_s
        read, going = sum(part.pending for part in parts if part.reads), sum(not part.reads for part in parts)
        self._chunks.observe(read, going, seconds)
        place = 0
        for part, each, goes_on in zip(parts, rows, whole, strict=True):
            part.request.prompt_s += 0.0 if part.request.begun else seconds
            self.stats.prompt_tokens += part.pending if part.reads else 0
            wanted, place = answers[place : place + each.last], place + each.last
            listed = not part.request.lists_prompt or self._list_prompt(part.request, len(each.tokens), wanted)
            if listed and goes_on:
                self._go_on(part, wanted[-1 - len(part.proposal.tokens) :], seconds, draft_s, experts)
        self.drafts.observe_pass(count, read, seconds, draft_s, experts)

    def _answers(self, parts: list[Part], rows: list[Rows]) -> Answers:
        """Run the pass: what is likeliest behind each row, where no text's choice needs more, else the rows' logits."""
        wanting = [part.request for part, each in zip(parts, rows, strict=True) if each.last]
        if isinstance(self.target, ChoosesInOneCall) and all(request.takes_likeliest for request in wanting):
            return self.target.choose(rows)
        return self.target.forward(rows)

    def _list_prompt(self, request: Request, count: int, logits: Answers) -> bool:
        """Take the log-probabilities of the prompt's tokens behind the last `count` rows. False where they are none.

        What a request that was put back reads again is not taken twice.
        """
        assert request.sequence is not None
        assert not isinstance(logits, list)
        first = request.sequence.length - count  # the position of the first row
        known = len(request.prompt_choices) - first
        following = request.tokens[first + 1 : min(request.prompt_length, first + count + 1)]
        found = of_rows(logits[known:], following[known:], request.prompt_logprobs) or []
        wrong = next((place for place, each in enumerate(found) if math.isnan(each.log_probability)), None)
        if wrong is not None:
            self._fail(request, LogitsError("the target", first + known + wrong + 1))
            return False
        request.prompt_choices += found
        return True

    def _go_on(self, part: Part, answers: Answers, seconds: float, draft_s: float, experts: float | None) -> None:
        """Choose the tokens by which a text goes on, and tell its owner."""
        request, proposal, started = part.request, part.proposal, self.clock()
        try:
            if isinstance(answers, list):
                chosen: Iterator[int] = (choice.token for choice in answers)
            else:
                chosen = choices(answers, request.sampling, request.tokens, proposal.tokens, request.grammar)
            new, accepted = verify(chosen, proposal.tokens, len(request.tokens))
            listed = None if isinstance(answers, list) else of_rows(answers, new, request.logprobs)
        except IpexAssistError as error:
            self._fail(request, error)
            return
        choose_s = self.clock() - started
        self.stats.choose_s += choose_s
        if request.proposal is not None and request.draft is not None:
            request.draft.accept(accepted)
        request.proposal = None
        prompt = not request.begun
        request.tokens += new
        assert request.sequence is not None
        request.sequence.truncate(len(request.tokens) - 1)
        self._count(part, new, accepted)
        if prompt:
            first_s = request.prompt_s + choose_s
            read = request.prompt_choices if request.prompt_logprobs is not None else None
            first = Round(new, target_s=first_s, prompt=True, choose_s=choose_s, logprobs=listed, prompt_logprobs=read)
            request.put(first)
            self.room.keep(request, whole=True)
        else:
            target_s, drafted = seconds + choose_s, len(proposal.tokens)
            self.drafts.observe(part, accepted, draft_s, target_s, experts)
            took = draft_s if drafted else 0.0, target_s, False, self.drafts.plain_s(part, len(new)), choose_s
            request.put(Round(new, drafted, accepted, *took, listed))
        if request.remaining <= 0 or not request.eos.isdisjoint(new):
            self._leave(request)
            self.stats.finished += 1
            request.ended(request)
            request.finish()

    def _count(self, part: Part, new: list[int], accepted: int) -> None:
        self.stats.new_tokens += len(new)
        self.stats.drafted += len(part.proposal.tokens)
        self.stats.accepted += accepted

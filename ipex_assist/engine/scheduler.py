"""The scheduler: which requests a pass holds, what is drafted for them, and what they get from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat

from ipex_assist.engine.block_budget import BlockBudget
from ipex_assist.engine.chunk_sizes import ChunkSizes, EngineLimits
from ipex_assist.engine.draft_scheduler import DraftScheduler
from ipex_assist.engine.head_reading import HeadReading
from ipex_assist.engine.late_rounds import LateRounds
from ipex_assist.engine.next_steps import NextSteps
from ipex_assist.engine.pass_output import PlannedPass, RequestOutput, add_prompt_logprobs
from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.prompt_shares import PromptShares
from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import ANY_ROWS, LogitsError, Meanwhile, Model, Rows, experts_a_layer
from ipex_assist.speculative.account import LOST_SHARE
from ipex_assist.speculative.choosing.logprobs import of_rows
from ipex_assist.speculative.choosing.sampling import INVALID_LOGITS
from ipex_assist.speculative.choosing.verify import verify
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import longest_draft

Clock = Callable[[], float]
PROMPT_LOGIT_ROWS = 64  # of a prompt in one pass if all of them need logits: bounds the memory of (rows, vocab)
UNSHARED_REQUESTS = 8  # running at a time on a model whose passes hold one request each


class Scheduler:
    """Waiting and running requests. Not thread-safe: used by one thread at a time."""

    def __init__(
        self, target: Model, limits: EngineLimits, prefixes: Prefixes | None, stats: EngineStats, clock: Clock
    ) -> None:
        self.target, self.limits, self.stats, self.clock = target, limits, stats, clock
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.drafts = DraftScheduler(target.blocks is not None, clock, longest_draft(target.spec))
        self.block_budget = BlockBudget(target, prefixes)
        self._chunks, self._heads = ChunkSizes(limits, target.pass_rows), HeadReading(clock)
        self._shares, self._late, self._next = PromptShares(self._chunks, clock), LateRounds(), NextSteps(target)

    @property
    def busy(self) -> bool:
        """Whether any request runs, or waits without being paused."""
        return bool(self.running) or self._next_waiting() is not None

    def add(self, request: Request) -> None:
        """Queue a request; it runs as soon as there is memory for it."""
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Cancel a request, whether it waits, runs or has finished."""
        if request.finished:
            return
        self._late.tell()
        if request in self.waiting:
            self.waiting.remove(request)
        if request in self.running:
            self._leave(request)
        self.stats.cancelled += 1
        request.on_finish(request)
        request.finish()

    def end_all(self) -> None:
        """Cancel everything."""
        for request in [*self.running, *self.waiting]:
            self.cancel(request)

    def fail_all(self, error: Exception) -> None:
        """End everything with an error."""
        waiting = [*self.waiting]
        self.waiting.clear()
        for request in [*self.running, *waiting]:
            self._fail(request, error)

    def step(self, meanwhile: Meanwhile | None = None) -> bool:
        """Run one pass of the target. Returns False if there is nothing to do. meanwhile: called while it runs.

        A request that fails ends with its error. If a pass of several requests fails, each is run alone, so that only
        the one at fault fails.
        """
        gone = [each for each in (*self.running, *self.waiting) if each.outbox.unheard or each.paused]
        for request in gone:
            if request.outbox.unheard:
                self.cancel(request)
            elif request in self.running:
                self._preempt(request)
        self._admit()
        self.stats.running, self.stats.waiting = len(self.running), len(self.waiting)
        self.stats.most_running = max(self.stats.most_running, len(self.running))
        meanwhile = self._late.beside(meanwhile)
        if not self.running:
            self._late.tell()
            self._next.drop()
            return False
        retry = False
        try:
            self._run(list(self.running), meanwhile)
        except Exception as error:
            self._recover_all()
            retry = len(self.running) > 1
            if len(self.running) == 1:
                self._fail(self.running[0], error)
        except BaseException:  # an interrupt: the requests resume with the next step
            self._recover_all()
            raise
        if retry:  # not beside the error, whose frames hold sequences, and so blocks of those that are put back
            self._run_alone()
        return True

    def _recover_all(self) -> None:
        for request in self.running:
            request.recover()

    def _run_alone(self) -> None:
        for request in list(self.running):
            if request not in self.running:  # it was preempted for another
                continue
            try:
                self._run([request])
            except Exception as error:
                request.roll_back()
                self._fail(request, error)

    def _admit(self) -> None:
        # Without shared passes batching gains nothing, and each request takes memory for its full length.
        most = self.limits.requests if self.target.blocks is not None else min(self.limits.requests, UNSHARED_REQUESTS)
        while len(self.running) < most and (request := self._next_waiting()) is not None:
            if self.running and not self.block_budget.admits(request):
                return
            self.waiting.remove(request)
            try:
                found = self.block_budget.begin(request)
                self.stats.prefix_tokens += found
                request.cached_tokens = request.cached_tokens if request.has_output else found
                request.draft = request.make_draft_source()
                if (head := request.head) is not None:
                    head.target = request.sequence
                    if self.drafts.doubts(request):
                        head.skip_prompt()
            except IpexAssistError as error:
                self._fail(request, error)
            else:
                self.running.append(request)

    def _next_waiting(self) -> Request | None:
        return min((each for each in self.waiting if not each.paused), key=lambda each: each.rank, default=None)

    def _run(self, requests: list[Request], meanwhile: Meanwhile | None = None) -> None:
        decoding = self._next.prepared(requests)
        prefilling: list[Request] = []
        for request in () if decoding else requests:
            if request.decodes:
                decoding.append(ScheduledRequest(request, 1, request.remaining))
            else:
                prefilling.append(request)
        chunks = self._prompt_chunks(prefilling, decoding) if prefilling else []
        prompt_rows = sum(scheduled.pending for scheduled in chunks)
        draft_s = self.drafts.draft(
            decoding, prompt_rows, len(prefilling), lambda scheduled, error: self._fail(scheduled.request, error)
        )
        if self._run_prepared(decoding, draft_s, meanwhile):
            return
        batch, rows = self._fit_in_memory(decoding + chunks)
        if batch:
            self._run_pass(batch, rows, draft_s, meanwhile)

    def _prompt_chunks(self, prefilling: list[Request], decoding: list[ScheduledRequest]) -> list[ScheduledRequest]:
        """What a pass reads of these prompts beside the requests that decode."""
        if self.target.exact_rows < ANY_ROWS:  # each must be read in one pass
            return [ScheduledRequest.prefill(request, request.unbranched) for request in prefilling]
        chunks: list[ScheduledRequest] = []
        streamed = any(scheduled.request.streamed for scheduled in decoding)
        for request, room in self._shares.divide(prefilling, len(decoding), streamed):
            most = PROMPT_LOGIT_ROWS if request.needs_prompt_logits else room
            rows = min(room, most, request.unbranched)
            if request.images is not None:
                rows = request.images.whole_rows(request.position, rows)
            chunks.append(ScheduledRequest.prefill(request, rows))
            self._shares.count(request, chunks[-1].pending)
        return chunks

    def _fit_in_memory(self, batch: list[ScheduledRequest]) -> tuple[list[ScheduledRequest], list[Rows]]:
        """Return the requests for which there are blocks: drafts are dropped first, then the youngest is preempted.

        And their rows. The youngest may be a request outside this pass that holds blocks of its prompt's first chunks.
        """
        batch = [scheduled for scheduled in batch if not scheduled.request.finished]
        rows = [scheduled.rows() for scheduled in batch]
        if self.block_budget.free_for(rows):
            return batch, rows
        for scheduled in batch:
            scheduled.drop_proposal()
        while not self.block_budget.free_for(rows := [scheduled.rows() for scheduled in batch]):
            passing = [scheduled.request for scheduled in batch]
            holding = [request for request in self.running if request in passing or self.block_budget.holds(request)]
            if len(holding) < 2:
                break
            youngest = max(holding, key=lambda request: request.rank)
            batch = [scheduled for scheduled in batch if scheduled.request is not youngest]
            rows.clear()  # they hold the sequence, whose blocks are to be free
            self._preempt(youngest)
        return batch, rows

    def _preempt(self, request: Request) -> None:
        """Release a request's memory and queue it again; it is recomputed later."""
        request.roll_back()
        self._leave(request)
        self.stats.preempted += 1
        at = next((i for i, other in enumerate(self.waiting) if other.number > request.number), len(self.waiting))
        self.waiting.insert(at, request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.block_budget.keep(request)
        request.release()

    def _fail(self, request: Request, error: Exception) -> None:
        self._late.tell()
        if request in self.running:
            self.running.remove(request)
        self.stats.failed += 1
        request.on_finish(request)
        request.finish(error)

    def _run_pass(
        self, batch: list[ScheduledRequest], rows: list[Rows], draft_s: float, meanwhile: Meanwhile | None
    ) -> None:
        planning = self.clock()
        plan = PlannedPass.of(self.target, batch, rows)
        started = self.clock()
        self.stats.choose_s += started - planning
        outputs = plan.run(None if meanwhile is None else self._next.beside(batch, meanwhile))
        seconds = self.clock() - started
        self._late.begin(seconds)
        count = sum([len(each.tokens) for each in plan.rows])
        prefills = [scheduled.pending for scheduled in batch if scheduled.is_prefill]
        positions = sum(each.pending * (each.request.position - each.pending // 2) for each in batch if each.is_prefill)
        took = PassTimes(count, seconds, draft_s, sum(prefills), experts_a_layer(self.target))
        self._end_pass(took, len(batch) - len(prefills), positions, self._accept(batch, plan.rows, outputs, took))

    def _run_prepared(self, batch: list[ScheduledRequest], draft_s: float, meanwhile: Meanwhile | None) -> bool:
        """Run a pass that was put together beside the one before. False where that is not what comes next."""
        started = self.clock()
        made = self._next.run(batch, meanwhile)
        if made is None:
            return False
        seconds = self.clock() - started
        self._late.begin(seconds)
        took = PassTimes(len(batch), seconds, draft_s, experts=experts_a_layer(self.target))
        if INVALID_LOGITS in made.tokens:
            rows = [each.rows() for each in batch]
            outputs = [RequestOutput((token,), (None,)) for token in made.tokens]
            self._end_pass(took, len(batch), 0, self._accept(batch, rows, outputs, took))
            return True
        self.stats.new_tokens += len(batch)
        plain_s: Iterable[float | None] = repeat(None)
        if made.drafting:
            plain_s = [self.drafts.plain_s(each, 1) if each.rests else None for each in batch]
        self._end_pass(took, len(batch), 0, self._late.take_all(made, plain_s))
        return True

    def _end_pass(self, took: PassTimes, decoding: int, positions: int, ending: Iterable[Request]) -> None:
        """Count a pass, and end what ends with it. positions: the tokens before each of a prompt's rows, added up."""
        self.stats.count_pass(took.rows, took.seconds)
        self.stats.draft_s += took.draft_s
        self._chunks.observe(took.read, decoding, took.seconds, positions, experts=took.experts)
        self.stats.prompt_tokens += took.read
        ended: list[Request] = []
        try:
            for request in ending:
                ended.append(request)
            self.drafts.observe_pass(took)
        finally:  # what their last pass says is known then
            if ended:
                self._late.tell()
            for request in ended:
                self._leave(request)
                self.stats.finished += 1
                request.on_finish(request)
                request.finish()
        running = len(self.running)
        for request, took_s in self._heads.read(partial(self.drafts.repays_reading, running=running)):
            self.drafts.charge(request, took_s)
            self.stats.draft_s += took_s

    def _accept(
        self, batch: list[ScheduledRequest], rows: Sequence[Rows], outputs: list[RequestOutput], took: PassTimes
    ) -> Iterator[Request]:
        """Give each request what the pass brought it; those of which it is the end."""
        for scheduled, each, output in zip(batch, rows, outputs, strict=True):
            request, length = scheduled.request, len(each.tokens)
            if scheduled.is_prefill and output.hidden is not None:
                self._charge_taps(scheduled, took.seconds * length / took.rows)
            listed = not scheduled.is_prefill or self._note_prompt(request, length, output, took.seconds)
            if listed and scheduled.reads_all_pending:
                if self._accept_tokens(scheduled, output, took.seconds, took.draft_s):
                    yield request
            elif listed and request.sequence is not None:
                self._keep_hidden(scheduled, request.sequence.length - length, output, length)

    def _keep_hidden(self, scheduled: ScheduledRequest, first: int, output: RequestOutput, count: int) -> None:
        """Give a request's head the hidden states of its first `count` rows, and charge what that takes.

        first: the position of the first of them. The head may have asked for those with logits alone.
        """
        if output.hidden is None or scheduled.head is None:
            return
        started = self.clock()
        self._heads.observe(scheduled, first + output.hidden_start, output.hidden_before(count))
        self.drafts.book_overhead(self.clock() - started)

    def _charge_taps(self, scheduled: ScheduledRequest, seconds: float) -> None:
        """Charge what a prompt's hidden states add to the `seconds` of its rows.

        Where they leave the last layer, that computes all rows; without them it computes those that need logits.
        """
        layers, head = self.target.spec.num_hidden_layers, scheduled.head
        if head is not None and layers in head.spec.taps.layers:
            self.drafts.charge(scheduled.request, seconds * max(0.0, 1 / layers - LOST_SHARE))

    def _note_prompt(self, request: Request, count: int, output: RequestOutput, seconds: float) -> bool:
        """Note that a pass of `seconds` read `count` tokens. False if the request has failed."""
        request.prompt_s += 0.0 if request.has_output else seconds
        if request.needs_prompt_logits:
            try:
                add_prompt_logprobs(request, count, output)
            except LogitsError as error:
                self._fail(request, error)
                return False
        if request.at_branch:
            self.block_budget.keep(request, goes_on=True)
        return True

    def _accept_tokens(
        self, scheduled: ScheduledRequest, output: RequestOutput, seconds: float, draft_s: float
    ) -> bool:
        """Choose and verify a request's tokens, and queue the round for its owner. True if these are the last."""
        if scheduled.is_plain_step and type(output.tokens) is tuple and output.tokens[0] != INVALID_LOGITS:
            self.stats.new_tokens += 1
            plain_s = self.drafts.plain_s(scheduled, 1) if scheduled.rests else None
            return self._late.take(scheduled.request, output.tokens[0], plain_s)
        request, proposal, started = scheduled.request, scheduled.proposal, self.clock()
        try:
            new, accepted = verify(output.tokens, proposal.tokens, len(request.tokens))
            listed = None
            if request.logprobs is not None:
                listed = of_rows(output.logits[-1 - len(proposal.tokens) :], new, request.logprobs)
        except IpexAssistError as error:
            self._fail(request, error)
            return False
        choose_s = self.clock() - started
        self.stats.choose_s += choose_s
        if request.proposal is not None and request.draft is not None:
            request.draft.accept(accepted)
        request.proposal = None
        prompt = not request.has_output
        request.tokens += new
        assert request.sequence is not None
        position = request.sequence.length - scheduled.pending - len(proposal.tokens)  # of the pass's first row
        request.sequence.truncate(len(request.tokens) - 1)
        self._keep_hidden(scheduled, position, output, scheduled.pending + accepted)
        self.stats.new_tokens += len(new)
        if prompt:
            first_s = request.prompt_s + choose_s
            read = request.prompt_choices if request.prompt_logprobs is not None else None
            first = Round(new, target_s=first_s, prompt=True, choose_s=choose_s, logprobs=listed, prompt_logprobs=read)
            request.outbox.put(first._replace(cached_tokens=request.cached_tokens))
            self.block_budget.keep(request, goes_on=True)
        else:
            target_s, drafted, plain_s = seconds + choose_s, len(proposal.tokens), None
            if request.draft is not None:
                self.stats.drafted += drafted
                self.stats.accepted += accepted
                self.drafts.observe(scheduled, accepted)
                plain_s = self.drafts.plain_s(scheduled, len(new))
            took, by = (draft_s if drafted else 0.0, target_s, False, plain_s, choose_s), None
            if drafted and request.draft is not None and (by := request.draft.drafted_by) is not None:
                self.stats.drafted_by[by] += drafted
                self.stats.accepted_by[by] += accepted
            request.outbox.put(Round(new, drafted, accepted, *took, listed, drafted_by=by))
        return request.remaining <= 0 or not request.eos.isdisjoint(new)

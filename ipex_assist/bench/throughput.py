"""Many requests at once: a number of them is kept in flight; what all get together is timed, and what each waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, cast

from ipex_assist.bench.measure import Contender, forget
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.traffic import machine_gb_per_s
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round

Clock = Callable[[], float]
WARM_UP_TOKENS = 8


class BenchHandle(Protocol):
    """The part of an engine's handle that is used here."""

    @property
    def has_round(self) -> bool:
        """Whether a round can be fetched without a pass."""
        ...

    @property
    def ended(self) -> bool:
        """Whether no round follows those that can be fetched."""
        ...

    def __next__(self) -> Round: ...


class Stats(Protocol):
    """What is used of an engine's counts."""

    passes: int


class BenchEngine(Protocol):
    """What is used of an engine."""

    @property
    def stats(self) -> Stats: ...

    def submit(self, tokens: Sequence[int], options: GenerationOptions) -> BenchHandle: ...

    def step(self) -> bool:
        """Run one pass for all requests; False where there is nothing to do."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Served:
    """One request: when it was submitted, and had its first and its last tokens, in seconds from the beginning."""

    prompt_tokens: int
    submitted_s: float
    first_s: float
    last_s: float
    first_tokens: int  # that came at first_s
    new_tokens: int
    rounds: int
    drafted: int
    accepted: int

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to its first token, those it waited for its turn included."""
        return self.first_s - self.submitted_s

    @property
    def token_s(self) -> float | None:
        """Seconds a token after the first delivery; None where there is none."""
        later = self.new_tokens - self.first_tokens
        return (self.last_s - self.first_s) / later if later else None


@dataclass(frozen=True)
class LoadSample:
    """One turn: all requests from the first submission to the last token.

    passes: of the target, for all requests. memory_gb_per_s: what the memory gave just before; None where unknown.
    """

    total_s: float
    passes: int
    requests: tuple[Served, ...]
    memory_gb_per_s: float | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens of all requests."""
        return sum(request.new_tokens for request in self.requests)

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests ÷ seconds, prompts included."""
        return self.new_tokens / self.total_s


@dataclass
class LoadRow:
    """The samples of one contender at one concurrency. `speedup` has a value a turn: its tokens/s ÷ plain ones.

    equals_plain: whether every request's text is the one that it had when it was first decoded plainly, alone or in
    a batch; None for that first time itself, and where tokens are drawn.
    """

    concurrency: int
    contender: Contender
    precision: str
    assistant_precision: str | None
    samples: list[LoadSample] = field(default_factory=list)
    speedup: list[float] = field(default_factory=list)
    equals_plain: bool | None = None

    @property
    def example(self) -> str:
        """What messages call this case."""
        return f"concurrency {self.concurrency}"

    @property
    def requests(self) -> list[Served]:
        """Requests of all turns."""
        return [request for sample in self.samples for request in sample.requests]

    @property
    def speeds(self) -> list[float]:
        """Tokens/s of each turn."""
        return [sample.tokens_per_s for sample in self.samples]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted tokens; None where nothing was drafted."""
        drafted = sum(request.drafted for request in self.requests)
        return sum(request.accepted for request in self.requests) / drafted if drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """New tokens of all requests ÷ the target's passes."""
        passes = sum(sample.passes for sample in self.samples)
        return sum(sample.new_tokens for sample in self.samples) / passes if passes else None

    def ttft_s(self, percent: float) -> float | None:
        """A percentile of the requests' times to their first token."""
        return percentile([request.ttft_s for request in self.requests], percent)

    def token_s(self, percent: float) -> float | None:
        """A percentile of the requests' times per token after the first."""
        return percentile([each.token_s for each in self.requests if each.token_s is not None], percent)

    def as_dict(self) -> dict[str, Any]:
        """Return the row with all of its samples as JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class LoadCase:
    """Requests, and how many of them are in flight. options: of `GenerationOptions`, the same for every contender."""

    concurrency: int
    prompts: tuple[tuple[int, ...], ...]
    options: dict[str, Any]
    repeats: int
    seed: int = 0


Texts = dict[int, list[int]]  # by the request's place among the prompts


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, between two values in proportion (Hyndman and Fan's type 7); None of no values."""
    import numpy

    return float(numpy.percentile(values, percent)) if values else None


def engine_of(model: TextModel) -> BenchEngine:
    """Return an engine that has served nobody. Raises UsageError where the model has none."""
    make = getattr(model, "engine", None)
    if make is None:
        raise UsageError(
            f"--task throughput: {model.identity.target} runs through transformers, which takes one text at a time here"
        )
    return cast(BenchEngine, make())


class _Flight:
    """A request in flight, and its times so far."""

    def __init__(self, handle: BenchHandle, prompt_tokens: int, submitted_s: float) -> None:
        self.handle, self.prompt_tokens, self.submitted_s = handle, prompt_tokens, submitted_s
        self.rounds: list[Round] = []
        self.first_s = self.last_s = submitted_s
        self.first_tokens = 0

    def fetch(self, now: float) -> bool:
        """Fetch the rounds that are ready; whether the request is over. Raises the error that ended it."""
        came = 0
        while self.handle.has_round:
            self.rounds.append(next(self.handle))
            came += len(self.rounds[-1].tokens)
        if came:
            self.last_s = now
            if not self.first_tokens:
                self.first_s, self.first_tokens = now, came
        if not self.handle.ended:
            return False
        next(self.handle, None)  # raises what it failed by
        return True

    @property
    def tokens(self) -> list[int]:
        return [token for round_ in self.rounds for token in round_.tokens]

    def served(self) -> Served:
        return Served(
            self.prompt_tokens,
            self.submitted_s,
            self.first_s,
            self.last_s,
            self.first_tokens,
            len(self.tokens),
            len(self.rounds),
            sum(round_.drafted for round_ in self.rounds),
            sum(round_.accepted for round_ in self.rounds),
        )


def serve(
    engine: BenchEngine,
    prompts: Sequence[Sequence[int]],
    options: Sequence[GenerationOptions],
    concurrency: int,
    clock: Clock = time.perf_counter,
) -> tuple[LoadSample, list[list[int]]]:
    """Keep `concurrency` of the requests in flight until all are served; return their times and their texts.

    This thread runs the passes. A request follows as soon as another one has ended, so that the last ones share
    passes with fewer. options: one for each prompt. Raises what a request failed by.
    """
    waiting = list(reversed(list(enumerate(zip(prompts, options, strict=True)))))
    flying: dict[int, _Flight] = {}
    landed: dict[int, _Flight] = {}
    passes, started = engine.stats.passes, clock()
    while waiting or flying:
        while waiting and len(flying) < concurrency:
            number, (prompt, asked) = waiting.pop()
            submitted = clock() - started
            flying[number] = _Flight(engine.submit(prompt, asked), len(prompt), submitted)
        worked, now = engine.step(), clock() - started
        over = [number for number, flight in flying.items() if flight.fetch(now)]
        landed.update({number: flying.pop(number) for number in over})
        if not (worked or over):
            raise IpexAssistError(f"the engine has nothing to do, and {len(flying)} requests wait for it")
    flights = [landed[number] for number in range(len(prompts))]
    total_s = max((flight.last_s for flight in flights), default=0.0)
    sample = LoadSample(total_s, engine.stats.passes - passes, tuple(flight.served() for flight in flights))
    return sample, [flight.tokens for flight in flights]


def warm_up(model: TextModel, case: LoadCase, contenders: Sequence[Contender], schedule: str | None = None) -> None:
    """Serve the beginning of a case, so that its memory has been touched: the first and the last contender's."""
    short = replace(
        case,
        prompts=case.prompts[: case.concurrency],
        options={**case.options, "max_new_tokens": min(WARM_UP_TOKENS, case.options["max_new_tokens"])},
    )
    for contender in dict.fromkeys((contenders[0], contenders[-1])):
        _turn(model, short, contender, 0, schedule, time.perf_counter)


def measure_load(
    model: TextModel,
    case: LoadCase,
    contenders: Sequence[Contender],
    texts: Texts,
    schedule: str | None = None,
    clock: Clock = time.perf_counter,
) -> list[LoadRow]:
    """Measure all contenders in turns, plain first, and return a row for each.

    texts: of requests that were decoded plainly before, also at other concurrencies; what is new is added.
    """
    names = model.identity
    rows = [LoadRow(case.concurrency, each, names.precision, names.assistant_precision) for each in contenders]
    for turn in range(case.repeats):
        for row in rows:
            sample, found = _turn(model, case, row.contender, turn, schedule, clock)
            row.samples.append(sample)
            if row.contender.draft is not None:
                row.speedup.append(sample.tokens_per_s / rows[0].samples[-1].tokens_per_s)
            if not case.options.get("do_sample"):
                _compare(row, found, texts)
    return rows


def _turn(
    model: TextModel, case: LoadCase, contender: Contender, turn: int, schedule: str | None, clock: Clock
) -> tuple[LoadSample, list[list[int]]]:
    forget(model)
    speed = machine_gb_per_s(model)
    engine = engine_of(model)  # a new one, which remembers no prompt
    try:
        options = [replace(each, lora=model.default_adapter) for each in _options(case, contender, turn, schedule)]
        sample, found = serve(engine, case.prompts, options, case.concurrency, clock)
    finally:
        engine.close()
    return replace(sample, memory_gb_per_s=speed), found


def _options(case: LoadCase, contender: Contender, turn: int, schedule: str | None) -> Iterator[GenerationOptions]:
    """Draws have a seed a request and turn."""
    for number in range(len(case.prompts)):
        seed = {"seed": case.seed + turn * len(case.prompts) + number} if case.options.get("do_sample") else {}
        yield GenerationOptions.of(**{**case.options, **contender.options(schedule), **seed})


def _compare(row: LoadRow, found: Sequence[Sequence[int]], texts: Texts) -> None:
    for number, tokens in enumerate(found):
        if number not in texts and row.contender.draft is None:
            texts[number] = list(tokens)
        else:
            row.equals_plain = row.equals_plain is not False and texts.get(number) == list(tokens)

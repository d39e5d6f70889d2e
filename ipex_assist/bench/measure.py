"""Measuring: contenders take turns on one prompt, every sample is kept, and ratios are taken within a turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ipex_assist.bench.simulated import SimulatedDraft
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.generation.result import Result
from ipex_assist.generation.stats import SourceCounts
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.options import GenerationOptions

Draft = int | str  # drafted tokens a round, or a schedule's name


@dataclass(frozen=True)
class Contender:
    """Plain decoding (draft None), or assisted with a draft length; `acceptance` is simulated where it is given."""

    draft: Draft | None = None
    acceptance: float | None = None

    @property
    def label(self) -> str:
        """The name that tables give to this contender. A simulation is called one everywhere."""
        if self.draft is None:
            return "plain"
        length = f"k = {self.draft}" if isinstance(self.draft, int) else f"{self.draft} k"
        return f"assisted, {length}" + (
            "" if self.acceptance is None else f", simulated acceptance {self.acceptance:g}"
        )

    def options(self, schedule: str | None) -> dict[str, Any]:
        """The options of `TextModel.stream` that make it draft as this contender does."""
        if self.draft is None:
            return {"assisted": False}
        if isinstance(self.draft, int):
            return {"num_assistant_tokens": self.draft, "num_assistant_tokens_schedule": schedule or "constant"}
        return {"num_assistant_tokens_schedule": self.draft}


@dataclass(frozen=True)
class Case:
    """One line of a table: a prompt, its options, and how often it is measured.

    options: of `TextModel.stream`, the same for every contender.
    """

    example: str
    prompt: str | list[int]
    options: dict[str, Any]
    repeats: int
    seed: int = 0
    kind: str = ""


@dataclass(frozen=True)
class Sample:
    """One generation. Speed is of the tokens after the first; the first one's time is the prefill's."""

    total_s: float
    prefill_s: float
    decode_s: float
    new_tokens: int
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    other_s: float | None = None
    read_gb_per_s: float | None = None
    drafted_by_position: list[int] | None = None
    accepted_by_position: list[int] | None = None
    by_source: dict[str, SourceCounts] | None = None

    @property
    def token_s(self) -> float | None:
        """Seconds a token after the first; None where there is no second one."""
        return self.decode_s / (self.new_tokens - 1) if self.new_tokens > 1 else None

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Sample:
        """Restore from the fields as JSON has them."""
        sources = fields.get("by_source")
        counts = None if sources is None else {name: SourceCounts(**each) for name, each in sources.items()}
        return cls(**{**fields, "by_source": counts})

    @classmethod
    def of(cls, result: Result) -> Sample:
        """Take the figures from a result."""
        prefill = result.ttft_s or 0.0
        draft, times = result.draft, result.times
        return cls(
            prefill + result.decode_s,
            prefill,
            result.decode_s,
            result.new_tokens,
            draft.drafted,
            draft.accepted,
            draft.rounds,
            times.draft_s,
            times.verify_s,
            times.other_s,
            times.read_gb_per_s,
            draft.drafted_by_position,
            draft.accepted_by_position,
            draft.by_source,
        )


@dataclass
class Row:
    """The samples of one contender on one case. `speedup` has a value a turn: plain seconds a token ÷ its own.

    assistant_precision: of the draft that took its turns, also where this is the plain run beside it.
    """

    example: str
    kind: str
    contender: Contender
    precision: str
    assistant_precision: str | None
    prompt_tokens: int
    samples: list[Sample] = field(default_factory=list)
    speedup: list[float] = field(default_factory=list)
    total_speedup: list[float] = field(default_factory=list)
    equals_plain: bool | None = None  # None where tokens are drawn

    def median(self, figure: Callable[[Sample], float | None]) -> float | None:
        """Return the median of a figure over the samples that have it; None where none has."""
        values = [value for value in map(figure, self.samples) if value is not None]
        return statistics.median(values) if values else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted tokens of all samples."""
        drafted = sum(sample.drafted or 0 for sample in self.samples)
        return sum(sample.accepted or 0 for sample in self.samples) / drafted if drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Accepted tokens and the target's own ÷ its passes, of all samples."""
        rounds = sum(sample.rounds or 0 for sample in self.samples)
        return 1 + sum(sample.accepted or 0 for sample in self.samples) / rounds if rounds else None

    def as_dict(self) -> dict[str, Any]:
        """Return the row with all of its samples as JSON has it."""
        return {**asdict(self), "simulated": self.contender.acceptance is not None}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Row:
        """The inverse of `as_dict`. TypeError and KeyError for what is none."""
        known = {name: value for name, value in fields.items() if name != "simulated"}
        contender = Contender(**known.pop("contender"))
        samples = [Sample.from_dict(sample) for sample in known.pop("samples")]
        return cls(**known, contender=contender, samples=samples)


def measure(
    model: TextModel, case: Case, contenders: Sequence[Contender], schedule: str | None = None
) -> Iterator[Row]:
    """Measure all contenders in turns, and return a row for each, plain first.

    In every turn each contender runs once, so that a change of the machine's speed meets them alike.
    """
    rows: list[Row] = []
    for turn in range(case.repeats):
        plain: Result | None = None
        for index, contender in enumerate(contenders):
            result = run(model, case, contender, turn, plain, schedule)
            if plain is None:
                plain = result
            if not turn:
                rows.append(_row(model, case, contender, result))
            _add(rows[index], result, plain, compared=not case.options.get("do_sample"))
    yield from rows


def run(
    model: TextModel, case: Case, contender: Contender, turn: int, plain: Result | None, schedule: str | None = None
) -> Result:
    """Run one generation of a contender. `plain` is the same turn's plain result, whose text a simulation follows."""
    forget(model)
    seed = {"seed": case.seed + turn} if case.options.get("do_sample") else {}
    options = {**case.options, **contender.options(schedule), **seed}
    if contender.acceptance is None:
        return model.generate(case.prompt, **options)
    assert plain is not None
    assert isinstance(model, AssistedModel)
    chosen = GenerationOptions.of(**{name: value for name, value in options.items() if name != "chat"})
    prompt = model.encode(case.prompt, chat=options.get("chat", False))
    source = model.draft_source(prompt, chosen)
    assert source is not None
    text, coins = [*prompt, *plain.tokens], (case.seed, turn)
    draft = SimulatedDraft(source, text, contender.acceptance, model.target.spec.vocab_size, coins)
    return model.generate(prompt, chosen, draft=draft)


def forget(model: TextModel) -> None:
    """Forget what earlier texts taught the adaptive schedule, here and in earlier processes: samples depend on none."""
    drafting = getattr(model, "drafting", None)
    if drafting is not None:
        drafting.forget()


def _row(model: TextModel, case: Case, contender: Contender, result: Result) -> Row:
    names = model.identity
    return Row(case.example, case.kind, contender, names.precision, names.assistant_precision, result.prompt_tokens)


def _add(row: Row, result: Result, plain: Result, *, compared: bool) -> None:
    row.samples.append(Sample.of(result))
    if row.contender.draft is None:
        return
    ours, theirs = row.samples[-1], Sample.of(plain)
    if ours.token_s and theirs.token_s:
        row.speedup.append(theirs.token_s / ours.token_s)
        # Of sampled texts, which may end elsewhere, a token's share of the whole time.
        row.total_speedup.append((theirs.total_s / theirs.new_tokens) / (ours.total_s / ours.new_tokens))
    if compared:
        row.equals_plain = row.equals_plain is not False and result.tokens == plain.tokens

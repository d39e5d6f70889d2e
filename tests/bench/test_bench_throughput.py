"""Many requests in flight: on an engine whose passes take invented times, so that every figure is known."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ipex_assist.bench import load_cases, plots, throughput
from ipex_assist.bench.arguments import parse, task_options
from ipex_assist.bench.measure import Contender
from ipex_assist.bench.prompts import SamplePrompt, mixed_prompts, spread_lengths
from ipex_assist.bench.report import BenchReport, render
from ipex_assist.bench.throughput import LoadCase, LoadRow, LoadSample, Served, measure_load, percentile, serve
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.generation.result import Identity
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round

pytestmark = pytest.mark.one_stack


class Handle:
    """A request whose rounds of `width` tokens come one a pass."""

    def __init__(self, prompt: Sequence[int], options: GenerationOptions, width: int) -> None:
        self.prompt, self.limit, self.width = list(prompt), options.max_new_tokens, width
        self.rounds: list[Round] = []
        self.out = 0
        self.failure: Exception | None = None

    @property
    def has_round(self) -> bool:
        return bool(self.rounds)

    @property
    def ended(self) -> bool:
        return self.out >= self.limit or self.failure is not None

    def advance(self) -> None:
        first = not self.out
        count = 1 if first else min(self.width, self.limit - self.out)
        tokens = [self.prompt[0] * 100 + self.out + at for at in range(count)]
        drafted = 0 if first else self.width - 1
        self.rounds.append(Round(tokens, drafted, count - 1, prompt=first))
        self.out += count

    def __next__(self) -> Round:
        if not self.rounds:
            raise self.failure or StopIteration
        return self.rounds.pop(0)


class Engine:
    """All requests advance in every pass, which takes a second and a tenth of one for each of them."""

    def __init__(self, model: Model) -> None:
        self.model, self.stats = model, type("Stats", (), {"passes": 0})()
        self.running: list[Handle] = []
        self.most, self.closed = 0, False

    def submit(self, tokens: Sequence[int], options: GenerationOptions) -> Handle:
        handle = Handle(tokens, options, 3 if options.assisted else 1)
        handle.failure = self.model.failure
        self.model.submitted.append((list(tokens), options))
        self.running.append(handle)
        return handle

    def step(self) -> bool:
        if not self.running or self.model.stuck:
            return False
        self.most = max(self.most, len(self.running))
        self.model.now += 1.0 + 0.1 * len(self.running)
        self.stats.passes += 1
        for handle in self.running:
            if handle.failure is None:
                handle.advance()
        self.running = [handle for handle in self.running if not handle.ended]
        return True

    def close(self) -> None:
        self.closed = True


class Model:
    """Makes engines, and has the clock that their passes move."""

    identity = Identity("t", "a", "int4", "bf16", "native")
    context_length: int | None = None
    default_adapter: str | None = None

    def __init__(self) -> None:
        self.now, self.engines, self.submitted = 100.0, [], []
        self.failure: Exception | None = None
        self.stuck = False

    def clock(self) -> float:
        return self.now

    def engine(self) -> Engine:
        self.engines.append(Engine(self))
        return self.engines[-1]


def served(model: Model, count: int, concurrency: int, **options: Any) -> LoadSample:
    """Serve requests of four tokens."""
    prompts = [(number, 7) for number in range(count)]
    asked = [GenerationOptions.of(max_new_tokens=4, **options)] * count
    return serve(model.engine(), prompts, asked, concurrency, model.clock)[0]


def test_requests_are_kept_in_flight_and_timed_from_their_own_submission() -> None:
    """Five requests, two at a time: four passes of two, four of two, four of one."""
    model = Model()
    sample = served(model, 5, 2, assisted=False)
    assert model.engines[0].most == 2
    assert sample.passes == 12
    assert sample.new_tokens == 20
    assert sample.total_s == pytest.approx(8 * 1.2 + 4 * 1.1)
    assert sample.tokens_per_s == pytest.approx(20 / 14.0)
    begun = [request.submitted_s for request in sample.requests]
    assert begun == pytest.approx([0, 0, 4.8, 4.8, 9.6])
    assert [request.ttft_s for request in sample.requests] == pytest.approx([1.2] * 4 + [1.1])
    assert [request.token_s for request in sample.requests] == pytest.approx([1.2] * 4 + [1.1])
    assert [tokens for tokens, _ in model.submitted] == [[number, 7] for number in range(5)]


def test_time_a_token_leaves_out_all_of_the_first_delivery() -> None:
    """The first pass gives one token, the next one three: three tokens in one pass after it."""
    sample = served(Model(), 1, 1)
    (request,) = sample.requests
    assert (request.new_tokens, request.rounds, request.drafted, request.accepted) == (4, 2, 2, 2)
    assert request.token_s == pytest.approx(1.1 / 3)
    assert Served(5, 0.0, 1.0, 1.0, 4, 4, 1, 0, 0).token_s is None


def test_a_request_that_fails_is_an_error_and_a_stuck_engine_is_no_loop() -> None:
    """Figures of requests that were not served would be wrong; a loop without passes would never end."""
    model = Model()
    model.failure = IpexAssistError("NaN")
    with pytest.raises(IpexAssistError, match="NaN"):
        served(model, 2, 2)
    model = Model()
    model.stuck = True
    with pytest.raises(IpexAssistError, match="nothing to do, and 2 requests wait"):
        served(model, 3, 2)


def case(concurrency: int, count: int = 4, repeats: int = 2, **options: Any) -> LoadCase:
    """Return a case of requests of four tokens."""
    prompts = tuple((number, 7) for number in range(count))
    return LoadCase(concurrency, prompts, {"max_new_tokens": 4, **options}, repeats, seed=40)


def rows_of(model: Model, *cases: LoadCase) -> list[LoadRow]:
    texts: dict[int, list[int]] = {}
    contenders = [Contender(), Contender("adaptive")]
    return [row for each in cases for row in measure_load(model, each, contenders, texts, None, model.clock)]  # type: ignore[arg-type]


def test_contenders_take_turns_each_on_an_engine_that_has_served_nobody() -> None:
    """A cache of prefixes would make every later turn quicker; ratios are of the same turn."""
    model = Model()
    plain, assisted = rows_of(model, case(2))
    assert len(model.engines) == 4
    assert all(engine.closed for engine in model.engines)
    assert [len(row.samples) for row in (plain, assisted)] == [2, 2]
    assert plain.speedup == []
    # Two times two requests: four passes each plainly, two assisted.
    assert plain.speeds == pytest.approx([16 / (8 * 1.2)] * 2)
    assert assisted.speedup == pytest.approx([2.0] * 2)
    assert (plain.tokens_per_pass, assisted.tokens_per_pass) == (2.0, 4.0)
    assert (plain.acceptance_rate, assisted.acceptance_rate) == (None, 1.0)


def test_texts_are_compared_across_concurrencies() -> None:
    """A request's text in company is the one that it has alone; the very first is what the others are compared with."""
    found = rows_of(Model(), case(1, repeats=1), case(2, repeats=1))
    assert [row.equals_plain for row in found] == [None, True, True, True]

    class Other(Model):
        def engine(self) -> Engine:
            made = super().engine()
            if len(self.engines) == 3:  # plain, two in flight
                submit = made.submit
                made.submit = lambda tokens, options: submit([tokens[0] + 1, *tokens[1:]], options)  # type: ignore[method-assign]
            return made

    found = rows_of(Other(), case(1, repeats=1), case(2, repeats=1))
    assert [row.equals_plain for row in found] == [None, True, False, True]


def test_draws_have_a_seed_a_request_and_turn() -> None:
    """One seed for all requests would draw the same numbers in all of them."""
    model = Model()
    rows = rows_of(model, case(2, count=3, do_sample=True))
    seeds = [options.seed for _, options in model.submitted]
    assert seeds == [40, 41, 42] * 2 + [43, 44, 45] * 2
    assert {row.equals_plain for row in rows} == {None}


def test_percentiles() -> None:
    """Between two values in proportion."""
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([0.0, 100.0], 99) == pytest.approx(99.0)
    assert percentile([], 50) is None
    requests = tuple(Served(5, 1.0, 1.0 + wait, 11.0 + wait, 1, 11, 11, 0, 0) for wait in range(101))
    row = LoadRow(
        1, Contender(), "int8", None, [LoadSample(200.0, 5, requests[:50]), LoadSample(200.0, 5, requests[50:])]
    )
    assert (row.ttft_s(50), row.ttft_s(99)) == (50.0, 99.0)
    assert row.token_s(99) == 1.0


# Cases


class Tokenizer:
    """A token a word; "\\n\\n" is one as well."""

    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.replace("\n\n", " newlines ").split()]}


class WithTokenizer(Model):
    """A model that can be asked for prompts."""

    tokenizer = Tokenizer()
    vocab_size = 100

    def encode(self, prompt: str, *, chat: bool = False) -> list[int]:
        return self.tokenizer(prompt)["input_ids"]


def cases_of(model: Any, *argv: str) -> tuple[list[LoadCase], list[str]]:
    notes: list[str] = []
    asked = task_options(parse(["--task", "throughput", "-m", "x", *argv]))
    return load_cases.load_cases(asked, model, notes), notes


def test_every_concurrency_has_the_same_requests_first() -> None:
    """Four times as many as are in flight, 16 at least; all texts of equal length; prompts of 30 to 300 tokens."""
    found, notes = cases_of(WithTokenizer(), "--concurrency", "1,4,32", "--max-new-tokens", "9")
    assert [(each.concurrency, len(each.prompts), each.repeats) for each in found] == [
        (1, 16, 3),
        (4, 16, 3),
        (32, 128, 3),
    ]
    assert found[0].prompts == found[1].prompts == found[2].prompts[:16]
    assert found[0].options == {"do_sample": False, "ignore_eos": True, "max_new_tokens": 9}
    lengths = sorted(map(len, found[0].prompts))
    assert lengths[0] == 30
    assert 280 < lengths[-1] <= 300
    assert sum(lengths) / 16 == pytest.approx(165, rel=0.1)
    assert len({prompt[:25] for prompt in found[2].prompts}) == 128
    assert notes == []
    other, _ = cases_of(
        WithTokenizer(), "--concurrency", "4", "--requests", "3", "--prompt-tokens", "5,7", "--seed", "1"
    )
    assert [len(prompt) for prompt in other[0].prompts] == [5, 6, 5]


def test_lengths_are_spread_over_any_first_ones() -> None:
    """With a step of a share of their number the first ones would all be short."""
    for count in (4, 16, 50):
        lengths = sorted(spread_lengths(100, 0, 1000)[:count])
        gaps = [b - a for a, b in itertools.pairwise(lengths)]
        assert max(gaps) < 3 * 1000 / count


def test_a_mixed_prompt_ends_with_what_is_asked() -> None:
    """Behind as much text as makes it long enough, again from its beginning where the text is short."""
    tokenizer: Any = Tokenizer()
    found = mixed_prompts(tokenizer, [8, 12, 4, 30], "four " * 10, [SamplePrompt("a", "1 22 333")], seed=0)
    newlines = 8
    assert found[0] == [4] * 4 + [newlines, 1, 2, 3]
    assert found[1] == [4] * 8 + [newlines, 1, 2, 3]
    assert found[2] == [4, 4, 2, 3]
    assert found[3] == [4] * 26 + [newlines, 1, 2, 3]


def test_no_two_mixed_prompts_begin_alike() -> None:
    """Long prompts that come again, and places in the text as well: a cache of prefixes would make a difference."""
    tokenizer: Any = Tokenizer()
    drawn = random.Random(0)
    text = " ".join("x" * drawn.randrange(1, 90) for _ in range(200))
    prompts = [SamplePrompt("long", "word " * 400), SamplePrompt("short", "a b")]
    found = mixed_prompts(tokenizer, [100] * 64, text, prompts, seed=0)
    assert {len(each) for each in found} == {100}
    assert len({tuple(each[:40]) for each in found}) == 64


def test_a_dataset_s_prompts_and_what_is_left_out(tmp_path: Path) -> None:
    """Those of a fitting length, in an order drawn by the seed, again where there are too few."""
    file = tmp_path / "set.jsonl"
    file.write_text("".join(json.dumps({"prompt": "x " * count}) + "\n" for count in (1, 3, 4, 5, 90)))
    model = WithTokenizer()
    model.context_length = 100
    flags = ["--concurrency", "2", "--requests", "7", "--max-new-tokens", "20"]
    (found,), notes = cases_of(model, "--dataset", str(file), *flags, "--prompt-tokens", "2,80")
    assert sorted(map(len, found.prompts[:3])) == [3, 4, 5]
    assert found.prompts[3:6] == found.prompts[:3]
    assert notes == ["set.jsonl: 3 prompts have a fitting length, and come again for 7 requests"]
    (found,), _ = cases_of(model, str(file), *flags[:-1], "20")
    assert {len(prompt) for prompt in found.prompts} == {1, 3, 4, 5}
    with pytest.raises(UsageError, match="no prompt of it has 6 to 80 tokens"):
        cases_of(model, "--dataset", str(file), *flags, "--prompt-tokens", "6,80")


def test_prompts_leave_room_in_the_context() -> None:
    """Cut, with a note; none that fits is an error with the numbers."""
    model = WithTokenizer()
    model.context_length = 140
    with pytest.raises(UsageError, match=r"shortest prompt has 30 tokens, 128 follow, and the context of t holds 140"):
        cases_of(model, "--concurrency", "2")
    model.context_length = 200
    (found,), notes = cases_of(model, "--concurrency", "2")
    assert 60 < max(map(len, found.prompts)) <= 72
    assert notes == ["prompts have 72 tokens at most, as the context holds 200"]


def test_a_model_without_an_engine_says_so() -> None:
    """Through transformers there is one text at a time."""
    model: Any = type("Plain", (), {"identity": Model.identity})()
    with pytest.raises(UsageError, match="t runs through transformers"):
        throughput.engine_of(model)


# Reports


@pytest.fixture
def report() -> BenchReport:
    """Two concurrencies, plain and assisted, two turns each."""
    made = BenchReport("throughput", "ipex-assist bench --task throughput", commit="c")
    made.loads = rows_of(Model(), case(1), case(2))
    made.target, made.assistant, made.executor = "t", "a", "native"
    return made


def test_the_table_has_a_line_for_each_concurrency_and_contender(report: BenchReport) -> None:
    text = render(report, "markdown")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    head, _, *rows = lines
    assert [row[:2] for row in rows] == [[c, mode] for c in "12" for mode in ("plain", "assisted, adaptive k")]
    two = dict(zip(head[:9], rows[3], strict=False))
    assert two["Tokens/Sec"] == f"{16 / 4.8:.2f}"
    assert two["Ratio"] == "2.00"
    assert rows[3][9:] == ["1200", "1200", "400.0", "400.0", "4.00", "100%", "–", "yes"]
    assert rows[0][-1] == "yes"  # of its second turn
    assert "## int4 target, bf16 draft" in text


def test_csv_and_json_have_the_same_figures(report: BenchReport) -> None:
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert [(row["Concurrency"], row["Ratio"]) for row in rows] == [
        ("1", ""),
        ("1", "2.0000"),
        ("2", ""),
        ("2", "2.0000"),
    ]
    assert rows[2]["First Token p99 (ms)"] == "1200.000"
    content = json.loads(render(report, "json"))
    assert [row["tokens_per_s"] for row in content["rows"]] == pytest.approx([1 / 1.1, 2 / 1.1, 2 / 1.2, 4 / 1.2])
    assert content["rows"][3]["token_s"]["p50"] == pytest.approx(0.4)
    assert len(content["rows"][3]["samples"][1]["requests"]) == 4
    assert "loads" not in content


def test_a_plot_has_a_line_for_each_contender(report: BenchReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots.draw(report, tmp_path / "c.svg")
    assert (tmp_path / "c.svg").stat().st_size > 10_000


def test_curves_are_told_apart_without_colour() -> None:
    """Neighbours differ by line and marker, and ten have a colour each."""
    looks = [plots.curve(number) for number in range(20)]
    assert len({(look["color"], look["linestyle"]) for look in looks}) == 20
    assert all(a["linestyle"] != b["linestyle"] and a["marker"] != b["marker"] for a, b in itertools.pairwise(looks))
    assert len({look["color"] for look in looks[:10]}) == 10

"""Turns, samples and ratios, on a model whose times are known."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_assist.bench.measure import Case, Contender, Row, Sample, forget, measure
from ipex_assist.generation.result import DraftResult, Identity, Result, Times
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner

pytestmark = pytest.mark.one_stack


class Model:
    """Answers at once; each call's time is the next of a script, and what it was asked is kept."""

    identity = Identity("t", "a", "int4", "bf16", "native")

    def __init__(self, decode_s: list[float], tokens: dict[bool, list[int]] | None = None) -> None:
        self.decode_s, self.calls = list(decode_s), []
        self.tokens = tokens or {False: [1, 2, 3, 4, 5], True: [1, 2, 3, 4, 5]}

    def generate(self, prompt: Any, **options: Any) -> Result:
        """Return a result of five tokens."""
        self.calls.append(options)
        assisted = options.get("assisted", True)
        draft = DraftResult(2, 6, 2, 2 / 6, 2.0, [1, 0, 1], 3) if assisted else DraftResult()
        return Result(
            text="",
            tokens=self.tokens[assisted],
            prompt_tokens=len(prompt),
            new_tokens=len(self.tokens[assisted]),
            ttft_s=1.0,
            decode_s=self.decode_s.pop(0),
            tokens_per_s=None,
            speedup=None,
            assisted=assisted,
            target="t",
            assistant="a",
            precision="int4",
            assistant_precision="bf16",
            executor="native",
            stop_reason="length",
            draft=draft,
            times=Times(10.0, 0.1, 0.2, 0.3, 25.0),
        )


def case(repeats: int = 2, **options: Any) -> Case:
    """Return the case of a prompt of three tokens."""
    return Case("1", [7, 8, 9], {"max_new_tokens": 5, **options}, repeats, seed=40, kind="code")


def test_contenders_take_turns_and_keep_every_sample() -> None:
    """Plain and assisted of one turn stand beside each other: a machine that grows slower must not favour either."""
    model = Model([4.0, 2.0, 1.0, 8.0, 2.0, 4.0])
    plain, three, adaptive = measure(model, case(), [Contender(), Contender(3), Contender("adaptive")])  # type: ignore[arg-type]
    assert [sample.decode_s for sample in plain.samples] == [4.0, 8.0]
    assert [sample.decode_s for sample in three.samples] == [2.0, 2.0]
    assert three.speedup == [2.0, 4.0]
    assert adaptive.speedup == [4.0, 2.0]
    assert three.total_speedup == [5 / 3, 9 / 3]
    assert plain.speedup == []
    assert three.median(lambda sample: sample.token_s) == 0.5
    assert (three.precision, three.assistant_precision, three.prompt_tokens, three.kind) == ("int4", "bf16", 3, "code")
    assert three.acceptance_rate == pytest.approx(1 / 3)
    assert three.tokens_per_pass == 2.0
    assert (plain.acceptance_rate, plain.tokens_per_pass) == (None, None)


def test_what_contenders_ask_for() -> None:
    """A number is that number every round; a name is a schedule; plain is plain."""
    model = Model([1.0] * 4)
    contenders = [Contender(), Contender(3), Contender("heuristic"), Contender("adaptive")]
    list(measure(model, case(1), contenders))  # type: ignore[arg-type]
    asked = [{name: value for name, value in call.items() if name != "max_new_tokens"} for call in model.calls]
    assert asked == [
        {"assisted": False},
        {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant"},
        {"num_assistant_tokens_schedule": "heuristic"},
        {"num_assistant_tokens_schedule": "adaptive"},
    ]
    model = Model([1.0] * 2)
    list(measure(model, case(1), [Contender(), Contender(3)], "adaptive"))  # type: ignore[arg-type]
    assert model.calls[1]["num_assistant_tokens_schedule"] == "adaptive"


def test_draws_have_a_seed_a_turn() -> None:
    """One seed for all turns would measure one text only; contenders of a turn share theirs."""
    model = Model([1.0] * 4)
    rows = list(measure(model, case(do_sample=True), [Contender(), Contender(3)]))  # type: ignore[arg-type]
    assert [call["seed"] for call in model.calls] == [40, 40, 41, 41]
    assert rows[1].equals_plain is None


def test_a_text_that_differs_is_noticed_in_any_turn() -> None:
    """Greedy assisted text is the plain one; one turn's agreement must not hide another's difference."""
    same = list(measure(Model([1.0] * 4), case(), [Contender(), Contender(3)]))  # type: ignore[arg-type]
    assert same[1].equals_plain is True

    class Flaky(Model):
        def generate(self, prompt: Any, **options: Any) -> Result:
            self.tokens[True] = [1, 2, 3, 4, 6 if len(self.calls) == 1 else 5]
            return super().generate(prompt, **options)

    other = list(measure(Flaky([1.0] * 4), case(), [Contender(), Contender(3)]))  # type: ignore[arg-type]
    assert other[1].equals_plain is False


def test_a_text_of_one_token_has_no_speed() -> None:
    """An end-of-text at once leaves nothing to divide by."""
    model = Model([0.0] * 2, {False: [2], True: [2]})
    rows = list(measure(model, case(1), [Contender(), Contender(3)]))  # type: ignore[arg-type]
    assert rows[0].median(lambda sample: sample.token_s) is None
    assert rows[1].speedup == []
    assert rows[1].samples == [Sample(1.0, 1.0, 0.0, 1, 6, 2, 2, 0.1, 0.2, 0.3, 25.0)]


def test_rows_survive_json() -> None:
    """Records of datasets are rows."""
    rows = list(measure(Model([1.0, 0.5]), case(1), [Contender(), Contender("adaptive")]))  # type: ignore[arg-type]
    assert [Row.from_dict(row.as_dict()) for row in rows] == rows


@pytest.mark.parametrize(
    ("contender", "label"),
    [
        (Contender(), "plain"),
        (Contender(6), "assisted, k = 6"),
        (Contender("adaptive", 0.75), "assisted, adaptive k, simulated acceptance 0.75"),
        (Contender(2, 1.0), "assisted, k = 2, simulated acceptance 1"),
    ],
)
def test_labels(contender: Contender, label: str) -> None:
    """A simulation is named as one wherever a contender is."""
    assert contender.label == label


def test_earlier_texts_are_forgotten() -> None:
    """What the schedule learnt must not carry over, measured costs must."""
    from ipex_assist.speculative.drafting import Drafting

    calls: list[int] = []

    def costs() -> Any:
        calls.append(1)
        return "costs"

    kept: list[object] = []
    model = type("Model", (), {})()
    model.drafting = Drafting(100, costs, keep=lambda *learnt: kept.append(learnt))
    assert model.drafting.costs == "costs"
    for _ in range(2):
        model.drafting.model_acceptance.observe([0.9], 1, 1)
        model.drafting.lookup_acceptance.observe([0.9], 1, 1)
        forget(model)
        assert model.drafting.model_acceptance.seen == model.drafting.lookup_acceptance.seen == 0
    planner = Planner([KnownAssistant(Costs((1.0,)))])
    model.drafting.learn(planner, planner.join(8))
    assert kept == []  # nor do texts of an experiment teach what users' texts are like
    assert model.drafting.costs == "costs"
    assert calls == [1]
    forget(object())  # type: ignore[arg-type]

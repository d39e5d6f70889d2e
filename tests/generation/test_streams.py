"""Several texts of one model at a time: each has the tokens it has alone, on every executor."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_files
import numpy as np
import pytest
import torch
from conftest import PRECISIONS

import ipex_assist
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.rope import BLOCK, RotaryTable
from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.speculative.costs import calibration
from ipex_assist.speculative.costs.pair_costs import Costs

PROMPTS = ["The quick brown fox", "def add(a, b):\n    return a + b\n", "for i in range(10): print(i)"]
CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)  # drafting pays, whatever the machine does meanwhile
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"assisted": False},
    "assisted": {"num_assistant_tokens": 3},
    "sampled": {"assisted": False, "do_sample": True},
    "assisted and sampled": {"num_assistant_tokens": 3, "do_sample": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and an assistant of its vocabulary."""
    return checkpoint_files.save_pair(tmp_path_factory.mktemp("pair"), max_position_embeddings=4096)


_loaded: dict[tuple[str, str], Any] = {}


def load(folder: Path, executor: str, precision: str) -> Any:
    """The pair, once for all tests of this file."""
    key = (executor, precision)
    if key not in _loaded:
        _loaded[key] = ipex_assist.load(
            str(folder / "target"),
            str(folder / "assistant"),
            executor=executor,
            precision=precision,
            calibrate=False,
        )
        _loaded[key].eos = frozenset()
    return _loaded[key]


def stream(model: Any, number: int, mode: str, tokens: int = 24) -> Any:
    seed = {"seed": number} if "sampled" in mode else {}
    return model.stream(PROMPTS[number], max_new_tokens=tokens, **OPTIONS[mode], **seed)


def finished(generation: Any) -> list[int]:
    for _ in generation:
        pass
    return list(generation.result().tokens)


def alone(model: Any, mode: str) -> list[list[int]]:
    texts = [finished(stream(model, number, mode)) for number in range(len(PROMPTS))]
    assert len({tuple(text) for text in texts}) == len(PROMPTS), "texts that are alike would hide a mix-up"
    return texts


every_executor = pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
every_mode = pytest.mark.parametrize("mode", OPTIONS)


@every_executor
@every_mode
def test_interleaved(folder: Path, executor: str, precision: str, mode: str) -> None:
    """A round of each in turn: with one sequence in the model, each overwrote the other's keys and values."""
    model = load(folder, executor, precision)
    expected = alone(model, mode)
    live = [stream(model, number, mode) for number in range(len(PROMPTS))]
    going = list(live)
    while going:
        going = [generation for generation in going if next(generation, None) is not None]
    assert [list(generation.result().tokens) for generation in live] == expected


@every_executor
@every_mode
def test_two_threads(folder: Path, executor: str, precision: str, mode: str) -> None:
    """All at once, several times over: what passes of one model share was used by two of them."""
    model = load(folder, executor, precision)
    expected = alone(model, mode)

    def run(number: int) -> list[list[int]]:
        return [finished(stream(model, number, mode)) for _ in range(4)]

    assert in_threads(run, len(PROMPTS)) == [[text] * 4 for text in expected]


def in_threads(run: Callable[[int], Any], count: int) -> list[Any]:
    """run(0), run(1), … at the same time; what they return, or the first exception."""
    results: list[Any] = [None] * count
    ready = threading.Barrier(count)

    def call(number: int) -> None:
        ready.wait()
        try:
            results[number] = run(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@every_executor
def test_the_adaptive_schedule_in_threads(folder: Path, executor: str, precision: str) -> None:
    """What texts teach about the pair is common to them; their tokens are not."""
    model = load(folder, executor, precision)
    model.drafting.forget()
    model.drafting._costs = CHEAP
    expected = alone(model, "plain")

    def run(number: int) -> list[list[int]]:
        return [list(model.generate(PROMPTS[number], max_new_tokens=24).tokens) for _ in range(6)]

    assert in_threads(run, len(PROMPTS)) == [[text] * 6 for text in expected]


@every_executor
def test_calibration_beside_a_stream(folder: Path, executor: str, precision: str) -> None:
    """Its passes are in sequences of their own, and so are those of a text from beginning to end."""
    model = load(folder, executor, precision)
    expected = alone(model, "assisted")
    live = stream(model, 0, "assisted")
    next(live)
    next(live)
    calibration.calibrate(model.target, model.assistant)
    assert finished(stream(model, 1, "assisted")) == expected[1]
    assert finished(live) == expected[0]


def test_two_threads_measure_costs_once(folder: Path, executor: str) -> None:
    """Each would measure the other's passes along with its own."""
    precision = "fp32"
    model = load(folder, executor, precision)
    model.drafting.forget()
    calls: list[int] = []
    entered = threading.Event()

    def measure() -> Costs:
        calls.append(1)
        entered.wait(0.2)
        return CHEAP

    model.drafting._costs, model.drafting.measure = None, measure
    assert in_threads(lambda _: model.drafting.costs, 2) == [CHEAP, CHEAP]
    assert calls == [1]


@every_executor
def test_a_stream_abandoned_half_way(folder: Path, executor: str, precision: str) -> None:
    """Its sequences go with it, the target's and the assistant's; the next text starts from nothing."""
    model = load(folder, executor, precision)
    expected = alone(model, "assisted")
    made: list[weakref.ref[Any]] = []
    for each in (model.target, model.assistant):
        original = each.new_sequence

        def new_sequence(*arguments: Any, original: Any = original) -> Any:
            sequence = original(*arguments)
            made.append(weakref.ref(sequence))
            return sequence

        each.new_sequence = new_sequence
    try:
        live = stream(model, 0, "assisted")
        next(live)
        next(live)
        assert [reference() is not None for reference in made] == [True, True]
        del live
        gc.collect()
        assert [reference() for reference in made] == [None, None]
        assert finished(stream(model, 1, "assisted")) == expected[1]
        assert [reference() for reference in made] == [None] * 4
    finally:
        for each in (model.target, model.assistant):
            del each.new_sequence


@every_executor
def test_a_long_text_begins_beside_a_short_one(folder: Path, executor: str, precision: str) -> None:
    """It needs more rotary positions than the model has: the table grows while the other text uses it."""
    model = load(folder, executor, precision)
    expected = alone(model, "plain")

    def run(number: int) -> list[int]:
        if number == 0:
            return finished(stream(model, 0, "plain"))
        model.target.new_sequence(1500 * number)
        return finished(stream(model, number, "plain"))

    assert in_threads(run, 3) == expected


@pytest.mark.parametrize("kind", ["default", "dynamic"])
def test_a_rotary_position_does_not_depend_on_the_tables_length(folder: Path, kind: str) -> None:
    """Bit for bit: else a text would depend on how long the longest text was before it."""
    config: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 700}
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}} if kind == "dynamic" else {}
    spec = spec_of(checkpoint_files.TINY["llama"] | config | scaling)
    small, grown, at_once = (RotaryTable(spec) for _ in range(3))
    for length in (BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 7):
        grown.reach(length)
    at_once.reach(5 * BLOCK + 7)
    assert len(grown.tables[0]) >= 5 * BLOCK + 7
    for ours, other, first in zip(grown.tables, at_once.tables, small.tables, strict=True):
        shorter = min(len(ours), len(other))
        assert np.array_equal(ours[:shorter], other[:shorter])
        assert np.array_equal(ours[: len(first)], first)


def spec_of(config: dict[str, Any]) -> DecoderSpec:
    return ARCHITECTURES["LlamaForCausalLM"].spec(config)


@every_executor
def test_rows_of_several_sequences(folder: Path, executor: str, precision: str) -> None:
    """One call for prompts, steps and rows whose logits nobody wants: the bits that each has alone, in their order."""
    model = load(folder, executor, precision).target
    prompts = [[3, 5, 8], list(range(10, 50)), [7], list(range(100, 117))]
    following = [[1, 2, 3, 4, 5], [6], [7, 8, 9], list(range(20))]
    wanted = [2, 1, 0, 9]
    expected = []
    for prompt, tokens, last in zip(prompts, following, wanted, strict=True):
        sequence = model.new_sequence(64)
        first = model.extend(sequence, prompt)
        expected.append((first, model.extend(sequence, tokens, last)))
    sequences = [model.new_sequence(64) for _ in prompts]
    first = model.forward([Rows(*pair) for pair in zip(sequences, prompts, strict=True)])
    assert torch.equal(first, torch.cat([logits for logits, _ in expected]))
    rows = [Rows(*each) for each in zip(sequences, following, wanted, strict=True)]
    assert torch.equal(model.forward(rows), torch.cat([logits for _, logits in expected]))
    assert [sequence.length for sequence in sequences] == [
        len(prompt) + len(tokens) for prompt, tokens in zip(prompts, following, strict=True)
    ]
    narrow = model.forward([Rows(sequence, [1]) for sequence in sequences], vocabulary=37)
    assert narrow.shape == (4, 37)
    sequences[0].truncate(3)
    assert torch.equal(model.forward([Rows(sequences[0], following[0], 2)]), expected[0][1])

"""prompt_sockets.py: prompts on paper take what their products take, and what the core's split reads and waits for."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import barriers
import prompt_sockets
import pytest
from conftest import HAS_NATIVE
from native_models import loaded
from prompt_sockets_model import LAST_LEVEL, TILE_ROWS, PaperPrompt, Rates, Spent, Split, parts_of
from sockets_model import Core, Paper
from sockets_shapes import SHAPES, Shape

from ipex_assist.models.mlp_spec import Experts
from ipex_assist.native.library import unavailable
from ipex_assist.native.rows import PASS_ROWS

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

QWEN, LLAMA = SHAPES[:2]
MIXTURE, LATENT = SHAPES[3], SHAPES[-1]
AMX = Rates(1.6, 0.8, 12, 100)
FREE = {"score_ns": 0.0, "cache": math.inf, "link": math.inf}  # but for products, memory and barriers
LONG = 4096


def machine(cores: int, sockets: int = 1, bandwidth: float = 490, **more: Any) -> Paper:
    return Paper(cores, sockets, bandwidth, Core(0, 0, more.pop("memory", 12), more.pop("value_ns", 0.41)), **more)


def idle(cores: int, sockets: int = 1) -> Paper:
    """A machine that reads, prepares rows and waits in no time."""
    return machine(cores, sockets, math.inf, memory=math.inf, value_ns=0, line_ns=0, spread_ns=0, socket_ns=0)


def prompt(
    shape: Shape, paper: Paper, rates: Rates = AMX, split: Split | None = None, weights: str = "int4"
) -> PaperPrompt:
    return PaperPrompt(shape, weights, paper, rates, split or Split(), LAST_LEVEL.get(paper.cores, 60) * 1e6)


def seconds(*of: Any, tokens: int = LONG, **more: Any) -> float:
    return prompt(*of, **more).spent(tokens).seconds


def test_today_is_what_the_core_does() -> None:
    """Catches a number of rows that has changed in the core alone."""
    assert prompt_sockets.TODAY == Split().rows == PASS_ROWS


def test_one_core_takes_what_its_products_take() -> None:
    """Catches linears, or their attention, that are left out or count twice: nothing else takes time here."""
    for shape, weights in itertools.product((QWEN, LLAMA), ("int4", "bf16")):
        alone = prompt(shape, idle(1), Rates(1.6, **FREE), weights=weights)
        assert alone.spent(LONG).seconds == pytest.approx(alone.peak_seconds(LONG), rel=1e-6), shape.name
    by_hand = LONG * 6.98e9 / 1.6e12 + 32 * 32 * 2 * 128 * LONG * (LONG + 1) / 2 / 0.8e12
    assert prompt(LLAMA, idle(1)).peak_seconds(LONG) == pytest.approx(by_hand, rel=0.01)


def test_experts_multiply_what_their_rows_need() -> None:
    """Catches experts that are left out, or have more rows than their own and those that fill up a tile."""
    for shape, active in ((MIXTURE, 2.7e9), (LATENT, 35.5e9)):  # parameters of a token, without embedding and head
        alone = prompt(shape, idle(1), Rates(1.6, **FREE), Split(LONG))
        assert alone.peak_seconds(1) * 1.6e12 == pytest.approx(active, rel=0.15), shape.name
        assert 1 <= alone.spent(LONG).seconds / alone.peak_seconds(LONG) < 1.1, shape.name


def test_without_caches_and_barriers_the_split_does_not_matter() -> None:
    """Catches a split that multiplies other products than another: blocks and rows that divide evenly."""
    even = Shape("even", 8192, 4, 64, 8, 128, 16384, 131072)
    times = [
        seconds(even, idle(64, sockets), Rates(1.6, **FREE), Split(rows, parts)) * sockets
        for sockets in (1, 2)
        for rows in (256, 1024)
        for parts in parts_of(machine(64), rows)
    ]
    assert len(times) > 10
    assert max(times) == pytest.approx(min(times), rel=1e-6)


def test_nothing_beats_the_products() -> None:
    """No split is faster than the peak, and each thing that a machine lacks makes it slower."""
    for shape, paper in itertools.product(SHAPES, (machine(64), machine(128, 2))):
        for split in (Split(), Split(1024, 4)):
            whole = prompt(shape, paper, split=split)
            assert whole.spent(LONG).seconds > whole.peak_seconds(LONG)
    base = seconds(LLAMA, machine(128, 2))
    assert seconds(LLAMA, machine(128, 2), Rates(1.6, 0.8, 6, 100)) > base
    assert seconds(LLAMA, machine(128, 2), Rates(1.6, 0.8, 12, 20)) > base
    assert seconds(LLAMA, machine(128, 2, line_ns=700)) > base
    assert seconds(LLAMA, machine(128, 2, bandwidth=49)) > base


def test_parts_of_the_rows_help_where_each_thread_reads_all_for_a_few_columns() -> None:
    """Catches inputs of a part that are not fewer, and weights of other parts that nobody reads."""
    few, many = machine(8), machine(128, 2)
    assert seconds(LLAMA, few, AMX, Split(256, 2)) > 0.9 * seconds(LLAMA, few)
    today, parts = (prompt(LLAMA, many, split=split).spent(LONG) for split in (Split(), Split(1024, 8)))
    assert max(today.ns, key=lambda name: today.ns[name]) == "cache"
    assert parts.seconds < 0.7 * today.seconds
    # With a slow cache, weights that come from other threads' caches cost more than they save.
    assert seconds(LLAMA, few, Rates(1.6, 0.8, 0.5, 100), Split(256, 8)) > seconds(
        LLAMA, few, Rates(1.6, 0.8, 0.5, 100), Split(256, 1)
    )


def test_more_rows_read_experts_less_often() -> None:
    """A mixture's weights are read once a pass: memory limits passes of few rows."""
    times = [prompt(MIXTURE, machine(64, bandwidth=285), split=Split(rows)).spent(LONG) for rows in (256, 1024, LONG)]
    memory = [spent.ns["memory"] for spent in times]
    assert memory[0] > 3.5 * memory[1]
    assert times[0].seconds > 1.5 * times[1].seconds
    one, four = (prompt(LLAMA, idle(1), split=Split(rows)).spent(LONG) for rows in (256, 1024))
    assert one.ns["products"] == pytest.approx(four.ns["products"]), "and a dense model's products are the same"


def test_a_pass_reads_the_weights_once() -> None:
    """Catches weights that each part of the rows reads from memory, and experts that a mixture does not have."""
    slow = Paper(64, 1, 1, Core(0, 0, math.inf, 0), line_ns=0, spread_ns=0)
    for shape, parameters in ((LLAMA, 6.98e9), (MIXTURE, 29.9e9)):
        head = shape.vocabulary * shape.hidden
        for split in (Split(256), Split(256, 4)):
            read = seconds(shape, slow, Rates(1e9, **FREE), split, tokens=1024)
            assert read == pytest.approx(0.5625 * (4 * parameters + head) / 1e9, rel=0.01), shape.name


def test_parts_have_a_tile_each_and_threads_of_one_socket() -> None:
    assert list(parts_of(machine(64), 256)) == [1, 2, 4, 8, 16]
    assert list(parts_of(machine(86), 256)) == [1, 2]
    assert list(parts_of(machine(64), 2 * TILE_ROWS)) == [1, 2]


def test_what_limits_is_the_longest() -> None:
    spent = Spent()
    spent.add(2, products=3, memory=5)
    spent.add(1, products=30, memory=5)
    assert spent.ns == {"memory": 10, "products": 30}
    assert spent.limits() == "products 75 %, memory 25 %"


@pytest.mark.parametrize("variant", ["llama", "qwen3-moe", "deepseek-v3"])
def test_as_many_barriers_a_layer_as_the_core_has(variant: str) -> None:
    """Catches a phase of a prompt that the core has, or no longer has, and the paper does not."""
    model = loaded(variant, "int4", 2)
    spec = model.spec
    kinds = [isinstance(layer.mlp, Experts) for layer in spec.layers]
    attention = spec.layers[0].attention
    latent = (8, 8) if variant == "deepseek-v3" else (0, 0)
    experts = (8, 2, 16) if any(kinds) else (0, 0, 0)
    sizes = (attention.heads, attention.kv_heads, 16, 64, 256)
    shape = Shape(variant, 64, len(kinds), *sizes, experts, dense=kinds.count(False), latent=latent)
    paper = machine(2, line_ns=1000, spread_ns=0)
    rows = 48  # tiles enough: with fewer, blocks of keys may be shared, which takes one more
    found = prompt(shape, paper).spent(rows).ns["barriers"] / paper.barrier_ns()
    # Beside the layers: the embedding, the rows that the head reads, and the head.
    assert found + 3 == barriers.barriers_of(model, rows)


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    prompt_sockets.main(["--cores", "64", "--precisions", "int4", "--rows", "1024", "--prompt", "2000"])
    out = capsys.readouterr().out
    assert "2 x 64" in out
    assert "DeepSeek-V3" in out
    monkeypatch.setattr(prompt_sockets, "products_here", lambda: 0.25)
    prompt_sockets.main(["--cores", "64", "--sockets", "1", "--precisions", "int4", "--products", "here"])
    assert '"products_of_a_core": 0.25' in capsys.readouterr().out
    for wrong in (["--cores", "57"], ["--precisions", "int3"], ["--products", "much"], ["--rows", "8"]):
        with pytest.raises(SystemExit):
            prompt_sockets.parse(wrong)


def test_it_explains_what_two_cores_took() -> None:
    """Catches a model that has nothing to do with the core: prompts of Qwen2.5 1.5B as they were measured on Zen 4."""
    run = json.loads((Path(prompt_sockets.__file__).parent / "results/zen4-2c/prompts-aed16d1.json").read_text())
    shape = Shape("Qwen2.5 1.5B", 1536, 28, 12, 2, 128, 8960, 151936)
    for row in (dict(zip(run["columns"], each, strict=True)) for each in run["rows"]):
        peak = float(row["peak, G/s"]) / 2 / 1000 * (2 if row["precision"] == "bf16" else 1)
        found = prompt(shape, machine(2, bandwidth=40, memory=20), Rates(peak, 0.8, 12, 100), weights=row["precision"])
        share = found.spent(int(row["tokens"])).seconds / float(row["seconds"])
        assert 0.75 < share < 1, row  # the model's kernels multiply at their peak

"""sockets.py: machines on paper have the core's partition, read as fast as they can, and wait as often as the core."""

from __future__ import annotations

import dataclasses
import itertools

import barriers
import company
import pytest
import sockets
from conftest import HAS_NATIVE
from native_models import loaded, pool
from sockets_model import Core, Paper, pass_time, worst_load
from sockets_shapes import SHAPES, Phase, Shape, decode_pass

from ipex_assist.models.mlp_spec import Experts
from ipex_assist.native.library import unavailable
from ipex_assist.native.shares import attention_shares, expert_shares, linear_shares

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

CORE = Core(linear=50, attention=25, memory=12, value_ns=0.5)
LLAMA = SHAPES[1]


def paper(cores: int = 56, machines: int = 1, bandwidth: float = 245, core: Core = CORE) -> Paper:
    return Paper(cores, machines, bandwidth, core)


def test_threads_share_what_a_socket_has() -> None:
    """Catches a socket that is read faster than its memory is, and threads that leave nothing to others when done."""
    two = paper(2, bandwidth=20)
    assert two.read_ns([100, 100], 12) == pytest.approx(10)  # 20 GB/s for both
    assert two.read_ns([100, 0], 12) == pytest.approx(100 / 12)  # what one core can have
    assert two.read_ns([160, 100], 12) == pytest.approx(10 + 60 / 12)
    both = paper(2, 2, bandwidth=20)
    assert both.read_ns([100, 100, 100, 100], 12) == pytest.approx(10), "each socket has its own memory"
    assert both.read_ns([100, 100, 0, 0], 12) == pytest.approx(10), "and none of the other's"


def test_everything_is_read_once() -> None:
    """Catches shares that leave out blocks, or count some twice."""
    for threads, unit in itertools.product((1, 7, 112, 256), (1, 2)):
        shares = linear_shares(258, threads, unit)
        assert sum(shares) == 258
        assert all(share % unit == 0 for share in shares)
        assert max(shares) - min(shares) <= unit
        half = [int(thread >= threads // 2) for thread in range(threads)] if threads > 1 else [0]
        experts = expert_shares(258, 9, half, unit)
        assert sum(experts) == 9 * 258
        assert max(experts) - min(experts) <= 10 * unit, "the node's blocks of all experts, and two shares of them"
    for kv_heads, context in itertools.product((1, 2, 8), (255, 2048, 70000)):
        units, _ = attention_shares(16, kv_heads, 64, context, [0] * 56 + [1] * 56)
        assert sum(units) == kv_heads * (context // 256 + 1)
    assert sum(attention_shares(16, 8, 64, 70000, [0] * 56, window=1000)[0]) <= 8 * 5


def test_a_pass_reads_the_model() -> None:
    """Catches a linear that is left out: the sizes are those of 8, 70 and 671 (37 active) billion parameters."""
    expected = {"Qwen2.5 0.5B": 0.494, "Llama 3.1 8B": 7.5, "Llama 3.1 70B": 69.5, "DeepSeek-V3": 37}
    for shape in SHAPES:
        if shape.name in expected:
            read = pass_time(shape, 0, paper()).size / 0.5625e9
            assert read == pytest.approx(expected[shape.name], rel=0.06), shape.name


def test_a_pass_takes_longer_than_reading() -> None:
    """No machine has more than its memory gives; two sockets are faster than one, and less than twice as fast."""
    for shape in SHAPES:
        for cores in (32, 128):
            one, two = paper(cores), paper(cores, 2)
            alone, both = pass_time(shape, 2048, one), pass_time(shape, 2048, two)
            assert 0 < alone.share(one) < 1
            assert 0 < both.share(two) < alone.share(one)
            assert alone.size / one.bandwidth / 1e6 <= alone.reading_ms < alone.ms
            assert alone.barrier_ms < alone.ms - alone.reading_ms


def test_the_goals_on_paper() -> None:
    """80 % of both sockets' memory for 8B in int4, and 90 % for 70B, on 2 x 56 cores."""
    machine = paper(56, 2)
    by_name = {shape.name: pass_time(shape, 2048, machine).share(machine) for shape in SHAPES}
    assert by_name["Llama 3.1 8B"] >= 0.8
    assert by_name["Llama 3.1 70B"] >= 0.9


def test_uneven_linears_cost_where_cores_lack_bandwidth() -> None:
    """256 blocks on 120 threads: cores that can have no more than their share leave the others' memory idle."""
    slow, fast = (paper(60, 2, core=dataclasses.replace(CORE, memory=memory)) for memory in (245 / 60, 12))
    costs = []
    for machine in (slow, fast):
        uneven, even = (pass_time(LLAMA, 0, machine, parts).reading_ms for parts in (1, 8))
        costs.append(uneven / even - 1)
    assert costs[0] > 0.05
    assert costs[1] < costs[0] / 2


def test_barriers_are_those_of_the_other_model() -> None:
    """Catches two models of one barrier that have come apart."""
    for cores, number in itertools.product((8, 56, 128), (1, 2)):
        other = barriers.Machine(cores * number, 245, 70, 15, number, 150)
        assert paper(cores, number).barrier_ns() == pytest.approx(1000 * other.barrier_us())


def counted(phases: list[tuple[float, list[Phase]]]) -> float:
    return sum(count * phase.barriers for count, parts in phases for phase in parts)


@pytest.mark.parametrize("variant", ["llama", "qwen3-moe", "deepseek-v3"])
def test_as_many_barriers_as_the_core_has(variant: str) -> None:
    """Catches a phase that the core has, or no longer has, and the paper does not."""
    model = loaded(variant, "int4", 2)
    spec = model.spec
    attention, mlps = spec.layers[0].attention, [layer.mlp for layer in spec.layers]
    mixtures = [mlp for mlp in mlps if isinstance(mlp, Experts)]
    latent = variant == "deepseek-v3"
    shape = Shape(
        variant,
        spec.hidden_size,
        len(mlps),
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        mlps[0].intermediate_size,
        spec.vocab_size,
        *([(mixtures[0].count, mixtures[0].per_token, mixtures[0].intermediate_size)] if mixtures else [(0, 0, 0)]),
        shared=int(latent),
        dense=len(mlps) - len(mixtures),
        latent=(40, 48) if latent else (0, 0),
    )
    assert counted(decode_pass(shape, company.CONTEXT, [0, 0])) == barriers.barriers_of(model, 1)


def test_long_contexts_are_shared_evenly() -> None:
    """Catches a hash of blocks to threads, whose worst load was 3.5 on 256 threads."""
    for shape in SHAPES:
        if shape.kv_heads > 1:
            assert worst_load(shape, 131071, paper(128, 2)) <= 1.3, shape.name


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "planned_pool", lambda: pool(2))
    monkeypatch.setattr(sockets, "measured_core", lambda memory: dataclasses.replace(CORE, memory=memory))
    monkeypatch.setattr(sockets, "read_bandwidth", lambda threads: 10.0)
    sockets.main(["--cores", "56,128"])
    out = capsys.readouterr().out
    assert "Llama 3.1 70B" in out
    assert "2 x 128" in out
    with pytest.raises(SystemExit):
        sockets.parse(["--cores", "57"])

"""Statistics by hand: counts, times, and what passes read from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
from conftest import HAS_NATIVE

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.executors import traffic
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.traffic import Traffic, linear_bytes, machine_gb_per_s, table_bytes, traffic_of
from ipex_assist.generation.stats import Statistics
from ipex_assist.native.library import unavailable
from ipex_assist.speculative.round import Round


class Clock:
    """A clock whose time passes only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("ipex_assist.generation.stats.time.perf_counter", lambda: self.now)


ROUNDS = [
    (0.5, Round([7], target_s=0.5, prompt=True)),
    (0.4, Round([1, 2, 3, 4], drafted=3, accepted=3, draft_s=0.1, target_s=0.2)),
    (0.3, Round([5], drafted=2, accepted=0, draft_s=0.05, target_s=0.2)),
]


def counted(monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[float, Round]], **fields: Traffic) -> Statistics:
    """Statistics of rounds that end the given number of seconds after each other."""
    clock = Clock(monkeypatch)
    counts = Statistics(10, _started=clock.now, **fields)
    for seconds, round_ in rounds:
        clock.now += seconds
        counts.count(round_, len(round_.tokens))
    return counts


def test_counts_and_times_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's pass must not count as a round, nor its time as decoding."""
    counts = counted(monkeypatch, ROUNDS)
    assert (counts.rounds, counts.drafted, counts.accepted, counts.longest_draft) == (2, 5, 3, 3)
    assert counts.accepted_histogram == [1, 0, 0, 1]
    assert (counts.drafted_by_position, counts.accepted_by_position) == ([2, 2, 1], [1, 1, 1])
    assert (counts.acceptance_rate, counts.tokens_per_pass) == (0.6, 2.5)
    assert counts.encode_tokens_per_s == pytest.approx(20)
    assert counts.decode_s == pytest.approx(0.7)
    assert counts.tokens_per_s == pytest.approx(5 / 0.7)
    assert counts.parts_s == pytest.approx((0.15, 0.4, 0.15))


def test_bytes_read_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights once a pass; keys and values of the text before it: 11 tokens in the first round, 15 in the second.

    The prompt's pass reads weights too, and must not count: it is bound by arithmetic.
    """
    counts = counted(monkeypatch, ROUNDS, traffic=Traffic(weight_bytes=1_000_000_000, kv_bytes_per_token=10_000_000))
    assert counts.read_gb_per_s == pytest.approx((2 * 1.0 + (11 + 15) * 0.01) / 0.4)


def test_what_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers drafts without telling how long: then neither share may be called verification's."""
    together = [ROUNDS[0], (0.4, Round([1, 2], drafted=3, accepted=1, target_s=0.3))]
    counts = counted(monkeypatch, together, traffic=Traffic(1, 1))
    assert counts.parts_s is None
    assert counts.read_gb_per_s is None
    before = Statistics(10)
    assert (before.tokens_per_s, before.encode_tokens_per_s, before.parts_s, before.read_gb_per_s) == (None,) * 4


def test_plain_decoding_has_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing drafted is no reason not to know where the time went."""
    counts = counted(monkeypatch, [ROUNDS[0], (0.25, Round([1], target_s=0.2))], traffic=Traffic(2_000_000_000, 0))
    assert counts.parts_s == pytest.approx((0.0, 0.2, 0.05))
    assert counts.read_gb_per_s == pytest.approx(10)


@pytest.mark.skipif(not HAS_NATIVE, reason="needs the native core")
@pytest.mark.parametrize("variant", ["llama", "llama-tied", "opt", "opt-350m", "gpt-bigcode", "opt-untied"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_traffic_is_the_image_without_its_tables(tmp_path: Path, variant: str, precision: str) -> None:
    """Counting tables would report more than the memory gives; leaving out the head, less than is read.

    The sizes are whole blocks of the core, so that its image is the linears, the tables, norms and biases.
    """
    wide = {"n_embd": 256, "n_inner": 512} if variant == "gpt-bigcode" else {"hidden_size": 256}
    wide |= {"ffn_dim": 512} if variant.startswith("opt") else {} if "n_embd" in wide else {"intermediate_size": 512}
    wide |= {"word_embed_proj_dim": 128 if variant == "opt-350m" else 256} if variant.startswith("opt") else {}
    tiny_models.save(tmp_path, variant, **wide)
    model = load_model(LoadRequest(open_checkpoint(str(tmp_path)), precision, "native"))
    ours = traffic_of(model, precision)
    nbytes = model.packed.nbytes  # type: ignore[attr-defined]
    assert ours.weight_bytes == nbytes - table_bytes(model.spec, precision)
    # Norms, biases, scales and the padding to pages: small beside the matrices, here at most a tenth.
    linears = linear_bytes(model.spec, precision)
    assert linears <= ours.weight_bytes <= 1.15 * linears + 8192
    assert ours.kv_bytes_per_token == model.spec.kv_bytes_per_token(4 if precision == "fp32" else 2)
    narrow = load_model(LoadRequest(open_checkpoint(str(tmp_path)), precision, "native", kv_precision="int8"))
    assert traffic_of(narrow, precision).kv_bytes_per_token == model.spec.kv_bytes_per_token(1, 4)


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("variant", tiny_models.known("deepseek-v4", "glm5-next"))
def test_traffic_of_what_states_hold(variant: str, tmp_path: Path) -> None:
    """Keys of a token are those in blocks; a window's, which are in the state, are read whatever the length."""
    tiny_models.save(tmp_path, variant)
    model: Any = load_model(LoadRequest(open_checkpoint(str(tmp_path)), "bf16", "native"))
    ours = traffic_of(model, "bf16")
    assert ours.kv_bytes_per_token * 256 == pytest.approx(model.packed.block_bytes("bf16"), abs=256)
    assert ours.kv_bytes_per_token < model.spec.kv_bytes_per_token(2)
    assert 0 < ours.state_bytes <= model.packed.state_bytes("bf16")


@pytest.mark.parametrize("executor", ["torch", *(["native"] if HAS_NATIVE else [])])
def test_traffic_of_experts_is_that_of_one_row(tmp_path: Path, executor: str) -> None:
    """All experts together would be several times what a pass can have read."""
    model = tiny_models.save(tmp_path, "qwen2-moe", hidden_size=256, moe_intermediate_size=128)
    ours = load_model(LoadRequest(open_checkpoint(str(tmp_path)), "fp32", executor))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() >= 2 and "embed" not in name)
    idle = 2 * (6 - 3) * 3 * 256 * 128
    assert 4 * (matrices - idle) <= 1.001 * traffic_of(ours, "fp32").weight_bytes
    assert traffic_of(ours, "fp32").weight_bytes <= 4.6 * (matrices - idle)


def test_traffic_of_other_executors(tmp_path: Path) -> None:
    """The matrices alone are counted: those of the torch executor are packed by a library that does not tell."""
    model = tiny_models.save(tmp_path, "llama")
    ours = load_model(LoadRequest(open_checkpoint(str(tmp_path)), "fp32", "torch"))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    assert traffic_of(ours, "fp32").weight_bytes == 4 * matrices


def test_bandwidth_is_not_measured_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of transformers has no threads of ours; a gigabyte must not be taken where little is left."""
    assert machine_gb_per_s(object()) is None
    packed = type("PackedModel", (), {"pool": None})()
    model = type("TextModel", (), {"target": type("Model", (), {"packed": packed})()})()
    monkeypatch.setattr("ipex_assist.env.memory.read_memory", lambda: MemoryInfo(2 << 30, traffic.BANDWIDTH_BYTES))
    assert machine_gb_per_s(model) is None

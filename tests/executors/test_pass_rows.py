"""How many rows a pass has: as many as pay on a machine, as fit its memory, and without a change of any bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_models
from conftest import HAS_NATIVE

from ipex_assist.bench.pairs import published_config
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native import pass_rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.native.pass_rows import MOST_ROWS, fitting_rows, useful_rows
from ipex_assist.executors.native.segments import TokenSegment, cut_into_passes
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.model import PackedModel
from ipex_assist.native.rows import PASS_ROWS

pytestmark = pytest.mark.one_stack

native = pytest.mark.skipif(not HAS_NATIVE, reason="passes of the native core")

AMX = {"int4": 49.0, "int8": 112.0, "bf16": 192.0}  # rows: 1.6 and 0.8 · 10^12 products of a core, 8 GB/s for each
MIXTURE, DENSE = "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-2-7b-hf"


def spec_of(model: str) -> DecoderSpec:
    config = published_config(model)
    architecture = find(config["architectures"][0])
    assert architecture is not None
    return architecture.spec(config)


@pytest.mark.parametrize("precision", AMX)
def test_big_machines_read_experts_once(precision: str) -> None:
    """The 256 rows of two cores on 256: sixteen rows for each expert, and half of the threads without a tile."""
    for threads in (56, 112, 256):
        assert 2048 <= useful_rows(spec_of(MIXTURE), threads, AMX[precision]) <= MOST_ROWS
        assert 512 <= useful_rows(spec_of(DENSE), threads, AMX[precision]) <= 2048
    assert useful_rows(spec_of(DENSE), 112, AMX[precision]) == 1024


def test_two_cores_are_as_before() -> None:
    """Passes of a dense model that take a second there, for nothing."""
    for threads in (1, 2, 4):
        assert useful_rows(spec_of(DENSE), threads, 30.0) == PASS_ROWS
    assert useful_rows(spec_of(MIXTURE), 2, 30.0) == 2048
    assert useful_rows(spec_of(MIXTURE), 2, 1e9) == MOST_ROWS
    assert useful_rows(spec_of(MIXTURE), 2, 0.0) == PASS_ROWS


def test_rows_fit_the_text_and_the_memory() -> None:
    """Buffers for a pass that no text fills, and a model that does not load for want of their memory."""
    assert fitting_rows(4096, 1 << 20, lambda rows: True) == 4096
    assert [fitting_rows(4096, context, lambda rows: True) for context in (1, 256, 257, 1500)] == [256, 256, 512, 2048]
    assert [fitting_rows(4096, 1 << 20, lambda rows, most=most: rows <= most) for most in (5000, 2047, 3)] == [
        4096,
        1024,
        PASS_ROWS,
    ]


def test_passes_are_cut_where_rows_or_logits_end() -> None:
    """A pass whose logits have no room, one that is empty, rows that are lost at the border."""
    sequences: list[Any] = [SimpleNamespace(images=None) for _ in range(4)]
    segments = [
        TokenSegment(sequences[0], [*range(1000)], 0, 1),
        TokenSegment(sequences[1], [*range(700)], 5, 700),
        TokenSegment(sequences[2], [*range(40)], 0, 0),
        TokenSegment(sequences[3], [*range(3000)], 0, 300),
    ]
    groups = [*cut_into_passes(segments, 1500)]
    for group in groups:
        assert 0 < sum(len(each.tokens) for each in group) <= 1500
        assert sum(each.last for each in group) <= PASS_ROWS
        assert all(0 <= each.last <= len(each.tokens) for each in group)
    for segment in segments:
        parts = [each for group in groups for each in group if each.sequence is segment.sequence]
        assert [token for each in parts for token in each.tokens] == segment.tokens
        assert [each.start - segment.start for each in parts] == [each.tokens[0] for each in parts]
        logits = [token for each in parts for token in each.tokens[len(each.tokens) - each.last :]]
        assert logits == segment.tokens[len(segment.tokens) - segment.last :]
    assert [*cut_into_passes(segments[:1], 1500)] == [segments[:1]]


VARIANTS = tiny_models.known(
    *("llama", "qwen3-moe", "qwen2-moe", "gpt-oss", "deepseek-v3", "mistral-window", "gemma4-everything"),
    *("qwen3-next", "lfm2-moe", "kimi-linear", "mamba2", "mamba", "gemma2"),
)
TEXT = [(7 * i * i + 3 * i) % tiny_models.VOCAB for i in range(4130)]


@native
@pytest.mark.parametrize("precision", ["bf16", "int4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_those_of_passes_of_256_rows(variant: str, precision: str, tmp_path: Path) -> None:
    """A kernel, a share of the threads, a chunk of sums that follows from the number of rows of a pass; a table that
    has no room for so many. Other texts are in the largest pass, and a step follows."""
    tiny_models.save(tmp_path, variant, max_position_embeddings=8192)
    model = tiny_models.model(tmp_path, "native", precision)
    assert isinstance(model, NativeModel)

    def bits(rows: int) -> bytes:
        model.pass_rows = rows
        texts = [model.new_sequence(5000) for _ in range(3)]
        given = [Rows(texts[0], TEXT[:4096], 5), Rows(texts[1], TEXT[:300], 300), Rows(texts[2], TEXT[9:20], 1)]
        logits = model.forward(given)
        step = model.forward([Rows(each, TEXT[4096:4100], 4) for each in texts])
        return b"".join(found.contiguous().numpy().tobytes() for found in (logits, step))

    expected = bits(PASS_ROWS)
    assert len(expected) == 4 * tiny_models.VOCAB * (5 + 300 + 1 + 12)
    assert bits(1000) == expected
    assert bits(4096) == expected


@native
def test_a_long_prompt_reads_experts_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that are cut as small as before: a prompt of 4,096 tokens read every expert sixteen times."""
    tiny_models.save(tmp_path, "qwen3-moe", max_position_embeddings=8192)
    model = tiny_models.model(tmp_path, "native", "int4")
    assert isinstance(model, NativeModel)
    read: list[int] = []
    append = model.append
    monkeypatch.setattr(model, "append", lambda *given: (append(*given), read.append(model.experts_read)))

    def experts(rows: int) -> int:
        read.clear()
        model.pass_rows = rows
        model.forward([Rows(model.new_sequence(5000), TEXT[:4096], 1)])
        return sum(read)

    assert experts(PASS_ROWS) >= 8 * experts(4096) > 0


@native
def test_a_model_has_as_many_rows_as_its_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are chosen and not planned, or planned and not allowed."""
    tiny_models.save(tmp_path, "qwen3-moe", max_position_embeddings=8192)
    monkeypatch.setattr(pass_rows, "balance", lambda packed: 300.0)
    found, taken = {}, {}
    for room in (0, 8 << 20, 12 << 20, 1 << 30):
        monkeypatch.setattr(KvMemory, "room_for_passes", lambda self, room=room: room)
        model = tiny_models.model(tmp_path, "native", "int4")
        assert isinstance(model, NativeModel)
        found[room], taken[room] = model.pass_rows, model._kv_memory._workspace
        assert taken[room] <= max(room, taken[0])
    assert found[0] == PASS_ROWS < found[8 << 20] < found[12 << 20] < found[1 << 30] == MOST_ROWS


@native
def test_a_large_model_is_read_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start let the kernel clear 256 MB more, which take half a second where others fill the memory."""
    tiny_models.save(tmp_path, "llama", hidden_size=256, intermediate_size=4096, num_hidden_layers=4)
    model = tiny_models.model(tmp_path, "native", "int8")
    assert isinstance(model, NativeModel)
    packed, size = model.packed, 4 * 2 * 256 * 4096
    monkeypatch.setattr(pass_rows, "_MEASURED_BYTES", 0)
    others: list[int] = []
    monkeypatch.setattr(pass_rows, "read_bandwidth", lambda pool, size, repeats: others.append(size) or 10.0)
    monkeypatch.setattr(pass_rows, "_LEAST_BYTES", size + 1)
    assert pass_rows.balance(packed) > 0
    assert others.pop() == size + 1, "a small model is in the caches"
    monkeypatch.setattr(pass_rows, "_LEAST_BYTES", size)
    assert 0.1 < pass_rows.balance(packed) < 1e5
    assert not others
    pass_rows._bandwidth.cache_clear()
    packed.mapped = True
    assert pass_rows.balance(packed) > 0
    assert others == [size], "a disk is not the memory"


@native
@pytest.mark.parametrize("copy", [False, True])
def test_weights_in_a_file_are_known(copy: bool, tmp_path: Path) -> None:
    tiny_models.save(tmp_path / "m", "llama")
    packed = tiny_models.model(tmp_path / "m", "native", "int8").packed
    with (tmp_path / "image").open("wb+") as file:
        for piece in packed.image():
            file.write(piece)
        file.truncate(-(-packed.nbytes // 4096) * 4096)
        again = PackedModel(packed.spec, "int8", packed.pool)
        assert not again.mapped
        again.adopt(file.fileno(), 0, copy)
        assert again.mapped != copy
        settled = PackedModel(packed.spec, "int8", packed.pool)
        settled.adopt(file.fileno(), 0, copy=True, settle=True)
        while settled.settles:
            assert settled.mapped
            settled.settle(1 << 30)
        assert not settled.mapped

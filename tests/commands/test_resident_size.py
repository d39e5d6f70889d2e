"""How much of a mixture's weights a command keeps in memory, where all of them do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import checkpoint_files
import gguf_converter
import pytest
import tiny_models
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared import memory_need
from ipex_assist.commands.shared.memory_need import RUNTIME_BYTES, MemoryNeed, check_memory
from ipex_assist.commands.shared.resident_size import with_resident
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

WHOLE, LEAST, KV = 500 << 30, 60 << 30, 8 << 30  # bytes of weights, of those that there must be, and of keys and values


@pytest.fixture
def mixture(tmp_path: Path) -> LoadOptions:
    tiny_models.save(tmp_path, "qwen3-moe", moe_intermediate_size=64)
    path = gguf_converter.convert(tmp_path, "qwen3moe", q8=True)
    return LoadOptions(target=str(path), assistant="none", executor="native")


def need_of(options: LoadOptions) -> MemoryNeed:
    return MemoryNeed(WHOLE if options.resident is None else max(LEAST, options.resident), None, KV)


def fitted(options: LoadOptions, free: int, monkeypatch: pytest.MonkeyPatch) -> tuple[LoadOptions, MemoryNeed]:
    """The options with so many bytes beside keys and values and what every run loads."""
    available = free + KV + RUNTIME_BYTES
    monkeypatch.setattr(memory_need, "read_memory", lambda: MemoryInfo(available, available))
    monkeypatch.setattr(memory_need, "resident_bytes", lambda: 0)
    return with_resident(options, need_of, OpenCheckpoints())


def test_what_does_not_fit_is_read(
    mixture: LoadOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it is in memory where there is room, else what is left, to the byte; too little is refused."""
    assert fitted(mixture, WHOLE, monkeypatch)[0].resident is None
    for room in (WHOLE - 1, LEAST):
        caplog.clear()
        options, need = fitted(mixture, room, monkeypatch)
        assert options.resident == need.target == room
        check_memory(need)
        assert "other experts are read from the file" in caplog.text
    asked = replace(mixture, resident=LEAST)
    assert fitted(asked, WHOLE - 1, monkeypatch)[0] == asked
    options, need = fitted(mixture, LEAST - 1, monkeypatch)
    assert options.resident is None
    with pytest.raises(IpexAssistError, match="too little memory"):
        check_memory(need)


def test_others_stay_as_they_are(mixture: LoadOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense model, and a mixture in another precision or by another executor."""
    dense = tmp_path / "dense.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), dense, Type.Q8_0)
    changes = ({"target": str(dense)}, {"target": str(tmp_path)}, {"precision": "int8"}, {"executor": "torch"})
    for each in changes:
        options = replace(mixture, **each)  # type: ignore[arg-type]
        assert fitted(options, LEAST, monkeypatch)[0] == options

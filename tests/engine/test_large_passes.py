"""Passes of a thousand rows and more: prompts with adapters, kept prefixes, texts that are put back, side by side."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import adapter_files
import pytest
import tiny_models
from conftest import HAS_NATIVE
from test_engine import Client, Pair, check, options_of, play, prompt_of

from ipex_assist.checkpoints.lora_folder import read_lora
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.adapters import TakesAdapters, adapter_matrices
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.native.rows import PASS_ROWS

pytestmark = [
    pytest.mark.full,
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="passes of many rows are the native core's"),
]

LONGEST, ROWS = 2600, 2048
ADAPTERS = {"one": (4, adapter_files.ATTENTION, 1), "wide": (40, r".*(v_proj|o_proj)", 2)}
PASSES = ("ia_forward", "ia_sample", "ia_begin_sample", "ia_top_tokens")


class Watched:
    """The core's functions; `rows` has those of each pass."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._core, name)
        if name not in PASSES:
            return call  # type: ignore[no-any-return]

        def counted(model: int, pool: int, batch: Any, *rest: Any) -> Any:
            self.rows.append(batch._obj.rows)
            return call(model, pool, batch, *rest)

        return counted


def loaded(folder: Path, precision: str, blocks: int) -> Any:
    """With its adapters, and memory for so many blocks of keys and values."""
    asked = LoadRequest(open_checkpoint(str(folder)), precision, "native")
    block = tiny_models.model(folder, "native", precision).block_bytes  # type: ignore[attr-defined]
    made = load_model(replace(asked, kv_memory=KvMemory(blocks * block)))
    assert isinstance(made, TakesAdapters)
    for name in ADAPTERS:
        path = str(folder / name)
        made.add_adapter(name, adapter_matrices(asked.spec, asked.sources, read_lora(path), path))
    return made


def clients_of(chance: random.Random) -> list[Client]:
    """Some that come soon after each other: some begin alike, some go, each with an adapter or without one."""
    clients = []
    for _ in range(12):
        options = replace(options_of(chance), lora=chance.choice((None, *ADAPTERS)))
        goes = chance.randrange(1, 20) if chance.random() < 0.2 else None
        clients.append(Client(prompt_of(chance, LONGEST), options, chance.randrange(6), goes))
    # And some that go on where others have ended.
    return [*clients, *(Client((*each.prompt, 3, 4), each.options, 40, None) for each in clients[:4])]


@pytest.mark.parametrize("precision", ["int8", "bf16", "int4"])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_texts_of_large_passes_are_those_of_small_ones_alone(tmp_path: Path, family: str, precision: str) -> None:
    """Catches rows at borders of tiles, chunks and blocks that only a large pass has, with rows of other adapters
    beside them, prefixes that were read in passes of another size, and texts that are read again at once."""
    source = tiny_models.save(tmp_path, family, max_position_embeddings=8192)
    for name, how in ADAPTERS.items():
        adapter_files.save_adapter(tmp_path / name, source, *how)
    alone = loaded(tmp_path, precision, 128)
    alone.pass_rows = PASS_ROWS
    small, found, rows = Pair(alone, alone), EngineStats(), []
    for seed in range(2):
        target = loaded(tmp_path, precision, 30)
        target.pass_rows = ROWS
        target.packed.library = watched = Watched(target.packed.library)
        chance = random.Random(f"{seed} {family} {precision}")
        clients = clients_of(chance)
        engine = Pair(target, target).engine("none", EngineLimits(8, ROWS, max_pass_s=1e9))
        play(engine, clients)
        check(small, clients)
        found.preempted += engine.stats.preempted
        found.prefix_tokens += engine.stats.prefix_tokens
        rows += watched.rows
        engine.close()
        assert target.blocks.free == target.blocks.count
    assert sum(each >= 1000 for each in rows) >= 8, sorted(rows)[-20:]
    assert found.preempted > 0
    assert found.prefix_tokens > 0

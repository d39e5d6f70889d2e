"""Kept prefixes: texts after a stored prefix are those of a model that has read it, and nothing wrong is ever used."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tiny_models
from conftest import HAS_NATIVE

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.prefix_store import Content, PrefixStore, chain, check_folder
from ipex_assist.engine.stored_prefixes import HasPrefixMemory, StoredPrefixes
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import Model
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")]

CONTEXT = 1024
SYSTEM = random.Random(1).choices(range(5, 90), k=700)  # two full blocks and 188 tokens
USERS = [[7 + i, 8, 9] for i in range(4)]
OPTIONS = GenerationOptions(max_new_tokens=6, ignore_eos=True)
LIMIT = 1 << 30


def saved(folder: Path, variant: str = "llama", seed: int = 0) -> Path:
    changes = {} if "mamba" in variant else {"max_position_embeddings": CONTEXT}
    tiny_models.save(folder, variant, seed, **changes)
    return folder


def loaded(folder: Path, precision: str = "fp32", kv_precision: str | None = None) -> Model:
    return tiny_models.model(folder, "native", precision, kv_precision=kv_precision)


class Server:
    """An engine on a model with a store, as after a start."""

    def __init__(self, model: Model, folder: Path, limit: int = LIMIT) -> None:
        self.engine = Engine(model, Drafting(model.spec.vocab_size, lambda: None), limits=EngineLimits())  # type: ignore[arg-type,return-value]
        assert isinstance(model, HasPrefixMemory)
        memory = model.prefix_memory()
        self.store = PrefixStore(check_folder(str(folder)), memory.key(), limit)
        assert model.blocks is not None
        pool = model.blocks

        def wrap(inner: Prefixes) -> Prefixes:
            self.prefixes = StoredPrefixes(inner, self.store, memory, pool, model.states)
            return self.prefixes

        self.engine.wrap_prefixes(wrap)

    def text(self, tokens: list[int]) -> list[int]:
        handle = self.engine.submit(tokens, OPTIONS)
        return [token for round_ in handle for token in round_.tokens]

    @property
    def found(self) -> int:
        """Tokens that were not read, since the start."""
        return self.engine.stats.prefix_tokens

    def end(self) -> None:
        self.prefixes.close(20)
        self.engine.close()


def plain(model: Model, tokens: list[int]) -> list[int]:
    engine = Engine(model, Drafting(model.spec.vocab_size, lambda: None))  # type: ignore[arg-type,return-value]
    return [token for round_ in engine.submit(tokens, OPTIONS) for token in round_.tokens]


def filled(folder: Path, store: Path, **more: Any) -> list[str]:
    """Let a first server keep the system prompt; returns the names of its files."""
    server = Server(loaded(folder, **more), store)
    for user in USERS[:3]:
        server.text([*SYSTEM, *user])
    server.end()
    return sorted(path.name for path in (store / server.store.key).iterdir())


@pytest.mark.parametrize(
    ("variant", "precision", "kv_precision"),
    [
        ("llama", "fp32", None),
        ("llama", "bf16", None),
        ("llama", "int8", "int8"),
        ("qwen3-next", "fp32", None),
        ("mamba2", "fp32", None),
        ("falcon-mamba", "fp32", None),
        pytest.param("lfm2", "bf16", None, marks=pytest.mark.full),
    ],
)
def test_a_second_start_reads_nothing_and_says_the_same(
    tmp_path: Path, variant: str, precision: str, kv_precision: str | None
) -> None:
    """Bits that are not those of the block, a state after other tokens, or a prefix that is read again after all."""
    folder, store = saved(tmp_path / "model", variant), tmp_path / "store"
    names = filled(folder, store, precision=precision, kv_precision=kv_precision)
    assert sum(name.endswith(".block") for name in names) == 2
    assert any(name.endswith(".end") for name in names)
    assert not any(name.startswith(".") for name in names)
    model = loaded(folder, precision, kv_precision)
    prompt = [*SYSTEM, *USERS[3]]
    expected = plain(model, prompt)
    second = Server(model, store)
    assert second.text(prompt) == expected
    assert second.found == len(SYSTEM)
    assert second.text([*SYSTEM[:600], 3, 4]) == plain(model, [*SYSTEM[:600], 3, 4])
    second.end()


def test_other_weights_precisions_and_kv_precisions_find_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so; a text of another model's keys would be nonsense, or nearly right, which is worse."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    filled(folder, store)
    other = saved(tmp_path / "other", seed=1)
    for model in (loaded(other), loaded(folder, "bf16"), loaded(folder, "fp32", "int8")):
        caplog.clear()
        server = Server(model, store)
        assert server.text([*SYSTEM, 3]) == plain(model, [*SYSTEM, 3])
        assert server.found == 0
        assert [record.message for record in caplog.records if "of other weights" in record.message] != []
        server.end()


@pytest.mark.parametrize("how", ["a bit", "cut off", "empty", "another's content"])
def test_damaged_files_are_found_and_deleted(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """And the text is right: what is missing is read."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    filled(folder, store)
    first = next(store.glob(f"*/{chain(SYSTEM)[0]}.block"))
    data = bytearray(first.read_bytes())
    if how == "a bit":
        data[-1] ^= 1
    elif how == "another's content":
        data = bytearray(next(store.glob(f"*/{chain(SYSTEM)[1]}.block")).read_bytes())
    first.write_bytes(data[: {"cut off": -1, "empty": 0}.get(how, len(data))])
    model = loaded(folder)
    with caplog.at_level(logging.WARNING):
        server = Server(model, store)
        assert server.text([*SYSTEM, 3]) == plain(model, [*SYSTEM, 3])
    server.end()
    assert server.found == 0
    if how != "another's content":  # which is whole, and not of these tokens
        assert "is not used, and deleted" in caplog.text
        assert not first.exists()


def test_a_writer_that_dies_leaves_nothing_wrong(tmp_path: Path) -> None:
    """Half a file has another name, is never read, and goes when it is old."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    filled(folder, store)
    (key,) = [path for path in store.iterdir() if path.is_dir()]
    half = key / f".{'a' * 32}.block.machine.1"
    half.write_bytes(b"half")
    os.utime(half, (time.time() - 3600, time.time() - 3600))
    model = loaded(folder)
    server = Server(model, store)
    assert server.text([*SYSTEM, 3]) == plain(model, [*SYSTEM, 3])
    assert server.found == len(SYSTEM)
    assert server.store.write("x.block", Content([1], bytearray(9)))
    server.end()
    assert not half.exists()


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever could write the folder could change every answer."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    filled(folder, store)
    files = [path for path in store.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (store, *store.iterdir()) if path.is_dir()} == {0o700}
    for mode in (0o770, 0o702):
        store.chmod(mode)
        with pytest.raises(UsageError, match="can be written by others"):
            check_folder(str(store))
    store.chmod(0o755)
    assert check_folder(str(store)) == store
    with pytest.raises(UsageError, match="cannot be used"):
        check_folder(str(files[0]))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        check_folder(str(store))


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    store = PrefixStore(check_folder(str(tmp_path)), "k", LIMIT)
    assert store.write("a.block", Content([1], bytearray(b"abc")))
    (tmp_path / "k" / "b.block").symlink_to(tmp_path / "k" / "a.block")
    assert store.read("a.block") is not None
    assert store.read("b.block") is None


def test_the_bound_holds_over_all_models_and_the_oldest_go(tmp_path: Path) -> None:
    """A folder that grows until the disk is full; and a use that does not count."""
    stores = [PrefixStore(check_folder(str(tmp_path)), key, 10_000) for key in ("k", "l")]
    for number in range(12):
        assert stores[number % 2].write(f"{number:032x}.block", Content([number], bytearray(1000)))
        os.utime(tmp_path / "kl"[number % 2] / f"{number:032x}.block", ns=(number, number))
        if number == 3:
            stores[0].note_use([f"{0:032x}.block"])
    left = sorted(path.name for path in tmp_path.rglob("*.block"))
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.block")]
    assert 8_000 < sum(sizes) <= 10_000
    assert f"{0:032x}.block" in left
    assert f"{1:032x}.block" not in left
    assert not stores[0].write("large.block", Content([1], bytearray(20_000)))


def test_a_prefix_that_one_request_has_is_not_written(tmp_path: Path) -> None:
    """Else every prompt of everybody would lie on the disk."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    server = Server(loaded(folder), store)
    server.text([*SYSTEM, 3])
    server.end()
    assert list(store.rglob("*.block")) == []


def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    """Each finds what the other has written since it was started, and both may write the same at once."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    model = loaded(folder)
    one, other = Server(model, store), Server(loaded(folder), store)
    threads = [
        threading.Thread(target=lambda server=server: [server.text([*SYSTEM, *user]) for user in USERS[:3]])
        for server in (one, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.prefixes.flush(20)
    assert other.prefixes.flush(20)
    assert len(list(store.rglob("*.block"))) == 2
    new = random.Random(2).choices(range(5, 90), k=400)
    for user in USERS[:3]:
        one.text([*new, *user])
    assert one.prefixes.flush(20)
    before = other.found
    assert other.text([*new, 3]) == plain(model, [*new, 3])
    assert other.found - before == len(new)
    one.end()
    other.end()


def test_without_free_blocks_it_is_read(tmp_path: Path) -> None:
    """A prompt must not fail because its prefix has no place beside those that run."""
    folder, store = saved(tmp_path / "model"), tmp_path / "store"
    filled(folder, store)
    model = loaded(folder)
    expected = plain(model, [*SYSTEM, 3])
    server = Server(model, store)
    pool = model.blocks
    assert pool is not None
    held = pool.take_many(pool.free - 1)
    assert server.prefixes.find(SYSTEM).length == 0
    assert pool.free == 1  # what was taken for it in vain is free again
    reads = mock.Mock(side_effect=AssertionError("the files are read before every pass"))
    with mock.patch.object(server.store, "read_all", reads):
        assert server.prefixes.find(SYSTEM).length == 0
    pool.release_many(held)
    assert server.text([*SYSTEM, 3]) == expected
    server.end()

"""Packed weights on disk: the same results as packing, or a warning and packing; never a wrong answer."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from packed_files import files, load, logits, warnings, was_packed

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.hints import machine_name
from ipex_assist.env.memory import MemoryInfo
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native import packed_cache
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.native.packed_cache import HEADER_BYTES, load_packed, packed_path, save_packed
from ipex_assist.models import find
from ipex_assist.native.library import Pool, unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.usefixtures("folder"),
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]


def in_child(code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in another process with the same cache folder; this module is `tests` there."""
    start = f"""
import os, signal, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(tiny_models.__file__).parent)]!r}
from pathlib import Path
import test_packed_cache as tests
os.environ["XDG_CACHE_HOME"] = {os.environ["XDG_CACHE_HOME"]!r}
"""
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120)


# ---- whose it is


def test_a_copy_of_another_user_is_not_used(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is in itself: weights that somebody changed would be taken for ours. One of root's may be used."""
    expected = logits(load(source))
    (path,) = files(folder)
    data = path.read_bytes()
    caplog.set_level(logging.INFO, logger="ipex_assist")
    for owner, used in ((path.stat().st_uid, True), (0, True), (54321, False)):
        monkeypatch.setattr(packed_cache.os, "fstat", lambda file, owner=owner: Owned(file, owner))
        assert torch.equal(logits(load(source)), expected)
        assert was_packed(caplog) != used
    (message,) = warnings(caplog)
    assert "belongs to another user (uid 54321)" in message
    assert path.read_bytes() == data, "another's file is neither deleted nor replaced"


class Owned:
    """What fstat says of a file, but for its owner."""

    real = staticmethod(os.fstat)

    def __init__(self, file: int, owner: int) -> None:
        self._state, self.st_uid = self.real(file), owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


# ---- the same results


@pytest.mark.parametrize("variant", ["llama", "opt-350m", "gpt-bigcode", "qwen3", "qwen2-moe"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_the_second_start_has_the_same_bits(
    variant: str, precision: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A part of the image that is not written, or mapped at another place."""
    caplog.set_level(logging.INFO, logger="ipex_assist")
    tiny_models.save(tmp_path / "model", variant)
    first = logits(load(tmp_path / "model", precision))
    assert was_packed(caplog)
    second = logits(load(tmp_path / "model", precision))
    assert not was_packed(caplog)
    assert not warnings(caplog)
    assert torch.equal(first, second)


def test_copied_and_mapped_are_the_same(source: Path, folder: Path) -> None:
    """On several NUMA nodes threads copy their slices: one that is left out, or a gap between them, is zero."""
    packed = load(source)
    (path,) = files(folder)
    image = b"".join(packed.packed.image())
    for threads in (1, 2, 3):
        pool = Pool(threads)
        for copy in (False, True):
            model = PackedModel(packed.spec, "int4", pool)
            assert load_packed(model, path, copy=copy)
            assert b"".join(model.image()) == image, (threads, copy)
            assert torch.equal(logits(NativeModel(model)), logits(packed)), (threads, copy)
        del model
        pool.close()


def test_a_mapped_file_may_be_replaced(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process packs again, or a user empties the cache, while this one runs."""
    monkeypatch.setenv(packed_cache.MODE_VARIABLE, "map")
    load(source)
    running = load(source)
    before = logits(running)
    (path,) = files(folder)
    path.unlink()
    assert torch.equal(logits(running), before)
    load(source)
    assert torch.equal(logits(running), before)


# ---- copied, mapped


def test_a_file_that_is_truncated_while_it_is_in_use(source: Path, folder: Path) -> None:
    """Somebody's rsync or full disk: a mapped page that is gone ends the process with SIGBUS."""
    expected = logits(load(source))
    (path,) = files(folder)
    done = in_child(
        f"""
model = tests.load(Path({str(source)!r}))
os.truncate({str(path)!r}, 0)
print(tests.logits(model).double().sum().item())
"""
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == expected.double().sum().item()


def test_a_file_that_is_truncated_while_it_is_copied(source: Path, folder: Path) -> None:
    """After its length was looked at: an error, which packing again follows, and not the end."""
    packed = load(source)
    (path,) = files(folder)
    for missing in (1, packed.packed.nbytes // 2, packed.packed.nbytes):
        os.truncate(path, HEADER_BYTES + packed.packed.nbytes - missing)
        model = PackedModel(packed.spec, "int4", packed.packed.pool)
        with path.open("rb") as file, pytest.raises(IpexAssistError, match=r"the file ends \d+ bytes too early"):
            model.adopt(file.fileno(), HEADER_BYTES, True)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("mode", "available", "mapped"), [
    ("", 1 << 40, False), ("", 0, False), ("", 1 << 30, True),
    ("map", 1 << 40, True), ("copy", 1 << 20, False),
])  # fmt: skip
def test_copying_is_the_rule_where_memory_allows(
    mode: str,
    available: int,
    mapped: bool,
    source: Path,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mapped where somebody asks for it, or where there is no other way, which is said. Unknown memory is enough."""
    expected = logits(load(source))
    (path,) = files(folder)
    monkeypatch.setenv(packed_cache.MODE_VARIABLE, mode)
    monkeypatch.setattr(packed_cache, "read_memory", lambda: MemoryInfo(1 << 40, available))
    model = load(source)
    assert is_mapped(path) == mapped
    assert torch.equal(logits(model), expected)
    said = warnings(caplog)
    if mapped and not mode:
        assert len(said) == 1
        assert f"{path} is mapped, because there is no memory to copy it into" in said[0]
        assert "1.0 GiB are available" in said[0]
        assert "IPEX_ASSIST_PACKED=map" in said[0]
    else:
        assert said == []


def test_a_mode_that_does_not_exist(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in the variable would map what was to be copied."""
    monkeypatch.setenv(packed_cache.MODE_VARIABLE, "Copy")
    with pytest.raises(UsageError, match="IPEX_ASSIST_PACKED=Copy is neither copy nor map nor no"):
        load(source)


def test_a_shared_table_takes_no_memory(tmp_path: Path, folder: Path) -> None:
    """A model's own copy as its assistant looks tokens up in the target's table, from the cache as without it."""
    tiny_models.save(tmp_path / "model", "llama", vocab_size=16000, hidden_size=256)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    drafts = []
    for _ in range(2):  # packed, and from the cache
        target = load_model(LoadRequest(checkpoint, "bf16", "native", cache_packed=True))
        draft = load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, table_of=target))
        assert isinstance(draft, NativeModel)
        table = b"".join(draft.packed.image())[-16000 * 256 * 2 :]
        assert table == bytes(len(table))
        drafts.append(logits(draft))
    assert torch.equal(*drafts)
    assert torch.equal(logits(load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True))), drafts[0])
    assert len(files(folder)) == 2


# ---- what is left behind


def test_a_killed_save_is_cleaned_up(source: Path, folder: Path) -> None:
    """kill -9 leaves half a file that nobody would ever delete."""
    done = in_child(
        f"""
tests.packed_cache.os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
tests.load(Path({str(source)!r}))
"""
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = files(folder)
    assert ".packed." in left.name
    load(source)
    (path,) = files(folder)
    assert path.suffix == ".packed"


def test_what_others_are_writing_stays(source: Path, folder: Path) -> None:
    """Another process of this machine that holds its lock; another machine that shares the home, unless it is old."""
    folder.mkdir(parents=True)
    here, elsewhere, old = (folder / f".m.packed.{host}.7" for host in (machine_name(), "other", "another"))
    unlocked, before_hosts = folder / f".n.packed.{machine_name()}.7", folder / ".o.packed.7"
    for path in (here, elsewhere, old, unlocked, before_hosts):
        path.write_bytes(b"half")
    for path in (old, before_hosts):
        os.utime(path, (1, 1))
    with here.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        load(source)
        assert [path for path in files(folder) if path.suffix != ".packed"] == sorted([here, elsewhere])
    load(source)
    assert [path for path in files(folder) if path.suffix != ".packed"] == [elsewhere]


@pytest.mark.parametrize("obstacle", ["a file", "a folder that may not be written", "no home"])
def test_a_cache_folder_that_cannot_be(
    obstacle: str, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning, and the model all the same."""
    expected = logits(tiny_models.model(source, "native", "int4"))
    place = tmp_path / "place"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    if obstacle == "a file":
        place.write_text("")
    elif obstacle == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
    else:
        # Permissions do not bind root; a folder of /proc does.
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    assert torch.equal(logits(load(source)), expected)
    (warning,) = warnings(caplog)
    assert warning.startswith("no packed copy is kept")


# ---- damage


# ---- no room


# ---- names


def test_the_name_changes_with_what_the_content_depends_on(source: Path, tmp_path: Path) -> None:
    """An old copy of other weights, of another precision or group would be taken for the right one."""
    checkpoint = open_checkpoint(str(source))
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    spec, pool = architecture.spec(checkpoint.config), Pool(1)

    def name(precision: str = "int4", group: int = 128, of: Path = source) -> str:
        return packed_path(open_checkpoint(str(of)), PackedModel(spec, precision, pool, group)).name

    first = name()
    assert "-model-int4-" in first  # people recognise it
    assert name() == first
    assert "pytest-of" not in first  # the end of a path tells which checkpoint it is
    names = {first, name("int8"), name("bf16"), name(group=64), name(group=32)}
    (weights,) = source.glob("*.safetensors")
    os.utime(weights, ns=(1, 1))
    names.add(name())
    content = weights.read_bytes()
    weights.write_bytes(content + b" ")
    os.utime(weights, ns=(1, 1))
    names.add(name())
    tiny_models.save(tmp_path / "other" / "model", "llama", seed=1)
    names.add(name(of=tmp_path / "other" / "model"))
    assert len(names) == 8
    pool.close()


def test_a_changed_checkpoint_is_packed_anew(source: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same folder with other weights, as after a training run."""
    before = logits(load(source))
    tiny_models.save(source, "llama", seed=1)
    caplog.set_level(logging.INFO, logger="ipex_assist")
    after = logits(load(source))
    assert was_packed(caplog)
    assert not torch.equal(before, after)
    assert torch.equal(after, logits(tiny_models.model(source, "native", "int4")))
    assert len(files(folder)) == 2


def test_saving_twice_at_once(source: Path, folder: Path) -> None:
    """Two instances pack the same checkpoint: the second one's rename replaces a file that is as good."""
    model = load(source).packed
    (path,) = files(folder)
    whole = path.read_bytes()
    assert save_packed(model, path)
    assert path.read_bytes() == whole
    assert files(folder) == [path]


# ---- mapped first, copied between passes


def test_a_quick_start_has_the_same_bits(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that is put in its place too early, too late or from elsewhere; what stays mapped could be truncated."""
    expected = logits(load(source))
    (path,) = files(folder)
    whole = path.read_bytes()
    monkeypatch.setattr("ipex_assist.executors.native.passes.SETTLE_BYTES", 3 * 4096 + 5)
    checkpoint = open_checkpoint(str(source))
    model = load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, quick=True))
    assert isinstance(model, NativeModel)
    assert is_mapped(path)
    passes = 0
    while model.packed.settles:
        assert is_mapped(path)
        assert torch.equal(logits(model), expected), passes
        assert b"".join(model.packed.image()) == whole[HEADER_BYTES:], passes
        passes += 2
    assert passes >= 4, "it was moved in one piece"
    assert not is_mapped(path)
    os.truncate(path, 0)
    assert torch.equal(logits(model), expected)


def test_a_quick_start_of_what_shares_a_table(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's table is used, and its own takes no memory."""
    tiny_models.save(tmp_path / "model", "llama", vocab_size=16000, hidden_size=256)
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    target = load_model(LoadRequest(checkpoint, "bf16", "native"))
    expected = logits(load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, table_of=target)))
    monkeypatch.setattr("ipex_assist.executors.native.passes.SETTLE_BYTES", 1 << 30)
    draft = load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, table_of=target, quick=True))
    assert isinstance(draft, NativeModel)
    assert torch.equal(logits(draft), expected)
    assert not draft.packed.settles
    (path,) = files(folder)
    assert is_mapped(path), "the table's part stays the file's"


@pytest.mark.parametrize("mode", ["copy", "map"])
def test_a_mode_that_was_asked_for_comes_before_a_quick_start(
    mode: str, source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(source)
    (path,) = files(folder)
    monkeypatch.setenv(packed_cache.MODE_VARIABLE, mode)
    model = load_model(LoadRequest(open_checkpoint(str(source)), "int4", "native", cache_packed=True, quick=True))
    assert isinstance(model, NativeModel)
    assert not model.packed.settles
    assert is_mapped(path) == (mode == "map")


def test_a_quick_start_counts_on_the_memory_it_will_take(source: Path, folder: Path) -> None:
    """What is mapped counts as free: keys and values would get it, and then there were none for the weights."""
    load(source)
    memory = KvMemory()
    checkpoint = open_checkpoint(str(source))
    model = load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, quick=True, kv_memory=memory))
    assert isinstance(model, NativeModel)
    copied = KvMemory()
    load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True, kv_memory=copied))
    assert memory._workspace == copied._workspace + model.packed.nbytes


def test_memory_that_is_not_there_leaves_it_mapped(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text goes on from the file's pages."""
    expected = logits(load(source))
    (path,) = files(folder)
    model = load_model(LoadRequest(open_checkpoint(str(source)), "int4", "native", cache_packed=True, quick=True))
    assert isinstance(model, NativeModel)
    monkeypatch.setattr("ipex_assist.executors.native.passes.SETTLE_BYTES", 0)  # which the core refuses
    assert torch.equal(logits(model), expected)
    assert not model.packed.settles
    assert is_mapped(path)

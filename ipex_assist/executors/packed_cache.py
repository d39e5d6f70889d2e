"""Packed weights kept on disk, so that the next start takes them instead of reading and packing the checkpoint.

A file is a page of JSON and the core's image behind it, which is the same on every machine and for any number of
threads. It is written whole under another name and then renamed, so that what has the right name is complete; its
checksum is checked on every load, because a page that rotted would be a wrong answer and no error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import read_memory
from ipex_assist.executors.packed_folder import HEADER_BYTES, make_room, note_use, one_at_a_time, size_limit

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.native.model import PackedModel

log = logging.getLogger("ipex_assist")

LAYOUT_VERSION = 2  # of the image: changes with kernels/kernels.h, Model::lay_out and packing/pack_block.h in native/
MAGIC = "ipex-assist packed weights"
MODE_VARIABLE = "IPEX_ASSIST_PACKED"
_MARGIN = 1 << 30  # of memory that a run needs beside its weights
_DEAD_AFTER = 24 * 3600  # seconds without a write


def keeps_packed(asked: bool | None) -> bool:
    """Whether packed copies are kept and taken: as somebody asked, else unless $IPEX_ASSIST_PACKED is no."""
    return _mode() != "no" if asked is None else asked


def _mode() -> str:
    wanted = os.environ.get(MODE_VARIABLE, "")
    if wanted not in ("", "copy", "map", "no"):
        raise UsageError(f"{MODE_VARIABLE}={wanted} is neither copy nor map nor no, nor unset")
    return wanted


def packed_path(checkpoint: Checkpoint, model: PackedModel) -> Path | None:
    """Return the packed copy's place: named for people, and by everything its content depends on.

    None, with a warning, where no home is known. Raises UsageError where the variable of their size is none.
    """
    size_limit()  # now: packing takes a while
    try:
        folder = cache_folder("packed")
    except RuntimeError as error:
        log.warning("no packed copy is kept: %s Set XDG_CACHE_HOME to a folder", error)
        return None
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.weight_files()]
    facts = repr((LAYOUT_VERSION, files, model.spec, model.precision, model.group))
    source = "-".join(checkpoint.source.rstrip("/").removesuffix(".gguf").split("/")[-2:])
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", source)[-60:].strip("-.")
    return folder / f"{name}-{model.precision}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.packed"


def load_packed(model: PackedModel, path: Path, *, copy: bool | None = None, quick: bool = False) -> bool:
    """Give `model` the image in `path`. False where there is none, or, with a warning, where it cannot be used.

    copy: into memory of the threads that own the slices, in large pages, which then belongs to this process alone; else
    the file is mapped, and processes that map it share its memory, but one that truncates it ends them all (SIGBUS).
    None: as $IPEX_ASSIST_PACKED says (copy or map), else copied where memory allows. quick: what nobody asked to be
    copied is mapped at first, and copied between the passes that follow (PackedModel.settle). Raises UsageError for a
    value of that variable that is none.
    """
    if copy is None:
        copy = _copying(model, path)
        quick = quick and copy and _mode() != "copy"
    _remove_leftovers(path.parent)
    try:
        with path.open("rb") as file:
            expected = _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model)
            model.adopt(file.fileno(), HEADER_BYTES, copy, settle=quick)
        if model.checksum() != expected:
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, IpexAssistError) as error:
        _discard(path, str(error))
        return False
    note_use(path)
    return True


def _copying(model: PackedModel, path: Path) -> bool:
    wanted = _mode()
    if wanted in ("copy", "map"):
        return wanted == "copy"
    available = read_memory().available
    if not available or model.nbytes + _MARGIN <= available or not os.path.exists(path):
        return True
    log.warning(
        "the packed copy %s is mapped, because there is no memory to copy it into (%.1f GB are needed, %.1f GB are "
        "available): leave the file alone while this runs. %s=map maps without asking",
        path,
        (model.nbytes + _MARGIN) / 1e9,
        available / 1e9,
        MODE_VARIABLE,
    )
    return False


def _read_header(page: bytes, size: int, model: PackedModel) -> int:
    """The checksum of the image; ValueError says what is wrong with the file."""
    try:
        header: dict[str, Any] = json.loads(page.rstrip(b"\0"))
        checksum = int(header["checksum"], 16)
        known = header["magic"] == MAGIC and header["layout"] == LAYOUT_VERSION
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError("its first page is no header of ours") from error
    if not known or header["bytes"] != model.nbytes or size != HEADER_BYTES + model.nbytes:
        raise ValueError(
            f"it should have {HEADER_BYTES + model.nbytes:,} bytes of layout {LAYOUT_VERSION}, has {size:,}"
        )
    return checksum


def _discard(path: Path, why: str) -> None:
    log.warning("the packed copy %s is not used: %s. The checkpoint is packed again", path, why)
    with contextlib.suppress(OSError):  # what cannot be deleted is said again next time
        path.unlink()


def save_packed(model: PackedModel, path: Path, source: str = "", *, asked: bool = True) -> bool:
    """Keep a copy of the model's image. False, with a warning, where there is no room or no permission.

    source: the checkpoint's, for people. asked: somebody wants it by name; else it must leave as much of the disk free
    as it takes, and it is said that there is one now. Where another process has written, or is writing, the same copy,
    that one is as good.
    """
    temporary, begun = path.with_name(f".{path.name}.{_host()}.{os.getpid()}"), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = _new_header(model, source)
        with one_at_a_time(path.parent):
            if _is_whole(path, model, int(header["checksum"], 16)) or _is_being_written(path):
                return True
            make_room(path, HEADER_BYTES + model.nbytes, asked=asked)
            file, begun = temporary.open("wb"), True
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        with file:
            _write(model, header, file)
            if asked:  # else nobody waits for the disk: what a crash leaves of it is found by its checksum
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        log.warning("no packed copy is kept in %s: %s", path.parent, error)
        return False
    finally:
        if begun:  # it has its right name by now, or goes: Ctrl-C leaves nothing half written
            with contextlib.suppress(OSError):
                temporary.unlink()
    if not asked:
        log.warning(
            "a packed copy of %s is kept in %s (%.1f GB), by which the next start is quick: `ipex-assist cache` lists "
            "and clears them, --no-cache-packed keeps none",
            source,
            path.parent,
            model.nbytes / 1e9,
        )
    return True


def _is_whole(path: Path, model: PackedModel, checksum: int) -> bool:
    """Whether a copy of this very image is there already."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        return _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model) == checksum
    return False


def _is_being_written(path: Path) -> bool:
    """Whether a process of this machine has begun to write the same copy and is still at it."""
    for other in path.parent.glob(f".{path.name}.{_host()}.*"):
        with contextlib.suppress(OSError):
            if not _is_left_over(other):
                return True
    return False


def _host() -> str:
    """This machine's name as a part of a file's: several machines may share a home."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()) or "unknown"


def _remove_leftovers(folder: Path) -> None:
    """Delete what saves that were killed have left half written."""
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.packed.*"):
            if _is_left_over(path):
                path.unlink(missing_ok=True)
                log.info("deleted %s, which was left half written", path)


def _is_left_over(path: Path) -> bool:
    """Whether nobody writes `path` any more: a writer on this machine holds a lock, another one's writes are recent."""
    if path.name.rpartition(".packed.")[2].startswith(f"{_host()}."):
        with path.open("rb+") as file, contextlib.suppress(OSError):  # no locks here, or the writer's
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return time.time() - path.stat().st_mtime > _DEAD_AFTER


def _new_header(model: PackedModel, source: str) -> dict[str, Any]:
    return {
        "magic": MAGIC,
        "layout": LAYOUT_VERSION,
        "source": source[:500],
        "precision": model.precision,
        "bytes": model.nbytes,
        "checksum": f"{model.checksum():016x}",
    }


def _write(model: PackedModel, header: dict[str, Any], file: BinaryIO) -> None:
    file.write(json.dumps(header).encode().ljust(HEADER_BYTES, b"\0"))
    for piece in model.image():
        file.write(piece)
    file.flush()

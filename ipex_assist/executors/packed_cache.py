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
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import read_memory

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.native.model import PackedModel

log = logging.getLogger("ipex_assist")

LAYOUT_VERSION = 2  # of the image: changes with native/kernels.h, Model::lay_out and the packing in native/pack.h
MAGIC = "ipex-assist packed weights"
HEADER_BYTES = 4096
MODE_VARIABLE = "IPEX_ASSIST_PACKED"
_PIECE = 64 << 20
_MARGIN = 1 << 30  # of memory that a run needs beside its weights
_DEAD_AFTER = 24 * 3600  # seconds without a write


def packed_path(checkpoint: Checkpoint, model: PackedModel) -> Path | None:
    """Return the packed copy's place: named for people, and by everything its content depends on.

    None, with a warning, where no home is known.
    """
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


def load_packed(model: PackedModel, path: Path, *, copy: bool | None = None) -> bool:
    """Give `model` the image in `path`. False where there is none, or, with a warning, where it cannot be used.

    copy: into memory of the threads that own the slices, in large pages, which then belongs to this process alone; else
    the file is mapped, and processes that map it share its memory, but one that truncates it ends them all (SIGBUS).
    None: as $IPEX_ASSIST_PACKED says (copy or map), else copied where memory allows. Raises UsageError for another
    value of that variable.
    """
    if copy is None:
        copy = _copying(model, path)
    _remove_leftovers(path.parent)
    try:
        with path.open("rb") as file:
            expected = _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model)
            model.adopt(file.fileno(), HEADER_BYTES, copy)
        if model.checksum() != expected:
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, IpexAssistError) as error:
        _discard(path, str(error))
        return False
    return True


def _copying(model: PackedModel, path: Path) -> bool:
    wanted = os.environ.get(MODE_VARIABLE, "")
    if wanted not in ("", "copy", "map"):
        raise UsageError(f"{MODE_VARIABLE}={wanted} is neither copy nor map, nor unset")
    if wanted:
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


def save_packed(model: PackedModel, path: Path) -> bool:
    """Keep a copy of the model's image. False, with a warning, where there is no room or no permission."""
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < model.nbytes + (256 << 20):
            raise OSError(f"{model.nbytes / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
        _write(model, temporary, path)
    except OSError as error:
        log.warning("no packed copy is kept in %s: %s", path.parent, error)
        return False
    finally:
        with contextlib.suppress(OSError):  # it has its right name by now, or goes: Ctrl-C leaves nothing half written
            temporary.unlink()
    return True


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


def _write(model: PackedModel, temporary: Path, path: Path) -> None:
    header = {
        "magic": MAGIC,
        "layout": LAYOUT_VERSION,
        "precision": model.precision,
        "bytes": model.nbytes,
        "checksum": f"{model.checksum():016x}",
    }
    image = memoryview(model.image()).cast("B")
    with temporary.open("wb") as file:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(header).encode().ljust(HEADER_BYTES, b"\0"))
        for start in range(0, len(image), _PIECE):
            file.write(image[start : start + _PIECE])
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)

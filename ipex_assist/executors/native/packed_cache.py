"""The cache of packed weights on disk, from which the next start loads instead of packing the checkpoint again.

A file is one page of JSON followed by the core's image, which is the same on every machine and for any number of
threads. It is written under a temporary name and then renamed, so that a file with the right name is complete; its
checksum is checked on every load, because a corrupt page would give wrong answers instead of an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.hints import log_hint, machine_name
from ipex_assist.env.memory import gib, read_memory
from ipex_assist.env.phases import phase
from ipex_assist.executors.folder_lock import one_at_a_time
from ipex_assist.executors.native.packed_folder import HEADER_BYTES, make_room, note_use, size_limit

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.native.model import PackedModel

log = logging.getLogger("ipex_assist")

LAYOUT_VERSION = (
    2  # of the image: changes with kernels/kernels.h, PackedModel::lay_out and packing/pack_block.h in native/
)
MAGIC = "ipex-assist packed weights"
MODE_VARIABLE = "IPEX_ASSIST_PACKED"
_MARGIN = 1 << 30  # bytes of memory that a run needs beside its weights
_DEAD_AFTER = 24 * 3600  # seconds without a write, after which another machine's half-written file is deleted


def keeps_packed(asked: bool | None) -> bool:
    """Whether packed copies are written and used: as `asked`; where that is None, unless $IPEX_ASSIST_PACKED is no."""
    return _mode() != "no" if asked is None else asked


def _mode() -> str:
    wanted = os.environ.get(MODE_VARIABLE, "")
    if wanted not in ("", "copy", "map", "no"):
        raise UsageError(f"{MODE_VARIABLE}={wanted} is neither copy nor map nor no, nor unset")
    return wanted


def packed_path(checkpoint: Checkpoint, model: PackedModel) -> Path | None:
    """The path of the packed copy. Its name starts readably and ends in a hash of all that its content depends on.

    None, with a warning, where no home folder is known. Raises UsageError where $IPEX_ASSIST_CACHE_SIZE is no size.
    """
    size_limit()  # raises now, and not after minutes of packing
    try:
        folder = cache_folder("packed")
    except RuntimeError as error:
        log.warning("no packed copy is kept: %s Set XDG_CACHE_HOME to a folder", error)
        return None
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.weight_files()]
    dequantized = checkpoint.dequantized_to(model.precision)
    facts = repr((LAYOUT_VERSION, files, model.spec, model.precision, model.group, *filter(None, [dequantized])))
    source = "-".join(checkpoint.source.rstrip("/").removesuffix(".gguf").split("/")[-2:])
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", source)[-60:].strip("-.")
    return folder / f"{name}-{model.precision}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.packed"


def load_packed(
    model: PackedModel,
    path: Path,
    *,
    copy: bool | None = None,
    quick: bool = False,
    aside: Callable[[], object] | None = None,
) -> bool:
    """Load the image at `path` into `model`. False where there is none, or, with a warning, where it cannot be used.

    copy: read it into this process's own memory, in large pages near the threads that use them; else the file is
    mapped: processes that map it share its memory, and truncating the file kills them all (SIGBUS). None: as
    $IPEX_ASSIST_PACKED says (copy or map), else copy where memory allows. quick: unless copying was asked for by name,
    map the file first and copy it in the background, between passes (PackedModel.settle). aside: called before the core
    is busy checking the image, for a thread of the caller's. Raises UsageError for an invalid value of that variable.
    """
    if copy is None:
        copy = _copying(model, path)
        quick = quick and copy and _mode() != "copy"
    _remove_leftovers(path.parent)
    try:
        with path.open("rb") as file:
            if not _is_ours(path, os.fstat(file.fileno()).st_uid):
                return False
            expected = _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model)
            model.adopt(file.fileno(), HEADER_BYTES, copy, settle=quick)
        if aside is not None:
            aside()
        if model.checksum() != expected:
            raise ValueError("its checksum is wrong")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, IpexAssistError) as error:
        _discard(path, str(error))
        return False
    note_use(path)
    return True


def _is_ours(path: Path, owner: int) -> bool:
    """Whether this user made the copy, or root; who wrote another's could have changed every answer."""
    if owner in (os.geteuid(), 0):
        return True
    log.warning(
        "the packed copy %s is not used, because it belongs to another user (uid %d); the checkpoint is packed again. "
        "Delete it, or set XDG_CACHE_HOME to a folder of your own",
        path,
        owner,
    )
    return False


def _copying(model: PackedModel, path: Path) -> bool:
    wanted = _mode()
    if wanted in ("copy", "map"):
        return wanted == "copy"
    available = read_memory().available
    if not available or model.nbytes + _MARGIN <= available or not os.path.exists(path):
        return True
    log.warning(
        "the packed copy %s is mapped, because there is no memory to copy it into (%s are needed, %s are "
        "available): leave the file alone while this runs. %s=map maps without asking",
        path,
        gib(model.nbytes + _MARGIN),
        gib(available),
        MODE_VARIABLE,
    )
    return False


def _read_header(page: bytes, size: int, model: PackedModel) -> int:
    """The checksum of the image by the file's first page. ValueError says what is wrong with the file."""
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
    with contextlib.suppress(OSError):  # where it cannot be deleted, the next start warns again
        path.unlink()


def save_packed(model: PackedModel, path: Path, source: str = "", *, asked: bool = True) -> bool:
    """Write a copy of the model's image. False, with a warning, where there is no room or no permission.

    source: the checkpoint's name, for listings. asked: the user asked for a copy; else it must leave as much of the
    disk free as it takes, and a message says that it was written. Nothing is written where another process has written
    the same copy, or is writing it.
    """
    temporary, begun = path.with_name(f".{path.name}.{machine_name()}.{os.getpid()}"), False
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
            if asked:  # else do not wait for the disk: the checksum finds what a crash would leave incomplete
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        message = "no packed copy is kept in %s: %s"
        if asked:
            log.warning(message, path.parent, error)
        else:
            log_hint(log, f"no packed copy in {path.parent}", message, path.parent, error)
        return False
    finally:
        if begun:  # renamed by now, or deleted here: Ctrl-C leaves no half-written file
            with contextlib.suppress(OSError):
                temporary.unlink()
    if not asked:
        log_hint(
            log,
            f"packed copies in {path.parent}",
            "a packed copy of %s is kept in %s (%s), by which the next start is quick: `ipex-assist cache` lists "
            "and clears them, --no-cache-packed keeps none",
            short_name(source),
            path.parent,
            gib(model.nbytes),
        )
    return True


def _is_whole(path: Path, model: PackedModel, checksum: int) -> bool:
    """Whether a copy of exactly this image exists."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        return _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model) == checksum
    return False


def _is_being_written(path: Path) -> bool:
    """Whether another process on this machine is writing the same copy now."""
    for other in path.parent.glob(f".{path.name}.{machine_name()}.*"):
        with contextlib.suppress(OSError):
            if not _is_left_over(other):
                return True
    return False


def _remove_leftovers(folder: Path) -> None:
    """Delete half-written files of processes that were killed while saving."""
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.packed.*"):
            if _is_left_over(path):
                path.unlink(missing_ok=True)
                log.info("deleted %s, which was left half written", path)


def _is_left_over(path: Path) -> bool:
    """Whether the writer of `path` is gone. On this machine it would hold a lock; elsewhere, its writes be recent."""
    if path.name.rpartition(".packed.")[2].startswith(f"{machine_name()}."):
        with path.open("rb+") as file, contextlib.suppress(OSError):  # the writer's lock, or a file system without any
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
    with phase("writing packed weights, for later starts") as shown:
        for piece in model.image():
            file.write(piece)
            shown.share = file.tell() / (HEADER_BYTES + model.nbytes)
        file.flush()

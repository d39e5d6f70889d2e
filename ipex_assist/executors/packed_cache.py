"""Packed weights kept on disk, so that the next start maps them instead of reading and packing the checkpoint.

A file is a page of JSON and the core's image behind it, which is the same on every machine and for any number of
threads. It is written whole under another name and then renamed, so that what has the right name is complete; its
checksum is checked on every load, because a page that rotted would be a wrong answer and no error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.native.model import PackedModel

log = logging.getLogger("ipex_assist")

LAYOUT_VERSION = 1  # of the image: changes with native/kernels.h, Model::lay_out and the packing in native/pack.h
MAGIC = "ipex-assist packed weights"
HEADER_BYTES = 4096
_PIECE = 64 << 20


def packed_path(checkpoint: Checkpoint, model: PackedModel) -> Path:
    """Return the packed copy's place: named for people, and by everything its content depends on."""
    files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in checkpoint.weight_files()]
    facts = repr((LAYOUT_VERSION, files, model.spec, model.precision, model.group))
    source = "-".join(checkpoint.source.rstrip("/").removesuffix(".gguf").split("/")[-2:])
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", source)[-60:].strip("-.")
    return cache_folder("packed") / f"{name}-{model.precision}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.packed"


def load_packed(model: PackedModel, path: Path, *, copy: bool) -> bool:
    """Give `model` the image in `path`. False where there is none, or, with a warning, where it is damaged.

    copy: into memory of the threads that own the slices, as it should be where they are on several NUMA nodes; else the
    file is mapped, and processes that map it share its memory.
    """
    try:
        with path.open("rb") as file:
            expected = _read_header(file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size, model)
            model.adopt(file.fileno(), HEADER_BYTES, copy)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IpexAssistError) as error:
        _discard(path, str(error))
        return False
    if model.checksum() != expected:
        _discard(path, "its checksum is wrong")
        return False
    return True


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
    path.unlink(missing_ok=True)


def save_packed(model: PackedModel, path: Path) -> bool:
    """Keep a copy of the model's image. False, with a warning, where there is no room or no permission."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < model.nbytes + (256 << 20):
            raise OSError(f"{model.nbytes / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
        _write(model, temporary)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        log.warning("no packed copy is kept in %s: %s", path.parent, error)
        return False
    except BaseException:
        temporary.unlink(missing_ok=True)  # Ctrl-C leaves nothing half written
        raise
    return True


def _write(model: PackedModel, path: Path) -> None:
    header = {
        "magic": MAGIC,
        "layout": LAYOUT_VERSION,
        "precision": model.precision,
        "bytes": model.nbytes,
        "checksum": f"{model.checksum():016x}",
    }
    image = memoryview(model.image()).cast("B")
    with path.open("wb") as file:
        file.write(json.dumps(header).encode().ljust(HEADER_BYTES, b"\0"))
        for start in range(0, len(image), _PIECE):
            file.write(image[start : start + _PIECE])
        file.flush()
        os.fsync(file.fileno())

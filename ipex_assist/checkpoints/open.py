"""Checkpoints: a hub id, a folder or a GGUF file as one config and named tensors, read one at a time."""

from __future__ import annotations

import os
from pathlib import Path

from ipex_assist.checkpoints import hub
from ipex_assist.checkpoints.base import Checkpoint, require_file
from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.hub import canonical_id
from ipex_assist.env.errors import IpexAssistError, UsageError


def open_checkpoint(source: str, *, revision: str | None = None, offline: bool = False) -> Checkpoint:
    """Open a hub id (fetched into the hub cache if need be), a folder, or a .gguf file. Reads no weights.

    Raises:
        UsageError: a path where nothing is.
        IpexAssistError: not to be had, unreadable, incomplete, truncated or corrupt.
    """
    source = canonical_id(source)
    try:
        return _open(source, revision, offline)
    except (OSError, ValueError) as error:  # no permission, a name too long or with a zero byte, a broken disk, …
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise IpexAssistError(f"{source} cannot be read: {reason or type(error).__name__}") from error


def _open(source: str, revision: str | None, offline: bool) -> Checkpoint:
    path = Path(os.path.expanduser(source))
    if path.is_file():
        return GgufCheckpoint(source, path)
    if path.is_dir():
        return open_folder(FolderCheckpoint(source, path))
    if path.exists():
        require_file(path)
    if not hub.is_hub_id(source):
        raise UsageError(f"{source}: no such file or folder (looked for {path.absolute()}).")
    folder = hub.fetch(source, revision=revision, offline=offline)
    hint = f"The cached copy of {source} is incomplete; run once without --offline to complete it."
    return open_folder(FolderCheckpoint(source, folder, hint))


def open_folder(stored: FolderCheckpoint) -> Checkpoint:
    """The checkpoint, or, where its linears are quantized (GPTQ, AWQ), its view as one of plain weights."""
    from ipex_assist.checkpoints.quantized import quantized

    return quantized(stored)

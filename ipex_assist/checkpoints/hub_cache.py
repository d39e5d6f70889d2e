"""Which models the hub cache has on this machine, by its folders alone. Never imports huggingface_hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.checkpoints.hub import cache_folder, cached_snapshot

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_PREFIX = "models--"


@dataclass(frozen=True)
class StoredModel:
    """A model on this machine. name: a hub id, or that of a folder or file. bytes: of its files."""

    name: str
    path: Path
    bytes: int


def cached_models() -> Iterator[StoredModel]:
    """The models of the cache whose main revision has a config and weights, in the order of their names."""
    try:
        folders = sorted(cache_folder().glob(f"{_PREFIX}*"))
    except OSError:
        return
    for folder in folders:
        name = folder.name.removeprefix(_PREFIX).replace("--", "/")
        with contextlib.suppress(OSError):
            snapshot = cached_snapshot(name)
            if snapshot is not None and (stored := stored_at(name, snapshot)) is not None:
                yield stored


def stored_at(name: str, path: Path) -> StoredModel | None:
    """The model in a folder or file; None for a folder without a config or without weights."""
    if path.is_file():
        return StoredModel(name, path, path.stat().st_size)
    files = [each for each in path.iterdir() if each.is_file()]
    if not (path / "config.json").is_file() or not any(each.suffix in _WEIGHTS for each in files):
        return None
    return StoredModel(name, path, sum(each.stat().st_size for each in files))

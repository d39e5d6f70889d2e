"""Recorded machines, which are other people's and not kept here: $TOPOLOGIES names a folder or a .tar.gz of them.

Each is a folder with `sys`, `proc` and `expected.json`.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

SOURCE = os.environ.get("TOPOLOGIES", "")
wanted = pytest.mark.skipif(not SOURCE, reason="TOPOLOGIES names no recorded machines")


def recorded_machines(folder: Path) -> dict[str, Path]:
    """The machines' folders by name; an archive is unpacked into `folder`."""
    source = Path(SOURCE)
    if source.is_dir() and not list(source.glob("*/expected.json")):
        (source,) = source.glob("*.tar.gz")
    if not source.is_dir():
        with tarfile.open(source) as archive:
            # Python's own guard, where it has it: 3.10.12, 3.11.4, and later ones.
            archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        source = folder
    return {file.parent.name: file.parent for file in sorted(source.rglob("expected.json"))}

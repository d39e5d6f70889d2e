"""The picture of the architecture shows the rooms that there are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import architecture
import pytest

pytestmark = pytest.mark.one_stack


def test_the_picture_is_current() -> None:
    """A room that was added, moved or described anew without `python benchmarks/architecture.py`."""
    assert architecture.main(["--check"]) == 0


def test_every_room_is_in_it() -> None:
    """A contract that the pattern no longer reads would give an empty picture, which is current."""
    rooms = [room for layer in architecture.layers() for room in layer]
    folders = {path.parent.name for path in (architecture.ROOT / "ipex_assist").glob("*/__init__.py")}
    assert folders <= set(rooms)
    texts = [element.text for element in ElementTree.fromstring(architecture.picture()).iter() if element.text]
    assert set(rooms) <= set(texts)

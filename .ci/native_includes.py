"""Folders of the native core are in one order: fails where a file includes one of a later room, or itself in a circle.

A room is a folder of ipex_assist/native, or a part of one: what a number format is lies below the kernels, how it is
multiplied and packed above their building blocks. Whoever makes a folder gives it its place here.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "ipex_assist" / "native"
# Each may include those before it, and itself. The first pattern that a file matches is its room.
ROOMS = (
    ("refuse", ("refuse.*",)),
    ("memory", ("memory/*",)),
    ("threads", ("threads/*",)),
    ("formats: what they are", ("formats/*/format.h", "formats/precision.h", "formats/formats.h")),
    ("kernels", ("kernels/*.h",)),
    ("formats: how they are computed", ("formats/*",)),
    ("mixers: their kernels", ("mixers/kernels.h", "mixers/*/kernels*.h")),
    ("kernels of an instruction set", ("kernels/*.cpp",)),
    ("packing", ("packing/*",)),
    ("kv_cache", ("kv_cache/*",)),
    ("lookup", ("lookup/*",)),
    ("operations", ("operations/*",)),
    ("mixers", ("mixers/*",)),
    ("abi", ("abi/*",)),
)
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def room_of(name: str) -> int | None:
    """The number of a file's room, None where it has none."""
    rooms = (i for i, (_, patterns) in enumerate(ROOMS) if any(fnmatch(name, each) for each in patterns))
    return next(rooms, None)


def includes(native: Path) -> dict[str, list[str]]:
    """What each file includes of ours, by paths within `native`."""
    files = [path for path in sorted(native.rglob("*")) if path.suffix in (".h", ".cpp")]
    return {path.relative_to(native).as_posix(): INCLUDE.findall(path.read_text("utf-8")) for path in files}


def circle(found: dict[str, list[str]]) -> list[str]:
    """Files that include each other in a circle, the first one again at the end; none where there is no circle."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in found.get(name, ()):
            if within := visit(other, [*path, name]):
                return within
        done.add(name)
        return []

    return next((within for name in found if (within := visit(name, []))), [])


def faults(native: Path) -> list[str]:
    """A line for each file or include that does not fit the order."""
    found, lines = includes(native), []
    for name, others in found.items():
        own = room_of(name)
        if own is None:
            lines.append(f"{name} is in no room: give its folder a place in .ci/native_includes.py")
            continue
        for other in others:
            room = room_of(other)
            if room is None or other not in found:
                lines.append(f"{name} includes {other}, which is no file of a room")
            elif room > own:
                lines.append(f"{name} ({ROOMS[own][0]}) includes {other} ({ROOMS[room][0]}), which comes later")
    if within := circle(found):
        lines.append(f"included in a circle: {' -> '.join(within)}")
    return lines


def main() -> int:
    lines = faults(Path(sys.argv[1]) if len(sys.argv) > 1 else NATIVE)
    print("\n".join(lines) or f"{len(ROOMS)} rooms of the native core include downwards")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())

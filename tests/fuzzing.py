"""What the fuzz tests share: values from anywhere, JSON trees with one place changed, and a watch on what is opened."""

from __future__ import annotations

import copy
import faulthandler
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Times the examples of continuous integration: IPEX_ASSIST_FUZZ=20 pytest tests/checkpoints/test_fuzz.py
TIMES = float(os.environ.get("IPEX_ASSIST_FUZZ", "1"))
SECONDS = 5.0  # of the processor that an example may take; hundreds of times what it does
HANG_SECONDS = 120.0

_NUMBERS = st.sampled_from(
    (
        *(0, 1, -1, 2, 3, 5, 7, 8, 15, 17, 32, 64, 65, 320, 0.0, 0.5, -0.0, 1.0, 64.0, 1e-5, 1e30, -1e30, 1e-320),
        *(float("nan"), float("inf"), float("-inf"), 2**31, 2**32 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400),
    )
)
_TEXTS = st.sampled_from(("", "64", "nan", "x", "linear", "../up", "/etc/passwd", "\ud800", "\0", "é", "a" * 5000))
JUNK = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS | st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def examples(count: int) -> settings:
    """Hypothesis' settings for a test of `count` examples in continuous integration."""
    return settings(
        max_examples=max(1, int(count * TIMES)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=TIMES == 1,  # what CI finds, it finds for everybody
        print_blob=True,
    )


@st.composite
def changed(draw: st.DrawFn, tree: Any, most: int = 3) -> Any:
    """A JSON tree with one to `most` of its places replaced, removed, renamed, doubled, or nested deep."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        holder, key = tree, None
        for _ in range(draw(st.integers(1, 6))):
            inner = holder if key is None else holder[key]
            keys = (
                list(inner) if isinstance(inner, dict) else list(range(len(inner))) if isinstance(inner, list) else []
            )
            if not keys:
                break
            holder, key = inner, draw(st.sampled_from(keys))
        if key is None:
            return draw(JUNK)
        match draw(st.sampled_from(("junk", "junk", "junk", "remove", "swap", "wrap", "add"))):
            case "junk":
                holder[key] = draw(JUNK)
            case "remove":
                del holder[key]
            case "swap":
                other = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder)))))
                holder[key], holder[other] = holder[other], holder[key]
            case "wrap":
                holder[key] = draw(st.sampled_from(([holder[key]], {"a": holder[key]}, [holder[key]] * 2)))
            case "add" if isinstance(holder, dict):
                holder[draw(_TEXTS | st.text(max_size=8))] = draw(JUNK)
    return tree


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes, head: int) -> bytes:
    """`data` with a few bytes of its first `head` changed, cut out or put in, or cut short."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(head, len(content)) - 1)) if content else 0
        match draw(st.sampled_from(("set", "set", "cut", "insert", "end"))):
            case "set":
                content[at : at + 1] = bytes([draw(st.sampled_from((0, 1, 127, 128, 255)) | st.integers(0, 255))])
            case "cut":
                del content[at : at + draw(st.integers(1, 16))]
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "end":
                del content[at:]
    return bytes(content)


_forbidden: list[str] = []
_opened: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _forbidden and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        name = os.path.realpath(os.fsdecode(arguments[0]))
        if any(name.startswith(folder) for folder in _forbidden):
            _opened.append(name)


sys.addaudithook(_audit)


@contextmanager
def watched(outside: Path) -> Iterator[None]:
    """Fail where something opens a file of `outside`, or takes too long; a hang ends the run with all stacks."""
    _forbidden.append(str(outside.resolve()))
    _opened.clear()
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    started = time.thread_time()
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        _forbidden.clear()
    assert not _opened, f"opened outside the folder: {_opened}"
    assert time.thread_time() - started < SECONDS

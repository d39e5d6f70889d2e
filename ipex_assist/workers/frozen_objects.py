"""Python's garbage collections in processes that live long and must not pause."""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_objects() -> None:
    """Leave all objects that exist by now out of garbage collections, once in a process.

    Libraries and models are 150,000 objects and more. Looking through them takes a tenth of a second, in which a server
    answers nobody and an engine runs no pass.
    """
    gc.collect()
    gc.freeze()

"""The process that reads images: damaged and hostile ones end here, and passes of the text model wait for none."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.vision.families import FAMILIES
from ipex_assist.vision.images import read_image
from ipex_assist.vision.wire import (
    Asked,
    ImageFile,
    ImageOpened,
    ImageRefused,
    MakeRows,
    SeenRows,
    TowerReady,
    TowerSettings,
    read,
    write,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from ipex_assist.vision.tower import Tower

T = TypeVar("T")
NICENESS = 10  # passes of the text model come first, where cores are short


def main() -> int:
    """Answer each image on standard input until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # who started us says when it is over
        signal.signal(number, signal.SIG_IGN)
    asked, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    settings: TowerSettings | None = read(asked, TowerSettings)
    if settings is not None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            _serve(settings, asked, replies)
    return 0


def _serve(settings: TowerSettings, asked: IO[bytes], replies: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, settings.cpus)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    try:
        tower = _tower(settings)
    except IpexAssistError as error:
        write(replies, ImageRefused(str(error), wrong=False))
        return
    write(replies, TowerReady())
    while (image := read(asked, Asked)) is not None:
        opened = _or_refused(partial(_opened, image))
        if isinstance(opened, ImageRefused):
            write(replies, opened)
            continue
        write(replies, ImageOpened())
        if read(asked, MakeRows) is None:
            break
        write(replies, _or_refused(partial(_seen, tower, opened)))


def _tower(settings: TowerSettings) -> Tower:
    import torch

    from ipex_assist.vision.tower import Tower

    torch.set_num_threads(settings.threads)
    checkpoint = open_checkpoint(settings.folder, offline=True)
    return Tower(checkpoint, FAMILIES[settings.model_type], settings.precision)


def _or_refused(work: Callable[[], T]) -> T | ImageRefused:
    try:
        return work()
    except (IpexAssistError, MemoryError) as error:
        message = "there is no memory for an image of this size" if isinstance(error, MemoryError) else str(error)
        return ImageRefused(message, wrong=isinstance(error, UsageError))


def _opened(image: Asked) -> Image:
    shape = None if isinstance(image, ImageFile) else image.shape
    return read_image(image.content if shape is None else np.frombuffer(image.content, np.uint8).reshape(shape))


def _seen(tower: Tower, image: Image) -> SeenRows:
    seen = tower.see(image)
    rows, columns = seen.rows.shape
    axes = None if seen.axes is None else seen.axes.tobytes()
    return SeenRows(seen.rows.tobytes(), (rows, columns), axes, seen.layout)


if __name__ == "__main__":
    sys.exit(main())

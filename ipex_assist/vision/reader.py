"""Images as rows of the text model, by a process of their own, which starts with the first one. Never imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.launch.spawn import kill_child
from ipex_assist.vision.images import LIMITS, ImageLimits, ImageSource, file_content
from ipex_assist.vision.memory import KEPT_BYTES
from ipex_assist.vision.messages import ImageTokens
from ipex_assist.vision.seen import SeenImage
from ipex_assist.vision.wire import (
    Asked,
    ImageFile,
    ImageOpened,
    ImageRefused,
    MakeRows,
    Pixels,
    Reply,
    SeenRows,
    TowerReady,
    TowerSettings,
    read,
    write,
)


class ImageReader:
    """Reads the images of one model. Thread-safe: one image at a time, as each takes all of the tower's threads."""

    def __init__(self, settings: TowerSettings, tokens: ImageTokens, limits: ImageLimits = LIMITS) -> None:
        """tokens: of images in prompts."""
        self.tokens, self._settings, self._limits = tokens, settings, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, SeenImage] = OrderedDict()
        self._kept_bytes = 0

    def see(self, sources: Sequence[ImageSource]) -> list[SeenImage]:
        """What each image is to the text model. Raises UsageError for one that is refused, and for too many of them."""
        if len(sources) > self._limits.images:
            raise UsageError(f"{len(sources)} images are given, and a prompt may have {self._limits.images}")
        return [self._see(asked(source, self._limits)) for source in sources]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _see(self, image: Asked) -> SeenImage:
        key = hashlib.sha256(repr(getattr(image, "shape", None)).encode() + image.content).digest()
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return found
            reply = self._ask(image)
            if isinstance(reply, ImageRefused):
                raise (UsageError if reply.wrong else IpexAssistError)(reply.message)
            assert isinstance(reply, SeenRows)
            rows = np.frombuffer(reply.content, np.float32).reshape(reply.shape)
            axes = None if reply.axes is None else np.frombuffer(reply.axes, np.int32).reshape(-1, 3)
            self._keep(key, SeenImage(rows, axes, reply.layout))
            return self._kept[key]

    def _keep(self, key: bytes, seen: SeenImage) -> None:
        self._kept[key] = seen
        self._kept_bytes += seen.rows.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].rows.nbytes

    def _ask(self, image: Asked) -> Reply:
        """The answer for an image. Opening one takes no time: what does is made to keep others waiting."""
        process = self._running()
        reply = self._exchange(process, image, self._limits.opening_seconds)
        return self._exchange(process, MakeRows(), self._limits.seconds) if isinstance(reply, ImageOpened) else reply

    def _exchange(self, process: subprocess.Popen[bytes], message: Asked | MakeRows, seconds: float) -> Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        reply: Reply | None = None
        try:
            write(process.stdin, message)
            if not _answers(process.stdout, seconds):
                self._end()
                return ImageRefused(f"an image takes more than {seconds:g} seconds: make it smaller", wrong=True)
            reply = read(process.stdout, Reply)
        except BrokenPipeError:
            pass
        except BaseException:  # its reply would be taken for that of the next image
            self._end()
            raise
        if reply is None:
            self._end()
            return ImageRefused("the process that reads images died of this one: make it smaller", wrong=True)
        return reply

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        program = [sys.executable, "-m", "ipex_assist.vision.process"]
        threads = str(self._settings.threads)
        self._process = process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            write(process.stdin, self._settings)
        reply: Reply | None = read(process.stdout, Reply)
        if not isinstance(reply, TowerReady):
            self._end()
            raise IpexAssistError(
                reply.message if isinstance(reply, ImageRefused) else "the process that reads images does not start"
            )
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_child(process)

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._end()


def _answers(stream: IO[bytes], seconds: float) -> bool:
    """Whether an answer begins in time: before it was asked for, none is in the stream."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def asked(source: ImageSource, limits: ImageLimits = LIMITS) -> Asked:
    """An image as it is sent to the process, whose pixels nobody has looked at yet."""
    if isinstance(source, (str, os.PathLike)):
        return ImageFile(file_content(Path(source), limits))
    if isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) > limits.bytes:
            raise UsageError(f"an image has {len(source):,} bytes, and may have {limits.bytes:,}: make it smaller")
        return ImageFile(bytes(source))
    return _pixels(source, limits)


def _pixels(source: Any, limits: ImageLimits) -> Pixels:
    from ipex_assist.vision.images import read_image

    array = np.asarray(read_image(source, limits))
    return Pixels(array.tobytes(), array.shape)

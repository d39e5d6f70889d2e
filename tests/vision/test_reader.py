"""The process that reads images: its refusals, its end, and what is kept."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seeing_models
from conftest import HAS_NATIVE
from seeing_models import content, picture

from ipex_assist.api import load
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.memory_need import estimate_need
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.vision.images import ImageLimits
from ipex_assist.vision.memory import KEPT_BYTES, PROCESS_BYTES, running_bytes, vision_bytes
from ipex_assist.vision.messages import ImageTokens
from ipex_assist.vision.reader import ImageReader
from ipex_assist.vision.seen import SeenImage
from ipex_assist.vision.wire import TowerSettings
from ipex_assist.workers.request_loop import RequestLoop
from ipex_assist.workers.wire import Answered, Cancel, Pause, Resume, TextRequest

pytestmark = pytest.mark.one_stack


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeing_models.talking(tmp_path_factory.mktemp("talking"))


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[ImageReader]:
    settings = TowerSettings(str(folder), "qwen2_5_vl", "fp32", 1, sorted(os.sched_getaffinity(0)))
    reader = ImageReader(settings, ImageTokens(3, 3))
    yield reader
    reader.close()


def test_rows_do_not_depend_on_company_or_form(reader: ImageReader) -> None:
    """The same pixels as a file, an image and an array; before other images and after them."""
    page = picture(24, 16, 3)
    alone = reader.see([page])[0]
    others = reader.see([picture(40, 40, 1), content(page), np.asarray(page), picture(8, 8, 2)])
    assert np.array_equal(others[1].rows, alone.rows)
    assert np.array_equal(others[2].rows, alone.rows)
    assert alone.rows.shape == (6, 64)
    assert alone.axes is not None
    assert alone.axes.tolist() == [[0, y, x] for y in range(2) for x in range(3)]


def test_an_image_is_read_once(reader: ImageReader) -> None:
    """A conversation sends it with every message."""
    page = content(picture(24, 16, 9))
    assert reader.see([page])[0] is reader.see([page])[0]


def test_the_process_may_die(reader: ImageReader) -> None:
    """Whoever's image it was is told so, and the next one is read by a new process."""
    reader.see([picture(8, 8, 5)])
    process = reader._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    threading.Timer(0.5, process.kill).start()
    with pytest.raises(UsageError, match="died of this one"):
        reader.see([picture(8, 8, 6)])
    assert reader.see([picture(8, 8, 6)])[0].rows.shape == (1, 64)
    assert reader._process is not process


def test_an_image_may_not_take_for_ever(folder: Path) -> None:
    """Its process is ended, and the next image has one of its own."""
    settings = TowerSettings(str(folder), "qwen2_5_vl", "fp32", 1, sorted(os.sched_getaffinity(0)))
    reader = ImageReader(settings, ImageTokens(3, 3))
    reader.see([picture(8, 8, 5)])
    reader._limits = ImageLimits(opening_seconds=0.2)
    assert reader._process is not None
    reader._process.send_signal(signal.SIGSTOP)
    with pytest.raises(UsageError, match=r"takes more than 0.2 seconds"):
        reader.see([picture(8, 8, 6)])
    reader._limits = ImageLimits()
    assert reader.see([picture(8, 8, 6)])[0].rows.shape == (1, 64)
    reader.close()


def test_refusals_leave_the_process_alive(reader: ImageReader) -> None:
    """Nothing that is sent ends it."""
    reader.see([picture(8, 8, 5)])
    process = reader._process
    for wrong in (b"", b"GIF89a", content(picture(900, 3))):
        with pytest.raises(UsageError):
            reader.see([wrong])
    with pytest.raises(UsageError, match="65 images are given"):
        reader.see([b""] * 65)
    assert reader._process is process


def test_a_checkpoint_without_a_vision_part(folder: Path, tmp_path: Path) -> None:
    """The error of loading comes to whoever sent the first image."""
    settings = TowerSettings(str(tmp_path), "qwen2_5_vl", "fp32", 1, [0])
    reader = ImageReader(settings, ImageTokens(3, 3))
    with pytest.raises(IpexAssistError):
        reader.see([picture(8, 8)])
    reader.close()


def test_memory_is_planned(folder: Path, tmp_path: Path) -> None:
    """Weights of the vision part, its process and what is kept: a machine that is full of keys and values has none."""
    need = estimate_need(str(folder), None, "fp32", None, 100)
    seeing = vision_bytes(open_checkpoint(str(folder)), "qwen2_5_vl", "fp32")
    weights = sum(
        math.prod(shape) for name, shape in open_checkpoint(str(folder)).shapes().items() if ".visual." in f".{name}"
    )
    assert seeing == 4 * weights + PROCESS_BYTES + KEPT_BYTES + running_bytes()
    assert weights > 10_000
    assert need.workspace >= seeing
    assert vision_bytes(open_checkpoint(str(folder)), "qwen2", "fp32") == 0


@pytest.mark.skipif(not HAS_NATIVE, reason="texts share passes on the native core alone")
def test_texts_go_on_while_an_image_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waited for the tower would stall all streams; and requests are given up and paused meanwhile."""
    with load(folder, None, precision="fp32", executor="native", kv_memory="8M") as model:
        looks = threading.Event()
        assert model.images is not None
        see = model.images.see

        def slow(sources: Any) -> list[SeenImage]:
            assert looks.wait(600)
            return see(sources)

        monkeypatch.setattr(model.images, "see", slow)
        replies: list[Any] = []
        loop = RequestLoop(model, replies.append)
        page = content(picture(24, 16, 3))
        options = GenerationOptions(max_new_tokens=6)
        asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
        for number in (1, 2, 4, 5):
            loop.inbox.put(TextRequest(number, messages=asked, options=options, images=[page]))
        loop.inbox.put(TextRequest(3, "the fox", options=GenerationOptions(max_new_tokens=20, ignore_eos=True)))
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        wait_until(lambda: any(isinstance(each, Answered) and each.id == 3 for each in replies))
        assert [each.id for each in replies if isinstance(each, Answered)] == [3]
        loop.inbox.put(Cancel(2))
        wait_until(lambda: any(each.id == 2 for each in replies))
        for message in (Pause(4), Pause(5), Resume(5)):
            loop.inbox.put(message)
        looks.set()
        wait_until(lambda: {1, 5} <= {each.id for each in replies})
        assert 4 not in loop._running
        loop.inbox.put(Resume(4))
        loop.inbox.put(None)
        thread.join(300)
        answers = {each.id: each for each in replies if isinstance(each, Answered)}
        assert answers[2].error == "cancelled"
        monkeypatch.undo()
        assert answers[1].result is not None
        assert answers[4].result is not None
        assert answers[4].result["text"] == answers[1].result["text"]
        expected = model.generate(
            [{"role": "user", "content": [{"type": "image", "image": page}, asked[0]["content"][1]]}], max_new_tokens=6
        )
        assert answers[1].result["text"] == expected.text


def wait_until(condition: Any, seconds: float = 300.0) -> None:
    """Poll, with a limit far from what is expected."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

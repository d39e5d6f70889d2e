"""The README's pictures: a program's output on a terminal is recorded and drawn, and the chat page photographed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyte", reason="the extra dev brings it")
pytest.importorskip("fastapi", reason="the extra serve brings it")

import chat_page
import pictures
import terminal_svg
from page_server import served
from terminal_cast import Cast, record

from ipex_assist.env.errors import IpexAssistError

pytestmark = pytest.mark.one_stack

HAS_BROWSER = importlib.util.find_spec("playwright") is not None and shutil.which("chromium") is not None
in_browser = pytest.mark.skipif(not HAS_BROWSER, reason="needs playwright and chromium")
# A bar that is overwritten, colours, a character of two cells, what XML escapes, and more lines than there are.
EVENTS = (
    (0.0, "$ "), (0.31, "x"), (0.32, "y"), (0.6, "\r\n"), (0.9, "10 %"), (1.0, "\r20 %"), (1.2, "\r\x1b[K"),
    (1.3, "a \x1b[31mred <b>\x1b[0m &"), (1.5, " \x1b[1mbold\x1b[0m 日 end\r\n"), (2.0, "1\r\n2\r\n"), (2.5, "3\r\n"),
)  # fmt: skip
CAST = Cast(30, 5, "xy", 0, EVENTS, "A Xeon")
VISIBLE = """seconds => {
  for (const each of document.getAnimations()) { each.pause(); each.currentTime = seconds * 1000; }
  const visible = (node) => getComputedStyle(node).visibility === "visible";
  const shown = [...document.querySelectorAll("text")].filter(visible);
  return shown.map((node) => [+node.getAttribute("x"), +node.getAttribute("y"), node.textContent]);
}"""


def recorded(program: str, **environ: str) -> Cast:
    return record(
        "sh", ["sh", "-c", program], columns=33, rows=7, environ={**os.environ, **environ}, folder=Path(__file__).parent
    )


def test_a_program_is_recorded_on_a_terminal_with_its_times() -> None:
    """One that finds no terminal, or another size, shows something else; the line that is typed comes first."""
    cast = recorded('test -t 0 && test -t 1 && stty size; sleep 1; printf "é\\n" >&2', COLUMNS="99", NO_COLOR="1")
    text = "".join(text for _, text in cast.output)
    assert text.replace("\x1b[32m", "").replace("\x1b[0m", "") == "$ sh\r\n7 33\r\né\r\n"
    times = [seconds for seconds, _ in cast.output]
    assert times == sorted(times)
    (size,) = (seconds for seconds, text in cast.output if "7 33" in text)
    assert 0.5 <= times[-1] - size < 20  # a busy machine reads the first line late
    assert abs(cast.recorded - time.time()) < 60


def test_a_program_that_fails_is_not_recorded() -> None:
    """Its message would be the README's first picture."""
    with pytest.raises(IpexAssistError, match=r"ended with 3.*no such model"):
        recorded("echo no such model; exit 3")


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With what other recorders add: input, which is not shown. Other versions have other columns."""
    file = tmp_path / "a.cast"
    file.write_text(CAST.dumps() + '[2.6, "i", "q"]\n', encoding="utf-8")
    assert Cast.load(file) == CAST
    file.write_text('{"version": 3}\n')
    with pytest.raises(IpexAssistError, match="version 3"):
        Cast.load(file)


def test_what_comes_together_is_shown_together() -> None:
    """Else a picture has a screen for each token, and each key."""
    moments = [moment for moment, _ in terminal_svg.contents(CAST)]
    assert len(moments) == len(EVENTS) - 1
    assert moments == sorted(moments)
    assert terminal_svg.draw(CAST) == terminal_svg.draw(CAST)
    assert terminal_svg.duration(CAST) == 2.5 + terminal_svg.HOLD


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("drawn") / "a.svg"
    path.write_text(terminal_svg.draw(CAST), encoding="utf-8")
    return path.as_uri()


@in_browser
def test_a_browser_shows_what_the_terminal_had_at_each_moment(drawn: str) -> None:
    """In its second round as in its first, at the place of each row, scrolled where the terminal was."""
    red = ["a", "red <b>", "&"]
    screens = {
        0.1: [["$"]],
        0.5: [["$ xy"]],
        0.95: [["$ xy"], ["10 %"]],
        1.1: [["$ xy"], ["20 %"]],
        1.25: [["$ xy"]],
        1.4: [["$ xy"], red],
        2.2: [["$ xy"], [*red, "bold", "日 end"], ["1"], ["2"]],
        2.6: [[*red, "bold", "日 end"], ["1"], ["2"], ["3"]],
        5.4: [[*red, "bold", "日 end"], ["1"], ["2"], ["3"]],
        5.6: [["$"]],
        9.1: [[*red, "bold", "日 end"], ["1"], ["2"], ["3"]],
    }
    with chat_page.chromium() as browser:
        page = browser.new_page()
        page.goto(drawn)
        for seconds, rows in screens.items():
            shown = sorted(page.evaluate(VISIBLE, seconds), key=lambda each: (each[1], each[0]))
            by_row: dict[float, list[str]] = {}
            for _, y, text in shown:
                by_row.setdefault(y, []).append(text)
            assert list(by_row.values()) == rows, seconds
        page.emulate_media(reduced_motion="reduce")
        assert [text for _, _, text in page.evaluate(VISIBLE, 0)] == [*red, "bold", "日 end", "1", "2", "3"]
        inside = "[...document.querySelectorAll('text')].every(node => node.getBBox().x + node.getBBox().width <= 302)"
        assert page.evaluate(inside)


@in_browser
def test_the_chat_page_is_photographed_after_its_answers(tmp_path: Path) -> None:
    """Not while they are written; with the likeliest tokens, so that the same page gives the same text."""
    from PIL import Image

    path = tmp_path / "page.png"
    with served() as (url, backend):
        answers = chat_page.photograph(url, ["fox", "and again: fox"], path)
        assert [request.options.do_sample for request in backend.requests] == [False, False]
    assert len(answers) == 2
    assert all("The quick brown fox" in answer and "three" in answer for answer in answers)
    size = tuple(int(side * chat_page.SCALE) for side in chat_page.SIZE.values())
    with Image.open(path) as image:
        assert image.size == size
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


@in_browser
def test_a_page_without_an_answer_gives_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_page, "ANSWER_SECONDS", 0.5)
    with served() as (url, _), pytest.raises(IpexAssistError, match="gave no picture"):
        chat_page.photograph(url, ["endless"], tmp_path / "page.png")
    assert not (tmp_path / "page.png").exists()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder of pictures of which nothing is wrong, with README."""
    pictures.keep(CAST, tmp_path)
    (tmp_path / "page.png").write_bytes(b"x")
    return tmp_path


README = "\n    xy   # a comment\n\nOn A Xeon:\n![A](docs/pictures/answer.svg)\n![B](docs/pictures/page.png)\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: None, None),
        (lambda folder: (folder / "answer.svg").write_text("<svg/>"), "answer.svg is not what answer.cast yields"),
        (lambda folder: (folder / "page.png").write_bytes(b"x" * 200_000), "page.png has 200,000 bytes"),
        (lambda folder: pictures.keep(Cast(30, 5, "z", 0, EVENTS), folder), "no command z"),
        (lambda folder: pictures.keep(Cast(30, 5, "xy", 0, EVENTS, "EPYC"), folder), "were made on EPYC"),
        (lambda folder: pictures.keep(Cast(30, 5, "xy", 0, ((99.0, "a"),)), folder), "answer.svg takes 102.0 s"),
    ],
)
def test_kept_pictures_are_checked(kept: Path, change: Any, said: str | None) -> None:
    """A picture that was drawn by hand, of another command, or that nobody waits for."""
    change(kept)
    found = pictures.complaints(kept, README)
    assert [said in each for each in found] == ([] if said is None else [True])


@pytest.mark.parametrize("text", ["![](docs/pictures/page.png)", "[B](docs/pictures/page.png)"])
def test_a_picture_has_a_text_for_who_cannot_see_it(kept: Path, text: str) -> None:
    (found,) = pictures.complaints(kept, README.replace("![B](docs/pictures/page.png)", text))
    assert "the README does not show page.png" in found


def test_a_recording_shows_no_folder_of_its_machine(tmp_path: Path) -> None:
    """A message with a path would be in the README for years."""
    with pytest.raises(IpexAssistError, match="a folder of this machine"):
        pictures.keep(Cast(30, 5, "xy", 0, ((0.0, f"loading {sys.prefix}/x"),)), tmp_path)
    assert not list(tmp_path.iterdir())

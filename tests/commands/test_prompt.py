"""Where the prompt comes from: flags, files, pipes, terminals, and any two of them."""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipex_assist.commands.shared import prompt
from ipex_assist.commands.shared.prompt import DEMO_PROMPT, read_prompt
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack


@contextmanager
def stdin(monkeypatch: pytest.MonkeyPatch, content: bytes | None, *, after: float = 0.0) -> Iterator[None]:
    """A pipe with that content, which comes `after` seconds; None is a pipe that is never closed."""
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, content or b"")
        os.close(writing)

    timer = threading.Timer(after, write)
    if content is not None:
        timer.start()
    with os.fdopen(reading) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield
    timer.join() if content is not None else os.close(writing)


@pytest.mark.parametrize(
    ("piped", "given", "read"),
    [
        (b"a fox\n", None, "a fox"),
        (b"a fox\r\n", None, "a fox"),
        (b"a fox\n\n", None, "a fox\n"),  # exactly one
        (b" a fox", None, " a fox"),
        (b"", "sum up:", "sum up:"),
        (b" \n", "sum up:", "sum up:"),
        (b"one\ntwo\n", "sum up:", "sum up:\n\none\ntwo"),
        ("Füchse".encode(), "sum up:\n", "sum up:\n\n\nFüchse"),
    ],
)
def test_pipes(piped: bytes, given: str | None, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`echo fox |` is the prompt `-p fox`, and `cat document | … -p TEXT -` loses neither of the two."""
    with stdin(monkeypatch, piped):
        assert read_prompt(given, None, piped=given is not None, demo=False) == read


def test_a_prompt_leaves_standard_input_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`while read -r p; do ipex-assist -p "$p"; done < prompts` lost all lines but the first into the first prompt."""
    (tmp_path / "prompt.txt").write_text("from a file")
    with stdin(monkeypatch, b"the next\nand the next"):
        assert read_prompt("a fox", None, piped=False, demo=False) == "a fox"
        assert read_prompt(None, str(tmp_path / "prompt.txt"), piped=False, demo=True) == "from a file"
        assert sys.stdin.buffer.read() == b"the next\nand the next"


@pytest.mark.parametrize("demo", [False, True])
def test_a_document_that_comes_late(
    demo: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is generated must not depend on who is quicker; who waits for nothing learns what for."""
    monkeypatch.setattr(prompt, "PATIENCE_S", 0.05)
    with stdin(monkeypatch, b"document", after=0.4):
        assert read_prompt("sum up:", None, piped=True, demo=demo) == "sum up:\n\ndocument"
    assert "waiting for standard input" in caplog.text


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as an editor saves it, with a document piped in, and by names that are standard input."""
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"sum up:\n")
    with stdin(monkeypatch, b""):
        assert read_prompt(None, str(file), piped=True, demo=False) == "sum up:"
    with stdin(monkeypatch, b"document\n"):
        assert read_prompt(None, str(file), piped=True, demo=True) == "sum up:\n\ndocument"
    for piped in (False, True):
        with stdin(monkeypatch, b"a fox\n"):
            assert read_prompt(None, "-", piped=piped, demo=False) == "a fox"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"caf\xe9"), "prompt.txt has byte 0xe9 at position 4.*iconv"),
        (lambda path: path.write_bytes(b" \n"), "prompt is empty"),
    ],
)
def test_files_without_a_prompt(make, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "prompt.txt")
    with stdin(monkeypatch, b""), pytest.raises(UsageError, match=message):
        read_prompt(None, str(tmp_path / "prompt.txt"), piped=False, demo=True)


def test_without_any_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model has a prompt of its own, even under a pipe that nobody closes; another model needs one, and
    so does a dash, which says that there is something."""
    monkeypatch.setattr(prompt, "PATIENCE_S", 0.05)
    for content in (b"", b"\n", None):
        with stdin(monkeypatch, content):
            assert read_prompt(None, None, piped=False, demo=True) == DEMO_PROMPT
    for piped, demo in ((False, False), (True, True)):
        with stdin(monkeypatch, b"\n"), pytest.raises(UsageError, match="prompt is empty"):
            read_prompt(None, None, piped=piped, demo=demo)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="prompt is empty"):
        read_prompt(None, None, piped=False, demo=False)
    assert read_prompt("a fox", None, piped=False, demo=False) == "a fox"
    assert read_prompt("a fox", None, piped=True, demo=False) == "a fox"


def test_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who gives no prompt types it, and is told how to end it; beside -p nobody is asked for anything."""
    master, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        assert read_prompt("a fox", None, piped=False, demo=False) == "a fox"
        assert read_prompt(None, None, piped=False, demo=True) == DEMO_PROMPT
        assert capsys.readouterr().err == ""
        os.write(master, b"a typed\nfox\n\x04")
        assert read_prompt(None, None, piped=False, demo=False) == "a typed\nfox"
    assert "Ctrl-D" in capsys.readouterr().err
    os.close(master)

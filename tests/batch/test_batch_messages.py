"""What a batch says while it runs, and to whom."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from batch_runs import FAKE, TWO, by_id, run, start, write_prompts

pytestmark = pytest.mark.one_stack


def test_what_instances_print(tmp_path: Path) -> None:
    """Once, since all say the same; with -v each, and whose it is. Nothing of it reaches the results."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["say tokens are odd"] * 10)
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO)
    assert (code, err.count("tokens are odd")) == (0, 1)
    code, err = run(FAKE, prompts, "-o", tmp_path / "o2", *TWO, "-v", SLEEP="0.3")
    assert (code, err.count("tokens are odd")) == (0, 10)
    assert "instance 1: tokens are odd" in err


def test_a_chat_model_that_is_given_bare_prompts(tmp_path: Path) -> None:
    """Catches a file of questions that an instruct model silently continues instead of answering."""
    chats = [FAKE[0], FAKE[1], "-m", "chats", "--offline"]
    prompts = write_prompts(tmp_path / "p.jsonl", ["why?", "how?"])
    code, err = run(chats, prompts, "-o", tmp_path / "o1", *TWO)
    assert (code, err.count("--chat makes each a user's message")) == (0, 1)
    for number, more in enumerate((["--chat"], ["--raw"])):
        assert "chat template" not in run(chats, prompts, "-o", tmp_path / f"said{number}", *TWO, *more)[1]
    said = write_prompts(tmp_path / "q.jsonl", [{"prompt": "why?", "chat": False}])
    assert "chat template" not in run(chats, said, "-o", tmp_path / "o2", *TWO)[1]
    assert "chat template" not in run(FAKE, prompts, "-o", tmp_path / "o3", *TWO)[1]


def test_a_file_without_prompts(tmp_path: Path) -> None:
    """Catches "each of 0 prompts has its record", which reads as if all were done."""
    prompts = write_prompts(tmp_path / "p.jsonl", [])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO)
    assert (code, err.count("p.jsonl has no prompt that can be run")) == (0, 1)


def on_a_terminal(*arguments: object, columns: int = 120, until: str = "", go: Path | None = None) -> str:
    """What a batch writes to a terminal that is so wide; the file `go` is made when `until` was written."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    process = subprocess.Popen(
        [*FAKE, *map(str, arguments)], stderr=theirs, env={**os.environ, "SLEEP": "0.02", "GO": str(go)}
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(terminal, 4096):
                shown.extend(data)
                if go is not None and until.encode() in shown:
                    go.touch()
        except OSError:  # that is how a terminal ends
            pass

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=60) == 0
    reader.join()
    os.close(terminal)
    return shown.decode()


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    """The bar shows prompts and tokens a second, counted on from what was there."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", ["one two three"] * 40)
    assert run(FAKE, prompts, "-o", out, "--shard", "0/4", *TWO)[0] == 0
    text = on_a_terminal(prompts, "-o", out, "--no-launch", "--resume")
    assert "10/40" in text
    assert "tokens/s" in text
    assert "prompts/s" in text


def test_instances_that_load_are_seen(tmp_path: Path) -> None:
    """The bar stood at 0/6 for half a minute, and a log said nothing; --quiet wants it so."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["one two"] * 6)
    loads = [prompts, "-m", "loads", *TWO]
    line = "0/6, 2 instances loading, 43 %: packing weights"
    for columns in (80, 0):  # some terminals of containers do not know how wide they are
        go = tmp_path / f"go{columns}"
        assert line in on_a_terminal(*loads, "-o", tmp_path / f"o{columns}", columns=columns, until=line, go=go)
    code, err = run(FAKE, *loads, "-o", tmp_path / "o2", GO=str(tmp_path))
    assert (code, err.count("ipex-assist: packing weights\n"), err.count("\r")) == (0, 1, 0)
    assert "6 prompts done" in err
    assert run(FAKE, *loads, "-o", tmp_path / "o3", "--quiet", GO=str(tmp_path)) == (0, "")
    assert "loading" not in on_a_terminal(*loads, "-o", tmp_path / "o4", "-q", go=tmp_path / "go80")


def test_the_reader_of_messages_has_gone(tmp_path: Path) -> None:
    """`2>&1 | head` or a closed terminal: messages are lost, results are not."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["say hello"] * 10)
    process = start(FAKE, prompts, "-o", tmp_path / "o", *TWO, "-v", SLEEP="0.02")
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert len(by_id(tmp_path / "o")) == 10


def test_torch_stays_out_of_the_coordinator(tmp_path: Path) -> None:
    """Torch would cost seconds and gigabytes beside the instances."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["one", "two"])
    code = (
        "import sys; sys.argv[1:1] = []; import batch_fake; code = batch_fake.main(); "
        "sys.exit(code or ('torch' in sys.modules) * 50 or ('transformers' in sys.modules) * 51)"
    )
    environ = {"PYTHONPATH": str(Path(__file__).parents[1])}
    program = [sys.executable, "-c", code, "-m", "fake", "--offline"]
    assert run(program, prompts, "-o", tmp_path / "o", *TWO, **environ)[0] == 0

"""pull, list, ps and run: what is on this machine, what is loaded, and what a word stands for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ipex_assist import cli
from ipex_assist.commands import run
from ipex_assist.commands.shared.command_table import TEXT, Command, similar_command
from ipex_assist.commands.shared.server_files import announced, running_servers
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def cached(home: Path, name: str, *files: str) -> Path:
    """Put a model into the hub cache."""
    model = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    for file in files:
        (snapshot / file).write_bytes(b"x" * 100)
    return snapshot


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 0
    return capsys.readouterr().out


def test_list_has_whole_models_and_their_packed_copies(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a download is no model; neither is a data set's config."""
    assert "ipex-assist pull ID" in printed(capsys, "list")
    snapshot = cached(home, "owner/name", "config.json", "model.safetensors")
    cached(home, "owner/half", "config.json")
    (home / "dir" / "own").mkdir(parents=True)
    (home / "dir" / "own" / "config.json").write_text("{}")
    (home / "dir" / "own" / "model.safetensors").write_bytes(b"y" * 50)
    (home / "dir" / "one.gguf").write_bytes(b"z" * 7)
    packed = home / "cache" / "ipex-assist" / "packed"
    packed.mkdir(parents=True)
    header = json.dumps({"source": "owner/name", "precision": "int8"}).encode()
    (packed / "a.packed").write_bytes(header.ljust(4096, b"\0"))
    found = json.loads(printed(capsys, "list", "--json", "--models-dir", str(home / "dir")))
    assert [(each["model"], each["bytes"], each["packed"]) for each in found] == [
        ("owner/name", 200, ["int8"]),
        ("one", 7, []),
        ("own", 52, []),
    ]
    assert found[0]["path"] == str(snapshot)
    assert "owner/name" in printed(capsys, "list")
    assert cli.main(["list", "--models-dir", str(home / "none")]) == 2


def test_pull_says_what_is_there_and_what_lacks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = cached(home, "owner/name", "config.json", "model.safetensors")
    assert str(snapshot) in printed(capsys, "pull", "owner/name")
    assert "there is nothing to download" in printed(capsys, "pull", str(home))
    assert cli.main(["pull", "owner/other"]) == 1
    assert "run once without HF_HUB_OFFLINE" in capsys.readouterr().err
    assert cli.main(["pull", "./none"]) == 2


CARDS = [
    {"id": "big", "precision": "int8", "assistant": "small", "size": 1 << 30, "loaded": True},
    {"id": "idle", "precision": None, "assistant": None, "size": None, "loaded": False},
]


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"data": CARDS}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def test_ps_asks_the_servers_that_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says of one that does not answer why it does not."""
    assert printed(capsys, "ps") == "no server of yours runs on this machine\n"
    server = HTTPServer(("127.0.0.1", 0), _Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with announced(f"http://127.0.0.1:{server.server_port}", keys=False):
            # A lock of this process is no other's: ask as a process of its own.
            shown = subprocess.run(
                [sys.executable, "-m", "ipex_assist", "ps"], capture_output=True, text=True, check=True
            ).stdout
            everything = json.loads(
                subprocess.run(
                    [sys.executable, "-m", "ipex_assist", "ps", "--all", "--json"],
                    capture_output=True, text=True, check=True,
                ).stdout
            )  # fmt: skip
    finally:
        server.shutdown()
    (line,) = [line for line in shown.splitlines() if "big" in line]
    assert "int8" in line
    assert "1.0 GiB" in line
    assert "idle" not in shown
    assert [(each["model"], each["loaded"]) for each in everything] == [("big", True), ("idle", False)]
    with announced("http://127.0.0.1:1", keys=False):
        assert "refused" in printed(capsys, "ps")


def test_dead_servers_are_forgotten(home: Path) -> None:
    """A file that nobody locks is of a server that was killed."""
    with announced("http://127.0.0.1:1", keys=True):
        (server,) = running_servers()
        assert (server.process, server.address, server.keys) == (os.getpid(), "http://127.0.0.1:1", True)
        (file,) = (home / "cache" / "ipex-assist" / "servers").iterdir()
        content = file.read_text()
    assert running_servers() == []
    file.write_text(content)
    assert running_servers() == []
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "terminal", "expected"),
    [
        (["m/x", "Why?"], True, "generate"),
        (["m/x", "-p", "Why?", "--temperature", "0"], True, "generate"),
        (["m/x"], True, "chat"),
        (["m/x", "--precision", "int8"], True, "chat"),
        (["m/x"], False, "generate"),  # the prompt comes by standard input
        (["m/x", "--system", "Be brief."], False, "chat"),
    ],
)
def test_run_is_a_text_or_a_conversation(
    words: list[str], terminal: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)
    asked: list[tuple[str, list[str]]] = []

    def record(command: Command, argv: list[str]) -> int:
        asked.append(("generate" if command is TEXT else "chat", argv))
        return 0

    monkeypatch.setattr(Command, "main", record)
    assert run.main(words) == 0
    assert asked == [(expected, ["-m", *words])]


@pytest.mark.parametrize("words", [["--precision", "int8"], ["m/x", "-m", "y"], ["m/x", "--model=y"]])
def test_run_names_its_model_first_and_once(words: list[str]) -> None:
    with pytest.raises(UsageError):
        run.main(words)


@pytest.mark.parametrize("word", ["psalm", "puzzle"])
def test_short_names_are_not_meant_by_long_words(word: str) -> None:
    assert similar_command(word) == ""

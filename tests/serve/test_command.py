"""`ipex-assist serve` as a process: where it listens, when it is ready, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from batch_runs import children, gone, wait_for
from engine_fake import ENDLESS, PLAY
from server_process import FAKE, running

from ipex_assist import cli
from ipex_assist.commands.shared.arguments import load_options
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.arguments import model_name, parse, shown_name, worker_settings
from ipex_assist.serve.listen import listen
from ipex_assist.serve.options import ServeOptions
from ipex_assist.workers.settings import WorkerSettings

pytestmark = pytest.mark.one_stack

httpx = pytest.importorskip("httpx")


@contextmanager
def text(client: Any, action: int, count: int = 0) -> Iterator[Iterator[dict[str, Any]]]:
    """The lines of a text, as they come."""
    with client.stream("POST", "/text", json={"prompt": [action, count]}) as response:
        assert response.status_code == 200
        yield map(json.loads, response.iter_lines())


def test_alive_at_once_ready_when_it_is_true_and_an_end_that_loses_nothing(tmp_path: Path) -> None:
    with running("--grace", 20, target="waits", FIRST=str(tmp_path / "go")) as server:
        url = server.url()
        with httpx.Client(base_url=url, timeout=20) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/ready").status_code == 503
            assert client.post("/text", json={"prompt": [PLAY, 1]}).status_code == 503
            (tmp_path / "go").touch()
            assert f"ready at {url}, with 1 engine of up to 4 texts" in server.until_said(" ready at ")
            assert server.until_said("curl").startswith(f"  curl {url}/v1/completions -H")
            assert client.get("/ready").status_code == 200
            (engine,) = children(server.process.pid)
            with text(client, PLAY, 1500) as lines:
                assert next(lines) == {"text": "w0 "}
                server.process.terminate()
                wait_for(lambda: client.get("/ready").status_code == 503)
                refused = client.post("/text", json={"prompt": [PLAY, 1]})
                assert (refused.status_code, refused.text) == (503, "the server is about to end")
                rest = list(lines)
        assert len(rest) == 1500
        assert len(rest[-1]["tokens"]) == 1500
        code, err = server.end()
    assert code == 0, err
    assert gone([engine])
    assert err.count("tokens are odd") == 1
    assert "ending: 1 text under way, 20 s left for that; a second signal ends at once" in err


def test_what_does_not_end_within_the_grace_is_told_so() -> None:
    with running("--grace", 0.2) as server, httpx.Client(base_url=server.url(), timeout=20) as client:
        server.until_said(" ready at ")
        with text(client, ENDLESS) as lines:
            next(lines)
            server.process.send_signal(signal.SIGINT)
            assert list(lines)[-1] == {"error": "the server has ended before this text"}
        assert server.end()[0] == 0


def test_a_second_signal_ends_at_once() -> None:
    with running("--grace", 1000) as server, httpx.Client(base_url=server.url(), timeout=20) as client:
        server.until_said(" ready at ")
        (engine,) = children(server.process.pid)
        with text(client, ENDLESS) as lines:
            next(lines)
            server.process.terminate()
            wait_for(lambda: client.get("/ready").status_code == 503)
            started = time.monotonic()
            while server.process.poll() is None:
                server.process.terminate()  # the same wish within half a second, and then another
                time.sleep(0.05)
            assert time.monotonic() - started < 60  # of a grace of 1,000 s
        assert server.end()[0] == 128 + signal.SIGTERM
    assert gone([engine])


def test_an_end_while_models_are_loaded(tmp_path: Path) -> None:
    with running("--grace", 1000, target="waits", FIRST=str(tmp_path / "never")) as server:
        url = server.url()
        wait_for(lambda: children(server.process.pid))
        assert httpx.get(f"{url}/health").status_code == 200
        server.process.terminate()
        assert server.end(10)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_first_line(number: int) -> None:
    """What has been said can be interrupted: libraries that are imported then, for a second, change nothing."""
    with running() as server:
        server.until_said("is being loaded")
        server.process.send_signal(number)
        assert server.end(20)[0] == 0


@pytest.mark.parametrize(("target", "expected"), [("refuses", 1), ("refuses-usage", 2)])
def test_models_that_cannot_be_loaded(target: str, expected: int) -> None:
    with running(target=target) as server:
        code, err = server.end()
        assert (code, err.splitlines()[-1]) == (expected, "ipex-assist: error: there is no such model")


def test_a_unix_socket(tmp_path: Path) -> None:
    """One that a killed server left is taken over; one that somebody answers on is not; at the end there is none."""
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    arguments = [each for each in FAKE if each not in ("--port", "0")]
    process = subprocess.Popen(
        [*arguments, "-m", "fake", "--uds", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIRST": ""},
    )
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            wait_for(lambda: path.exists() and _answers(client))
        with pytest.raises(IpexAssistError, match="is in use"):
            listen(ServeOptions(uds=str(path)))
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert (process.returncode, f"unix:{path} answers /health already" in err) == (0, True), err
        assert not path.exists()
    finally:
        process.kill()
    (tmp_path / "file").touch()
    with pytest.raises(IpexAssistError, match="no socket"):
        listen(ServeOptions(uds=str(tmp_path / "file")))


def _answers(client: Any) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_port_in_use_and_addresses_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert cli.main(["serve", "-m", "fake", "--offline", "--port", port]) == 1
    assert f"error: port {port} of 127.0.0.1 is in use: end what listens" in capsys.readouterr().err
    assert cli.main(["serve", "-m", "fake", "--offline", "--host", "192.0.2.1"]) == 2
    assert "no address of this machine" in capsys.readouterr().err


def test_without_the_libraries_of_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else find(name, *more)
    )
    assert cli.main(["serve", "-m", "fake", "--offline"]) == 2
    assert "serve needs uvicorn: type pip install " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], "--port 70000: must be a whole number between 0 and 65535"),
        (["--temperature", "1"], "--temperature: each request says it"),
        (["-p", "x"], "-p: prompts come by HTTP"),
        (["--uds", "s", "--port", "1"], "--uds listens on no port"),
        (["--root-path", "llm/"], "--root-path llm/: must begin with /"),
        (["--no-launch", "--instances", "per-node"], "--no-launch places nothing"),
        (["-m", "/no/such/model"], "/no/such/model: no such file or folder"),
        (["--api-key-file", "/no/such/file"], "--api-key-file /no/such/file cannot be read"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", *words]) == 2
    assert message in capsys.readouterr().err


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert ServeOptions(api_key=("zero",), api_key_file=str(file)).keys() == ("zero", "one", "two")
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no key"):
        ServeOptions(api_key_file=str(file)).keys()


def test_memory_is_planned_for_as_many_texts_as_an_engine_has_at_a_time() -> None:
    def settings(*words: str) -> WorkerSettings:
        args = parse(["-m", "fake", *words])
        return worker_settings(args, ServeOptions.from_flags(args), load_options(args))

    planned = settings("--max-concurrency", "40", "--text-tokens", "300")
    assert (planned.concurrency, planned.concurrent_lengths) == (40, (512,) * 40)
    by_memory = settings()
    assert (by_memory.concurrency, by_memory.concurrent_lengths, by_memory.lengths) == (None, (), (1024,) * 256)


def test_what_requests_call_the_model(tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "a.gguf").touch()
    assert model_name(ServeOptions(), "facebook/opt-13b") == "facebook/opt-13b"
    assert model_name(ServeOptions(), f"{tmp_path}/opt/") == "opt"
    assert model_name(ServeOptions(), f"{tmp_path}/a.gguf") == "a"
    assert model_name(ServeOptions(served_model_name=("x", "y")), "facebook/opt-13b") == "x"


def test_what_the_operator_reads_of_the_model() -> None:
    """A short name, unless it was chosen; the embedded model's was a file's."""
    assert shown_name(ServeOptions(), "facebook/opt-13b") == "opt-13b"
    assert shown_name(ServeOptions(), str(demo_model_path())) == "SmolLM2-135M-Instruct"
    assert shown_name(ServeOptions(served_model_name=("mine/x", "y")), "facebook/opt-13b") == "mine/x"

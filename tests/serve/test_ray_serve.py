"""`ipex-assist serve --ray`: two nodes behind one address, of which one dies."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import checkpoint_files
import pytest
from batch_runs import gone, wait_for
from command_runs import command
from ray_nodes import instances, two_nodes

import ipex_assist
from ipex_assist import cli
from ipex_assist.serve.connections import KEEP_ALIVE_SECONDS
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.ray_serve import proxy_options

pytestmark = [pytest.mark.daemons, pytest.mark.one_stack]

httpx = pytest.importorskip("httpx")
PROMPTS = ["the quick brown fox", "def add(a, b):", "naïve café"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("ray") / "tiny"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes("ray.serve") as nodes:
        yield nodes


def test_two_nodes_behind_one_address(cluster: Any, tiny: str) -> None:
    """Texts are those that each has alone; a node that dies takes what it was at, and the other goes on."""
    model = ipex_assist.load(tiny, None, precision="fp32", executor="torch")
    expected = [model.generate(prompt, max_new_tokens=8).text for prompt in PROMPTS]
    mark = uuid.uuid4().hex
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        "serve",
        "-m",
        tiny,
        "--executor",
        "torch",
        "--precision",
        "fp32",
        "--assistant-model",
        "none",
        "--offline",
    ]
    words += ["--ray", cluster.address, "--port", str(port), "--served-model-name", "tiny", "--grace", "5"]
    process = subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_TEST_MARK": mark}
    )
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if "tiny is ready at" in line), "")
        assert "on 2 nodes" in line
        running = instances(mark)
        assert len(running) == 2

        def answer(index: int) -> str | None:
            asked = {"model": "tiny", "prompt": PROMPTS[index % 3], "max_tokens": 8, "temperature": 0}
            with suppress(httpx.TransportError):
                answered = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=30)
                if answered.status_code == 200:
                    return answered.json()["choices"][0]["text"]
            return None

        assert [answer(index) for index in range(12)] == expected * 4
        nodes = cluster.list_all_nodes()
        cluster.remove_node(nodes[-1])
        wait_for(lambda: len(instances(mark)) == 1, 30)
        wait_for(lambda: answer(0) == expected[0], 30)
        found = [answer(index) for index in range(12)]
        assert found == expected * 4
        running = instances(mark)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        wait_for(lambda: gone(running), 20)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ray", "auto", "--uds", "s"], "--ray goes without"),
        (["--replicas", "2"], "--replicas goes with --ray"),
        (["--ray", "localhost"], "write auto, local, or HOST:PORT"),
    ],
)
def test_wrong_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    assert cli.main(["serve", "-m", "fake", "--offline", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_number_of_replicas_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--ray", "auto", "--replicas", "3-1"]) == 2
    assert "invalid number of replicas (N, or N-M) value: '3-1'" in capsys.readouterr().err


def test_limits_of_the_proxy() -> None:
    """Ray's own would never end a request whose replica hangs; all names are known to the installed Ray."""
    from ray.serve.config import HTTPOptions

    options = ServeOptions(host="127.0.0.1", port=8123, timeout=45.0)
    found = HTTPOptions(**proxy_options(options))
    assert (found.host, found.port) == ("127.0.0.1", 8123)
    assert found.keep_alive_timeout_s == KEEP_ALIVE_SECONDS
    assert found.request_timeout_s is not None
    assert found.request_timeout_s > options.timeout

"""The Host header: a server that asks for no key and listens on this machine alone answers no foreign name."""

from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import pytest
from fake_backend import FakeBackend

from ipex_assist import cli
from ipex_assist.serve.allowed_hosts import allowed_hosts
from ipex_assist.serve.options import ServeOptions

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
LOCAL = ("localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000")
FOREIGN = ("page.example", "page.example:8000", "localhost.page.example", "127.0.0.1.page.example", "10.0.0.1", "[::2]",
           "localhost@page.example", "localhost, page.example", "")  # fmt: skip


def statuses(client: httpx.Client, path: str, hosts: tuple[str, ...]) -> set[int]:
    return {client.get(path, headers={"Host": host}).status_code for host in hosts}


def test_a_page_that_calls_itself_by_another_name(serve: Callable[..., httpx.Client], backend: FakeBackend) -> None:
    """DNS rebinding: the browser sends the page's own name, which leads to 127.0.0.1, and no Origin of another."""
    client = serve()
    for path in ("/", "/health", "/metrics", "/v1/models"):
        assert statuses(client, path, LOCAL) == {200}
        assert statuses(client, path, FOREIGN) == {403}
    answer = client.post("/v1/chat/completions", json=HI, headers={"Host": "page.example"})
    assert answer.json()["error"]["code"] == "host_not_allowed"
    assert "--allowed-hosts" in answer.json()["error"]["message"]
    assert not backend.requests


def test_other_names_where_told(serve: Callable[..., httpx.Client]) -> None:
    client = serve(allowed_hosts=("GPU1.example.org, 10.0.0.1", "*.lab"))
    right = (*LOCAL, "gpu1.example.org:8000", "10.0.0.1:8000", "a.lab", "a.b.lab:1")
    assert statuses(client, "/health", right) == {200}
    assert statuses(client, "/health", ("gpu2.example.org", "lab", "10.0.0.2", "xlab")) == {403}
    assert statuses(serve(allowed_hosts="*"), "/health", FOREIGN[:-1]) == {200}


def test_a_server_with_a_key_or_for_other_machines_has_any_name(serve: Callable[..., httpx.Client]) -> None:
    """A page does not have the key; and which names a machine has is known outside of it."""
    assert statuses(serve(api_key=("key",)), "/v1/models", FOREIGN[:-1]) == {200}
    assert statuses(serve(host="0.0.0.0"), "/v1/models", FOREIGN[:-1]) == {200}
    assert statuses(serve(host="0.0.0.0", allowed_hosts="gpu1"), "/health", ("page.example",)) == {403}


def test_a_client_that_sends_no_host(serve: Callable[..., httpx.Client]) -> None:
    """Load balancers' checks by HTTP/1.0; no browser does."""
    url = serve().base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.recv(4096).split()[1] == b"200"


def test_names_of_a_server() -> None:
    assert allowed_hosts(ServeOptions(), keys=True) is None
    assert allowed_hosts(ServeOptions(uds="socket"), keys=False) is None  # no page reaches a UNIX socket
    assert allowed_hosts(ServeOptions(host="127.0.0.5"), keys=False) == ("localhost", "127.0.0.1", "::1", "127.0.0.5")
    assert allowed_hosts(ServeOptions(host="::1"), keys=False) == ("localhost", "127.0.0.1", "::1")


@pytest.mark.parametrize("words", ["http://a", "a:8000", "a,,b", "a b"])
def test_what_is_no_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--allowed-hosts", words]) == 2
    assert f"--allowed-hosts {words}: must be names such as" in capsys.readouterr().err

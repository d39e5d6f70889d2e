"""A fake backend, and servers around it: one for all tests that need no options, since starting one takes a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, serving


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[FakeBackend, httpx.Client]]:
    """The backend of all tests, and a client of a server with the options' defaults."""
    backend = FakeBackend()
    with serving(backend) as client:
        yield backend, client


@pytest.fixture
def backend(shared: tuple[FakeBackend, httpx.Client]) -> FakeBackend:
    """Scripted, and as new; a test may change it at any moment."""
    shared[0].reset()
    return shared[0]


@pytest.fixture
def serve(backend: FakeBackend) -> Iterator[Callable[..., httpx.Client]]:
    """Start a server of `backend` with options of its own; the client of it."""
    with ExitStack() as stack:

        def start(**options: Any) -> httpx.Client:
            return stack.enter_context(serving(backend, **options))

        yield start


@pytest.fixture
def client(shared: tuple[FakeBackend, httpx.Client], backend: FakeBackend) -> httpx.Client:
    """A client of a server with the options' defaults, which others have used."""
    return shared[1]

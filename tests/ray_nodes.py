"""A Ray cluster of two nodes on this machine, and which processes on it a command has started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ipex_assist.launch.spawn import read_processes

LOCAL_ONLY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def two_nodes(module: str) -> Iterator[Any]:
    """A cluster of two nodes, each with one CPU; the test is skipped where `module` is not installed."""
    os.environ.update(LOCAL_ONLY)
    pytest.importorskip(module)
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    nodes.add_node(num_cpus=1, object_store_memory=100 << 20)
    yield nodes
    nodes.shutdown()


def marked(mark: str) -> dict[int, list[bytes]]:
    """The processes that inherited the environment of a command with `HF_TEST_MARK=mark`, with that environment."""
    found = {}
    for pid in read_processes():
        with suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"HF_TEST_MARK={mark}".encode() in environ:
                found[pid] = environ
    return found


def instances(mark: str) -> list[int]:
    """Our instances on the nodes, of the command that has this mark."""
    return [
        pid for pid, environ in marked(mark).items() if any(entry.startswith(b"IPEX_INSTANCE=") for entry in environ)
    ]

"""What every test shares: quiet imports, few threads, and which executors this environment has."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Container, Iterable

import pytest
from _pytest.mark.structures import ParameterSet

from ipex_assist.native.library import unavailable

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What is kept of models goes into a folder of the run's own, not into the user's.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="ipex-assist-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ["IPEX_ASSIST_PACKED"] = "no"  # thousands of tiny models: packed copies are kept where a test asks for them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs like that, and what the tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # as nohup starts us: we go on ignoring it, what we start does not

# Fixtures that several files use. Here is the only conftest.py: tests import from it by its name.
HAS_SERVE = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "httpx"))
pytest_plugins = ["command_runs", "packed_files", *(["scripted_server"] if HAS_SERVE else [])]

HAS_IPEX = importlib.util.find_spec("intel_extension_for_pytorch") is not None
HAS_NATIVE = unavailable() is None
EXECUTORS = ["torch", *(["native"] if HAS_NATIVE else []), *(["ipex"] if HAS_IPEX else [])]
# Every executor with every precision it has.
PRECISIONS = [
    ("torch", "fp32"),
    ("torch", "bf16"),
    *([("native", "fp32"), ("native", "bf16"), ("native", "int8"), ("native", "int4")] if HAS_NATIVE else []),
    *([("ipex", "fp32"), ("ipex", "bf16"), ("ipex", "int8"), ("ipex", "int4")] if HAS_IPEX else []),
]


def some_quick(names: Iterable[str], quick: Container[str]) -> list[ParameterSet | str]:
    """Parameters of a test of which the quick part runs these alone, and the full part the others."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.full) for name in names]


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Run the test on each executor that is installed."""
    return request.param

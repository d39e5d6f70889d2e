"""What every test shares: quiet imports, few threads, and which executors this environment has."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections import Counter
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
os.environ["IPEX_ASSIST_HINTS"] = "always"  # each test expects its own, whatever was said before
os.environ["IPEX_ASSIST_PACKED"] = "no"  # thousands of tiny models: packed copies are kept where a test asks for them
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs like that, and what the tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # as nohup starts us: we go on ignoring it, what we start does not

# Fixtures that several files use. Here is the only conftest.py: tests import from it by its name.
HAS_SERVE = all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "httpx"))
pytest_plugins = ["command_runs", "endless_model", "packed_files", *(["scripted_server"] if HAS_SERVE else [])]

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


@pytest.hookimpl(tryfirst=True)  # before items are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as "full", on the IPEX stack, tests of other executors that have a twin for its own: the plain stack runs
    them in its quick part."""
    if not HAS_IPEX:
        return
    twins = {(item.path, item.originalname) for item in items if executors_of(item) == {"ipex"}}
    for item in items:
        others = executors_of(item) & {"torch", "native"}
        if others and (item.path, item.originalname) in twins:
            item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Leave modules and the tests themselves out of garbage collections: one of a million objects takes half a second,
    and benchmarks ask for one before each measurement."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where a long run's time went: the files whose tests took longest together, with what was set up for them."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.location[0]] += report.duration
    if seconds.total() > 60:
        terminalreporter.section("slowest files")
        for file, taken in seconds.most_common(15):
            terminalreporter.write_line(f"{taken:7.1f} s {file}")


def executors_of(item: pytest.Item) -> set[str]:
    """Executors that a test is given by its parameters."""
    given = getattr(item, "callspec", None)
    if given is None:
        return set()
    words = [word for value in given.params.values() for word in (value if isinstance(value, tuple) else (value,))]
    return {*EXECUTORS} & {word for word in words if isinstance(word, str)}


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    """Run the test on each executor that is installed."""
    return request.param

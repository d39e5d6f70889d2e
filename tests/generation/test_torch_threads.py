"""Whose number torch's threads are: the caller's from Python, the command's in a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import checkpoint_files
import pytest
from conftest import HAS_NATIVE

EXECUTORS = [pytest.param("native", marks=pytest.mark.skipif(not HAS_NATIVE, reason="no native core")), "torch"]

_FROM_PYTHON = """
import sys, torch, ipex_assist
torch.set_num_threads(3)
found = [torch.get_num_threads()]
folder, executor = sys.argv[1:]
model = ipex_assist.load(folder, folder, executor=executor, precision="bf16", calibrate=True)
found.append(torch.get_num_threads())
assert model.identity.executor == executor
model.generate("the quick brown fox", max_new_tokens=8)
print(*found, torch.get_num_threads())
"""

_AS_A_COMMAND = """
import sys, torch
from ipex_assist.commands.shared.load import load_models
from ipex_assist.generation.load_options import LoadOptions
folder, executor = sys.argv[1:]
load_models(LoadOptions.of(target=folder, assistant="none", executor=executor, precision="bf16"), 16, threads=2)
print(torch.get_num_threads())
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama."""
    return checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("threads") / "target")


def printed(code: str, *arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_from_python_torchs_threads_stay_the_callers(executor: str, target: Path) -> None:
    """Catches a load after which the caller's own torch code ran on one thread, without a word."""
    assert printed(_FROM_PYTHON, str(target), executor) == ["3", "3", "3"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_command_leaves_the_cores_to_the_pool_that_computes(executor: str, target: Path) -> None:
    """Catches torch's pool spinning against the core's while a large vocabulary is sampled from."""
    assert printed(_AS_A_COMMAND, str(target), executor) == ["1" if executor == "native" else "2"]

"""Installing by pip: without a compiler the package works without the core, and a wheel brings it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_files
import pytest
from conftest import HAS_IPEX, HAS_NATIVE

from ipex_assist.native import build, library

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
OBJECTS = os.environ.get(build.CACHE_VARIABLE)  # of this run; only the wheel takes them
FALLBACK = "ipex" if HAS_IPEX else "torch"


@pytest.fixture(autouse=True)
def _no_kept_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(build.CACHE_VARIABLE, raising=False)


# ---- installed without a compiler


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the checkout installed by pip without a compiler: where, and what pip printed."""
    folder = tmp_path_factory.mktemp("installed")
    checkout = copy_of_checkout(folder / "checkout")
    target = ["--target", str(folder / "site"), str(checkout)]
    done = pip("install", *build_options(), "-v", *target, CXX="g++-nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site", done.stdout + done.stderr


def test_pip_installs_without_a_compiler(installed: tuple[Path, str]) -> None:
    """It says what is missing (to those who ask pip with -v) and leaves a package without the library."""
    site, printed = installed
    assert "ipex-assist is installed without its native core: no compiler: g++-nonexistent was not found" in printed
    assert (site / "ipex_assist" / "native" / "kernels" / "kernels.h").exists()
    assert not (site / "ipex_assist" / "native" / "_core.so").exists()


def test_what_is_installed_generates(installed: tuple[Path, str], tmp_path: Path) -> None:
    """The whole command, with one line about the core and the text from another executor."""
    model = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model")
    site, _ = installed
    command = [sys.executable, "-m", "ipex_assist", "--no-launch", "-m", str(model), "-p", "the quick"]
    environ = {key: value for key, value in os.environ.items() if key != library.ISA_VARIABLE}
    done = subprocess.run(
        [*command, "--max-new-tokens", "4", "--assistant-model", "none", "--precision", "fp32"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,  # not the checkout, which Python would prefer
        env=environ | {"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    warning = f"using --executor {FALLBACK}: the native core was not built when ipex-assist was installed"
    assert done.stderr.count(warning) == 1
    refused = subprocess.run(
        [*command, "--executor", "native"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(site)},
    )
    assert refused.returncode == 2
    assert "--executor native: the native core was not built" in refused.stderr
    assert "Traceback" not in refused.stderr


# ---- a wheel


@pytest.mark.skipif(not HAS_NATIVE, reason=library.unavailable() or "")
def test_a_wheel_runs_without_a_compiler(tmp_path: Path) -> None:
    """One wheel for every Python, with the core inside: whoever installs it needs no compiler."""
    checkout = copy_of_checkout(tmp_path / "checkout")
    kept = {build.CACHE_VARIABLE: OBJECTS} if OBJECTS else {}
    made = pip("wheel", *build_options(), "--wheel-dir", str(tmp_path / "wheels"), str(checkout), **kept)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    site = tmp_path / "site"
    done = pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel), CXX="g++-nonexistent")
    assert done.returncode == 0, done.stdout + done.stderr
    model = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model")
    flags = ["-p", "the quick", "--max-new-tokens", "4", "--assistant-model", "none", "--executor", "native"]
    answer = subprocess.run(
        [sys.executable, "-m", "ipex_assist", "--no-launch", "-m", str(model), *flags],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site), "CXX": "g++-nonexistent"},
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()


def copy_of_checkout(folder: Path) -> Path:
    """What pip needs of this checkout, and nothing that was built in it."""
    copied = shutil.ignore_patterns(".*", "tests", "benchmarks", "build", "*.egg-info", "__pycache__", "*.so", "*.key")
    shutil.copytree(ROOT, folder, ignore=copied)
    return folder


def build_options() -> list[str]:
    """Older setuptools need the package wheel to build one: pip then fetches what pyproject.toml names."""
    new = int(importlib.metadata.version("setuptools").partition(".")[0]) > 70
    return ["--no-deps", *(["--no-build-isolation", "--no-index"] if new else [])]


def pip(command: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run pip of this environment."""
    return subprocess.run(
        [sys.executable, "-m", "pip", command, "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | environ,
    )

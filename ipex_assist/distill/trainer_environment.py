"""The Python that `speculators` trains with: this one where its versions fit, or one in an environment of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError

SPECULATORS = "0.9"
PYTHON = (3, 11)
# What speculators 0.9 asks for: the least and the greatest version of each that counts here.
RANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "torch": ((2, 9), (2, 14, 1)),
    "transformers": ((5,), (5, 19, 0)),
    "datasets": ((4,), (5, 1, 0)),
}
# Installed without what they need in turn: torchvision and torchaudio, which bring gigabytes, train no head.
ALONE = (f"speculators=={SPECULATORS}.*", f"hs-connectors=={SPECULATORS}.*")
NEEDED = (
    "transformers>=5,<=5.19.0",
    "datasets>=4,<=5.1.0",
    "loguru>=0.7.2,<=0.7.3",
    "pydantic-settings>=2",
    "openai>=2",
    "typer>=0.12",
    "rich",
    "aiohttp",
    "httpx",
    "protobuf",
)
TORCH = "torch>=2.9,<=2.14.1"
_PROBE = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
names = ("speculators", "torch", "transformers", "datasets")
print(json.dumps({"python": list(sys.version_info[:2]), **{name: version(name) for name in names}}))
"""
Said = Callable[[str], None]


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version: (2, 13, 0) of "2.13.0+cpu"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def fits(name: str, version: str | None) -> bool:
    """Whether speculators 0.9 takes a package in this version."""
    least, greatest = RANGES[name]
    return version is not None and least <= numbers(version) <= greatest


def problem_of(versions: Mapping[str, object]) -> str | None:
    """Why a Python with these packages cannot train; None where it can."""
    own = versions.get("speculators")
    if own is None:
        return "it has no speculators"
    if not str(own).startswith(f"{SPECULATORS}."):
        return f"it has speculators {own}, and {SPECULATORS} is needed"
    for name, (least, greatest) in RANGES.items():
        found = versions.get(name)
        if not fits(name, None if found is None else str(found)):
            between = f"{'.'.join(map(str, least))} to {'.'.join(map(str, greatest))}"
            return f"it has {name} {found}, and {between} is needed" if found else f"it has no {name}"
    return None


def probe(python: str) -> dict[str, object]:
    """The versions that a Python has. Raises UsageError where it is none."""
    try:
        done = subprocess.run([python, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=120)
        found: dict[str, object] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{python} is no Python that can be started: {error}") from None
    return found


def trainer_python(named: str | None, said: Said) -> str:
    """The Python to train with, made by pip if need be.

    Raises UsageError where the named one cannot train, IpexAssistError where none can be made.
    """
    if named is not None:
        if problem := problem_of(probe(named)):
            raise UsageError(
                f"--trainer-python {named}: {problem}. Without this flag an environment is made in the cache folder"
            )
        return named
    own = probe(sys.executable)
    if problem_of(own) is None:
        return sys.executable
    torch = str(own["torch"])
    kept = torch if fits("torch", torch) else "own"
    folder = cache_folder("trainer") / f"speculators-{SPECULATORS}-py{sys.version_info[0]}{sys.version_info[1]}-{kept}"
    python = folder / "bin" / "python"
    if not (python.exists() and problem_of(probe(str(python))) is None):
        make(folder, kept != "own", said)
    return str(python)


def make(folder: Path, with_torch: bool, said: Said) -> None:
    """Make an environment with speculators. with_torch: this one's torch can be used there, and need not be loaded."""
    if sys.version_info[:2] < PYTHON:
        raise IpexAssistError(
            f"speculators {SPECULATORS} needs Python {PYTHON[0]}.{PYTHON[1]}, and this is {sys.version_info[0]}."
            f"{sys.version_info[1]}: name one that has it with --trainer-python"
        )
    size = "about 400 MB" if with_torch else "several GB, since torch comes with it"
    said(f"making an environment for speculators {SPECULATORS} in {folder} by pip: {size}, once")
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    needed = list(NEEDED) if with_torch else [TORCH, *NEEDED]
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    if with_torch:
        paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
        [site] = (folder / "lib").glob("python*/site-packages")
        (site / "of_ipex_assist.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", *ALONE], folder)
    _run([*pip, *needed], folder)
    if problem := problem_of(probe(python)):
        raise IpexAssistError(f"the environment that pip made in {folder} cannot train: {problem}")


def _run(argv: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True)
    except OSError as error:
        raise IpexAssistError(f"{argv[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"exit code {done.returncode}"
        shutil.rmtree(folder, ignore_errors=True)
        raise IpexAssistError(
            f"no environment for speculators {SPECULATORS} could be made ({said}). Make one yourself, and name its "
            "Python with --trainer-python"
        )

"""The files of docs/deploy: what they run exists, and linters find nothing."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ipex_assist.serve.arguments import parse

pytestmark = pytest.mark.one_stack

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}


def test_the_unit() -> None:
    """Its flags are the command's; systemd itself verifies it where it is here."""
    unit = (DEPLOY / "ipex-assist.service").read_text()
    flags = re.search(r"IPEX_ASSIST_FLAGS=(.*?)\)", " ".join(unit.replace("#", " ").split()))
    assert flags is not None
    assert parse(shlex.split(flags[1])).host == "0.0.0.0"
    assert "/bin/ipex-assist serve $IPEX_ASSIST_FLAGS" in unit
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > 30  # type: ignore[index]  # --grace
    if analyze := shutil.which("systemd-analyze"):
        told = subprocess.run([analyze, "verify", str(DEPLOY / "ipex-assist.service")], capture_output=True, text=True)
        lines = [line for line in told.stderr.splitlines() if "ipex-assist.service" in line]
        assert not [line for line in lines if "is not executable" not in line], told.stderr


def test_the_image() -> None:
    """Known instructions, a user without rights, packages by name, and no index of anybody's."""
    text = (DEPLOY / "Containerfile").read_text()
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {name for name, _ in steps} <= INSTRUCTIONS
    assert [name for name, _ in steps].index("USER") < [name for name, _ in steps].index("ENTRYPOINT")
    for _, command in (step for step in steps if step[0] == "RUN"):
        assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0
    (entry,) = [step[1] for step in steps if step[0] == "ENTRYPOINT"]
    assert parse(eval(entry)[2:]).host == "0.0.0.0"
    assert "https://" not in text

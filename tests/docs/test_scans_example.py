"""The example of docs/images.md runs as it is written, in a folder of scans, with a tiny model by that name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import seeing_models
from conftest import HAS_NATIVE
from seeing_models import content, picture

pytestmark = [pytest.mark.skipif(not HAS_NATIVE, reason="batches are the native core's"), pytest.mark.one_stack]
PAGE = Path(__file__).parents[2] / "docs" / "images.md"
MODEL = "models--Qwen--Qwen2.5-VL-7B-Instruct"


def test_a_folder_of_scans(tmp_path: Path) -> None:
    """A line for each scan in scans.jsonl, and an answer about each in letters.jsonl."""
    section = re.search(r"^## A folder of scans\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert section is not None
    script = textwrap.dedent("\n".join(re.findall(r"^(?:    .*|)$", section[1], re.MULTILINE)))
    assert script.count("ipex-assist batch") == 1
    repository = tmp_path / "hub" / MODEL
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    seeing_models.talking(repository / "snapshots" / ("0" * 40))
    scans = tmp_path / "letters" / "scans"
    scans.mkdir(parents=True)
    for number in range(3):
        (scans / f"{number:04}.png").write_bytes(content(picture(30, 20, number)))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env={**os.environ, **own}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "letters" / "letters.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == {"0000", "0001", "0002"}
    assert not [line for line in lines if "error" in line]
    assert len({line["text"] for line in lines}) == 3, "each is about its own scan"

"""versions.py: a version answers for its own code, and ratios are of one turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import versions
from conftest import HAS_NATIVE

from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack
ROOT = Path(__file__).resolve().parents[2]
SMALL = """
import sys
sys.path.insert(0, {benchmarks!r})
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("real_forward", {benchmarks!r} + "/forward.py")
real = module_from_spec(spec)
spec.loader.exec_module(real)
name, config = real.CONFIGS["qwen2.5-0.5b"]
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
real.CONFIGS = dict(small=(name, config | sizes))
real.RandomWeights.VALUES = 1 << 16
load, NativeModel = real.load, real.NativeModel
"""


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
def test_passes_of_a_checkout(tmp_path: Path) -> None:
    """As many passes as asked for, by the code of the folder that is named."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "forward.py").write_text(SMALL.format(benchmarks=str(ROOT / "benchmarks")))
    (tmp_path / "ipex_assist").symlink_to(ROOT / "ipex_assist")
    program = [sys.executable, str(ROOT / "benchmarks" / "version_passes.py"), str(tmp_path), "small", "int4"]
    done = subprocess.run(
        program, input="1 3\n40 2\n", capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    ready, *answers = done.stdout.splitlines()
    assert ready == "ready"
    few, many = map(json.loads, answers)
    assert (len(few), len(many)) == (3, 2)
    assert min(few) > 0


def test_ratios_are_of_a_turn() -> None:
    """A machine that was twice as fast in one turn says nothing about a version."""
    old, new = [{"pass": 10.0}, {"pass": 20.0}, {"pass": 10.0}], [{"pass": 11.0}, {"pass": 22.0}, {"pass": 9.0}]
    (row,) = versions.compared(old, new)
    assert (row["new ÷ old"], row["spread"]) == ("1.100", "0.900 to 1.100")

"""Aider, a coding agent from PyPI, edits a file by way of a server: through OpenAI's API and through Anthropic's.

    pip install aider-chat        # into an environment of its own: it pins what it needs, 690 MB
    AIDER=/path/to/bin/aider CODING_MODEL=FOLDER bash tests/run plain tests/outside/test_coding_agent.py

Without CODING_MODEL (an instruct model that can write ten lines of Python) the answers are scripted, and what is shown
is that the agent and the server understand each other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_backend import FakeBackend, serving

AIDER, MODEL = os.environ.get("AIDER"), os.environ.get("CODING_MODEL")

pytestmark = [
    pytest.mark.outside,
    pytest.mark.one_stack,
    pytest.mark.skipif(AIDER is None, reason="AIDER names no aider, which is not in this environment"),
]

WRONG = '''def mean(numbers):
    """The arithmetic mean of some numbers; 0 for none."""
    return sum(numbers) / (len(numbers) + 1)
'''
RIGHT = '''def mean(numbers):
    """The arithmetic mean of some numbers; 0 for none."""
    return sum(numbers) / len(numbers) if numbers else 0
'''
TASK = (
    "mean([1, 2, 3]) returns 1.5 and should return 2; mean([]) should return 0. Correct the function: divide by "
    "len(numbers), and return 0 if numbers is empty."
)
CHECK = "from mean import mean; assert mean([1, 2, 3]) == 2 and mean([5]) == 5 and mean([]) == 0"


@contextmanager
def served() -> Iterator[str]:
    """The address of a server of CODING_MODEL, or of one that says what is right."""
    if MODEL is None:
        backend = FakeBackend(context_length=32768)
        backend.reply = f"The count was one too many.\n\nmean.py\n```\n{RIGHT}```\n"
        with serving(backend) as client:
            yield str(client.base_url).rstrip("/")
        return
    command = [sys.executable, "-m", "ipex_assist", "serve", "-m", MODEL, "--offline", "--port", "0"]
    with subprocess.Popen([*command, "--precision", "int8"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stderr)
        try:
            yield next(each[0] for each in found if each)
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_small_edit(api: str, tmp_path: Path) -> None:
    """The agent's requests are answered, and what it makes of the answer is a file that does what was asked for."""
    assert AIDER is not None
    (tmp_path / "mean.py").write_text(WRONG)
    with served() as url:
        address = {"openai": {"OPENAI_API_BASE": f"{url}/v1"}, "anthropic": {"ANTHROPIC_BASE_URL": url}}[api]
        name = {"openai": f"openai/{Path(MODEL or 'tiny').name}", "anthropic": "anthropic/claude-sonnet-4-5"}[api]
        keys = {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        flags = ["--edit-format", "whole", "--yes-always", "--no-git", "--no-analytics"]
        quiet = ["--no-check-update", "--no-show-model-warnings", "--map-tokens", "0", "--no-gitignore"]
        done = subprocess.run(
            [AIDER, "--model", name, *flags, *quiet, "--message", TASK, "mean.py"],
            cwd=tmp_path,
            env={**os.environ, **address, **keys, "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert (tmp_path / "mean.py").read_text() != WRONG, said
    subprocess.run([sys.executable, "-c", CHECK], cwd=tmp_path, check=True)

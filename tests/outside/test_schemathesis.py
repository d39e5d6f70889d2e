"""Schemathesis against the OpenAPI document: what it allows is taken, what it forbids is refused, by its forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_backend import FakeBackend, serving

pytest.importorskip("schemathesis")

pytestmark = [pytest.mark.outside, pytest.mark.one_stack]

# Cases that schemathesis derives from the document; its random ones take longer, and found nothing beyond these.
CONFIG = """
[generation]
mode = "all"
deterministic = true

[phases.coverage]
unexpected-methods = ["OPTIONS", "PATCH"]

[checks]
# A schema cannot say which model, which earlier answer or which regular expression there is, nor how long a prompt is.
positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "404", "413"]
# A list that is too long may make the whole body too long, which is found first.
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "413"]
"""


def test_the_document_is_true(tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with serving(FakeBackend(reply="{}"), api_key=("key",)) as client:
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(client.base_url).rstrip("/") + "/openapi.json"]
        command += ["--header", "Authorization: Bearer key", "--phases", "examples,coverage"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

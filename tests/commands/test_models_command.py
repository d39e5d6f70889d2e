"""ipex-assist models: what it prints is the registry."""

from __future__ import annotations

import json
import re

import pytest

from ipex_assist import cli
from ipex_assist.commands.models import markdown
from ipex_assist.models import ARCHITECTURES

pytestmark = pytest.mark.one_stack


def test_every_family_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By its model_type, with published checkpoints, for people and as data."""
    assert cli.main(["models", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)
    assert {family["architecture"] for family in families} == set(ARCHITECTURES)
    assert all(family["about"].endswith((".", "…")) and family["examples"] for family in families)
    [qwen2] = [family for family in families if family["model_type"] == "qwen2"]
    assert qwen2["default_assistants"] == ["Qwen/Qwen2.5-0.5B-Instruct"]
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{family['model_type']} " in shown for family in families)
    assert "generate(assistant_model=" in shown
    assert re.search(r"\nmistral +\S+ +lookup\n", shown)
    assert re.search(r"\nllama +\S+ +TinyLlama/\S+ \(\+2\)\n", shown)
    assert cli.main(["models", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown()

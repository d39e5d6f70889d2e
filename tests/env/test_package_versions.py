"""Versions for reports, and what a message says of an extra that is not installed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from ipex_assist.env import versions

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]


def test_versions_name_this_package_and_torch() -> None:
    """A bug report without them cannot be worked on."""
    found = versions.versions()
    assert found["ipex-assist"]
    assert found["Python"]
    assert found["torch"] == metadata.version("torch")


def test_in_a_checkout_it_is_the_checkout_that_is_installed() -> None:
    """No index has a package of this name: what a message names must work as it is typed."""
    assert versions.install_command("serve") == f"pip install '{ROOT}[serve]'"


def test_elsewhere_it_is_the_packages_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a wheel there is no folder to name."""
    monkeypatch.setattr(versions, "__file__", str(tmp_path / "env" / "versions.py"))
    needed = ["torch>=2.8", "rich>=13; extra == 'serve'", 'ray[serve]>=2.30; extra == "ray"', "x; extra == 'serve2'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    assert versions.install_command("serve") == "pip install 'rich>=13'"
    assert versions.install_command("ray") == "pip install 'ray[serve]>=2.30'"
    monkeypatch.setattr(metadata, "requires", lambda name: None)
    assert versions.install_command("serve") == "pip install '.[serve]' in a checkout of ipex-assist"


def test_no_message_names_a_package_of_an_index() -> None:
    """No package of that name is published, and a stranger could take it."""
    named = re.compile(r"ipex-assist\[")
    sources = [
        path
        for folder in ("ipex_assist", "env", "launch", "docs", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    ]
    sources += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [str(path) for path in sources if named.search(path.read_text(encoding="utf-8"))] == []

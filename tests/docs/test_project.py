"""What the project says of itself: the public names, the constraints, and what an issue or a release needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ipex_assist

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
# Public, so that a change of this list is a change that users notice: docs/stability.md says how a name goes.
PUBLIC = {
    "AssistedModel", "Chunk", "Generation", "GenerationOptions", "GrammarSpec", "IpexAssistError", "LoadOptions",
    "Precision", "Result", "TextModel", "UsageError", "__version__", "load",
}  # fmt: skip


def test_public_names_are_these_and_can_be_had() -> None:
    """A module that moved without its line in the package would fail at a user's first use of the name."""
    assert set(ipex_assist.__all__) == PUBLIC
    assert [name for name in sorted(PUBLIC) if getattr(ipex_assist, name, None) is None] == []
    assert set(dir(ipex_assist)) >= PUBLIC


def test_constraints_name_what_the_package_needs() -> None:
    """A dependency that was added, and is tested with no known version; or one that is gone."""

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    needed = setup[setup.index("install_requires=[") : setup.index("extras_require=")]
    wanted = {plain(name) for name in re.findall(r'^\s+"([A-Za-z][\w.-]*)[><=]', needed, re.MULTILINE)}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.!-]*", line) for line in pinned)
    assert wanted <= {line.partition("==")[0] for line in pinned}
    assert {plain(line.partition("==")[0]) for line in pinned} <= {
        plain(name) for name in re.findall(r'"([\w.-]+)', setup)
    }


def test_the_changelog_has_this_version() -> None:
    """A release without its entry, or an entry of a version that nobody can have."""
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == ipex_assist.__version__


@pytest.mark.parametrize(
    "page", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", ".github/pull_request_template.md"]
)
def test_links_of_pages_at_the_top_lead_somewhere(page: str) -> None:
    """They are read on the day of a fault."""
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_files_of_the_internals_page_exist() -> None:
    """A file that was moved would leave a reader of "A token's way" in the wrong place."""
    page = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w./]+/[\w.]*)`", page)
    assert len(names) > 25
    assert [name for name in names if not ((ROOT / name).exists() or (ROOT / "ipex_assist" / name).exists())] == []
    way = page[page.index("## A token's way") : page.index("## Finding a wrong number")]
    assert re.findall(r"^(\d+)\. \*\*", way, re.MULTILINE) == [str(number) for number in range(1, 11)]

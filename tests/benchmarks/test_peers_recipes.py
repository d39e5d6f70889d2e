"""What the benchmark of peers installs and converts: folders with stamps, made once, and anew when a pin changes."""

from __future__ import annotations

import sys
from pathlib import Path

import peers_known as known
import peers_recipes as recipes
import pytest

pytestmark = pytest.mark.one_stack


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """These folders hold a few bytes: how full the disk of the tests is does not matter."""
    monkeypatch.setattr(recipes, "HEADROOM", 0)


def count_and_write(marker: Path, then: str = "pass") -> tuple[str, ...]:
    """A step that counts its runs in `marker`, and puts a file into the folder."""
    code = f"import sys; open(r'{marker}', 'a').write('x'); open(sys.argv[1] + '/file', 'w').write('made'); {then}"
    return (sys.executable, "-c", code, "{folder}")


def test_a_made_folder_is_reused_and_a_half_made_one_is_made_anew(tmp_path: Path) -> None:
    """A killed installation must not be taken for an environment, and a good one must not be installed twice."""
    marker = tmp_path / "runs"
    recipe = recipes.Recipe("some", (count_and_write(marker),), {"pin": 1})
    half = recipe.folder(tmp_path)
    half.mkdir()
    (half / "left over").touch()
    assert not recipe.ready(tmp_path)
    folder = recipe.make(tmp_path)
    assert (folder, (folder / "file").read_text(), (folder / "left over").exists()) == (half, "made", False)
    assert recipe.make(tmp_path) == folder
    assert marker.read_text() == "x"
    (folder / recipes.STAMP).unlink()
    recipe.make(tmp_path)
    assert marker.read_text() == "xx"


def test_every_pin_fact_and_variable_is_part_of_the_key() -> None:
    """Else a changed pin would be measured in the old environment."""
    base = recipes.environment("peer", ["a==1", "b==2"])
    others = [
        recipes.environment("peer", ["a==1", "b==3"]),
        recipes.environment("peer", ["a==1", "b==2"], ("true",)),
        recipes.environment("peer", ["a==1", "b==2"], environ={"CC": "gcc"}),
        recipes.Recipe("peer", base.steps, {**base.facts, "python": "3.9.1"}),
    ]
    keys = [each.key for each in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert recipes.environment("peer", ["a==1", "b==2"]).key == base.key
    assert base.folder(Path("/x")).name == f"peer-{base.key}"


def test_a_step_that_fails_is_told_with_its_last_lines_and_leaves_no_stamp(tmp_path: Path) -> None:
    """The row of a peer that cannot be installed must say why, not just that."""
    says = "print('no such distribution'); sys.exit(3)"
    recipe = recipes.Recipe("some", (count_and_write(tmp_path / "runs", says), ("never", "run")))
    with pytest.raises(recipes.MakingFailed, match=r"ended with 3(.|\n)*no such distribution"):
        recipe.make(tmp_path)
    assert not recipe.ready(tmp_path)
    with pytest.raises(recipes.MakingFailed, match="no-such-program cannot be started"):
        recipes.Recipe("some", (("no-such-program",),)).make(tmp_path)


def test_nothing_is_installed_onto_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of some GB would take the last room of a machine that others use."""
    monkeypatch.setattr(recipes, "HEADROOM", 1 << 62)
    with pytest.raises(recipes.MakingFailed, match="--envs"):
        recipes.Recipe("some", (count_and_write(tmp_path / "runs"),)).make(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_steps_do_not_inherit_the_packages_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH would let pip find packages installed that the environment does not have."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    says = "import os; open(sys.argv[1] + '/path', 'w').write(str(os.environ.get('PYTHONPATH')))"
    folder = recipes.Recipe("some", (count_and_write(tmp_path / "runs", says),)).make(tmp_path)
    assert (folder / "path").read_text() == "None"


def test_a_conversion_depends_on_the_state_of_the_checkpoint(tmp_path: Path) -> None:
    """Else another model in the same folder would be measured by its predecessor's conversion."""
    (tmp_path / "config.json").write_text("{}")
    home = Path("/env")
    before = [known.converted(peer, home, str(tmp_path), "int4") for peer in ("openvino", "llama.cpp")]
    (tmp_path / "model.safetensors").write_text("weights")
    after = [known.converted(peer, home, str(tmp_path), "int4") for peer in ("openvino", "llama.cpp")]
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert old.key != new.key
    assert known.converted("vllm", home, str(tmp_path), "bf16") is None

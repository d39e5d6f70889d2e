"""The programs around a training: which prompts they make, what they read of its folder, and what they draw."""

from __future__ import annotations

import json
from pathlib import Path

import distill_prompts
import distill_speed
import pytest

from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack

SOURCE = '''
def taken(values, *, key=None) -> list[int]:
    """Sort values by key,
    and leave out what is there twice.

    Further lines say what nobody asks for.
    """

def _hidden(values):
    """Sort values by key, and leave out what is there twice."""

def silent(values):
    return values

class Kept:
    def method(self):
        """Sort values by key, and leave out what is there twice."""
'''


def test_a_prompt_a_function() -> None:
    """Public functions that say what they do: signature and first paragraph; methods would need their class."""
    [found] = distill_prompts.functions("package", SOURCE)
    expected = (
        'def taken(values, *, key=None) -> list[int]:\n    """Sort values by key, and leave out what is there twice."""'
    )
    assert found.prompt() == f"{distill_prompts.REQUEST}{expected}\n"


def test_the_same_packages_give_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the order of files; tests are no prompts, and the table has version and licence."""
    sources = tmp_path / "sources"
    info = sources / "package-1.2.dist-info"
    (sources / "package" / "tests").mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text("Name: package\nVersion: 1.2\nLicense-Expression: MIT\n")
    names = [f"package/part{number}.py" for number in range(5)]
    for number, name in enumerate(names):
        (sources / name).write_text(f'def f{number}(x):\n    """Give a number that is {number} more than x is."""\n')
    (sources / "package" / "tests" / "more.py").write_text(SOURCE)
    written = []
    for order in (names, names[::-1]):
        (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*order, "package/tests/more.py"]))
        distill_prompts.main([str(sources), "--most", "3", "-o", str(tmp_path / "prompts.jsonl")])
        written.append((tmp_path / "prompts.jsonl").read_text())
    assert written[0] == written[1]
    assert len({json.loads(line)["prompt"] for line in written[0].splitlines()}) == 3
    assert "| package | 1.2 | MIT | 5 | 3 |" in capsys.readouterr().out


def test_prompts_that_a_training_did_not_see(tmp_path: Path) -> None:
    """The last tenth of the samples, without their answers; the first would be those that were learnt."""
    (tmp_path / "data").mkdir()
    samples = [{"tokens": [number, 7, 8], "prompt_tokens": 2} for number in range(20)]
    (tmp_path / "data" / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))
    assert distill_speed.held_out_prompts(tmp_path, 9) == [[18, 7], [19, 7]]
    assert distill_speed.held_out_prompts(tmp_path, 1) == [[18, 7]]
    with pytest.raises(UsageError, match=r"no data/samples.jsonl"):
        distill_speed.held_out_prompts(tmp_path / "data", 1)


def test_figures() -> None:
    """Medians of turns are compared."""
    found = {"assistant": "a/head", "plain": [1.0, 2.0, 9.0], "assisted": [3.0, 3.0, 1.0], "tokens": 30, "rounds": 12}
    expected = {"assistant": "head", "plain": "2.0", "assisted": "3.0", "÷ plain": "1.50", "tokens a round": "2.50"}
    assert distill_speed.row(found) == expected

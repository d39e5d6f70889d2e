"""Prompts for measuring: ours, and instruction sets in the forms people have them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import checkpoint_files
import pytest

from ipex_assist.bench.prompts import (
    Dataset,
    SamplePrompt,
    open_dataset,
    prompt_of_length,
    random_prompt,
    shipped_prompts,
    shipped_text,
)
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack

ALPACA = [
    {"instruction": "Name three colours.", "input": "", "output": "Red"},
    {"instruction": "Translate.", "input": "Guten Tag", "output": "Good day"},
]
HUMANEVAL = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "canonical_solution": "    return x\n"}
MT_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a post.", "Shorter."]}


def test_ours_are_complete() -> None:
    """Ten short ones for --task decode, several kinds, no two alike, nothing empty."""
    prompts = shipped_prompts()
    kinds = Counter(prompt.kind for prompt in prompts)
    assert kinds["short"] == 10
    assert {"code", "edit", "summary", "translation", "list", "chat"} <= set(kinds)
    assert len({prompt.id for prompt in prompts}) == len({prompt.prompt for prompt in prompts}) == len(prompts)
    assert all(isinstance(prompt.prompt, str) and prompt.prompt.strip() for prompt in prompts)


def test_our_text_serves_the_longest_prompt() -> None:
    """1968 tokens, with the fewest tokens a word that a vocabulary of today takes (1.1)."""
    assert len(shipped_text().split()) * 1.1 > 1968


def test_a_prompt_of_a_length() -> None:
    """Exactly so many tokens, and an error with both numbers where the text is too short."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    text = "the quick brown fox " * 20
    ids = prompt_of_length(tokenizer, text, 17)
    assert ids == tokenizer(text)["input_ids"][:17]
    with pytest.raises(UsageError, match=r"--prompt-tokens 5000: the text has \d+ tokens.*--text FILE"):
        prompt_of_length(tokenizer, text, 5000)


def test_random_prompts_repeat() -> None:
    """The same seed gives the same tokens, all in range, and another seed gives others."""
    first = random_prompt(50, 100, (0, 1))
    assert first == random_prompt(50, 100, (0, 1)) != random_prompt(50, 100, (0, 2))
    assert set(first) <= set(range(100))
    assert len(set(first)) > 20


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "alpaca.json",
            json.dumps(ALPACA),
            [("entry 1", "Name three colours.", ""), ("entry 2", "Translate.\n\nGuten Tag", "")],
        ),
        ("HumanEval.jsonl", json.dumps(HUMANEVAL) + "\n", [("HumanEval/0", "def f(x):\n", "")]),
        ("question.jsonl", json.dumps(MT_BENCH) + "\n\n", [("81", "Write a post.", "writing")]),
        ("gsm8k.jsonl", '{"question": "How many?", "answer": "3"}', [("line 1", "How many?", "")]),
        ("bom.jsonl", '\ufeff{"text": "a"}', [("line 1", "a", "")]),
        ("lines.json", json.dumps(ALPACA[0]), [("line 1", "Name three colours.", "")]),
    ],
)
def test_forms(tmp_path: Path, name: str, content: str, expected: list[tuple[str, str, str]]) -> None:
    """Each dataset is read as its authors publish it, plain and gzipped."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    for file in (tmp_path / name, tmp_path / f"{name}.gz"):
        dataset = open_dataset(str(file))
        assert [(prompt.id, prompt.prompt, prompt.kind) for prompt in dataset.prompts] == expected
        assert dataset.problems == []


def test_broken_lines_are_told_and_left_out(tmp_path: Path) -> None:
    """Their numbers are told, the others are measured. An id that comes twice must not hide a prompt from --resume."""
    file = tmp_path / "set.jsonl"
    file.write_text(
        '{"id": 1, "prompt": "a"}\n{"id": 2, "prompt": \n[1]\n{"id": 3}\n'
        '{"id": 1, "prompt": "b"}\n{"id": 0, "prompt": "c"}\n'
    )
    dataset = open_dataset(str(file))
    assert [(prompt.id, prompt.prompt) for prompt in dataset.prompts] == [("1", "a"), ("1 (line 5)", "b"), ("0", "c")]
    assert [problem.split(":")[0] for problem in dataset.problems] == ["line 2", "line 3", "line 4"]
    assert "no JSON" in dataset.problems[0]
    assert "a list, not an object" in dataset.problems[1]


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    """JSON allows U+2028 and its like in strings: such a prompt would be two broken lines."""
    file = tmp_path / "set.jsonl"
    file.write_text('{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}\n', encoding="utf-8")
    dataset = open_dataset(str(file))
    assert [prompt.prompt for prompt in dataset.prompts] == ["a\u2028b\u0085c", "d"]
    assert dataset.problems == []


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    """Cut off, or with other bytes inside."""
    whole = gzip.compress(b'{"prompt": "a"}' * 100)
    for damaged in (whole[:-10], whole[:12] + b"\xff" * 8 + whole[20:]):
        (tmp_path / "set.jsonl.gz").write_bytes(damaged)
        with pytest.raises(UsageError, match="cannot read"):
            open_dataset(str(tmp_path / "set.jsonl.gz"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing in it is a prompt"),
        (b'{"id": 1}\nnonsense\n', r"nothing in it is a prompt\n  line 1: .*\n  line 2: no JSON"),
        (b"[{]", "is no JSON"),
        (b"\xff\xfe\x00", "cannot read"),
    ],
)
def test_files_without_prompts(tmp_path: Path, content: bytes, message: str) -> None:
    """An error of ours, with the first reasons."""
    file = tmp_path / "set.jsonl"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        open_dataset(str(file))


def test_a_gzip_that_is_none(tmp_path: Path) -> None:
    """A download that failed often is a page of text."""
    (tmp_path / "set.jsonl.gz").write_bytes(b"<html>")
    with pytest.raises(UsageError, match="cannot read"):
        open_dataset(str(tmp_path / "set.jsonl.gz"))


def test_names() -> None:
    """Ours by kind; other people's sets are not shipped, and the error says where they are."""
    assert len(open_dataset("prompts").prompts) == len(shipped_prompts())
    assert {prompt.kind for prompt in open_dataset("prompts:code").prompts} == {"code"}
    with pytest.raises(UsageError, match=r"no such kind; known: short, code"):
        open_dataset("prompts:poetry")
    with pytest.raises(UsageError, match=r"stanford_alpaca"):
        open_dataset("Alpaca")
    with pytest.raises(UsageError, match=r"no such file; give a file, or prompts"):
        open_dataset("nothing.json")


def test_samples_repeat() -> None:
    """A sample is drawn without replacement, and again the same one, or --resume would measure others."""
    dataset = open_dataset("prompts")
    first = dataset.sample(12, 3)
    assert first == dataset.sample(12, 3) != dataset.sample(12, 4)
    assert len({prompt.id for prompt in first}) == 12
    assert dataset.sample(None, 3) == dataset.sample(1000, 3) == dataset.prompts


def test_a_larger_sample_begins_with_the_smaller_one() -> None:
    """random.sample draws otherwise for few of many than for many, so that --resume with more would keep nothing."""
    dataset = Dataset("129", [SamplePrompt(str(number), "text") for number in range(129)])
    for few, more in ((5, 30), (30, 128)):
        assert dataset.sample(more, 3)[:few] == dataset.sample(few, 3)


def test_json_nested_without_end(tmp_path: Path) -> None:
    """A line of it is left out by its number, and a whole list of it is a message: no RecursionError."""
    deep = "[" * 200_000 + "]" * 200_000
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps(HUMANEVAL) + "\n" + '{"prompt": ' + deep + "}\n")
    read = open_dataset(str(lines))
    assert [prompt.id for prompt in read.prompts] == ["HumanEval/0"]
    assert read.problems == ["line 2: JSON that is nested too deeply to be read"]
    (tmp_path / "list.json").write_text(deep)
    with pytest.raises(UsageError, match=r"list\.json: JSON that is nested too deeply"):
        open_dataset(str(tmp_path / "list.json"))

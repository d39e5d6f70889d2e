"""What a user sees: the text's last line, the statistics, and the JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipex_assist.generation import DraftResult, Result
from ipex_assist.launch import Plan
from ipex_assist.output import TextPrinter, environment_facts, json_line, statistics_line


def result(**changes: Any) -> Result:
    """A plain result; `changes` go into its fields."""
    fields: dict[str, Any] = {
        "text": "a\nb",
        "tokens": [1, 2, 3],
        "prompt_tokens": 5,
        "new_tokens": 3,
        "ttft_s": 0.25,
        "decode_s": 0.5,
        "tokens_per_s": 4.0,
        "assisted": False,
        "target": "t",
        "assistant": None,
        "precision": "bf16",
        "assistant_precision": None,
        "executor": "torch",
        "stop_reason": "length",
    }
    return Result(**(fields | changes))


@pytest.mark.parametrize(
    ("pieces", "printed"), [(["a", "", "b"], "ab\n"), (["a\n"], "a\n"), (["a\n", ""], "a\n"), ([], ""), ([""], "")]
)
def test_text_ends_with_one_newline(pieces: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell prompt must not follow the text on its line, nor a text gain an empty line."""
    printer = TextPrinter(enabled=True)
    for piece in pieces:
        printer.write(piece)
    printer.close()
    assert capsys.readouterr().out == printed


def test_a_disabled_printer_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the text would stand before the object."""
    printer = TextPrinter(enabled=False)
    printer.write("text")
    printer.close()
    assert capsys.readouterr().out == ""


def test_statistics_of_a_plain_run() -> None:
    """No acceptance rate where nothing was drafted."""
    line = statistics_line(result())
    assert line == "3 new tokens, 4.00 tokens/s, first token after 0.25 s, not assisted"


def test_statistics_of_an_assisted_run() -> None:
    """The rate with its counts, and tokens per target pass."""
    draft = DraftResult(rounds=4, drafted=8, accepted=6, acceptance_rate=0.75, tokens_per_pass=2.5)
    line = statistics_line(result(assisted=True, draft=draft))
    assert "acceptance rate 75% (6 of 8), 2.50 tokens per target pass" in line
    assert "not assisted" not in line


def test_statistics_before_the_first_token() -> None:
    """Interrupted in the prompt: nothing was timed, and nothing may fail on None."""
    line = statistics_line(result(new_tokens=0, ttft_s=None, tokens_per_s=None, stop_reason="interrupted"))
    assert line == "0 new tokens, not assisted"


def test_json_is_one_line_with_nulls() -> None:
    """A newline in the text must not break the line; keys that do not apply are null, not missing."""
    line = json_line(result(), {"threads": 1})
    assert "\n" not in line
    content = json.loads(line)
    assert content["text"] == "a\nb"
    assert content["assistant"] is None
    assert content["draft"]["accepted_histogram"] is None
    assert list(content)[-1] == "environment"


def test_environment_separates_what_is_kept_from_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the user's must be told from one the launcher set, even where both are OMP_*."""
    variables = {"OMP_NUM_THREADS": "1"}
    plan = Plan((0,), 1, "none", (), ("/lib/libiomp5.so",), variables)
    monkeypatch.setenv("IPEX_ASSIST_PLAN", plan.to_json())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_SCHEDULE", "DYNAMIC")
    monkeypatch.setenv("LD_PRELOAD", "/lib/mine.so:/lib/libiomp5.so")
    monkeypatch.setenv("HOME_OMP_LIKE", "x")
    facts = environment_facts(plan, ["a warning"])
    assert facts["kept"]["OMP_SCHEDULE"] == "DYNAMIC"
    assert facts["kept"]["LD_PRELOAD"] == "/lib/mine.so"
    assert "OMP_NUM_THREADS" not in facts["kept"]
    assert "HOME_OMP_LIKE" not in facts["kept"]
    assert facts["warnings"] == ["a warning"]
    assert set(facts["versions"]) >= {"torch", "transformers", "optimum-intel"}
    json.dumps(facts)

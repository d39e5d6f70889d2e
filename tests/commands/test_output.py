"""What a user sees: the text's last line, the statistics, and the JSON object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipex_assist.commands.shared.environment import environment_facts
from ipex_assist.commands.shared.output import TextPrinter, json_line, statistics_line, statistics_text
from ipex_assist.generation.result import AssistantTimes, DraftResult, Result, TargetTimes, Times, TokenPiece
from ipex_assist.launch import LaunchPlan

pytestmark = pytest.mark.one_stack


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
        "speedup": None,
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
    """With --json a printed text would stand before the object."""
    printer = TextPrinter(enabled=False)
    printer.write("text")
    printer.close()
    assert capsys.readouterr().out == ""


def test_statistics_of_a_plain_run() -> None:
    """No acceptance rate where nothing was drafted."""
    line = statistics_line(result())
    assert line == "3 new tokens in 0.75 s, 4.00 tokens/s, not assisted"


def test_statistics_of_an_assisted_run() -> None:
    """One line of a terminal, the most important figures first; the rest is for --verbose and --json."""
    draft = DraftResult(rounds=4, drafted=8, accepted=6, acceptance_rate=0.75, tokens_per_pass=2.5)
    line = statistics_line(result(assisted=True, draft=draft, speedup=1.857))
    assert line == "3 new tokens in 0.75 s, 4.00 tokens/s (1.86x plain), 75% accepted"
    assert "plain" not in statistics_line(result(assisted=True, draft=draft))  # no plain pass was timed
    assert statistics_line(result(assisted=True, draft=DraftResult(rounds=2, drafted=0))).endswith(
        "nothing was drafted"
    )
    assert "nothing was drafted" not in line + statistics_line(result())


def test_a_long_text_has_its_statistics_in_a_line_of_a_terminal() -> None:
    """It had 130 columns, and wrapped."""
    draft = DraftResult(rounds=1311, drafted=3120, accepted=2785, acceptance_rate=0.893, tokens_per_pass=3.12)
    many = result(
        assisted=True, draft=draft, new_tokens=4096, ttft_s=2.5, decode_s=99.9, tokens_per_s=41.0, speedup=12.3
    )
    line = f"ipex-assist: {statistics_line(many)}"
    assert line == "ipex-assist: 4096 new tokens in 102.4 s, 41.00 tokens/s (12.30x plain), 89% accepted"


def test_statistics_before_the_first_token() -> None:
    """Interrupted in the prompt: nothing was timed, and nothing may fail on None."""
    line = statistics_line(result(new_tokens=0, ttft_s=None, tokens_per_s=None, stop_reason="interrupted"))
    assert line == "0 new tokens, not assisted"


ASSISTED = DraftResult(4, 8, 6, 0.75, 2.5, [1, 0, 0, 2], 3)


def test_full_statistics_of_an_assisted_run() -> None:
    """The fields people know from llama.cpp, by name and in its order, then where the time and the memory went."""
    times = Times(20.0, 0.1, 0.3, 0.1, 24.0, 30.0)
    text = statistics_text(result(assisted=True, draft=ASSISTED, times=times))
    assert text.splitlines() == [
        "encoded    5 tokens in    0.250 seconds, speed:   20.000 t/s",
        "decoded    2 tokens in    0.500 seconds, speed:    4.000 t/s",
        "",
        "n_draft   = 3",
        "n_predict = 3",
        "n_drafted = 8",
        "n_accept  = 6",
        "accept    = 75.000%",
        "",
        "rounds    = 4, 2.50 tokens per target pass",
        "histogram = 0: 1, 3: 2 (accepted tokens: rounds)",
        "draft     = 100.0 ms (20.0%)",
        "verify    = 300.0 ms (60.0%)",
        "other     = 100.0 ms (20.0%)",
        "read      = 24.0 GB/s by the target's passes, 80% of the 30.0 GB/s that these cores read",
    ]


def test_a_draft_head_in_the_statistics() -> None:
    """Its kind, what a drafted token took, and the share of drafts that were right at each position."""
    draft = DraftResult(4, 8, 6, 0.75, 2.5, [1, 0, 0, 2], 3, [3, 3, 2], [2, 2, 2])
    times = Times(assistant=AssistantTimes(token_s=0.0025))
    found = statistics_text(
        result(assisted=True, draft=draft, times=times, draft_head="mtp", assistant_precision="bf16")
    ).splitlines()
    at = found.index("histogram = 0: 1, 3: 2 (accepted tokens: rounds)")
    assert found[at + 1 : at + 3] == [
        "positions = 1: 67%, 2: 67%, 3: 100% (of drafts that long, accepted)",
        "head      = mtp in bf16, 2.50 ms per drafted token",
    ]


def test_full_statistics_of_other_runs() -> None:
    """A plain run has no draft, one of transformers no parts, one that ended in its prompt nothing."""
    plain = statistics_text(result(times=Times(20.0, 0.0, 0.4, 0.1, 24.0)))
    assert plain.splitlines()[2:] == [
        "target    = 400.0 ms (80.0%)",
        "other     = 100.0 ms (20.0%)",
        "read      = 24.0 GB/s by the target's passes",
    ]
    library = statistics_text(result(assisted=True, draft=ASSISTED))
    assert "n_accept  = 6" in library
    assert "verify" not in library
    nothing = DraftResult(rounds=0, drafted=0, accepted=0, accepted_histogram=[], longest=0)
    early = statistics_text(result(new_tokens=0, ttft_s=None, tokens_per_s=None, assisted=True, draft=nothing))
    assert "accept    = -" in early
    assert "rounds    = 0\n" in early


def test_full_statistics_end_with_the_times_of_each_model() -> None:
    """llama.cpp's report: assistant and target apart, with load, prompt, passes and choosing, then the total."""
    target = TargetTimes(0.8125, 0.25, 20.0, 4, 10, 0.3, 0.03, 0.0055)
    assistant = AssistantTimes(0.125, 3, 0.06, 5, 0.05, 0.01)
    times = Times(20.0, 0.1, 0.3, 0.1, total_s=0.75, target=target, assistant=assistant)
    text = statistics_text(result(assisted=True, draft=ASSISTED, times=times))
    assert text[text.index("\n\nassistant:") :].splitlines() == [
        "",
        "",
        "assistant:",
        "        load time =     125.00 ms",
        " first draft time =      60.00 ms /     3 tokens, reading included",
        "later drafts time =      50.00 ms /     5 tokens (10.00 ms per token, 100.00 tokens per second)",
        "",
        "target:",
        "        load time =     812.50 ms",
        " prompt eval time =     250.00 ms /     5 tokens (50.00 ms per token, 20.00 tokens per second)",
        "        eval time =     300.00 ms /    10 tokens of 4 passes (30.00 ms per token, 33.33 tokens per second)",
        "      sample time =       5.50 ms /    11 tokens (0.50 ms per token, 2000.00 tokens per second)",
        "",
        "total     = 750.0 ms",
    ]
    plain = statistics_text(result(times=Times(total_s=0.5, target=TargetTimes(load_s=1.0, passes=3, tokens=3))))
    assert "assistant" not in plain
    assert plain.splitlines()[-5:] == ["", "target:", "        load time =    1000.00 ms", "", "total     = 500.0 ms"]


def test_accepted_text_is_marked_and_the_rest_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """No style may be open at a line's end (pagers would drop it), and without escapes it is the text itself."""
    pieces = [
        TokenPiece("one ", True),
        TokenPiece("two", True),
        TokenPiece("", False),
        TokenPiece(" three\nfour", False),
        TokenPiece("\n", True),
    ]
    printer = TextPrinter(enabled=True, show_accepted=True)
    printer.write_pieces(pieces)
    printer.close()
    shown = capsys.readouterr().out
    assert shown == "\033[32mone two\033[0m\033[1m three\033[0m\n\033[1mfour\033[0m\n"
    plain = TextPrinter(enabled=True)
    plain.write_pieces(pieces)
    assert capsys.readouterr().out == "one two three\nfour\n"


def test_json_is_one_line_with_nulls() -> None:
    """A newline in the text must not break the line; keys that do not apply are null, not missing."""
    line = json_line(result(), {"threads": 1})
    assert "\n" not in line
    content = json.loads(line)
    assert content["text"] == "a\nb"
    assert content["assistant"] is None
    assert content["draft"]["accepted_histogram"] is None
    assert content["times"]["read_gb_per_s"] is None
    assert list(content)[-1] == "environment"


def test_environment_separates_what_is_kept_from_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the user's must be told from one the launcher set, even where both are OMP_*."""
    variables = {"OMP_NUM_THREADS": "1"}
    plan = LaunchPlan((0,), 1, "none", (), ("/lib/libiomp5.so",), variables)
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

"""What the turns come to: rows of the table, ratios between peers, both with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import measure
from peers_known import OURS, STORED, Case
from tabulate import tabulate


@dataclass
class Outcome:
    """All that came of a case: the answers of its turns by number, and why it ended early if it did."""

    case: Case
    turns: dict[int, dict[str, Any]] = field(default_factory=dict)
    failure: str | None = None

    @property
    def speed(self) -> float | None:
        """The median tokens/s; None without a turn."""
        return statistics.median(self.speeds.values()) if self.turns else None

    @property
    def speeds(self) -> dict[int, float]:
        """Tokens/s by turn."""
        return {turn: answer["tokens_per_s"] for turn, answer in self.turns.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as the JSON has it."""
        return {
            "peer": self.case.peer,
            "precision": self.case.precision,
            "draft": self.case.draft,
            "program": self.case.program,
            "tokens_per_s": measure.summary(list(self.speeds.values())) if self.turns else None,
            "turns": [{"turn": turn, **answer} for turn, answer in self.turns.items()],
            "failure": self.failure,
        }


@dataclass(frozen=True)
class Ratio:
    """One of our cases against the fastest of some of theirs, and what was asked of it."""

    name: str
    ours: Case
    rival: Callable[[Case], bool]
    asked: float


RATIOS = (
    Ratio("int4 target and draft ÷ best peer", Case(OURS, "int4", "int4"), lambda case: case.peer != OURS, 3.0),
    Ratio(
        "bf16 target with int4 draft ÷ vLLM bf16 with draft",
        Case(OURS, "bf16", "int4"),
        lambda case: case.peer == "vllm" and case.draft is not None,
        3.0,
    ),
    Ratio(
        "int8 target with int4 draft ÷ OpenVINO int8 with draft",
        Case(OURS, "int8", "int4"),
        lambda case: case.peer == "openvino" and case.precision == "int8" and case.draft is not None,
        2.0,
    ),
    Ratio(
        "bf16 target with int4 draft ÷ transformers assisted",
        Case(OURS, "bf16", "int4"),
        lambda case: case.peer == "transformers" and case.draft is not None,
        4.0,
    ),
)

# Of a pair of GGUF files: beside llama.cpp on the same ones, in the same run.
FILE_RATIOS = tuple(
    Ratio(
        f"GGUF file as stored, {name} ÷ llama.cpp",
        Case(OURS, STORED, draft),
        lambda case, draft=draft: case.peer == "llama.cpp" and case.draft == draft,  # type: ignore[misc]
        asked,
    )
    for name, draft, asked in (("plain", None, 1.3), ("with its assistant", STORED, 2.0))
)


def ratio(wanted: Ratio, outcomes: Mapping[Case, Outcome]) -> dict[str, Any]:
    """Return the ratio of medians, its extremes over the turns of both, and the rival.

    The `value` is None if one of both is missing. The rival is the fastest by its median, the same for every turn.
    """
    ours = outcomes.get(wanted.ours)
    rivals = [each for case, each in outcomes.items() if wanted.rival(case) and each.speed is not None]
    rival = max(rivals, key=lambda each: each.speed or 0.0, default=None)
    found: dict[str, Any] = {"name": wanted.name, "asked": wanted.asked, "value": None, "ours": wanted.ours.name}
    if ours is None or ours.speed is None or rival is None or rival.speed is None:
        missing = wanted.ours.name if ours is None or ours.speed is None else "the peer"
        return {**found, "rival": rival.case.name if rival else None, "missing": missing}
    by_turn = [ours.speeds[turn] / rival.speeds[turn] for turn in ours.speeds if turn in rival.speeds]
    return {
        **found,
        "value": ours.speed / rival.speed,
        "rival": rival.case.name,
        "min": min(by_turn, default=None),
        "max": max(by_turn, default=None),
        "met": ours.speed / rival.speed >= wanted.asked,
    }


def ratio_line(found: Mapping[str, Any]) -> str:
    """Return one ratio as a line of text."""
    if found["value"] is None:
        return f"{found['name']}: not to be had, {found['missing']} has no figure (asked: {found['asked']:g})"
    spread = f", {found['min']:.2f} to {found['max']:.2f} in the single turns" if found["min"] is not None else ""
    against = f"{found['ours']} against {found['rival']}"
    verdict = "met" if found["met"] else f"{100 * (1 - found['value'] / found['asked']):.0f} % short"
    return f"{found['name']}: {found['value']:.2f}{spread} ({against}; asked: {found['asked']:g}, {verdict})"


def speed_cells(outcome: Outcome, outcomes: Mapping[Case, Outcome]) -> dict[str, str]:
    """Return the cells of tokens/s, their spread, and their ratio to the plain ones of the same peer."""
    plain = outcomes.get(outcome.case.plain)
    if outcome.speed is None:
        return {"tokens/s": "failed", "spread": "", "÷ plain": ""}
    speeds, ratio = outcome.speeds.values(), ""
    if outcome.case.draft and plain is not None and plain.speed is not None:
        ratio = f"{outcome.speed / plain.speed:.2f}"
    return {"tokens/s": f"{outcome.speed:.2f}", "spread": f"{min(speeds):.2f} to {max(speeds):.2f}", "÷ plain": ratio}


def reads(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return the extremes of what memory gave before the turns."""
    found = [turn["read_GB_per_s"] for turn in turns if turn.get("read_GB_per_s")]
    return f"{min(found):.0f} to {max(found):.0f}" if found else ""


def row(outcome: Outcome, outcomes: Mapping[Case, Outcome]) -> dict[str, str]:
    """Return a row of the table; one that failed says why."""
    case, plain = outcome.case, outcomes.get(outcome.case.plain)
    turns = list(outcome.turns.values())
    cells = {**speed_cells(outcome, outcomes), **dict.fromkeys(("first token s", "tokens/pass", "= plain"), "")}
    if turns:
        cells["first token s"] = f"{statistics.median(turn['first_token_s'] for turn in turns):.2f}"
        cells["tokens/pass"] = f"{turns[-1]['tokens'] / turns[-1]['passes']:.2f}"
        if case.draft and plain is not None and plain.speed is not None:
            outputs = {turn.get("output") for each in (outcome, plain) for turn in each.turns.values()}
            cells["= plain"] = "" if None in outputs else "yes" if len(outputs) == 1 else "no"
    cells["read GB/s before"] = reads(turns)
    note = " / ".join((outcome.failure or "").splitlines())
    return {"peer": case.peer, "target": case.precision, "draft": case.draft or "–", **cells, "note": note}


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of equal keys as a Markdown table."""
    cells = [[cell.replace("|", "\\|") for cell in each.values()] for each in rows]
    return tabulate(cells, headers=list(rows[0]), tablefmt="pipe", disable_numparse=True)

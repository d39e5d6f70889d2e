"""Many prompts at once, beside other programs: the cases of `peers.py --throughput`, its prompts, table and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from peers_known import BATCHED_BENCH, FILE_CASES, OURS, STORED, Case
from peers_table import Outcome, Ratio, reads, speed_cells

PROMPT_TOKENS = (30, 300)
REQUESTS = 16

# In the order of a turn: what is compared runs close together. llama.cpp is there twice: its server takes the same
# prompts as the others, its benchmark shows what its passes would give without a server and sampling.
CASES = (
    Case(OURS, "int8"),
    Case(OURS, "int8", "int4"),
    Case("openvino", "int8"),
    Case("openvino", "int8", "int4"),
    Case("llama.cpp", "Q8_0"),
    Case("llama.cpp", "Q8_0", "Q4_K_M"),
    Case("llama.cpp", "Q8_0", program=BATCHED_BENCH),
    Case(OURS, "int4"),
    Case(OURS, "int4", "int4"),
    Case("openvino", "int4"),
    Case("openvino", "int4", "int4"),
    Case("llama.cpp", "Q4_K_M"),
    Case("llama.cpp", "Q4_K_M", "Q4_K_M"),
    Case("llama.cpp", "Q4_K_M", program=BATCHED_BENCH),
    Case(OURS, "bf16"),
    Case(OURS, "bf16", "int4"),
    Case("vllm", "bf16"),
    Case("vllm", "bf16", "bf16"),
)
CLASSES = {"int8": ("int8", "Q8_0"), "int4": ("int4", "Q4_K_M"), "bf16": ("bf16",)}  # weights of like size


def _rivals(precision: str) -> Callable[[Case], bool]:
    return lambda case: case.peer != OURS and case.precision in CLASSES[precision]


RATIOS = tuple(
    Ratio(f"{precision}, {name} ÷ best peer", Case(OURS, precision, draft), _rivals(precision), 2.0)
    for precision in CLASSES
    for name, draft in (("plain", None), ("assisted", "int4"))
)

FILE_CASES = (*FILE_CASES, Case("llama.cpp", STORED, program=BATCHED_BENCH))
FILE_RATIOS = tuple(
    Ratio(f"GGUF file as stored, {name} ÷ llama.cpp", Case(OURS, STORED, draft), lambda case: case.peer != OURS, 2.0)
    for name, draft in (("plain", None), ("assisted", STORED))
)


def prompts_of(target: str, count: int) -> list[list[int]]:
    """Token ids of as many prompts, the same ones that `ipex-assist bench --task throughput` has."""
    from ipex_assist.bench.prompts import mixed_prompts, shipped_prompts, shipped_text, spread_lengths
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(open_checkpoint(target, offline=True))
    return mixed_prompts(tokenizer, spread_lengths(count, *PROMPT_TOKENS), shipped_text(), shipped_prompts(), seed=0)


def row(outcome: Outcome, outcomes: Mapping[Case, Outcome]) -> dict[str, str]:
    """Return a row of the table; one that failed says why."""
    case, turns = outcome.case, list(outcome.turns.values())
    cells = {
        **speed_cells(outcome, outcomes),
        "first token s, p50 / p99": _waits(turns, "first_token_s", 1, 2),
        "ms/token, p50 / p99": _waits(turns, "token_s", 1000, 1),
        "tokens/pass": "",
        "= plain": _equal(outcome, outcomes.get(case.plain)) if case.draft else "",
        "read GB/s before": reads(turns),
    }
    if turns and turns[-1].get("passes"):
        cells["tokens/pass"] = f"{turns[-1]['tokens'] / turns[-1]['passes']:.2f}"
    peer = f"{case.peer} {case.program}".rstrip()
    note = " / ".join((outcome.failure or "").splitlines())
    return {"peer": peer, "target": case.precision, "draft": case.draft or "–", **cells, "note": note}


def _waits(turns: list[dict[str, Any]], figure: str, scale: float, digits: int) -> str:
    """Return medians over the turns of a figure's percentiles."""
    found = [turn[figure] for turn in turns if turn.get(figure)]
    medians = [statistics.median(each[name] * scale for each in found) for name in ("p50", "p99") if found]
    return " / ".join(f"{value:.{digits}f}" for value in medians)


def _equal(outcome: Outcome, plain: Outcome | None) -> str:
    """How many of the texts are those of the plain turns."""
    if plain is None or not plain.turns or not outcome.turns:
        return ""
    theirs, ours = (list(each.turns.values())[-1].get("outputs") for each in (plain, outcome))
    if not theirs or not ours:
        return ""
    return f"{sum(a == b for a, b in zip(ours, theirs, strict=True))} of {len(ours)}"

"""The table of the benchmark of peers: ratios of medians, and rows beside their own plain row."""

from __future__ import annotations

import peers_known as known
import peers_table as table
import peers_throughput as throughput
import pytest
from peer_cases import A, B, C, answer, load_answer

pytestmark = pytest.mark.one_stack


def outcomes_of(speeds: dict[known.Case, dict[int, float]]) -> dict[known.Case, table.Outcome]:
    return {
        case: table.Outcome(case, {turn: answer(speed) for turn, speed in by_turn.items()})
        for case, by_turn in speeds.items()
    }


def test_a_ratio_is_of_medians_against_the_fastest_peer_with_the_spread_of_the_turns() -> None:
    """Another rival for each turn would flatter nobody and mean nothing; our own rows are no rivals."""
    openvino, vllm = known.Case("openvino", "int4", "int4"), known.Case("vllm", "bf16")
    found = table.ratio(
        table.RATIOS[0],
        outcomes_of(
            {
                C: {1: 30.0, 2: 40.0, 3: 80.0},
                known.Case(known.OURS, "bf16"): {1: 500.0},
                openvino: {1: 10.0, 2: 16.0, 3: 20.0},
                vllm: {1: 1.0, 2: 15.0, 3: 90.0},
            }
        ),
    )
    assert (found["value"], found["min"], found["max"]) == (2.5, 2.5, 4.0)
    assert (found["rival"], found["met"]) == (openvino.name, False)
    faster = outcomes_of({C: {1: 30.0}, openvino: {1: 10.0}})
    assert table.ratio(table.RATIOS[0], faster)["met"]
    assert "2.50, 2.50 to 4.00 in the single turns" in table.ratio_line(found)


def test_the_asked_ratios_compare_what_they_name() -> None:
    ours = known.Case(known.OURS, "bf16", "int4")
    vllm, transformers = known.Case("vllm", "bf16", "bf16"), known.Case("transformers", "bf16", "bf16")
    outcomes = outcomes_of({ours: {1: 18.0}, vllm: {1: 10.0}, vllm.plain: {1: 17.0}, transformers: {1: 6.0}})
    found = [table.ratio(each, outcomes) for each in table.RATIOS]
    assert [each["rival"] for each in found] == [vllm.plain.name, vllm.name, None, transformers.name]
    assert [each["value"] for each in found] == [None, 1.8, None, 3.0]
    assert [each["asked"] for each in found] == [3.0, 3.0, 2.0, 4.0]
    assert "25 % short" in table.ratio_line(found[3])
    assert f"{known.OURS} int4, draft int4 has no figure" in table.ratio_line(found[0])


def test_a_row_compares_with_its_own_plain_row() -> None:
    """Speed-up and equality of output are of the same peer and precision."""
    outcomes = outcomes_of({A: {1: 4.0, 2: 5.0, 3: 9.0}, B: {1: 10.0}})
    outcomes[B].turns[1] |= {"passes": 64}
    first, second = (table.row(outcomes[case], outcomes) for case in (A, B))
    assert (first["tokens/s"], first["spread"], first["÷ plain"], first["= plain"]) == ("5.00", "4.00 to 9.00", "", "")
    assert (second["÷ plain"], second["= plain"], second["tokens/pass"]) == ("2.00", "yes", "2.00")
    outcomes[B].turns[1] |= {"output": "other"}
    assert table.row(outcomes[B], outcomes)["= plain"] == "no"
    del outcomes[B].turns[1]["output"]
    assert table.row(outcomes[B], outcomes)["= plain"] == ""
    assert second["read GB/s before"] == ""
    outcomes[A].turns[1] |= {"read_GB_per_s": None}
    for turn, speed in ((2, 20.4), (3, 37.2)):
        outcomes[A].turns[turn] |= {"read_GB_per_s": speed}
    assert table.row(outcomes[A], outcomes)["read GB/s before"] == "20 to 37"
    lines = table.markdown([first, {**second, "note": "a|b"}]).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_a_row_of_many_prompts_says_how_many_texts_are_the_plain_ones() -> None:
    """One text of sixteen that differs is not the same as all of them."""
    plain, drafted = known.Case("openvino", "int8"), known.Case("openvino", "int8", "int4")
    outcomes = {
        plain: table.Outcome(plain, {1: load_answer(10.0), 2: load_answer(12.0)}),
        drafted: table.Outcome(drafted, {1: load_answer(22.0, outputs=["a", "c"], read_GB_per_s=17.4)}),
    }
    first, second = (throughput.row(outcomes[case], outcomes) for case in (plain, drafted))
    assert (first["tokens/s"], first["= plain"], first["÷ plain"]) == ("11.00", "", "")
    assert (second["÷ plain"], second["= plain"], second["tokens/pass"]) == ("2.00", "1 of 2", "2.00")
    assert second["first token s, p50 / p99"] == "0.50 / 1.25"
    assert second["ms/token, p50 / p99"] == "20.0 / 30.0"
    assert second["read GB/s before"] == "17 to 17"
    failed = throughput.row(table.Outcome(plain, failure="no\nroom"), outcomes)
    assert (failed["tokens/s"], failed["note"], failed["ms/token, p50 / p99"]) == ("failed", "no / room", "")
    assert list(failed) == list(first) == list(second)


def test_ratios_of_many_prompts_compare_weights_of_like_size() -> None:
    """int8 against Q8_0 and OpenVINO's int8, whatever drafts, and never against int4."""
    ours = known.Case(known.OURS, "int8")
    outcomes = {
        case: table.Outcome(case, {1: load_answer(speed)})
        for case, speed in (
            (ours, 40.0),
            (known.Case("llama.cpp", "Q8_0", program=known.BATCHED_BENCH), 16.0),
            (known.Case("openvino", "int8", "int4"), 20.0),
            (known.Case("openvino", "int4"), 90.0),
        )
    }
    found = table.ratio(throughput.RATIOS[0], outcomes)
    assert (found["value"], found["rival"], found["met"]) == (2.0, "openvino int8, draft int4", True)

"""Layouts of machines, and the tables and the plot of what was measured on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import multi_socket_figures as figures
import multi_socket_layouts as layouts
import plots
import pytest
from machines import PLAIN, XEON
from multi_socket_cases import answer, case, small

from ipex_assist.env.errors import IpexAssistError, UsageError

pytestmark = pytest.mark.one_stack

# Layouts


def names(found: Any) -> list[str]:
    """Return the names of what is measured by default: each place once, under its first name."""
    placed = [layouts.placed(name, found, None) for name in layouts.defaults(found)]
    return [each.name for i, each in enumerate(placed) if each.places not in [other.places for other in placed[:i]]]


def test_default_layouts_tell_each_machine_s_story() -> None:
    """Two cores get what "2 instances on 2 cores" is about; sockets and nodes bring theirs; nothing comes twice."""
    assert names(small(1)) == ["1x1"]
    assert names(small(2)) == ["1x1", "2x1", "1x2"]
    assert names(small(8)) == ["1x1", "2x1", "1x4", "2x4", "1x8"]
    assert names(PLAIN) == ["1x1", "2x1", "1x4", "4x4", "1x8", "per-node", "socket-all"]
    assert names(XEON) == ["1x1", "2x1", "1x4", "4x4", "1x8", "per-socket", "socket-all"]  # 4x4: one for each node


def test_instances_of_a_layout_share_no_core_and_one_process_may_have_all() -> None:
    """A bug here would let instances slow each other down, or leave a socket out of the two."""
    two = layouts.placed("4x4", XEON, None)
    cpus = [cpu for place in two.placements for cpu in place.cpus]
    assert len(cpus) == len(set(cpus)) == 16
    assert [place.nodes for place in two.placements] == [(0,), (1,), (2,), (3,)]
    (one,) = layouts.placed("socket-all", XEON, None).placements
    assert (one.threads, one.memory) == (16, "local")
    with pytest.raises(UsageError, match="there is one here"):
        layouts.placed("socket-all", small(4), None)
    with pytest.raises(UsageError, match="3x1x1"):
        layouts.parse("3x1x1")
    with pytest.raises(UsageError, match="2 of that size fit"):
        layouts.placed("3x1", small(2), None)


def test_what_a_machine_cannot_show_is_named() -> None:
    """One socket: the questions that two would answer; a machine that has everything names nothing."""
    one = " ".join(layouts.not_shown(small(2), assisted=False))
    for words in ("socket-all", "memory of the other socket", "sub-NUMA", "2 cores a socket", "no --assistant"):
        assert words in one
    assert layouts.not_shown(XEON, assisted=True) == []
    (quota,) = layouts.not_shown(replace(XEON, cpu_quota=3.0), assisted=True)
    assert "quota of 3" in quota
    assert layouts.describe(XEON) == {"sockets": 2, "nodes": 4, "cores": 16, "cpus": "0-31", "cpu_quota": None}


def test_memory_is_read_beyond_the_caches_and_not_by_gigabytes_each() -> None:
    """56 instances of 1 GiB each would not fit everywhere; a few MiB each would be read out of the caches."""
    assert layouts.read_bytes(layouts.placed("1x1", XEON, None)) == 1 << 30
    assert layouts.read_bytes(layouts.placed("16x1", XEON, None)) == 128 << 20
    assert layouts.read_bytes(layouts.placed("socket-all", XEON, None)) == 2 << 30


# Figures


def test_the_sum_lasts_until_the_last_one_ends() -> None:
    """Adding the speeds of each would count an instance as if it had been as fast with the others at work."""
    answers = [answer(0.0, 1.0, 2.0), answer(0.0, 2.0, 5.0)]
    assert figures.together(answers) == {
        "tokens_per_s": 22 / 5,
        "decode_tokens_per_s": 20 / 4,
        "prompt_tokens_per_s": 40 / 2,
        "GB_per_s": 2.0,
    }
    assert figures.together([answers[0], answers[1] | {"bytes": None}])["GB_per_s"] is None
    assert figures.alone(answers[1] | {"drafted": 8, "accepted": 6}) == {
        "ttft_ms": 2000.0,
        "tpot_ms": 300.0,
        "tokens_per_s": 10 / 3,
        "acceptance_rate": 0.75,
    }


def test_cases_are_compared_with_one_core_of_their_own_kind() -> None:
    """Assisted with assisted: or two instances would be credited with what the assistant brought."""
    alone, two = case("1x1", [[answer(0, 1, 2)]]), case("2x1", [[answer(0, 1, 2.5)] * 2], reads=12.0)
    fast = case("1x1", [[answer(0, 1, 1.5)]], assisted=True)
    both = case("2x1", [[answer(0, 1, 1.75)] * 2], assisted=True)
    cases = [two, alone, fast, both]
    assert figures.base_of(both, cases) is fast
    assert figures.base_of(two, cases) is alone
    assert (two.as_dict(cases)["over"], two.as_dict(cases)["times"]) == ("1x1", pytest.approx(2 * 2 / 2.5))
    assert both.as_dict(cases)["times"] == pytest.approx(2 * 1.5 / 1.75)
    assert alone.as_dict(cases)["times"] is None
    assert figures.speed_table(cases)[0]["÷ base"] == "1.60"
    memory = figures.memory_table(cases)[0]  # 8 GB in 1.5 s, of 12 GB/s; one reads 8
    assert (memory["decode GB/s"], memory["memory GB/s"], memory["memory ÷"], memory["% of memory"]) == (
        "5.3",
        "12.0",
        "1.50",
        "44",
    )
    (line,) = figures.close_lines(cases)
    assert "2x1 reads memory at 12.0 GB/s, 1x1 at 8.0" in line
    assert "1.50 ×" in line
    json.dumps([each.as_dict(cases) for each in cases])


def test_another_text_is_seen_in_any_sample_of_any_instance() -> None:
    """Speed that comes with other tokens is no speed: a lossy case must not read "same tokens: yes"."""
    alone = case("1x1", [[answer(0, 1, 2)]])
    good = case("1x1", [[answer(0, 1, 2)]] * 2, assisted=True)
    other = answer(0, 1, 2) | {"tokens": [*range(10), 99]}
    odd = case("2x1", [[answer(0, 1, 2)] * 2, [answer(0, 1, 2), other]])
    assert good.same_tokens([alone, good, odd])
    assert not odd.same_tokens([alone, good, odd])
    assert figures.speed_table([alone, odd])[1]["same tokens"] == "NO"


def test_unknown_figures_are_dashes() -> None:
    """Without the native core and our decoders there is no memory speed and no traffic, and still a table."""
    blind = case("1x1", [[answer(0, 1, 2, bytes=None)]], reads=None)
    row = figures.memory_table([blind])[0]
    assert [row[key] for key in ("decode GB/s", "memory GB/s", "memory ÷", "% of memory")] == ["–"] * 4
    assert figures.speed_table([blind])[0]["accepted"] == "–"
    assert blind.as_dict([blind])["together"]["GB_per_s"] is None


# The plot


def result_of(*cases: Any) -> dict[str, Any]:
    return {"target": "org/model", "cases": [each.as_dict(cases) for each in cases]}


def test_the_plot_has_a_bar_for_every_case(tmp_path: Path) -> None:
    """Both modes on every layout, at their medians; a wrong ending of the file's name is a message."""
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    cases = [
        case("1x1", [[answer(0, 1, 2)]]),
        case("2x1", [[answer(0, 1, 2)] * 2]),
        case("1x1", [[answer(0, 1, 2)]], True),
    ]
    figure = plots.multi_socket(result_of(*cases), str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    speed, memory = figure.axes
    assert sorted(bar.get_height() for bar in speed.patches) == [5.5, 5.5, 11.0]
    assert sorted(bar.get_height() for bar in memory.patches) == [4.0, 4.0, 8.0]
    saved = tmp_path / "result.txt"
    saved.write_text("a table\n" + json.dumps(result_of(*cases)) + "\n")
    assert plots.main([str(saved), str(tmp_path / "out.svg")]) == 0
    assert plots.main([str(saved), str(tmp_path / "out.wrong")]) == 1
    assert plots.main([]) == 2
    with pytest.raises(IpexAssistError, match="cannot be written"):
        plots.multi_socket(result_of(*cases), str(tmp_path / "none" / "out.png"))

"""The largest models on paper (benchmarks/giants.py): their sizes are the published ones, and rows add up."""

from __future__ import annotations

import argparse

import giants
import pytest
from conftest import HAS_NATIVE
from sockets_model import Core, Paper

from ipex_assist.executors.traffic import idle_bytes, linear_bytes

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="memory is counted by the core")]

# Billions of parameters, and of those that a token uses, as their makers say.
PUBLISHED = {
    **{"DeepSeek-V3.2": (671, 37), "Kimi K2.6": (1026, 32), "GLM-5": (744, 40), "A.X K1": (519, 33)},
    **{"GLM-4.6": (355, 32), "MiMo-V2-Flash": (309, 15), "Hy3": (295, 21), "Qwen3 235B-A22B": (235, 22)},
    **{"MiniMax-M2": (230, 10), "Step-3.7-Flash": (196, 11)},
    **{"MiniMax-M3": (428, 23), "GLM-5.3-Flash": (313, 17), "DeepSeek-V4-Flash": (284, 13)},
    "Qwen3.8-Flash-Next": (125, 6.6),  # without 51 of n-grams; its maker's 6 are without the head's 0.6
    # GLM-5.3-Flash's 320 and 18 are with a layer that predicts further tokens.
    "Mistral Large 4": (1050, 52),  # 1T-A52B, by its name
}


@pytest.mark.parametrize("giant", giants.GIANTS, ids=lambda giant: giant.name)
def test_sizes_are_the_published_ones(giant: giants.Giant) -> None:
    """A wrong number of experts or layers in the table would be seen here."""
    spec = giants.spec_of(giant)
    whole = linear_bytes(spec, "fp8")
    active = whole - idle_bytes(spec, "fp8")
    all_of_it, of_a_token = PUBLISHED[giant.name]
    assert whole / 1e9 == pytest.approx(all_of_it, rel=0.02)
    assert active / 1e9 == pytest.approx(of_a_token, rel=0.1)


def test_sparse_attention_reads_few_keys_and_all_of_the_index() -> None:
    """Beyond top-k only the index grows; windows end at theirs."""
    of = {giant.name: giants.spec_of(giant) for giant in giants.GIANTS}
    short, long = (giants.read_of_keys(of["DeepSeek-V3.2"], context) for context in (1 << 15, 1 << 17))
    assert long - short == 61 * (128 + 4) * ((1 << 17) - (1 << 15))
    mimo = of["MiMo-V2-Flash"]
    windowed = [each for each in mimo.layers if each.attention.window]
    assert len(windowed) == 39
    further = giants.read_of_keys(mimo, 2048) - giants.read_of_keys(mimo, 1024)
    assert further == 1024 * 4 * (192 + 128 + 8) * (48 - 39)


def test_a_row_of_the_table() -> None:
    """Weights in int4 take more than half a byte each, and the machine has room for them."""
    papers = [Paper(86, sockets, 490, Core(150, 47, 12, 0.3)) for sockets in (1, 2)]
    made = giants.row_of(giants.GIANTS[0], argparse.Namespace(context=32768), papers)
    _, memory, machine, speeds = made["int4"].replace(":", ",").split(", ")
    assert 671e9 / 2 < int(memory.removesuffix(" GiB")) * giants.GIB < int(machine.removesuffix(" GB")) * 1e9
    one, two = (float(speed) for speed in speeds.split(" / "))
    assert one < two < 2 * one

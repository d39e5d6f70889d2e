"""Instruction sets from recorded flags, and that reading them starts no process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from machines import MachineSpec, write_machine

from ipex_assist.env.isa import FEATURES, processor_facts, read_isa

pytestmark = pytest.mark.one_stack

AVX512 = "avx2 fma avx512f avx512bw avx512vl avx512dq"


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        (
            f"fpu {AVX512} avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16",
            {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"},
        ),
        ("fpu avx2 fma avx_vnni", {"avx2", "avx_vnni"}),
        ("avx512f avx512er avx512pf avx512cd", set()),  # Knights Landing: AVX-512 without what kernels need
        ("amx_bf16", set()),  # a hypervisor that hides amx_tile
    ],
)
def test_features(flags: str, features: set[str], tmp_path: Path) -> None:
    """Catches AVX-512 from avx512f alone, and AMX without tiles."""
    cpuinfo = f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Test Xeon 8480+\nflags\t\t: {flags}\n"
    isa = read_isa(write_machine(MachineSpec(cpuinfo=cpuinfo), tmp_path))
    assert isa.features == features
    assert isa.model == "Test Xeon 8480+"
    assert set(isa.as_dict()) == {"model", *FEATURES}


def test_no_cpuinfo(tmp_path: Path) -> None:
    """Catches reporting this machine's flags for another root."""
    isa = read_isa(tmp_path)
    assert (isa.model, isa.features) == ("", frozenset())


def test_live_machine_agrees_with_the_kernel() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    assert ("avx2" in read_isa().features) == ({"avx2", "fma"} <= flags)


def test_reading_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches get_cpu_info() on the way of every start: it starts several and takes more than a second."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert read_isa(write_machine(MachineSpec(), tmp_path)).features == {"avx2"}


def test_facts_of_the_processor_are_this_machines() -> None:
    """What bug reports need beside the features: both ways of asking agree on flags and name."""
    facts = processor_facts()
    features = read_isa()
    assert facts["brand_raw"] == features.model
    assert {"avx2", "fma"} <= set(facts["flags"]) or "avx2" not in features.features
    assert json.dumps(facts)


def test_a_processor_that_cannot_be_read_fails_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """py-cpuinfo raises on processors that it does not know."""

    def fail() -> None:
        raise Exception("py-cpuinfo currently only works on X86")

    monkeypatch.setattr("cpuinfo.get_cpu_info", fail)
    assert processor_facts() == {}

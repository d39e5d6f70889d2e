"""Finds the processor's instruction sets that matter for inference: AVX2, AVX-512, VNNI, BF16, AMX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.env.tree import Tree

# Name in reports → flags of /proc/cpuinfo, all of which must be set.
FEATURES: dict[str, tuple[str, ...]] = {
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx512_vnni": ("avx512_vnni",),
    "avx512_bf16": ("avx512_bf16",),
    "avx512_fp16": ("avx512_fp16",),
    "avx_vnni": ("avx_vnni",),
    "amx_int8": ("amx_tile", "amx_int8"),
    "amx_bf16": ("amx_tile", "amx_bf16"),
    "amx_fp16": ("amx_tile", "amx_fp16"),
}


@dataclass(frozen=True)
class Isa:
    """The processor's name (empty if unknown), and the names in `FEATURES` that it supports."""

    model: str
    features: frozenset[str]

    def as_dict(self) -> dict[str, Any]:
        """`{"model": …, "avx2": true, …}` with all features."""
        return {"model": self.model, **{name: name in self.features for name in FEATURES}}


def read_isa(root: str | Path = "/") -> Isa:
    """Read proc/cpuinfo below `root` with py-cpuinfo's parser.

    `cpuinfo.get_cpu_info()` takes over a second, because it starts processes and measures the clock; its
    /proc/cpuinfo reader alone takes no time. All cores of a machine have the same flags, so the first CPU is enough.
    """
    first_cpu = (Tree(root).text("proc/cpuinfo") or "").partition("\n\n")[0]
    info = _parse_cpuinfo(first_cpu) if first_cpu else {}
    flags = set(info.get("flags") or ())
    features = frozenset(name for name, needed in FEATURES.items() if flags.issuperset(needed))
    return Isa(str(info.get("brand_raw") or ""), features)


def _parse_cpuinfo(text: str) -> dict[str, Any]:
    # Imported here: it costs 20 ms, and the launcher does not need it.
    from cpuinfo import cpuinfo

    class Recorded(cpuinfo.DataSource):  # type: ignore[misc]
        @staticmethod
        def has_proc_cpuinfo() -> bool:
            return True

        @staticmethod
        def cat_proc_cpuinfo() -> tuple[int, str]:
            return 0, text

    live, cpuinfo.DataSource = cpuinfo.DataSource, Recorded
    try:
        return cpuinfo._get_cpu_info_from_proc_cpuinfo()
    finally:
        cpuinfo.DataSource = live

"""Finds the processor's instruction sets that matter for inference: AVX2, AVX-512, VNNI, BF16, AMX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.env.cores import cpuinfo_fields
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
    """Read proc/cpuinfo below `root`. All cores of a machine have the same flags, so the first CPU is enough."""
    first = cpuinfo_fields((Tree(root).text("proc/cpuinfo") or "").partition("\n\n")[0])
    flags = set(first.get("flags", "").split())
    features = frozenset(name for name, needed in FEATURES.items() if flags.issuperset(needed))
    return Isa(first.get("model name", ""), features)


def processor_facts() -> dict[str, Any]:
    """What py-cpuinfo says of this machine's processor: its brand, vendor, family, caches in bytes, and all its flags.

    It takes about a second, since it starts processes and measures the clock: for reports, not for starts. Empty where
    it cannot tell.
    """
    import cpuinfo

    try:
        found = cpuinfo.get_cpu_info()
    except Exception:  # it parses what a dozen tools print, and a report must not fail for it
        return {}
    names = ("brand_raw", "vendor_id_raw", "family", "model", "stepping", "hz_advertised_friendly")
    caches = tuple(f"l{level}_cache_size" for level in ("1_data", "1_instruction", "2", "3"))
    return {name: found[name] for name in (*names, *caches, "flags") if found.get(name)}

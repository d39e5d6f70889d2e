"""How GGUF files say that rotary positions are scaled."""

from __future__ import annotations

import math
from typing import Any

from ipex_assist.checkpoints.gguf_file import GgufHeader, read_floats, rounded
from ipex_assist.env.errors import IpexAssistError

# Divisors of the rotary frequencies of Llama 3.x: four numbers in config.json, this tensor in GGUF.
ROPE_FACTORS = "rope_freqs.weight"


def rope_scaling(header: GgufHeader) -> dict[str, Any] | None:
    """The config's field of that name; None where they are not. Raises IpexAssistError for a kind that is not read."""
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(header)
    kind = header.get("{arch}.rope.scaling.type") or ("linear" if header.get("{arch}.rope.scale_linear") else "none")
    factor = header.get("{arch}.rope.scaling.factor") or header.get("{arch}.rope.scale_linear") or 1.0
    if kind == "none" or (kind == "longrope" and header.get("general.architecture") == "phi3"):
        return None  # Phi-3's factors are tensors: gguf_families.py
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor} | _yarn(header)
    raise IpexAssistError(
        f"{header.path}: rope scaling {kind!r} is not supported for GGUF files; none, linear, yarn and llama3 are. "
        "Pass the model's Hugging Face id or folder instead."
    )


def _yarn(header: GgufHeader) -> dict[str, Any]:
    """The numbers of yarn that the file states. DeepSeek's multiplier is a tenth of both of its mscales."""
    names = {
        "original_max_position_embeddings": "original_context_length",
        "attention_factor": "yarn_attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    stored = {ours: header.get(f"{{arch}}.rope.scaling.{theirs}") for ours, theirs in names.items()}
    found = {name: value if isinstance(value, int) else rounded(value) for name, value in stored.items() if value}
    if multiplier := header.get("{arch}.rope.scaling.yarn_log_multiplier"):
        found |= dict.fromkeys(("mscale", "mscale_all_dim"), rounded(10 * multiplier))
    return found


def _llama3_scaling(header: GgufHeader) -> dict[str, Any]:
    """The four numbers from which the stored divisors were computed; Llama 3.x models differ only in `factor`.

    The divisors computed from them (Hugging Face's `_compute_llama3_parameters`) must agree with the stored ones.
    """
    stored = read_floats(ROPE_FACTORS, header.tensors[ROPE_FACTORS])
    low, high, original, factor = 1.0, 4.0, 8192, max(stored)
    if header.get("general.architecture") == "step35":  # which has others, of half of a head, and ones behind them
        high, original, stored = 32.0, 131072, stored[: len(stored) // 2]
    if header.get("general.architecture") == "llama4":
        high = low  # a step
    theta = float(header.get("{arch}.rope.freq_base", 10000.0))
    computed = []
    for index in range(len(stored)):
        wavelength = 2 * math.pi * theta ** (index / len(stored))
        above = original / wavelength - low
        smooth = float(above > 0) if high == low else min(max(above / (high - low), 0.0), 1.0)
        computed.append(1 / ((1 - smooth) / factor + smooth))
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(stored, computed, strict=True)):
        raise IpexAssistError(
            f"{header.path}: its rotary frequency factors are not those of Llama 3.x with factor {factor:g}. "
            "Pass the model's Hugging Face id or folder instead."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }

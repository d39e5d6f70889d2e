"""The checkpoints of checksums.py, and the precisions, threads and instruction sets that each runs in."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"  # tiny models are made there


@dataclass(frozen=True)
class Setup:
    """Threads, and whether each believes to be on a memory node of its own."""

    name: str
    threads: int
    nodes: int = 1


SETUPS = {each.name: each for each in (Setup("1 thread", 1), Setup("2 threads", 2), Setup("2 nodes", 2, 2))}
EMULATED = "emulated amx"
LEVELS = ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", EMULATED)

# One of each kind of layer: these run in more precisions, on more threads, and on memory nodes.
KINDS = (
    *("llama", "llama-odd-sizes", "llama-dynamic", "mistral-window", "qwen3", "opt-350m", "gpt-bigcode"),
    *(
        "phi3-longrope",
        "granite",
        "olmo2",
        "stablelm-parallel",
        "gemma2",
        "falcon-new",
        "gptj",
        "bloom",
        "cohere-norms",
    ),
    *("mixtral", "qwen2-moe", "olmoe-biases", "gpt-oss", "gpt-oss-mxfp4", "wide", "wide-experts", "wide-heads"),
)
# Sizes that are no multiples of a tile, a span or a chunk of a sum, and more of each than one.
WIDER: dict[str, tuple[str, dict[str, Any]]] = {
    "wide": (
        "llama-biases",
        {"hidden_size": 1100, "intermediate_size": 2100, "num_attention_heads": 10, "head_dim": 80, "vocab_size": 1000},
    ),
    "wide-heads": (
        "gemma2",
        {"hidden_size": 320, "intermediate_size": 700, "num_attention_heads": 16, "head_dim": 256, "vocab_size": 333},
    ),
    "wide-experts": (
        "qwen2-moe",
        {"hidden_size": 320, "moe_intermediate_size": 224, "num_experts": 33, "shared_expert_intermediate_size": 300},
    ),
    "wide-mixtral": ("mixtral", {"hidden_size": 256, "intermediate_size": 416, "num_local_experts": 9}),
}
# Texts of more than one run of 2,048 positions.
_LONGER = {"max_position_embeddings": 8192}
LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "long-llama": ("llama", _LONGER),
    "long-heads": (
        "llama",
        {"hidden_size": 80, "num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 40, **_LONGER},
    ),
    "long-window": ("mistral-window", {"sliding_window": 3000, **_LONGER}),
    "long-gemma2": ("gemma2", {"sliding_window": 700, **_LONGER}),
    "long-gpt-oss": ("gpt-oss", {"sliding_window": 700, **_LONGER}),
    "long-bloom": ("bloom", {}),
}
LONG_TEXT = {"long-window": 4300}  # tokens; others have 2,300
# Checkpoints that come with 4 bits of their own, stored by tests/quantized_files.py.
QUANTIZED: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq-32-sym": {"group": 32, "sym": True},
    "gptq-column": {"group": -1},
    "gptq-act-order": {"act_order": True},
    "gptq-act-order-each": {"act_order": "each", "group": 64},
    "gptq-opt": {"variant": "opt", "group": 32},
    "gptq-bigcode": {"variant": "gpt-bigcode", "group": 32},
    "gptq-mixtral-act-order": {"variant": "mixtral", "group": 32, "act_order": True},
    "awq": {"kind": "awq"},
    "awq-32-sym": {"kind": "awq", "group": 32, "sym": True},
}
MXFP4 = "gpt-oss-mxfp4"

# The precision of linears, with int4's columns a scale, and behind a plus that of keys and values.
BASE = ("fp32", "bf16", "int8", "int4")
FURTHER = ("int4-32", "int4-128", "fp32+bf16", "fp32+int8", "bf16+int8", "int8+int8", "int4+int8")
FROM_DISK = ("int8 from disk", "int4 from disk")  # packed, kept and taken from there


def precisions_of(model: str, experts: bool, level: str, setup: Setup) -> tuple[str, ...]:
    """What a model runs in; of those that take long on emulated tiles, fewer there."""
    if model in QUANTIZED:
        return ("int4", "int4+int8", "int4 from disk", "int8") if setup.threads == 1 else ("int4",)
    mxfp4 = ("mxfp4",) if experts else ()
    if model in LONG:
        return (*BASE, *mxfp4, "fp32+int8", "bf16+int8", "int4+int8")
    if model not in KINDS or (model in WIDER and level == EMULATED):
        return (*BASE, *mxfp4)
    disk = (*FROM_DISK, *(f"{each} from disk" for each in mxfp4))
    if setup.nodes > 1:
        return (*BASE, *mxfp4, "bf16+int8", *disk)
    if setup.threads > 1:
        return (*BASE, *mxfp4)
    return (*BASE, *FURTHER, *mxfp4, *(f"{each}+int8" for each in mxfp4), *disk)


def runs_on(model: str, setup: Setup) -> bool:
    """Whether a setup has the model at all: families that differ by names alone are shared by threads in one way."""
    if setup.nodes > 1:
        return model in KINDS or model in ("long-window", "gptq-act-order")
    return setup.threads == 1 or model in KINDS or model in LONG or model in QUANTIZED


def all_models() -> dict[str, Callable[[Path], object]]:
    """What makes each checkpoint, by its name."""
    sys.path.insert(0, str(TESTS))
    import mxfp4_files
    import quantized_files
    import tiny_models

    def mxfp4(folder: Path) -> None:
        tiny_models.save(folder, "gpt-oss")
        mxfp4_files.to_mxfp4(folder)

    made: dict[str, Callable[[Path], object]] = {MXFP4: mxfp4}
    for name in tiny_models.VARIANTS:
        made[name] = functools.partial(tiny_models.save, variant=name)
    for name, (variant, changes) in (WIDER | LONG).items():
        made[name] = functools.partial(tiny_models.save, variant=variant, **changes)
    for name, options in QUANTIZED.items():
        made[name] = functools.partial(quantized_files.save, **options)
    return made


def make_models(models: Path) -> dict[str, str]:
    """Make the checkpoints that are missing; the checksum of each one's files."""
    makers = all_models()
    for name, make in makers.items():
        if not (models / name).exists():
            half = models / f".{name}"
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            make(half)
            half.rename(models / name)
    return {name: checksum_of_files(models / name) for name in sorted(makers)}


def checksum_of_files(folder: Path) -> str:
    """Names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def has_experts(checkpoint: Path) -> bool:
    """Whether its config says so."""
    config = json.loads((checkpoint / "config.json").read_text())
    return any(config.get(field) for field in ("num_experts", "num_local_experts"))

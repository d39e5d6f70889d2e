"""mixture.py's model for llama.cpp: a GGUF file of the same published shapes with random weights in Q4_0.

    python benchmarks/mixture_gguf.py [--model Qwen/Qwen3-30B-A3B] [--layers N] --output FILE

Written tensor by tensor; the whole of Qwen3-30B-A3B is 17 GB. It has no vocabulary but its size, which is enough for
`llama-batched-bench -m FILE -npp 64 -ntg 16 -npl 1,8`: as many requests at once as -npl says, random tokens. Metadata
and names are the converter's (tests/gguf_layouts.py). Routers are random, so that different requests draw their experts
nearly uniformly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ipex_assist.bench.pairs import first_layers, published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.env.errors import UsageError

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import gguf_layouts

MODEL = "Qwen/Qwen3-30B-A3B"
# What llama.cpp calls the architectures that both know.
ARCHITECTURES = {
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "deepseek_v2": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "deepseek_v3": "deepseek2",
    "deepseek_v32": "deepseek32",
    "deepseek_v4": "deepseek4",
    "glm_moe_dsa": "glm-dsa",
    "minimax_m2": "minimax-m2",
    "minimax_m3_vl_text": "minimax-m3",
    "glm5_next_text": "glm5-next",
    "granitemoehybrid": "granitehybrid",
    "gemma4_text": "gemma4",
    "qwen4_exp_text": "qwen4exp",
}
TABLE = "tid2eid.weight"  # each token's experts
LITE_LAYERS = (26, 27)  # by which llama.cpp tells DeepSeek-V2-Lite, whose queries have one matrix
PART = 1 << 24  # values that are drawn once, and repeated
F32, Q4_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_0
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0: a scale in fp16 and 32 values of 4 bits
FLOATS = ("norm", "gate_inp", "conv1d", "ssm_d", "rope_freqs", "hc_", "compressor", "indexer")
GATES = ("_down.weight", "_up.weight", "_inject.weight")  # of those, what llama-quantize packs of gated residuals


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape, numpy's way."""
    arch, layers = ARCHITECTURES[config["model_type"]], config["num_hidden_layers"]
    stored = RandomCheckpoint("shapes", config).shapes()
    tensors = {name: torch.empty(shape, device="meta") for name, shape in stored.items()}
    for name, tensor in gguf_layouts.tensors_of(tensors, config, arch, layers):
        yield name, tuple(tensor.shape)
    if arch == "gemma4":  # of layers with full attention, whose rotary embedding is proportional
        yield "rope_freqs.weight", (config["global_head_dim"] // 2,)


def is_float(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is in fp32: vectors, routers, convolutions, and what has no whole blocks. Others are Q4_0."""
    kept = name.endswith("ssm_a") or (any(part in name for part in FLOATS) and not name.endswith(GATES))
    return len(shape) == 1 or kept or shape[-1] % BLOCK != 0


def blocks(seed: int) -> np.ndarray[Any, Any]:
    """PART random values in Q4_0, as bytes; weights of about 0.02, whose mean is 0: else rows become alike."""
    generator = np.random.default_rng(seed)
    found = generator.integers(1, 16, (PART // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    found += generator.integers(1, 16, found.shape, dtype=np.uint8) << 4
    found[:, :2] = np.full(PART // BLOCK, 0.004, np.float16)[:, None].view(np.uint8)
    return found.reshape(-1)


def experts_of_tokens(shape: tuple[int, ...], count: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """A table of (vocabulary, experts of a token), of each token different ones of `count`."""
    first, step = generator.integers(count, size=(shape[0], 1)), np.arange(shape[1]) * (count // shape[1])
    return ((first + step) % count).astype(np.int32)


def floats(name: str, size: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """A tensor's values in fp32: ones, a decay's below zero, or random ones."""
    if name.endswith("ssm_a"):
        return np.full(size, -1, np.float32)
    if "norm" in name or "rope_freqs" in name:
        return np.ones(size, np.float32)
    return generator.normal(0, 0.02, size).astype(np.float32)


def write(config: dict[str, Any], output: Path) -> None:
    """The file, tensor by tensor. Raises UsageError for a model whose place in llama.cpp is not known here."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise UsageError(f"--model: {kind} has no file for llama.cpp here; these have: {', '.join(ARCHITECTURES)}")
    arch, layers = ARCHITECTURES[kind], config["num_hidden_layers"]
    if kind == "deepseek_v2" and config["q_lora_rank"] is None and layers not in LITE_LAYERS:
        raise UsageError(
            f"--layers {layers}: llama.cpp reads a DeepSeek-V2 without q_lora_rank with 26 or 27 layers only"
        )
    writer = gguf.GGUFWriter(str(output), arch)
    for key, value in gguf_layouts.metadata(config, arch, layers).items():
        gguf_layouts.add(writer, f"{arch}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    tensors = list(shapes(config))
    for name, shape in tensors:
        if name.endswith(TABLE):
            writer.add_tensor_info(name, shape, np.dtype(np.int32), int(np.prod(shape)) * 4)
        elif is_float(name, shape):
            writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        else:
            stored = (*shape[:-1], shape[-1] // BLOCK * BLOCK_BYTES)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random, generator = blocks(1), np.random.default_rng(2)
    for name, shape in tensors:
        if name.endswith(TABLE):
            writer.write_tensor_data(experts_of_tokens(shape, config["n_routed_experts"], generator))
            continue
        size = int(np.prod(shape))
        floating = is_float(name, shape)
        # Gate and up begin at different places, and what layers add does not hide which token a row is of.
        drawn = np.roll(random, BLOCK_BYTES * int(generator.integers(PART // BLOCK)))
        if name == "token_embd.weight":
            drawn.reshape(-1, BLOCK_BYTES)[:, :2] = np.array([0.2], np.float16).view(np.uint8)
        writer.write_tensor_data(
            floats(name, size, generator) if floating else np.resize(drawn, size // BLOCK * BLOCK_BYTES)
        )
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--layers", type=int, help="of the model; all where not given")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    config = published_config(args.model)
    write(first_layers(config, args.layers) if args.layers else config, args.output)


if __name__ == "__main__":
    main()

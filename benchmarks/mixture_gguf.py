"""mixture.py's model for llama.cpp: a GGUF file of a mixture's published shapes with random weights in Q4_0.

    python benchmarks/mixture_gguf.py [--model Qwen/Qwen3-30B-A3B] [--layers N] --output FILE

Written tensor by tensor; the whole of Qwen3-30B-A3B is 17 GB. It has no vocabulary but its size, which is enough for
`llama-batched-bench -m FILE -npp 64 -ntg 16 -npl 1,2,4,8`: as many requests at once as -npl says, random tokens.
Qwen3-MoE's shapes only. Routers are random, so that different requests draw their experts nearly uniformly.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ipex_assist.bench.pairs import published_config
from ipex_assist.env.errors import UsageError

MODEL, ARCHITECTURE = "Qwen/Qwen3-30B-A3B", "qwen3moe"
PART = 1 << 24  # values that are drawn once, and repeated
F32, Q4_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_0
BLOCK, BLOCK_BYTES = 32, 18  # of Q4_0: a scale in fp16 and 32 values of 4 bits


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor's name and shape, numpy's way: vectors and routers are fp32, the others Q4_0."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    queries, keys = heads * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    count, inner = config["num_experts"], config["moe_intermediate_size"]
    yield "token_embd.weight", (config["vocab_size"], hidden)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        each = {
            "attn_norm": (hidden,),
            "attn_q": (queries, hidden),
            "attn_k": (keys, hidden),
            "attn_v": (keys, hidden),
            "attn_output": (hidden, queries),
            "attn_q_norm": (config["head_dim"],),
            "attn_k_norm": (config["head_dim"],),
            "ffn_norm": (hidden,),
            "ffn_gate_inp": (count, hidden),
            "ffn_gate_exps": (count, inner, hidden),
            "ffn_up_exps": (count, inner, hidden),
            "ffn_down_exps": (count, hidden, inner),
        }
        for name, shape in each.items():
            yield f"blk.{layer}.{name}.weight", shape


def is_float(name: str) -> bool:
    return "norm" in name or "gate_inp" in name


def metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """What llama.cpp must know of the model; of its vocabulary the size."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])


def blocks(seed: int) -> np.ndarray[Any, Any]:
    """PART random values in Q4_0, as bytes; weights of about 0.02."""
    generator = np.random.default_rng(seed)
    found = generator.integers(0, 256, (PART // BLOCK, BLOCK_BYTES), dtype=np.uint8)
    found[:, :2] = np.full(PART // BLOCK, 0.004, np.float16)[:, None].view(np.uint8)
    return found.reshape(-1)


def write(config: dict[str, Any], output: Path) -> None:
    """The file, tensor by tensor."""
    writer = gguf.GGUFWriter(str(output), ARCHITECTURE)
    metadata(writer, config)
    tensors = list(shapes(config))
    for name, shape in tensors:
        if is_float(name):
            writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        else:
            stored = (*shape[:-1], shape[-1] // BLOCK * BLOCK_BYTES)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random, generator = blocks(1), np.random.default_rng(2)
    for name, shape in tensors:
        size = int(np.prod(shape))
        if is_float(name):
            data = np.ones(size, np.float32) if "norm" in name else generator.normal(0, 0.02, size).astype(np.float32)
        else:
            data = np.resize(random, size // BLOCK * BLOCK_BYTES)
        writer.write_tensor_data(data)
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--layers", type=int, help="of the model; all where not given")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    config = published_config(args.model)
    if config.get("model_type") != "qwen3_moe":
        raise UsageError(f"--model {args.model} is no Qwen3-MoE; {MODEL} is")
    write(config | ({"num_hidden_layers": args.layers} if args.layers else {}), args.output)


if __name__ == "__main__":
    main()

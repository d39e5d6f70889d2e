"""Whole forward passes of the native core: milliseconds, and the share of what reading weights and cache must take.

    ipex-launch -- python benchmarks/forward.py [--models qwen2.5-0.5b,…] [--precisions …] [--rows 1,5] [--contexts …]
        [--kv-precisions bf16,int8] [--among 16]

Models have the published shapes and random weights, packed tensor by tensor. A pass at context C appends rows after C
cached ones; its floor is (bytes of linears + keys and values of C positions) ÷ the speed at which the same threads read
memory, measured between the samples. Sparse attention reads all index keys and the positions that it chooses. "not
linear" is the share of cycles outside linears, "attention" that of attention, "scores" and "choice" those of indexers
in it; "% of keys" is what reading the index keys takes, as a share of the time of scores. With --among the pass has a
row of each of that many short texts as well. Numbers of rows and precisions of keys and values take turns.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import replace
from typing import Any

import measure
import numpy as np
import torch

from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel, NativeSequence
from ipex_assist.models import find
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import Pool, instruction_set, read_bandwidth
from ipex_assist.native.model import PackedModel, PassCycles
from ipex_assist.quantization.precision import kv_sizes

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2.5-1.5b": (
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2.5-0.5b": (
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": True,
        },
    ),
    "opt-6.7b": (
        "OPTForCausalLM",
        {
            "vocab_size": 50272,
            "hidden_size": 4096,
            "word_embed_proj_dim": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,  # of 2048, so that rows fit after a context of 2048
            "do_layer_norm_before": True,
        },
    ),
    "llama-2-7b": (
        "LlamaForCausalLM",
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
    ),
}
# A layer of DeepSeek-V3.2, and of V3, which attends to all. It has an MLP that reads as much as a row's nine experts.
_V3 = {
    "vocab_size": 1024,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
}
# Likewise of Hunyuan 4, with its four residual streams and with one.
_HY_V4 = {
    "vocab_size": 1024,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 1,
    "mlp_layer_types": ["dense"],
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
}
ONE_STREAM = "hy-v4-one-stream-layer"
CONFIGS |= {
    "deepseek-v3-layer": ("DeepseekV3ForCausalLM", _V3),
    "deepseek-v3.2-layer": ("DeepseekV32ForCausalLM", _V3),
    "hy-v4-layer": ("HYV4ForCausalLM", _HY_V4),
    ONE_STREAM: ("HYV4ForCausalLM", _HY_V4),
}
# Measured unless others are named: these are what a server's processors are compared by.
USUAL = [name for name in CONFIGS if not name.endswith("-layer")]
PRECISIONS = ("bf16", "int8", "int4")
OF_INDEXERS = ("scores %", "choice %", "% of keys")  # columns of the table


class RandomWeights:
    """bf16 tensors of any shape, cut from one block of random numbers: packing reads them, nobody else does."""

    VALUES = 32 << 20

    def __init__(self) -> None:
        self.block = (torch.randn(self.VALUES) * 0.02).bfloat16()

    def tensor(self, shape: tuple[int, ...]) -> torch.Tensor:
        size = 1
        for length in shape:
            size *= length
        repeats = -(-size // self.block.numel())
        return self.block.repeat(repeats)[:size].reshape(shape)


def load(name: str, precision: str, pool: Pool | None = None, **changes: Any) -> PackedModel:
    """Build a model of the named shapes, but for `changes` of its config, with random weights."""
    from ipex_assist.models.weights import weight_shape

    architecture_name, config = CONFIGS[name]
    architecture = find(architecture_name)
    assert architecture is not None
    spec = architecture.spec(config | changes)
    if name == ONE_STREAM:
        spec = replace(spec, streams=None)
    packed = PackedModel(spec, precision, pool or planned_pool())
    packed.allocate()
    random = RandomWeights()
    for weight in architecture.weights(spec):
        packed.pack(weight, random.tensor(weight_shape(spec, weight)))
    return packed


def read_per_pass(packed: PackedModel, spec: DecoderSpec, context: int, kv_precision: str) -> int:
    """Return the bytes of linears and of the cache that a pass reads; the embedding table's rows count as nothing."""
    table = spec.vocab_size * (spec.embedding_size or spec.hidden_size) * 2
    shared = spec.tied_head and packed.precision == "bf16"
    learned = spec.max_position_embeddings + spec.position_offset if spec.learned_positions else 0
    cache = cache_bytes(spec, context, kv_precision)
    return packed.nbytes - (0 if shared else table) - learned * spec.hidden_size * 4 + cache


def index_bytes(spec: DecoderSpec, context: int, kv_precision: str) -> int:
    """Those of the index keys that rows after a context are scored with; 0 without sparse attention."""
    size, scale = kv_sizes(kv_precision)
    latents = (each.mixer.latent for each in spec.layers if isinstance(each.mixer, AttentionSpec))
    return context * sum(each.index_dim * size + scale for each in latents if each and each.index_dim)


def cache_bytes(spec: DecoderSpec, context: int, kv_precision: str) -> int:
    """Those of keys and values that a row after a context attends to, and of the index keys that choose them."""
    latent = next((each.latent for each in spec.attentions), None)
    most = latent.indexer.top_k if latent and latent.indexer else context
    index = index_bytes(spec, 1, kv_precision)
    attended = min(context, most) * (spec.kv_bytes_per_token(*kv_sizes(kv_precision)) - index)
    return attended + (context * index if context > most else 0)


def filled(model: NativeModel, context: int, room: int = 64) -> NativeSequence:
    """A sequence of `context` tokens on real pages, of random numbers: int8, or halves of fp32 between 2^-5 and 2.

    room: for more tokens.
    """
    sequence = model.new_sequence(context + room)
    assert model.memory is not None
    random = np.random.default_rng(0)
    for position in range(0, context, 256):
        sequence.length = position
        model.extend(sequence, [1])
        halves = random.integers(0x3D00, 0x4000, model.memory.bytes_each // 2, np.uint16)
        halves ^= random.integers(0, 2, len(halves), np.uint16) << 15
        model.memory.write(sequence.blocks[-1], bytearray(halves.tobytes()))
    sequence.length = context
    return sequence


def figures(
    spec: DecoderSpec,
    size: int,
    case: dict[str, Any],
    turns: list[tuple[float, PassCycles]],
    bandwidths: list[float],
) -> tuple[dict[str, str], dict[str, Any]]:
    """A case's columns of the table, and what is kept of it. size: bytes that a pass reads."""
    took, read = measure.summary([1000 * seconds for seconds, _ in turns]), measure.summary(bandwidths)
    shares = {
        "not_linear": [1 - each.linear / each.total for _, each in turns],
        "attention": [each.attention / each.total for _, each in turns],
        "scores": [each.scores / each.total for _, each in turns],
        "choice": [each.choice / each.total for _, each in turns],
    }
    share = {name: measure.summary(samples)["median"] for name, samples in shares.items()}
    floor, keys = size / read["median"] / 1e6, index_bytes(spec, case["context"], case["kv_precision"])
    row = {
        "ms": f"{took['median']:.2f}",
        "spread": f"{took['min']:.2f} to {took['max']:.2f}",
        "read GB/s": f"{read['median']:.1f}",
        "% of read": f"{100 * floor / took['median']:.0f}",
        **{f"{name.replace('_', ' ')} %": f"{100 * each:.1f}" for name, each in share.items()},
    }
    row["% of keys"] = ""
    result = {"ms": took, "floor_ms": floor, **share, "GB": size / 1e9, "read_GB_per_s": read}
    if share["scores"]:
        scores = measure.summary([1000 * seconds * each.scores / each.total for seconds, each in turns])
        result |= {"scores_ms": scores, "index_MB": keys / 1e6}
        row["% of keys"] = f"{100 * keys / read['median'] / 1e6 / scores['median']:.0f}"
    return row, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(USUAL))
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--rows", default="1,5")
    parser.add_argument("--contexts", default="256,2048")
    parser.add_argument("--kv-precisions", default="bf16")
    parser.add_argument("--among", type=int, default=0, metavar="TEXTS")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    pool = planned_pool()
    torch.set_num_threads(1)

    most_rows = max(int(text) for text in args.rows.split(","))
    table: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            packed = load(name, precision)
            spec = packed.spec
            models = {kv: NativeModel(packed, kv_precision=kv) for kv in args.kv_precisions.split(",")}
            for context in (int(text) for text in args.contexts.split(",")):
                sequences = {kv: filled(model, context, 64 + most_rows) for kv, model in models.items()}
                others = {kv: [model.new_sequence(2) for _ in range(args.among)] for kv, model in models.items()}
                cases = [(int(text), kv) for text in args.rows.split(",") for kv in models]
                turns: dict[tuple[int, str], list[tuple[float, PassCycles]]] = {case: [] for case in cases}
                bandwidths: list[float] = []
                for repeat in range(args.repeats + 1):
                    bandwidths.append(read_bandwidth(pool, repeats=2))
                    for rows, kv in cases:
                        model, sequence = models[kv], sequences[kv]
                        sequence.truncate(context)
                        packed.cycles()
                        started = time.perf_counter()
                        model.forward([Rows(sequence, [1] * rows, rows), *(Rows(each, [1]) for each in others[kv])])
                        turn = time.perf_counter() - started, packed.cycles()
                        turns[rows, kv] += [turn] if repeat else []
                        sequence.truncate(context)
                        for each in others[kv]:
                            each.truncate(0)
                for rows, kv in cases:
                    case = {"model": name, "precision": precision, "kv_precision": kv, "context": context, "rows": rows}
                    row, result = figures(
                        spec, read_per_pass(packed, spec, context, kv), case, turns[rows, kv], bandwidths
                    )
                    results.append({**case, "among": args.among, **result})
                    table.append({**case, **row})
                    print(table[-1], flush=True)
            del sequences, sequence, others, packed, models, model
            gc.collect()
    if not any(row["% of keys"] for row in table):  # nothing attends sparsely
        table = [{name: each for name, each in row.items() if name not in OF_INDEXERS} for row in table]
    measure.report(table, {"instruction_set": instruction_set(), "threads": pool.threads, "results": results})


if __name__ == "__main__":
    main()

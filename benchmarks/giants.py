"""The largest models, on paper: what each takes of memory, and how fast a machine that has it should write.

    python benchmarks/giants.py [--context 32768] [--cores 86] [--core-bandwidth 12]

Memory is what the core itself says that it takes (native/sizes.py), to the byte: weights, one text of the context with
its keys and values in int8, and the buffers of passes. Speed is the bytes of a pass of one row, over the memory's speed
of one or two sockets, by the share of it that sockets.py models for such a shape in int4, as if all its layers were
attention and an MLP: recurrent mixers and residual streams count by their bytes alone. Nobody has measured either.
"As published" is the format that the checkpoint has, computed as it is stored. Weights count tables of n-grams, which
are in bf16 whatever the format. A cell is the format, the memory, the smallest machine that has it, and tokens a second
on one socket and on two.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import measure
import torch
from sockets import BANDWIDTH, measured_core
from sockets_model import Paper, add_line_options, line_times, pass_time
from sockets_shapes import POSITIONS, Shape

from ipex_assist.bench.giant_shapes import GIANT_CONFIGS
from ipex_assist.executors.traffic import idle_bytes, linear_bytes
from ipex_assist.models import find
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.sizes import PlannedPasses, core_sizes
from ipex_assist.quantization.precision import INT4_GROUP

GIB = 1 << 30
MACHINES = (128, 256, 384, 512, 768, 1024, 1536, 2048)  # GB of memory that servers are sold with
ROOM = 0.9  # of it for one model
INT8_KEYS = 1, 4  # bytes of an element, and of a scale


@dataclasses.dataclass(frozen=True)
class Giant:
    """A published model: its architecture, its sizes where they are not its family's defaults, and its format."""

    name: str
    architecture: str
    published: str
    config: dict[str, Any]


_V3 = GIANT_CONFIGS["deepseek-ai/DeepSeek-V3"]
GIANTS = (
    Giant("DeepSeek-V3.2", "DeepseekV32ForCausalLM", "fp8", GIANT_CONFIGS["deepseek-ai/DeepSeek-V3.2"]),
    Giant(
        "Kimi K2.6",
        "DeepseekV3ForCausalLM",
        "",  # experts in int4, all else in bf16
        _V3
        | {"vocab_size": 163840, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "max_position_embeddings": 262144},
    ),
    Giant(
        "Mistral Large 4",
        "MistralLarge4ForConditionalGeneration",
        "",
        {
            "text_config": {
                **{"vocab_size": 204800, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 72},
                **{"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 128},
                **{"moe_intermediate_size": 6144, "num_experts_per_tok": 4, "max_position_embeddings": 1048576},
            }
        },
    ),
    Giant("GLM-5", "GlmMoeDsaForCausalLM", "fp8", GIANT_CONFIGS["zai-org/GLM-5"]),
    Giant(
        "A.X K1",
        "AXK1ForCausalLM",
        "bf16",
        _V3
        | {"vocab_size": 163840, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 192}
        | {"first_k_dense_replace": 1, "max_position_embeddings": 32768},
    ),
    Giant(
        "GLM-4.6",
        "Glm4MoeForCausalLM",
        "fp8",
        {"vocab_size": 151552, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536}
        | {"num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
        | {"n_routed_experts": 160, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "use_qk_norm": True}
        | {"max_position_embeddings": 202752},
    ),
    Giant(
        "MiMo-V2-Flash",
        "MiMoV2FlashForCausalLM",
        "fp8",
        {"vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "moe_intermediate_size": 2048}
        | {"num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "n_routed_experts": 256}
        | {"num_experts_per_tok": 8, "max_position_embeddings": 262144},
    ),
    Giant(
        "Hy3",
        "HYV3ForCausalLM",
        "bf16",
        {"vocab_size": 120832, "hidden_size": 4096, "intermediate_size": 13312, "moe_intermediate_size": 1536}
        | {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
        | {"num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1, "max_position_embeddings": 131072},
    ),
    Giant(
        "Qwen3 235B-A22B",
        "Qwen3MoeForCausalLM",
        "fp8",
        {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536}
        | {"num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128}
        | {"num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 40960},
    ),
    Giant("MiniMax-M3", "MiniMaxM3SparseForConditionalGeneration", "bf16", GIANT_CONFIGS["MiniMaxAI/MiniMax-M3"]),
    Giant("GLM-5.3-Flash", "Glm5NextForConditionalGeneration", "bf16", GIANT_CONFIGS["zai-org/GLM-5.3-Flash"]),
    Giant("Qwen3.8-Flash-Next", "Qwen4ExpForConditionalGeneration", "bf16", GIANT_CONFIGS["Qwen/Qwen3.8-Flash-Next"]),
    Giant("DeepSeek-V4-Flash", "DeepseekV4ForCausalLM", "", GIANT_CONFIGS["deepseek-ai/DeepSeek-V4-Flash"]),
    Giant("MiniMax-M2", "MiniMaxM2ForCausalLM", "fp8", GIANT_CONFIGS["MiniMaxAI/MiniMax-M2"]),
    Giant(
        "Step-3.7-Flash",
        "Step3p7ForConditionalGeneration",
        "fp8",
        {
            "text_config": {
                **{"num_attention_groups": 8, "sliding_window": 512, "num_sliding_attention_heads": 96},
                "layer_types": (["full_attention", *["sliding_attention"] * 3] * 12)[:45],
            }
        },
    ),
)


def spec_of(giant: Giant) -> DecoderSpec:
    architecture = find(giant.architecture)
    assert architecture is not None, giant.architecture
    return architecture.spec(giant.config)


def shape_of(name: str, spec: DecoderSpec) -> Shape:
    """What sockets.py models of it: its layers as if they were alike but for an MLP in the first, and windows."""
    widest = max(spec.attentions, key=lambda each: (each.window is None, each.heads))
    layers = [each for each in spec.layers if each.mlp is not None]  # without those that are embeddings of n-grams
    experts, latent = spec.experts, widest.latent
    assert experts is not None, "a mixture"
    windows = [each.window for each in (layer.mixer for layer in spec.layers) if isinstance(each, AttentionSpec)]
    return Shape(
        name,
        spec.hidden_size,
        len(layers),
        widest.heads,
        widest.kv_heads,
        widest.head_dim,
        max((each.inner_size for each in layers if each.experts is None), default=0),
        spec.vocab_size,
        (experts.count, experts.per_token, experts.intermediate_size),
        1 if experts.shared_size else 0,
        sum(each.experts is None for each in layers),
        (0, 0) if latent is None else (latent.query_rank or 0, latent.rank),
        max((each or 0 for each in windows), default=0),
        sum(each is not None for each in windows) / len(windows),
    )


def read_of_keys(spec: DecoderSpec, context: int) -> int:
    """Bytes of keys and values that a row reads after `context` others, in int8."""
    return sum(_read_of_layer(each.mixer, context) for each in spec.layers if isinstance(each.mixer, AttentionSpec))


def _read_of_layer(attention: AttentionSpec, context: int) -> int:
    element, scale = INT8_KEYS
    latent, choice = attention.latent, attention.choice
    indexer = latent.indexer if latent is not None else attention.indexer
    rate = latent.compressed[1] if latent is not None else 0
    scored = context // (rate or (indexer.pool if indexer is not None else 1))
    seen = min(context, attention.window or context)
    if rate:
        seen += min(scored, indexer.top_k if indexer is not None else scored)
    elif indexer is not None:
        seen = min(seen, indexer.top_k)
    elif choice is not None:
        seen = min(seen, choice.blocks * choice.size)
    dim = indexer.dim if indexer is not None and indexer.heads else choice.dim if choice is not None else 0
    wide = attention.head_dim + attention.value_width
    return seen * attention.kv_heads * (wide * element + 2 * scale) + scored * (dim * element + scale if dim else 0)


def row_of(giant: Giant, args: argparse.Namespace, papers: Sequence[Paper]) -> dict[str, str]:
    """A line of the table."""
    spec, shape = spec_of(giant), shape_of(giant.name, spec_of(giant))
    one = linear_bytes(spec, "fp8")  # a byte a weight, and little else
    tables = sum(each.recurrent.hashes.table_size for each in spec.layers if each.recurrent and each.recurrent.hashes)
    row = {
        "model": giant.name,
        "weights": f"{(one + tables) / 1e9:.0f} B",
        "of a token": f"{(one - idle_bytes(spec, 'fp8')) / 1e9:.0f} B",
    }
    for column, precision in (("int4", "int4"), ("int8", "int8"), ("as published", giant.published)):
        if not precision:  # several together
            row[column] = ""
            continue
        planned = PlannedPasses(1, args.context, papers[-1].cores * papers[-1].sockets, papers[-1].sockets)
        sizes = core_sizes(spec, precision, INT4_GROUP, planned, kv_precision="int8")
        text = -(-args.context // POSITIONS) * sizes.block + sizes.state
        whole = sizes.image + text + sizes.workspace
        read = linear_bytes(spec, precision) - idle_bytes(spec, precision) + read_of_keys(spec, args.context)
        read += 2 * sizes.state  # and written
        speeds = [1e9 * p.bandwidth * p.sockets * pass_time(shape, args.context, p).share(p) / read for p in papers]
        machine = next((f"{each} GB" for each in MACHINES if each * 1e9 * ROOM >= whole), "none")
        tokens = " / ".join(f"{speed:.0f}" for speed in speeds)
        row[column] = f"{precision}: {whole / GIB:.0f} GiB, {machine}, {tokens}"
        row["a text"] = f"{text / GIB:.1f} GiB"
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=32768, help="tokens of a text")
    parser.add_argument("--cores", type=int, default=86, choices=BANDWIDTH, help="of a socket")
    parser.add_argument("--core-bandwidth", type=float, default=12, help="GB/s of memory that one core has alone")
    add_line_options(parser)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    core = measured_core(args.core_bandwidth)
    bandwidth = BANDWIDTH[args.cores]
    papers = [Paper(args.cores, sockets, bandwidth, core, **line_times(args)) for sockets in (1, 2)]
    table = [row_of(giant, args, papers) for giant in GIANTS]
    measure.report(table, {"core": dataclasses.asdict(core), "assumed": vars(args) | {"bandwidth": bandwidth}})


if __name__ == "__main__":
    main()

"""Pairs of the field's published tables by name, and the published shapes of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipex_assist.bench.giant_shapes import GIANT_CONFIGS
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.sources.assistant_name import SELF

Config = dict[str, Any]


@dataclass(frozen=True)
class PublishedPair:
    """Hub ids of a target and the assistant that tables show it with; "self" where its family has no small model."""

    target: str
    assistant: str


PAIRS = {
    "opt-6.7b": PublishedPair("facebook/opt-6.7b", "facebook/opt-125m"),
    "opt-13b": PublishedPair("facebook/opt-13b", "facebook/opt-125m"),
    "llama-2-7b": PublishedPair("meta-llama/Llama-2-7b-hf", "JackFram/llama-160m"),
    "guanaco-7b": PublishedPair("TheBloke/guanaco-7B-HF", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    "guanaco-13b": PublishedPair("TheBloke/guanaco-13B-HF", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    "guanaco-33b": PublishedPair("TheBloke/guanaco-33B-HF", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    # The Python variant: the others have 16 more tokens than any small Llama.
    "codellama-7b": PublishedPair("codellama/CodeLlama-7b-Python-hf", "amd/AMD-Llama-135m-code"),
    "starcoder": PublishedPair("bigcode/starcoder", "bigcode/tiny_starcoder_py"),
    "qwen3-30b-a3b": PublishedPair("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-0.6B"),
    # Recurrent and latent layers.
    "qwen3.5-9b": PublishedPair("Qwen/Qwen3.5-9B", SELF),
    "qwen3-next-80b-a3b": PublishedPair("Qwen/Qwen3-Next-80B-A3B-Instruct", SELF),
    "deepseek-v2-lite": PublishedPair("deepseek-ai/DeepSeek-V2-Lite", SELF),
    "glm-4.7-flash": PublishedPair("zai-org/GLM-4.7-Flash", SELF),
    "granite-4-small": PublishedPair("ibm-granite/granite-4.0-h-small", SELF),
    "gemma-4-e4b": PublishedPair("google/gemma-4-E4B-it", SELF),
    # Of which a machine may hold but the first layers (--layers).
    "deepseek-v3.2": PublishedPair("deepseek-ai/DeepSeek-V3.2", SELF),
    "glm-5": PublishedPair("zai-org/GLM-5", SELF),
    "minimax-m2": PublishedPair("MiniMaxAI/MiniMax-M2", SELF),
    "minimax-m3": PublishedPair("MiniMaxAI/MiniMax-M3", SELF),
    "deepseek-v4-flash": PublishedPair("deepseek-ai/DeepSeek-V4-Flash", SELF),
    "glm-5.3-flash": PublishedPair("zai-org/GLM-5.3-Flash", SELF),
    "qwen3.8-flash-next": PublishedPair("Qwen/Qwen3.8-Flash-Next", SELF),
}


def _opt(hidden: int, layers: int, heads: int, **differences: Any) -> Config:
    fields = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": hidden,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "tie_word_embeddings": True,
    }
    return fields | differences


def _llama(hidden: int, intermediate: int, layers: int, heads: int, **differences: Any) -> Config:
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    return fields | differences


def _bigcode(hidden: int, layers: int, heads: int) -> Config:
    return {
        "architectures": ["GPTBigCodeForCausalLM"],
        "model_type": "gpt_bigcode",
        "vocab_size": 49152,
        "n_embd": hidden,
        "n_inner": 4 * hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 8192,
        "multi_query": True,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
    }


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, **differences: Any) -> Config:
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "attention_bias": False,
    }
    return fields | differences


_30B_A3B: Config = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


def _gated_delta(hidden: int, layers: int, **differences: Any) -> Config:
    """Qwen's layers with Gated DeltaNet: three of four."""
    fields = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(layers)],
        "num_attention_heads": 16,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
        "max_position_embeddings": 262144,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    return fields | differences


_NEXT: Config = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "num_key_value_heads": 2,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_35: Config = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "num_key_value_heads": 4,
}
_LATENT: Config = {
    "hidden_size": 2048,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
_DEEPSEEK_V2_LITE: Config = _LATENT | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
_GLM_47_FLASH: Config = _LATENT | {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    "vocab_size": 154880,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.8,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_GRANITE_4_SMALL: Config = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "position_embedding_type": "nope",
    "embedding_multiplier": 12,
    "attention_multiplier": 0.0078125,
    "residual_multiplier": 0.22,
    "logits_scaling": 16,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
}

# Not compared with the hub's file. These are 7.5 of the 8.0 billion parameters that the model card counts with those
# of images and sound.
_GEMMA_4_E4B: Config = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size": 2560,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 10240,
    "num_hidden_layers": 42,
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(42)],
    "num_kv_shared_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}

# By the config.json of each model on the hub.
CONFIGS: dict[str, Config] = {
    "facebook/opt-125m": _opt(768, 12, 12),
    "facebook/opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "facebook/opt-1.3b": _opt(2048, 24, 32),
    "facebook/opt-6.7b": _opt(4096, 32, 32),
    "facebook/opt-13b": _opt(5120, 40, 40),
    "meta-llama/Llama-2-7b-hf": _llama(4096, 11008, 32, 32, max_position_embeddings=4096, rms_norm_eps=1e-5),
    "JackFram/llama-160m": _llama(768, 3072, 12, 12),
    "TheBloke/guanaco-7B-HF": _llama(4096, 11008, 32, 32),
    "TheBloke/guanaco-13B-HF": _llama(5120, 13824, 40, 40),
    "TheBloke/guanaco-33B-HF": _llama(6656, 17920, 60, 52),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(2048, 5632, 22, 32, num_key_value_heads=4, rms_norm_eps=1e-5),
    "codellama/CodeLlama-7b-Python-hf": _llama(
        4096, 11008, 32, 32, max_position_embeddings=16384, rms_norm_eps=1e-5, rope_theta=1e6
    ),
    "amd/AMD-Llama-135m-code": _llama(768, 2048, 12, 12, rms_norm_eps=1e-5),
    "Qwen/Qwen3-30B-A3B": _qwen3(2048, 48, 32, 4, **_30B_A3B),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 8, intermediate_size=3072, tie_word_embeddings=True),
    "Qwen/Qwen3.5-9B": _gated_delta(4096, 32, intermediate_size=12288, **_35),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _gated_delta(2048, 48, **_NEXT),
    "deepseek-ai/DeepSeek-V2-Lite": _DEEPSEEK_V2_LITE,
    "zai-org/GLM-4.7-Flash": _GLM_47_FLASH,
    "ibm-granite/granite-4.0-h-small": _GRANITE_4_SMALL,
    "google/gemma-4-E4B": _GEMMA_4_E4B,
    "google/gemma-4-E4B-it": _GEMMA_4_E4B,
    "bigcode/starcoder": _bigcode(6144, 40, 48),
    "bigcode/tiny_starcoder_py": _bigcode(768, 20, 12),
    **GIANT_CONFIGS,
}


def find_pair(name: str) -> PublishedPair:
    """The pair of this name; UsageError lists the names there are."""
    if name not in PAIRS:
        raise UsageError(f"--pair {name}: there is no such pair; known: {', '.join(PAIRS)}")
    return PAIRS[name]


def first_layers(config: Config, layers: int) -> Config:
    """The config of a model of its first `layers` layers alone."""
    listed = ("layer_types", "mlp_layer_types", "indexer_types")
    kinds: Config = {name: config[name][:layers] for name in listed if name in config}
    if "ple_layer_ids" in config:  # counted from 1
        kinds["ple_layer_ids"] = [number for number in config["ple_layer_ids"] if number <= layers]
    if shared := config.get("num_kv_shared_layers", 0):  # the last ones: those that are left
        kinds["num_kv_shared_layers"] = max(0, layers - (config["num_hidden_layers"] - shared))
    return config | kinds | {"num_hidden_layers" if "num_hidden_layers" in config else "n_layer": layers}


def shown_layers(config: Config, layers: int | None) -> str:
    """What to say of a model that is cut to its first `layers` layers, "" of a whole one. Raises UsageError."""
    whole = config.get("num_hidden_layers") or config["n_layer"]
    if layers is None:
        return ""
    if not 1 <= layers <= whole:
        raise UsageError(f"--layers {layers}: the model has {whole} layers; must be between 1 and {whole}")
    return f", the first {layers} of {whole} layers"


def published_config(source: str) -> Config:
    """The config of a model whose shapes are known; UsageError lists the models there are."""
    if source not in CONFIGS:
        raise UsageError(f"--random-weights: the shapes of {source} are not known here; known: {', '.join(CONFIGS)}")
    return dict(CONFIGS[source])

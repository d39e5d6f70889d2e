"""Maps modules and hyperparameters of GGUF to Hugging Face's, for the relatives of Llama.

Source: conversion/*.py of llama.cpp, and src/models/*.cpp for values that files do not state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.gguf_file import GgufHeader, read_tensors, rounded

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]

ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
_POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
_SANDWICH_NORMS = ("input_layernorm", "pre_feedforward_layernorm", *_POST_NORMS)
ROPE_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}


def modules(*layer: str, norm: str = "model.norm") -> tuple[str, ...]:
    return ("model.embed_tokens", norm, "lm_head", *(f"model.layers.{{bid}}.{name}" for name in layer))


# Model types whose query and key rows the converter interleaves.
PERMUTED = ("llama", "granite", "smollm3", "mixtral", "granitemoe", "arcee", "olmo")


def _gemma(header: GgufHeader, config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(header: GgufHeader, config: Config) -> Config:
    return _gemma(header, config) | {
        "query_pre_attn_scalar": _scalar(config, 46),
        "attn_logit_softcapping": header.get("{arch}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.get("{arch}.final_logit_softcapping", 30.0),
        "sliding_window": header.get("{arch}.attention.sliding_window", 4096),
    }


def _gemma3(header: GgufHeader, config: Config) -> Config:
    return _gemma(header, config) | {
        "query_pre_attn_scalar": _scalar(config, 62),
        "final_logit_softcapping": header.get("{arch}.final_logit_softcapping"),
        "sliding_window": header.get("{arch}.attention.sliding_window"),
        "rope_local_base_freq": header.get("{arch}.rope.freq_base_swa", 10000.0),
        "layer_types": layer_types(header, config, 6),
    }


def _scalar(config: Config, largest: int) -> int:
    """query_pre_attn_scalar: head_dim, but for the 27B model, which alone has `largest` layers."""
    even = config["hidden_size"] // config["num_attention_heads"]
    return even if config["num_hidden_layers"] == largest else config["head_dim"]


def layer_types(header: GgufHeader, config: Config, every: int) -> list[str]:
    """Windowed layers as the file says; else all layers but each `every`-th."""
    layers, stored = config["num_hidden_layers"], header.get("{arch}.attention.sliding_window_pattern")
    windowed = stored if isinstance(stored, list) else [(layer + 1) % (stored or every) != 0 for layer in range(layers)]
    return ["sliding_attention" if each else "full_attention" for each in windowed]


def _granite(header: GgufHeader, config: Config) -> Config:
    names = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    # The converter does not write a value that means "none", so a missing key stands for that value.
    usual = {"attention_multiplier": config["head_dim"] ** -0.5}
    return _biases(header) | {
        ours: rounded(header.get(f"{{arch}}.{theirs}", usual.get(ours, 1.0))) for ours, theirs in names.items()
    }


def _biases(header: GgufHeader) -> Config:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _olmo3(header: GgufHeader, config: Config) -> Config:
    """OLMo 2's files with a window: a longer context's rope is that of the layers without one."""
    return _biases(header) | {
        "sliding_window": header.get("{arch}.attention.sliding_window"),
        "layer_types": layer_types(header, config, 4),
    }


def _seed_oss(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {"attention_out_bias": "blk.0.attn_output.bias" in header.tensors}


def _ernie(header: GgufHeader, config: Config) -> Config:
    return {"use_bias": "blk.0.attn_q.bias" in header.tensors}


def _smollm3(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {"no_rope_layer_interval": 4}


def _starcoder2(header: GgufHeader, config: Config) -> Config:
    return {
        "norm_epsilon": config.pop("layer_norm_eps"),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": "blk.0.attn_q.bias" in header.tensors,
        "sliding_window": header.get("{arch}.attention.sliding_window"),
    }


def _stablelm(header: GgufHeader, config: Config) -> Config:
    return {
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in header.tensors,
        "use_qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in header.tensors,
        "partial_rotary_factor": _rotary_share(header, config),
    }


def _rotary_share(header: GgufHeader, config: Config) -> float:
    return header.get("{arch}.rope.dimension_count", config["head_dim"]) / config["head_dim"]


def _phi3(header: GgufHeader, config: Config) -> Config:
    found: Config = {
        "sliding_window": header.get("{arch}.attention.sliding_window") or None,  # Phi-4 writes 0 for none
        "partial_rotary_factor": _rotary_share(header, config),
        "original_max_position_embeddings": header.get("{arch}.rope.scaling.original_context_length"),
    }
    if all(name in header.tensors for name in ROPE_FACTORS.values()):
        scaling: Config = {"rope_type": "longrope"}
        for ours, theirs in ROPE_FACTORS.items():
            [(_, factors)] = read_tensors([(theirs, header.tensors[theirs])])
            scaling[ours] = factors.float().reshape(-1).tolist()
        if (attention := header.get("{arch}.rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = attention
        found["rope_scaling"] = scaling
    return found


def _exaone4(header: GgufHeader, config: Config) -> Config:
    window = header.get("{arch}.attention.sliding_window")
    types = layer_types(header, config, 4) if window else ["full_attention"] * config["num_hidden_layers"]
    return {"sliding_window": window, "layer_types": types}


def _cohere(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {
        "logit_scale": rounded(header.get("{arch}.logit_scale", 0.0625)),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
    }


def _cohere2(header: GgufHeader, config: Config) -> Config:
    window = header.get("{arch}.attention.sliding_window", 4096)
    return _cohere(header, config) | {"sliding_window": window, "layer_types": layer_types(header, config, 4)}


def _glm4(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {"partial_rotary_factor": _rotary_share(header, config)}


def _nemotron(header: GgufHeader, config: Config) -> Config:
    return _relu2(header, config) | {
        "norm_eps": config.pop("layer_norm_eps"),
        "partial_rotary_factor": _rotary_share(header, config),
    }


def _relu2(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {"hidden_act": "relu2"}


def _olmo(header: GgufHeader, config: Config) -> Config:
    return _biases(header) | {"clip_qkv": header.get("{arch}.attention.clamp_kqv") or None}


def _phi(header: GgufHeader, config: Config) -> Config:
    return {"hidden_act": "gelu_new", "partial_rotary_factor": _rotary_share(header, config)}


_GLM4_NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
_GLM4_LAYER = (*ATTENTION, "mlp.gate_up_proj", "mlp.down_proj", *_GLM4_NORMS)
_GLM_LAYER = (*ATTENTION, "mlp.gate_up_proj", "mlp.down_proj", *PRE_NORMS)
_PHI_LAYER = (*ATTENTION[:3], "self_attn.dense", "mlp.fc1", "mlp.fc2", "input_layernorm")
_PHI3_LAYER = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj", *PRE_NORMS)
_STARCODER2_LAYER = (*ATTENTION, "mlp.c_fc", "mlp.c_proj", *PRE_NORMS)
_HUNYUAN_LAYER = (*ATTENTION, *_MLP, *PRE_NORMS, "self_attn.query_layernorm", "self_attn.key_layernorm")
_EXAONE = (
    *("transformer.wte", "transformer.ln_f", "lm_head", "transformer.h.{bid}.ln_1", "transformer.h.{bid}.ln_2"),
    *(f"transformer.h.{{bid}}.attn.attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")),
    *(f"transformer.h.{{bid}}.mlp.{name}" for name in ("c_fc_0", "c_fc_1", "c_proj")),
)
_COHERE_LAYER = (*ATTENTION, *_MLP, "input_layernorm")

# general.architecture -> (architectures[0], model_type, Hugging Face modules).
ARCHITECTURES = {
    "gemma": ("GemmaForCausalLM", "gemma", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", modules(*ATTENTION, *_MLP, *_SANDWICH_NORMS)),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", modules(*ATTENTION, *_MLP, *_SANDWICH_NORMS, *HEAD_NORMS)),
    "granite": ("GraniteForCausalLM", "granite", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "olmo2": ("Olmo2ForCausalLM", "olmo2", modules(*ATTENTION, *_MLP, *_POST_NORMS, *HEAD_NORMS)),
    "smollm3": ("SmolLM3ForCausalLM", "smollm3", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "starcoder2": ("Starcoder2ForCausalLM", "starcoder2", modules(*_STARCODER2_LAYER)),
    "stablelm": ("StableLmForCausalLM", "stablelm", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "phi3": ("Phi3ForCausalLM", "phi3", modules(*_PHI3_LAYER)),
    "exaone4": ("Exaone4ForCausalLM", "exaone4", modules(*ATTENTION, *_MLP, *_POST_NORMS, *HEAD_NORMS)),
    "command-r": ("CohereForCausalLM", "cohere", modules(*_COHERE_LAYER, *HEAD_NORMS)),
    "cohere2": ("Cohere2ForCausalLM", "cohere2", modules(*_COHERE_LAYER)),
    "glm4": ("Glm4ForCausalLM", "glm4", modules(*_GLM4_LAYER)),
    "chatglm": ("GlmForCausalLM", "glm", modules(*_GLM_LAYER)),
    "phi2": ("PhiForCausalLM", "phi", modules(*_PHI_LAYER, norm="model.final_layernorm")),
    "olmo3": ("Olmo3ForCausalLM", "olmo3", modules(*ATTENTION, *_MLP, *_POST_NORMS, *HEAD_NORMS)),
    "seed_oss": ("SeedOssForCausalLM", "seed_oss", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "ernie4_5": ("Ernie4_5ForCausalLM", "ernie4_5", modules(*ATTENTION, *_MLP, *PRE_NORMS)),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", modules(*_HUNYUAN_LAYER)),
    "arcee": ("ArceeForCausalLM", "arcee", modules(*ATTENTION, *_MLP[1:], *PRE_NORMS)),
    "exaone": ("ExaoneForCausalLM", "exaone", _EXAONE),
    "jais2": ("Jais2ForCausalLM", "jais2", modules(*ATTENTION, *_MLP[1:], *PRE_NORMS)),
    "nemotron": ("NemotronForCausalLM", "nemotron", modules(*ATTENTION, *_MLP[1:], *PRE_NORMS)),
    "olmo": ("OlmoForCausalLM", "olmo", modules(*ATTENTION, *_MLP)),
}
# The config keys of each family that differ from Llama's.
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "olmo2": lambda header, config: _biases(header),
    "olmo3": _olmo3,
    "seed_oss": _seed_oss,
    "ernie4_5": _ernie,
    "hunyuan-dense": lambda header, config: _biases(header),
    "arcee": _relu2,
    "jais2": _relu2,
    "nemotron": _nemotron,
    "olmo": _olmo,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "phi3": _phi3,
    "exaone4": _exaone4,
    "command-r": _cohere,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "chatglm": _glm4,
    "phi2": _phi,
}
LAYER_NORMS = ("starcoder2", "stablelm", "command-r", "cohere2", "phi2", "jais2", "nemotron", "olmo")


def undo_norms(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    return tensor.float() - 1 if is_shifted(name, config) else tensor


def is_shifted(name: str, config: Config) -> bool:
    """Whether a norm multiplies by 1 + w, as Gemma's and Nemotron's: GGUF files store 1 + w, Hugging Face stores w."""
    return name.endswith("norm.weight") and config["model_type"] in ("gemma", "gemma2", "gemma3_text", "nemotron")

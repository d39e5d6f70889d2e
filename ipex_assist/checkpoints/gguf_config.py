"""Translates GGUF to Hugging Face: the config, the tensor names, and the row order of q and k."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints import gguf_experts, gguf_families, gguf_gpt
from ipex_assist.checkpoints.gguf_file import GgufHeader, GgufTensor, read_tensors, rounded, rows_of
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_LLAMA_LAYER = (*_ATTENTION, *_MLP, "input_layernorm", "post_attention_layernorm")
_LLAMA = (
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    *(f"model.layers.{{bid}}.{module}" for module in _LLAMA_LAYER),
)
_QWEN3 = (*_LLAMA, "model.layers.{bid}.self_attn.q_norm", "model.layers.{bid}.self_attn.k_norm")
_GPT_BIGCODE = (
    "transformer.wte",
    "transformer.wpe",
    "transformer.ln_f",
    "lm_head",
    *(f"transformer.h.{{bid}}.{m}" for m in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")),
)

# general.architecture -> (architectures[0], model_type, Hugging Face modules). Mistral's files say "llama".
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama", _LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _QWEN3),
    "starcoder": ("GPTBigCodeForCausalLM", "gpt_bigcode", _GPT_BIGCODE),
    **gguf_families.ARCHITECTURES,
    **gguf_gpt.ARCHITECTURES,
    **gguf_experts.ARCHITECTURES,
}

SUPPORTED = {architecture for architecture, _, _ in ARCHITECTURES.values()}

# Divisors of the rotary frequencies of Llama 3.x: four numbers in config.json, this tensor in GGUF.
ROPE_FACTORS = "rope_freqs.weight"

_NOT_WEIGHTS = (ROPE_FACTORS, *gguf_families.ROPE_FACTORS.values())

# Tokens that end a chat turn; like llama.cpp we end generation at these, whatever eos_token_id says.
_END_OF_TURN = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
}


def config_from(header: GgufHeader) -> dict[str, Any]:
    """The file's hyperparameters under the keys of a Hugging Face config.json.

    Raises:
        IpexAssistError: an architecture or rope scaling that is not supported, or a missing key.
    """
    arch = _family(header)
    if arch not in ARCHITECTURES:
        raise IpexAssistError(
            f"{header.path}: GGUF architecture {arch!r} is not supported; supported are {', '.join(ARCHITECTURES)}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    architecture, model_type, _ = ARCHITECTURES[arch]
    vocab_size, hidden_size = _embedding_shape(header)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab_size,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": header.get("tokenizer.ggml.padding_token_id"),
    }
    if arch == "starcoder":
        return config | _gpt_bigcode(header, hidden_size)
    sizes = _llama(header, hidden_size, arch)
    if arch in gguf_gpt.CONFIGS:
        return config | gguf_gpt.CONFIGS[arch](header, sizes)
    config |= sizes
    if arch in gguf_experts.CONFIGS:
        return config | gguf_experts.config_of(header, arch, config)
    return config | (gguf_families.CONFIGS[arch](header, config) if arch in gguf_families.CONFIGS else {})


def generation_config_from(header: GgufHeader) -> dict[str, Any]:
    """The fields of a generation_config.json: every token that ends a turn, and bos."""
    ids = {
        header.get(f"tokenizer.ggml.{kind}_token_id")
        for kind in ("eos", "eot", "eom")
        if header.get(f"tokenizer.ggml.{kind}_token_id") is not None
    }
    kinds = header.get("tokenizer.ggml.token_type", [])
    controls = [index for index, kind in enumerate(kinds) if kind == 3]
    if controls:
        tokens = header.strings("tokenizer.ggml.tokens")
        ids |= {index for index in controls if tokens[index] in _END_OF_TURN}
    return {"bos_token_id": header.get("tokenizer.ggml.bos_token_id"), "eos_token_id": sorted(ids)}


def hf_tensors(header: GgufHeader) -> dict[str, GgufTensor]:
    """The file's tensors by Hugging Face names, in file order. Raises IpexAssistError for a damaged file."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = header.get("general.architecture")
    layers = header.required("block_count")
    if layers > len(header.tensors):  # every layer has several; a damaged count would take all memory below
        raise IpexAssistError(
            f"{header.path} is corrupt: {layers:,} layers by its metadata, but {len(header.tensors):,} tensors. "
            "Download it again."
        )
    key = next((key for key, name in MODEL_ARCH_NAMES.items() if name == arch), None)
    if key is None:
        raise IpexAssistError(f"{header.path}: the installed gguf package does not know {arch}: pip install -U gguf")
    name_map = get_tensor_name_map(key, layers)
    family = _family(header)
    names = ARCHITECTURES[family][2]
    modules = gguf_experts.modules(header, family) | {
        # The gguf package knows BLOOM's names without "transformer.", as its first checkpoints have them.
        name_map.get_name(module) or name_map.get_name(module.removeprefix("transformer.")): module
        for name in (names(header) if callable(names) else names)
        for module in (name.format(bid=layer) for layer in (range(layers) if "{bid}" in name else range(1)))
    }
    result: dict[str, GgufTensor] = {}
    unknown: list[str] = []
    for name, tensor in header.tensors.items():
        module, _, suffix = name.rpartition(".")
        if module in modules and suffix in ("weight", "bias"):
            result[f"{modules[module]}.{suffix}"] = tensor
        elif name not in _NOT_WEIGHTS and not name.endswith("attn_rot_embd.weight"):
            unknown.append(name)
    if unknown:
        raise IpexAssistError(
            f"{header.path}: {len(unknown)} tensors do not belong to a {family} model, the first is {unknown[0]}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    return result


def separate(header: GgufHeader) -> None:
    """Split stacked experts into one tensor each, and fused query, key and value where Hugging Face has three.

    Fused ones are in files of `convert_hf_to_gguf.py --fuse-qkv`, of ChatGLM, and of the first converters of Phi-2.
    """
    gguf_experts.separate(header)
    family = _family(header)
    names = ARCHITECTURES[family][2] if family in ARCHITECTURES else ()
    if callable(names) or not any(name.endswith("self_attn.q_proj") for name in names):
        return
    for name, tensor in [*header.tensors.items()]:
        block, _, suffix = name.partition(".attn_qkv.")
        if not suffix:
            continue
        query, key = _head_rows(header)
        if tensor.shape[:1] != (query + 2 * key,):
            raise IpexAssistError(
                f"{header.path} is corrupt: {name} has shape {list(tensor.shape)}, but the metadata ask for "
                f"{query + 2 * key:,} rows. Download or convert it again."
            )
        del header.tensors[name]
        first = 0
        for part, rows in (("q", query), ("k", key), ("v", key)):
            header.tensors[f"{block}.attn_{part}.{suffix}"] = rows_of(name, tensor, first, first + rows)
            first += rows


def _head_rows(header: GgufHeader) -> tuple[int, int]:
    """Rows of the query, and of the key (as many as of the value)."""
    heads = header.required("attention.head_count")
    head_dim = header.get("{arch}.attention.key_length") or _embedding_shape(header)[1] // heads
    return heads * head_dim, header.get("{arch}.attention.head_count_kv", heads) * head_dim


def hf_shape(name: str, shape: tuple[int, ...], config: dict[str, Any]) -> tuple[int, ...]:
    """The shape that a tensor of this shape gets in `as_hugging_face`."""
    if name.endswith(".shared_expert_gate.weight") and len(shape) == 1:
        return (1, *shape)  # the converter drops dimensions of size 1
    return shape[::-1] if gguf_gpt.transposed(name, config) else shape


def as_hugging_face(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """The tensor with the values and the shape that it has in a Hugging Face checkpoint."""
    tensor = gguf_gpt.restored(name, undo_permutation(name, tensor, config), config)
    tensor = gguf_families.undo_norms(name, tensor, config)
    return tensor.reshape(hf_shape(name, tuple(tensor.shape), config)) if tensor.dim() == 1 else tensor


def undo_permutation(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Put the q and k rows of a "llama" file (or a close relative's) into Hugging Face order; others are unchanged.

    The converter interleaves the two halves of every head, (heads, 2, head_dim/2) -> (heads, head_dim/2, 2), because
    ggml rotates neighbouring pairs where Hugging Face rotates halves (LlamaModel.permute in llama.cpp's converter).
    """
    if config["model_type"] not in gguf_families.PERMUTED or not (".q_proj." in name or ".k_proj." in name):
        return tensor
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    rows = tensor.shape[0]
    return tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _family(header: GgufHeader) -> str:
    """The file's architecture; "mixtral" for Mixtral, whose files say "llama"."""
    arch = str(header.get("general.architecture"))
    return "mixtral" if arch == "llama" and header.get("{arch}.expert_count") else arch


def _embedding_shape(header: GgufHeader) -> tuple[int, int]:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise IpexAssistError(f"{header.path}: no tensor token_embd.weight; it holds a vocabulary only, or an adapter.")
    return embedding.shape[0], embedding.shape[1]


def _llama(header: GgufHeader, hidden_size: int, arch: str) -> dict[str, Any]:
    heads = header.required("attention.head_count")
    key_value_heads = header.get("{arch}.attention.head_count_kv", heads)
    if isinstance(heads, list) or isinstance(key_value_heads, list):
        raise IpexAssistError(f"{header.path}: heads that differ by layer are not supported for GGUF files.")
    config = {
        "hidden_size": hidden_size,
        "num_hidden_layers": header.required("block_count"),
        "intermediate_size": header.required("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": header.get("{arch}.attention.key_length") or hidden_size // heads,
        "max_position_embeddings": header.required("context_length"),
        "rope_theta": rounded(header.get("{arch}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(header),
        "hidden_act": "silu",
    }
    if arch in gguf_families.LAYER_NORMS or arch in gguf_gpt.CONFIGS:
        config["layer_norm_eps"] = rounded(header.required("attention.layer_norm_epsilon"))
    else:
        config["rms_norm_eps"] = rounded(header.required("attention.layer_norm_rms_epsilon"))
    _check_heads(header, heads * config["head_dim"], key_value_heads * config["head_dim"])
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return config


def _check_heads(header: GgufHeader, query_rows: int, key_rows: int) -> None:
    """Raise IpexAssistError if q or k have other sizes than the metadata say: their rows could not be reordered."""
    expected = {"attn_q": query_rows, "attn_k": key_rows}
    for name, tensor in header.tensors.items():
        rows = expected.get(name.rpartition(".")[0].rpartition(".")[2])
        if rows is not None and tensor.shape[:1] != (rows,):
            raise IpexAssistError(
                f"{header.path} is corrupt: {name} has shape {list(tensor.shape)}, but the metadata ask for {rows:,} "
                "rows. Download or convert it again."
            )


def _gpt_bigcode(header: GgufHeader, hidden_size: int) -> dict[str, Any]:
    heads = header.required("attention.head_count")
    return {
        "n_embd": hidden_size,
        "n_layer": header.required("block_count"),
        "n_inner": header.get("{arch}.feed_forward_length", 4 * hidden_size),
        "n_head": heads,
        "n_positions": header.required("context_length"),
        "layer_norm_epsilon": rounded(header.required("attention.layer_norm_epsilon")),
        "multi_query": header.get("{arch}.attention.head_count_kv", 1) == 1 and heads > 1,
        "activation_function": "gelu_pytorch_tanh",
        "scale_attn_weights": True,
        "attention_softmax_in_fp32": True,
        "scale_attention_softmax_in_fp32": True,
    }


def _rope_scaling(header: GgufHeader) -> dict[str, Any] | None:
    if ROPE_FACTORS in header.tensors:
        return _llama3_scaling(header)
    kind = header.get("{arch}.rope.scaling.type") or ("linear" if header.get("{arch}.rope.scale_linear") else "none")
    factor = header.get("{arch}.rope.scaling.factor") or header.get("{arch}.rope.scale_linear") or 1.0
    if kind == "none" or (kind == "longrope" and header.get("general.architecture") == "phi3"):
        return None  # Phi-3's factors are tensors: gguf_families.py
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = header.get("{arch}.rope.scaling.original_context_length")
        return {"rope_type": "yarn", "factor": factor} | (
            {"original_max_position_embeddings": original} if original else {}
        )
    raise IpexAssistError(
        f"{header.path}: rope scaling {kind!r} is not supported for GGUF files; none, linear, yarn and llama3 are. "
        "Pass the model's Hugging Face id or folder instead."
    )


def _llama3_scaling(header: GgufHeader) -> dict[str, Any]:
    """The four numbers from which the stored divisors were computed; Llama 3.x models differ only in `factor`.

    The divisors computed from them (Hugging Face's `_compute_llama3_parameters`) must agree with the stored ones.
    """
    tensor = header.tensors[ROPE_FACTORS]
    stored = next(read_tensors([(ROPE_FACTORS, tensor)]))[1].float().reshape(-1).tolist()
    theta = float(header.get("{arch}.rope.freq_base", 10000.0))
    low, high, original, factor = 1.0, 4.0, 8192, max(stored)
    computed = []
    for index in range(len(stored)):
        wavelength = 2 * math.pi * theta ** (index / len(stored))
        smooth = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
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

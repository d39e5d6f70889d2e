"""Translates GGUF to Hugging Face: the config, the tensor names, and the row order of q and k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints import (
    gguf_apertus,
    gguf_cohere2_moe,
    gguf_deepseek,
    gguf_deepseek4,
    gguf_experts,
    gguf_falcon_h1,
    gguf_families,
    gguf_gemma3n,
    gguf_gpt,
    gguf_granite,
    gguf_jamba,
    gguf_kimi,
    gguf_llama4,
    gguf_minimax,
    gguf_qwen4,
    gguf_recurrent,
    gguf_windows,
)
from ipex_assist.checkpoints.gguf_ends import end_token_ids
from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded, rows_of
from ipex_assist.checkpoints.gguf_rope import ROPE_FACTORS, rope_scaling
from ipex_assist.checkpoints.gguf_tables import (
    GgufTable,
    RestoredTensor,
    as_it_is,
    is_drafting_alone,
    is_further,
    read_table,
)
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

_BY_MODULES = (gguf_families, gguf_gpt, gguf_experts)
_BY_TABLES = (
    *(gguf_recurrent, gguf_deepseek, gguf_deepseek4, gguf_apertus, gguf_windows, gguf_jamba, gguf_kimi, gguf_minimax),
    *(gguf_gemma3n, gguf_granite, gguf_falcon_h1, gguf_cohere2_moe, gguf_llama4, gguf_qwen4),
)
# general.architecture -> (architectures[0], model_type, Hugging Face modules, or a table). Mistral's files say "llama".
ARCHITECTURES: dict[str, tuple[str, str, Any]] = {
    "llama": ("LlamaForCausalLM", "llama", _LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", _QWEN3),
    "starcoder": ("GPTBigCodeForCausalLM", "gpt_bigcode", _GPT_BIGCODE),
    **{name: each for module in (*_BY_MODULES, *_BY_TABLES) for name, each in module.ARCHITECTURES.items()},
}
_OF_TABLES = {name: each for module in _BY_TABLES for name, each in module.CONFIGS.items()}

SUPPORTED = {architecture for architecture, _, _ in ARCHITECTURES.values()}

_NOT_WEIGHTS = (ROPE_FACTORS, *gguf_families.ROPE_FACTORS.values())


def config_from(header: GgufHeader) -> dict[str, Any]:
    """The file's hyperparameters under the keys of a config.json; of a draft head alone, which kind it is.

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
    if is_drafting_alone(header):
        return {"model_type": model_type, "speculators_model_type": "mtp"}  # as models/heads.py knows them
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
    if arch in _OF_TABLES:
        return config | _OF_TABLES[arch](header, config)
    if arch in gguf_experts.CONFIGS:
        return config | gguf_experts.config_of(header, arch, config)
    return config | (gguf_families.CONFIGS[arch](header, config) if arch in gguf_families.CONFIGS else {})


_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}  # our names, and those after general.sampling


def generation_config_from(header: GgufHeader) -> dict[str, Any]:
    """The fields of a generation_config.json: every token that ends a generation, bos, and how tokens are sampled.

    llama.cpp always samples, and its converter keeps all but `do_sample`: a temperature above 0 stands for that.
    """
    fields = {"bos_token_id": header.get("tokenizer.ggml.bos_token_id"), "eos_token_id": sorted(end_token_ids(header))}
    said = {name: header.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    fields |= {name: value for name, value in said.items() if value is not None}
    return fields | ({"do_sample": True} if (said["temperature"] or 0) > 0 else {})


def hf_tensors(header: GgufHeader) -> dict[str, RestoredTensor]:
    """The file's tensors by Hugging Face names, in file order. Raises IpexAssistError for a damaged file."""
    family, layers = _family(header), _layer_count(header)
    names = ARCHITECTURES[family][2]
    if isinstance(names, GgufTable):
        return read_table(header, names, family, layers)
    return _by_modules(header, family, names, layers)


def _block_count(header: GgufHeader) -> int:
    """Blocks of the file. Raises IpexAssistError for more than it can have: lists of them would take all memory."""
    blocks = header.required("block_count")
    stored = header.required("nextn_predict_layers") if is_drafting_alone(header) else blocks
    if stored > len(header.tensors):  # every block has several
        raise IpexAssistError(
            f"{header.path} is corrupt: {stored:,} layers by its metadata, but {len(header.tensors):,} tensors. "
            "Download it again."
        )
    return int(blocks)


def _layer_count(header: GgufHeader) -> int:
    """Layers without those that predict further tokens."""
    blocks, further = _block_count(header), header.get("{arch}.nextn_predict_layers") or 0
    if not 0 <= further < max(blocks, 1):
        raise IpexAssistError(
            f"{header.path} is corrupt: nextn_predict_layers is {further!r} of {blocks:,} blocks. Download it again."
        )
    return blocks - int(further)


def _by_modules(header: GgufHeader, family: str, names: Any, layers: int) -> dict[str, RestoredTensor]:
    """The tensors of a family whose names the gguf package translates."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = header.get("general.architecture")
    key = next((key for key, name in MODEL_ARCH_NAMES.items() if name == arch), None)
    if key is None:
        raise IpexAssistError(f"{header.path}: the installed gguf package does not know {arch}: pip install -U gguf")
    name_map = get_tensor_name_map(key, layers)
    modules = gguf_experts.modules(header, family) | {
        # The gguf package knows BLOOM's names without "transformer.", as its first checkpoints have them.
        name_map.get_name(module) or name_map.get_name(module.removeprefix("transformer.")): module
        for name in (names(header) if callable(names) else names)
        for module in (name.format(bid=layer) for layer in (range(layers) if "{bid}" in name else range(1)))
    }
    result: dict[str, RestoredTensor] = {}
    unknown: list[str] = []
    for name, tensor in header.tensors.items():
        module, _, suffix = name.rpartition(".")
        if module in modules and suffix in ("weight", "bias"):
            result[f"{modules[module]}.{suffix}"] = RestoredTensor((tensor,))
        elif (
            name not in _NOT_WEIGHTS
            and not name.endswith("attn_rot_embd.weight")
            and not is_further(name, header, layers)
        ):
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
    if callable(names) or isinstance(names, GgufTable) or not any(name.endswith("self_attn.q_proj") for name in names):
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


def stored_shape(name: str, stored: RestoredTensor, config: dict[str, Any]) -> tuple[int, ...]:
    """The shape that a stored tensor gets in `restored`. Raises RuntimeError where its parts do not fit together."""
    if stored.restore is None:
        return hf_shape(name, stored.parts[0].shape, config)
    import torch

    return tuple(stored.restore([torch.empty(part.shape, device="meta") for part in stored.parts], config).shape)


def restored(name: str, stored: RestoredTensor, parts: list[torch.Tensor], config: dict[str, Any]) -> torch.Tensor:
    """The tensor with the values and the shape that it has in a Hugging Face checkpoint. parts: as they were read."""
    return as_hugging_face(name, parts[0], config) if stored.restore is None else stored.restore(parts, config)


def is_as_stored(name: str, stored: RestoredTensor, config: dict[str, Any]) -> bool:
    """Whether `restored` surely leaves a matrix as the file has it: an embedding, a head, what no family changes."""
    if stored.restore is not None:
        return stored.restore is as_it_is
    vocabulary = stored.parts[0].shape[0] == config.get("vocab_size")
    return vocabulary and not is_permuted(name, config) and not gguf_gpt.is_rearranged(name, config)


def keeps_rows(name: str, stored: RestoredTensor, config: dict[str, Any]) -> bool:
    """Whether `restored` surely does no more to a matrix or vector than `undo_permutation`."""
    if stored.restore is not None:
        return stored.restore is as_it_is
    return not gguf_gpt.is_rearranged(name, config) and not gguf_families.is_shifted(name, config)


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


def is_permuted(name: str, config: dict[str, Any]) -> bool:
    """Whether the rows of a tensor are in another order than Hugging Face's."""
    return config["model_type"] in gguf_families.PERMUTED and (".q_proj." in name or ".k_proj." in name)


def undo_permutation(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Put the q and k rows of a "llama" file (or a close relative's) into Hugging Face order; others are unchanged.

    The converter interleaves the two halves of every head, (heads, 2, head_dim/2) -> (heads, head_dim/2, 2), because
    ggml rotates neighbouring pairs where Hugging Face rotates halves (LlamaModel.permute in llama.cpp's converter).
    """
    if not is_permuted(name, config):
        return tensor
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    rows = tensor.shape[0]
    return tensor.reshape(heads, rows // heads // 2, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _family(header: GgufHeader) -> str:
    """The file's architecture, and for those that several families say, one for each."""
    arch = str(header.get("general.architecture"))
    if arch == "deepseek2":
        return gguf_deepseek.family_of(header)
    if arch in ("granitemoe", "granite_swa"):
        return gguf_granite.family_of(header)
    if arch == "olmo2" and header.get("{arch}.attention.sliding_window"):
        return "olmo3"
    if arch == "mamba" and header.get("{arch}.ssm.dt_b_c_rms"):
        return "falcon_mamba"
    return "mixtral" if arch == "llama" and header.get("{arch}.expert_count") else arch


def _embedding_shape(header: GgufHeader) -> tuple[int, int]:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise IpexAssistError(f"{header.path}: no tensor token_embd.weight; it holds a vocabulary only, or an adapter.")
    return embedding.shape[0], embedding.shape[1]


def _llama(header: GgufHeader, hidden_size: int, arch: str) -> dict[str, Any]:
    heads = header.required("attention.head_count")
    key_value_heads = header.get("{arch}.attention.head_count_kv", heads)
    if arch not in gguf_windows.CONFIGS:  # which say them themselves
        heads = _of_all_layers(header, "attention.head_count", heads)
        key_value_heads = _of_all_layers(header, "attention.head_count_kv", key_value_heads)
    experts_alone = header.get("{arch}.feed_forward_length") is None and header.get("{arch}.expert_feed_forward_length")
    inner = header.required("expert_feed_forward_length" if experts_alone else "feed_forward_length")
    config = {
        "hidden_size": hidden_size,
        "num_hidden_layers": _layer_count(header),
        "intermediate_size": _of_all_layers(header, "feed_forward_length", inner),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": header.get("{arch}.attention.key_length") or hidden_size // (heads or 1),
        "max_position_embeddings": header.required("context_length"),
        "rope_theta": rounded(header.get("{arch}.rope.freq_base", 10000.0)),
        "rope_scaling": rope_scaling(header),
        "hidden_act": "silu",
    }
    plain = arch == "cohere2moe" and header.get("{arch}.attention.layer_norm_rms_epsilon") is None
    if plain or arch in gguf_families.LAYER_NORMS or arch in gguf_gpt.CONFIGS:
        config["layer_norm_eps"] = rounded(header.required("attention.layer_norm_epsilon"))
    else:
        config["rms_norm_eps"] = rounded(header.required("attention.layer_norm_rms_epsilon"))
    if arch not in _OF_TABLES:  # of which some have gates, or heads in a space of their own
        _check_heads(header, heads * config["head_dim"], key_value_heads * config["head_dim"])
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return config


def _of_all_layers(header: GgufHeader, key: str, value: Any) -> Any:
    """A number of every layer that has it; IpexAssistError where layers differ. Files have 0 for those without it."""
    found = {each for each in value if each} if isinstance(value, list) else {value}
    if len(found) > 1:
        raise IpexAssistError(
            f"{header.path}: {key} differs by layer, from {min(found)} to {max(found)}, which is not supported for "
            "GGUF files. Pass the model's Hugging Face id or folder instead."
        )
    return found.pop() if found else 0


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

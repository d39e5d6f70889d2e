"""Tiny checkpoints for tests: Hugging Face models of random weights in every format, and tokenizers to go with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from gguf.quants import quantize
from safetensors.torch import save_file
from tiny_tokenizers import CHAT_TEMPLATE, TOKENS, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "TOKENS", "tiny_tokenizer"]

VOCAB_SIZE = 320  # rows of every embedding
_LLAMA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
TINY: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 32},
    "gpt_bigcode": {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_inner": 128,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "activation_function": "gelu_pytorch_tanh",
    },
    "opt": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    },
}


def tiny_model(model_type: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random fp32 model of two layers and width 64; `changes` go into its config."""
    config = AutoConfig.for_model(model_type, **(TINY[model_type] | changes))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.config.architectures = [type(model).__name__]
    with torch.no_grad():
        for parameter in model.parameters():  # also norms and biases, which are ones and zeros otherwise
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def save(model: PreTrainedModel, folder: Path, tokenizer: bool = True) -> Path:
    """Write what save_pretrained() does: config, generation config, one safetensors file, and the tokenizer."""
    model.save_pretrained(folder)
    if tokenizer:
        tiny_tokenizer().save_pretrained(folder)
    return folder


def save_pair(folder: Path, **target: Any) -> Path:
    """A Llama target with these changes of its config, and an assistant of its vocabulary, in `folder`."""
    save(tiny_model("llama", **target), folder / "target")
    save(tiny_model("llama", seed=1), folder / "assistant")
    return folder


def state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors as they are stored: contiguous, tied ones once."""
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}


def save_shards(model: PreTrainedModel, folder: Path, count: int = 3, kind: str = "safetensors") -> Path:
    """Write the same in `count` shards of kind "safetensors" or "bin" with an index; count 1 writes a single file."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    stem = "model" if kind == "safetensors" else "pytorch_model"
    tensors = state(model)
    if count == 1:
        _save_tensors(tensors, folder / f"{stem}.{kind}")
        return folder
    names = [f"{stem}-{part:05}-of-{count:05}.{kind}" for part in range(1, count + 1)]
    weight_map = {name: names[index % count] for index, name in enumerate(tensors)}
    for file in names:
        _save_tensors({name: tensors[name] for name, at in weight_map.items() if at == file}, folder / file)
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def _save_tensors(tensors: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".bin":
        torch.save(tensors, path)
    else:
        save_file(tensors, path, metadata={"format": "pt"})


_GGUF_ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt_bigcode": "starcoder"}


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    kind: gguf.GGMLQuantizationType | Callable[[str], gguf.GGMLQuantizationType] = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, float | str | bool] | None = None,
    extra: dict[str, numpy.ndarray] | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    split_max_tensors: int = 0,
    blocks_of: Callable[[numpy.ndarray, gguf.GGMLQuantizationType], numpy.ndarray] = quantize,
) -> dict[str, numpy.ndarray]:
    """Write a model as llama.cpp's converter does; matrices in `kind`, perhaps by Hugging Face's name, vectors in F32.

    metadata and extra tensors are added as given. Returns the values stored, dequantized, by Hugging Face name.
    """
    arch = _GGUF_ARCH[model.config.model_type]
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == "starcoder":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10000.0)
        head_dim = getattr(config, "head_dim", None)
        if head_dim:
            writer.add_key_length(head_dim)
            writer.add_value_length(head_dim)
    for key, value in (metadata or {}).items():
        add = {float: writer.add_float32, str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        add[type(value)](key, value)  # type: ignore[operator]
    add_tokenizer(writer, tokenizer or tiny_tokenizer())

    name_map = gguf.get_tensor_name_map(
        next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch), config.num_hidden_layers
    )
    stored = {}
    for name, tensor in state(model).items():
        values = tensor.float().numpy()
        gguf_name = name_map.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name, name
        quantized = gguf.GGMLQuantizationType.F32
        if values.ndim == 2:
            quantized = kind(name) if callable(kind) else kind
        stored[name] = gguf.dequantize(blocks_of(values, quantized), quantized)
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = permute(values, heads)
        writer.add_tensor(gguf_name, blocks_of(values, quantized), raw_dtype=quantized)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    finish(writer)
    return stored


def permute(values: numpy.ndarray, heads: int) -> numpy.ndarray:
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    rows = values.shape[0]
    return numpy.ascontiguousarray(
        values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast, rows: int = VOCAB_SIZE) -> None:
    """A byte-level tokenizer's metadata, with padding tokens up to `rows` as the converter adds them."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    special = {entry["id"] for entry in content["added_tokens"]}
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(rows)]
    kinds = [3 if index in special else 1 if index in by_id else 5 for index in range(rows)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = content["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_vocabulary(
    path: Path,
    tokens: Iterable[str],
    kinds: Iterable[int],
    scores: Iterable[float] | None = None,
    merges: Iterable[str] | None = None,
    name: str = "tiny",
    model: str = "",
    templates: Any = None,
    **metadata: Any,
) -> Path:
    """A GGUF file with a tokenizer and a one-layer model too small to run.

    name: of the model. model: the kind of tokenizer, where it follows from nothing else. metadata: keys
    of tokenizer.ggml, such as pre="smollm" or add_bos_token=True, and whole ones.
    """
    tokens = list(tokens)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    if templates is not None:
        writer.add_chat_template(templates)
    writer.add_tokenizer_model(model or ("gpt2" if scores is None else "llama"))
    writer.add_token_list(tokens)
    writer.add_token_types(list(kinds))
    if scores is not None:
        writer.add_token_scores(list(scores))
    if merges is not None:
        writer.add_token_merges(list(merges))
    add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    for key, value in metadata.items():
        add[type(value)](key if "." in key else f"tokenizer.ggml.{key}", value)  # type: ignore[operator]
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", numpy.zeros((len(tokens), 32), dtype=numpy.float32))
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_python(code: str, *arguments: str) -> str:
    """Standard output of a fresh interpreter: for what an import or an environment variable decides once."""
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout

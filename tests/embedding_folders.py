"""Folders of tiny embedding models as sentence-transformers' users publish them, with weights by a formula."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_tokenizers import tiny_tokenizer
from tokenizers import processors
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

HIDDEN = 32
TEXTS = ("The quick brown fox", "jumps over", "a", "def add(a, b):\n    return a + b\n" * 4, "naïve café, 3.14159")
QUERY = "the lazy dog"
PROMPT = "Instruct: find foxes\nQuery: "
_SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": _SMALL | {"num_key_value_heads": 2, "head_dim": 16},
    "gemma2": _SMALL | {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16},
    "opt": _SMALL | {"word_embed_proj_dim": HIDDEN, "ffn_dim": 64},
    "bert": _SMALL,
    "xlm-roberta": _SMALL | {"max_position_embeddings": 162, "pad_token_id": 1, "type_vocab_size": 1},
    "mpnet": _SMALL | {"max_position_embeddings": 162, "pad_token_id": 1},
}


def fill(model: torch.nn.Module) -> None:
    """The same numbers whatever draws random ones: sines of each element's place, of another phase in each tensor."""
    for phase, (_, parameter) in enumerate(sorted(model.named_parameters())):
        places = torch.arange(parameter.numel(), dtype=torch.float64)
        wave = torch.sin(places * 1.7 + places.square() * 0.013 + phase)
        centre = 1.0 if parameter.ndim == 1 and phase % 2 else 0.0
        scale = 0.1 if parameter.ndim == 1 else 1.5 / math.sqrt(parameter.shape[-1])
        with torch.no_grad():
            parameter.copy_((centre + scale * wave).reshape(parameter.shape))


def write_model(folder: Path, model_type: str, kind: str = "", **changes: Any) -> Path:
    """A model without a head, or of kind "ForSequenceClassification" with one label, or "ForCausalLM"."""
    auto: Any = {"": AutoModel, "ForCausalLM": AutoModelForCausalLM}.get(kind, AutoModelForSequenceClassification)
    labels = {"num_labels": 1} if kind == "ForSequenceClassification" else {}
    config = AutoConfig.for_model(model_type, **(CONFIGS[model_type] | labels | changes))
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    fill(model)
    model.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.pad_token = "<|endoftext|>"
    if model_type == "qwen3" and not kind:  # as Qwen3-Embedding's: texts end with a token
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        tokenizer.backend_tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single="$A <|im_end|>", pair="$A <|im_end|> $B <|im_end|>", special_tokens=[("<|im_end|>", end)]
                ),
            ]
        )
    if model_type in ("bert", "xlm-roberta", "mpnet"):
        first, last = (tokenizer.convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))
        second = ":1" if model_type == "bert" else ""
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            pair=f"<|im_start|> $A <|im_end|> $B{second} <|im_end|>{second}",
            special_tokens=[("<|im_start|>", first), ("<|im_end|>", last)],
        )
    if model_type == "bert":
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    return folder


def write_modules(
    folder: Path,
    pooling: str = "lasttoken",
    *,
    dense: bool = False,
    normalize: bool = True,
    include_prompt: bool = True,
    max_seq_length: int | None = None,
    old: bool = False,
    prompts: dict[str, str] | None = None,
) -> Path:
    """sentence-transformers' files beside a model. old: as versions before 5 wrote them."""
    named = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalize]
    modules = []
    for index, kind in enumerate(named):
        path = "" if not index else f"{index}_{kind}"
        (folder / path).mkdir(exist_ok=True)
        modules.append({"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"})
    switch = "pooling_mode_" + pooling + ("_tokens" if pooling not in ("lasttoken", "cls") else "")
    switch += "_token" if pooling == "cls" else ""
    config: dict[str, Any] = {"word_embedding_dimension": HIDDEN, "include_prompt": include_prompt}
    config |= {switch: True} if old else {"pooling_mode": pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    if dense:
        place = folder / "2_Dense"
        activation = "torch.nn.modules.activation.Tanh"
        place.joinpath("config.json").write_text(
            json.dumps({"in_features": HIDDEN, "out_features": 24, "bias": True, "activation_function": activation})
        )
        linear = torch.nn.Linear(HIDDEN, 24)
        fill(linear)
        save_file({f"linear.{name}": value for name, value in linear.state_dict().items()}, place / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))
    said = {"__version__": {"sentence_transformers": "5.0.0"}, "prompts": prompts or {}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    if max_seq_length is not None:
        bert = {"max_seq_length": max_seq_length, "do_lower_case": False}
        (folder / "sentence_bert_config.json").write_text(json.dumps(bert))
    return folder


# Of test_embedding_vectors.py and its recording: model_type and what write_modules is told.
EMBEDDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "last token": ("qwen3", {"prompts": {"query": PROMPT}}),
    "mean without its prompt": ("qwen3", {"pooling": "mean", "include_prompt": False, "prompts": {"query": PROMPT}}),
    "weighted mean": ("gemma2", {"pooling": "weightedmean", "normalize": False}),
    "most, old names": ("opt", {"pooling": "max", "old": True}),
    "dense": ("opt", {"pooling": "mean_sqrt_len", "old": True, "dense": True}),
    "bert": ("bert", {"pooling": "mean", "max_seq_length": 24}),
    "roberta": ("xlm-roberta", {"pooling": "cls"}),
    "mpnet": ("mpnet", {"pooling": "mean", "normalize": False}),
}
RERANKERS = {"bert": "bert", "roberta": "xlm-roberta", "decoder": "gemma2"}


def write_embedder(folder: Path, name: str) -> Path:
    """One of EMBEDDERS."""
    model_type, told = EMBEDDERS[name]
    return write_modules(write_model(folder, model_type), **told)

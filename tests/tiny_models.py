"""Tiny random models of every architecture and variant, saved by transformers as any user's checkpoint would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.interface import DraftsInOneCall, Model, Tokens
from ipex_assist.executors.load import load_model

VOCAB = 160

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_BIGCODE: dict[str, Any] = {
    "model_type": "gpt_bigcode",
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, "factor": 4.0, **numbers}, "rope_theta": 10000.0}


# Each variant is one thing a config can say that changes the mathematics.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama-mha": _LLAMA | {"num_key_value_heads": 4},
    "llama-mqa": _LLAMA | {"num_key_value_heads": 1},
    "llama-biases": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama-tied": _LLAMA | {"tie_word_embeddings": True},
    "llama-head-dim": _LLAMA | {"head_dim": 32},
    "llama-odd-sizes": _LLAMA | {"hidden_size": 60, "intermediate_size": 77, "num_attention_heads": 6, "head_dim": 10},
    "llama-linear": _LLAMA | _rope("linear"),
    "llama-dynamic": _LLAMA | _rope("dynamic") | {"max_position_embeddings": 24},
    "llama-yarn": _LLAMA | _rope("yarn", original_max_position_embeddings=32),
    "llama-llama3": _LLAMA
    | _rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    "mistral": _LLAMA | {"model_type": "mistral", "sliding_window": None},
    "mistral-window": _LLAMA | {"model_type": "mistral", "sliding_window": 8},
    "qwen2": _LLAMA | {"model_type": "qwen2"},
    "qwen2-tied": _LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": _LLAMA
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": _LLAMA | {"model_type": "qwen3", "head_dim": 32},
    "qwen3-biases": _LLAMA | {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "opt": _OPT,
    "opt-350m": _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "opt-no-biases": _OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False},
    "opt-untied": _OPT | {"tie_word_embeddings": False},
    "gpt-bigcode": _BIGCODE,
    "gpt-bigcode-mha": _BIGCODE | {"multi_query": False},
    "gpt-bigcode-unscaled": _BIGCODE | {"scale_attn_weights": False},
}


def save(folder: Path, variant: str, seed: int = 0, **changes: Any) -> Any:
    """Write a random model of `variant` into `folder`; returns transformers' own model of it (fp32, eager)."""
    fields = dict(VARIANTS[variant]) | changes
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    # transformers 4.55 cannot initialise norms without weights; its initial values are replaced below anyway.
    with mock.patch("transformers.models.opt.modeling_opt.OPTPreTrainedModel._init_weights"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # transformers starts biases at zero and norms at one, which would hide a bias or norm that is left out.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embed" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    return model


def model(
    folder: Path,
    executor: str = "torch",
    precision: str = "fp32",
    exact: bool = True,
    kv_precision: str | None = None,
) -> Model:
    """The saved model on one of our executors."""
    return load_model(open_checkpoint(str(folder)), precision, executor, exact=exact, kv_precision=kv_precision)


class Text:
    """A model with one sequence, for tests that follow a single text."""

    def __init__(self, model: Model, capacity: int = 96) -> None:
        self.model, self.sequence = model, model.new_sequence(capacity)

    @property
    def length(self) -> int:
        return self.sequence.length

    def truncate(self, length: int) -> None:
        self.sequence.truncate(length)

    def forward(self, tokens: Tokens, last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        return self.model.extend(self.sequence, tokens, last, vocabulary)

    def draft(self, tokens: Tokens, count: int, **options: Any) -> tuple[list[int], list[float]]:
        assert isinstance(self.model, DraftsInOneCall)
        return self.model.draft(self.sequence, tokens, count, **options)


def text(folder: Path, executor: str = "torch", precision: str = "fp32", tokens: int = 96, exact: bool = True) -> Text:
    """A text of at most `tokens` tokens on the saved model."""
    return Text(model(folder, executor, precision, exact), tokens)

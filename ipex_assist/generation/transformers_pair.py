"""Prepares a target and an assistant for transformers' generate: configs, draft settings and vocabularies."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.config_sizes import auto_config, number_in, vocabulary_rows
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.speculative.schedule import CONSTANT_TOKENS, HEURISTIC_TOKENS
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.tokenization.vocabulary import SharedVocabulary, share_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


def context_length(config: Mapping[str, Any]) -> int | None:
    """The most tokens of a sequence, by config.json or its `text_config` (multimodal models)."""
    return number_in(config, *CONTEXT_KEYS)


def reset_generation_config(model: PreTrainedModel, eos: frozenset[int]) -> None:
    """Replace the checkpoint's generation settings by defaults; only the ids of special tokens are kept.

    A sampling option, a penalty or beams in generation_config.json (or in config.json, where older ones have them)
    would change or break results here, but not on our own executors. The KV cache is on, whatever the config says.
    """
    from transformers import GenerationConfig

    own = model.generation_config
    ends = sorted(eos)
    pad = own.pad_token_id if own.pad_token_id is not None else ends[0] if ends else 0
    for part in (model.config, model.config.get_text_config()):
        read = getattr(part, "_get_generation_parameters", None) or part._get_non_default_generation_parameters
        for name in read():
            setattr(part, name, None)
        if getattr(part, "use_cache", None) is False:
            part.use_cache = True
    model.generation_config = GenerationConfig(
        eos_token_id=ends or None, bos_token_id=own.bos_token_id, pad_token_id=pad, use_cache=True
    )


@dataclass(frozen=True)
class TransformersDrafting:
    """transformers' draft settings: number of tokens, the schedule that changes it, and the confidence threshold."""

    tokens: int | None
    schedule: str | None
    confidence: float | None

    @classmethod
    def of(cls, assistant: PreTrainedModel) -> TransformersDrafting:
        """transformers' defaults for this assistant, which adapt by a confidence threshold."""
        config = assistant.generation_config
        return cls(
            config.num_assistant_tokens, config.num_assistant_tokens_schedule, config.assistant_confidence_threshold
        )

    def told(self, options: DraftOptions) -> TransformersDrafting:
        """The settings of one generation. A constant number of tokens is drafted whatever their confidence."""
        if options.kind == "adaptive":
            return dataclasses.replace(self, tokens=options.num_assistant_tokens or self.tokens)
        usual = CONSTANT_TOKENS if options.kind == "constant" else HEURISTIC_TOKENS
        return TransformersDrafting(options.num_assistant_tokens or usual, options.kind, 0.0)

    def set(self, assistant: PreTrainedModel) -> None:
        """Write the settings into the assistant's generation config, where transformers reads them."""
        config = assistant.generation_config
        config.num_assistant_tokens = self.tokens
        config.num_assistant_tokens_schedule = self.schedule
        config.assistant_confidence_threshold = self.confidence


@dataclass(frozen=True)
class TransformersPair:
    """Two models that transformers can run together, and the mapping between their vocabularies.

    rows: rows of the target's and of the assistant's embedding. stand_in: the id that the assistant reads for tokens
    that it does not have. tokenizers: the target's and the assistant's, where they only have text in common
    (transformers' universal assisted decoding).
    """

    rows: tuple[int, int]
    shared: SharedVocabulary = field(default_factory=SharedVocabulary)
    stand_in: int = 0
    tokenizers: tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None = None

    @classmethod
    def of(
        cls, target: Checkpoint, tokenizer: PreTrainedTokenizerBase, assistant: Checkpoint, universal: bool
    ) -> TransformersPair:
        """Compare the two before any weights are loaded. Raises UsageError where they cannot work together."""
        for checkpoint in (target, assistant):
            if _is_stateful(checkpoint):
                raise UsageError(
                    f"{checkpoint.source} is a {checkpoint.architecture}, whose state cannot be taken back when "
                    "drafted tokens are rejected, so that it cannot take part in assisted generation: go without by "
                    "--no-assisted"
                )
        other = load_tokenizer(assistant)
        rows = vocabulary_rows(target, tokenizer), vocabulary_rows(assistant, other)
        try:
            shared = share_vocabulary(tokenizer, other, *rows)
        except UsageError:
            if not universal:
                raise
            if rows[0] == rows[1]:
                raise UsageError(
                    f"--universal: transformers takes {assistant.source} for a model of the target's vocabulary, since "
                    f"both have {rows[0]:,} rows: name another --assistant-model"
                ) from None
            log.warning("%s has another vocabulary: its drafts are re-encoded, as text", assistant.source)
            return cls(rows, tokenizers=(tokenizer, other))
        special = other.unk_token_id, other.pad_token_id, other.eos_token_id
        stand_in = next((id_ for id_ in special if id_ is not None and id_ < rows[1]), 0)
        return cls(rows, shared, stand_in)

    def fit(self, assistant: PreTrainedModel) -> dict[str, Any]:
        """Make the assistant look like a model of the target's vocabulary; returns further arguments for `generate`.

        The assistant never drafts ids that the target lacks. transformers feeds it the target's ids, so it reads a
        stand-in for those that it lacks itself.
        """
        if self.tokenizers is not None:
            return {"tokenizer": self.tokenizers[0], "assistant_tokenizer": self.tokenizers[1]}
        target_rows, own_rows = self.rows
        if target_rows == own_rows and self.shared == SharedVocabulary():
            return {}
        unread = sorted({*self.shared.unknown, *range(own_rows, target_rows)})
        readable = torch.arange(max(self.rows))
        readable[unread] = self.stand_in
        masked = sorted({*self.shared.masked, *range(min(self.shared.limit or own_rows, own_rows), target_rows)})

        def read(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (readable[args[0]], *args[1:])

        def write(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            missing = max(0, target_rows - output.shape[-1])
            logits = torch.nn.functional.pad(output, (0, missing))[..., :target_rows].clone()
            logits[..., masked] = torch.finfo(logits.dtype).min
            return logits

        assistant.get_input_embeddings().register_forward_pre_hook(read)
        assistant.get_output_embeddings().register_forward_hook(write)
        assistant.config.get_text_config().vocab_size = target_rows
        return {}


def _is_stateful(checkpoint: Checkpoint) -> bool:
    """Whether the model keeps a recurrent state, which cannot be rolled back (mamba, rwkv and their hybrids)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = auto_config(checkpoint)
    if config is None or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return False
    marked = getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], "_is_stateful", False)
    return bool(marked) or config.model_type == "recurrent_gemma"  # which transformers 4 does not mark

"""Loads an embedding model or a reranker: on an executor of ours where it is a decoder, by transformers otherwise."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.embedding.decoder import DecoderEmbedder
from ipex_assist.embedding.facts import PAIR, YES_NO_PROMPT, EmbeddingFacts
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.embedding.recipe import Recipe, recipe_of
from ipex_assist.embedding.steps import Chain, Finisher, Floats, VectorLinear, YesOrNo, chain_of
from ipex_assist.embedding.task import EMBED, RERANK, SCORED, YES_NO, as_decoder, module_types
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.select_executor import library_executor, resolve_executor, stored_precision
from ipex_assist.generation.config_sizes import number_in
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.result import Identity
from ipex_assist.quantization.precision import kv_precision_of
from ipex_assist.tokenization.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")

UNLIMITED = 1 << 24  # tokenizers without a limit have a number far above this
# Relatives of RoBERTa number positions from the padding's id + 1 on.
_SHIFTED = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer", "roberta-prelayernorm")


def load_embedder(
    options: LoadOptions, task: str, checkpoints: OpenCheckpoints | None = None, *, matryoshka: bool = False
) -> EmbeddingModel:
    """Load the target of `options`. task: EMBED or RERANK. matryoshka: vectors may be cut, whatever its files say.

    Raises UsageError for a model that cannot do this, IpexAssistError where it cannot be loaded.
    """
    if options.target is None:
        raise UsageError("which model? Give a hub id, a folder or a .gguf file by -m")
    opened = OpenCheckpoints() if checkpoints is None else checkpoints
    checkpoint = opened.open(options.target, revision=options.revision, offline=options.offline)
    decoder = as_decoder(checkpoint)
    if any("AutoModel" in str(name) for name in checkpoint.config.get("auto_map") or ()):
        log.warning(
            "%s has code of its own for its model, which is not run: if results are not those of its card, it needs it",
            short_name(checkpoint.source),
        )
    tokenizer = load_tokenizer(checkpoint)
    recipe = recipe_of(checkpoint.path, checkpoint.config, decoder=decoder is not None, source=checkpoint.source)
    if matryoshka:
        recipe = replace(recipe, shortened=True)
    if task == EMBED and not recipe.said:
        how = "its last token's state, at length 1" if decoder is not None else "the mean of its tokens' states"
        log.warning("%s does not say what a text's vector is: %s", short_name(checkpoint.source), how)
    if decoder is not None:
        return _decoder(options, task, checkpoint, decoder, tokenizer, recipe)
    return _encoder(options, task, checkpoint, tokenizer, recipe)


def _decoder(
    options: LoadOptions,
    task: str,
    checkpoint: Checkpoint,
    decoder: Checkpoint,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
) -> EmbeddingModel:
    spec = decoder.decoder_spec()
    finish: Finisher
    if task == RERANK:
        finish, size, recipe = _score(checkpoint), 1, replace(recipe, poolings=("lasttoken",), include_prompt=True)
    else:
        finish, size = chain_of(recipe.steps, len(recipe.poolings) * spec.hidden_size)
    executor = resolve_executor(options.executor, options.precision)
    precision = options.precision or stored_precision(checkpoint, executor) or "bf16"
    request = LoadRequest(
        decoder,
        precision,
        executor,
        cache_packed=options.cache_packed,
        kv_memory=KvMemory(options.kv_memory, options.kv_share),
        kv_precision=options.kv_precision,
    )
    model = load_model(request)
    kv_precision = kv_precision_of(precision, options.kv_precision)
    identity = Identity(checkpoint.source, None, precision, None, executor, kv_precision)
    limit = _least(spec.context_length, recipe.max_tokens)
    facts = _facts(task, size, limit, recipe, _pair_form(checkpoint) if task == RERANK else PAIR)
    return DecoderEmbedder(model, tokenizer, identity, facts, recipe.poolings, finish)


def _encoder(
    options: LoadOptions, task: str, checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase, recipe: Recipe
) -> EmbeddingModel:
    import torch

    from ipex_assist.embedding.encoder import EncoderEmbedder, load_encoder, sees_ahead

    precision = options.precision or "fp32"
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}.get(precision)
    if dtype is None:
        raise UsageError(
            f"{checkpoint.architecture} runs through transformers, which has no {precision} here: use bf16 or fp32"
        )
    if checkpoint.path.is_file():
        raise UsageError(f"{checkpoint.source}: of GGUF files only decoders give vectors; give the model's folder")
    if task == RERANK and not checkpoint.architecture.endswith(SCORED):
        raise UsageError(_no_reranker(checkpoint))
    model = load_encoder(checkpoint, dtype, scores=task == RERANK)
    if _both_sides(checkpoint) and not sees_ahead(model):
        raise UsageError(
            f"{checkpoint.source} attends to tokens on both sides, by its config.json, which this version of "
            "transformers does not compute: install a newer one"
        )
    finish: Finisher
    poolings: tuple[str, ...] | None = recipe.poolings
    if task == RERANK:
        _one_label(checkpoint)
        poolings, size = None, 1
        finish = VectorLinear(np.eye(1, dtype=np.float32), None, _activation(checkpoint))
    else:
        finish, size = chain_of(recipe.steps, len(recipe.poolings) * int(model.config.hidden_size))
    identity = Identity(checkpoint.source, None, precision, None, f"transformers+{library_executor()}")
    limit = _least(_positions(checkpoint, tokenizer), recipe.max_tokens)
    return EncoderEmbedder(model, tokenizer, identity, _facts(task, size, limit, recipe, PAIR), poolings, finish)


def _facts(task: str, size: int, limit: int | None, recipe: Recipe, pair_form: str) -> EmbeddingFacts:
    return EmbeddingFacts(
        task=task,
        size=size,
        max_tokens=limit,
        prompts=dict(recipe.prompts or {}),
        default_prompt=recipe.default_prompt,
        skips_prompt=not recipe.include_prompt,
        shortened=recipe.shortened,
        lengths=recipe.lengths,
        lower_case=recipe.lower_case,
        pair_form=pair_form,
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _positions(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Tokens that an encoder has positions for."""
    config = checkpoint.config
    positions = number_in(config, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
    if positions is not None and config.get("model_type") in _SHIFTED:
        positions -= int(config.get("pad_token_id") or 0) + 1
    own = tokenizer.model_max_length
    return _least(positions, own if own < UNLIMITED else None)


def _both_sides(checkpoint: Checkpoint) -> bool:
    """Whether a decoder's layers are used as an encoder's: older versions of transformers do not know these fields."""
    config = checkpoint.config
    return config.get("is_causal") is False or config.get("use_bidirectional_attention") is True


# ---- rerankers


def _no_reranker(checkpoint: Checkpoint) -> str:
    return (
        f"{checkpoint.source} ({checkpoint.architecture}) is no reranker that is known here: there are models with one "
        "label (…ForSequenceClassification) and Qwen3-Reranker. For vectors type --task embed"
    )


def _pair_form(checkpoint: Checkpoint) -> str:
    return YES_NO_PROMPT if checkpoint.config.get("model_type") in YES_NO else PAIR


def _score(checkpoint: Checkpoint) -> Finisher:
    """What scores the last token's state of a decoder: its head of one label, or yes against no."""
    if checkpoint.architecture.endswith(SCORED):
        _one_label(checkpoint)
        [(_, weight)] = checkpoint.tensors(["score.weight"])
        return Chain((VectorLinear(weight.float().numpy(), None, _activation(checkpoint)),))
    if checkpoint.config.get("model_type") not in YES_NO or checkpoint.path.is_file():
        raise UsageError(_no_reranker(checkpoint))
    return YesOrNo(_yes_and_no(checkpoint))


def _yes_and_no(checkpoint: Checkpoint) -> Floats:
    """The rows of "yes" and "no" in lm_head, or in the embedding where that is shared."""
    tokenizer = load_tokenizer(checkpoint)
    numbers: list[Any] = [tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    if "LogitScore" in module_types(checkpoint.path):
        numbers = _logit_score(checkpoint)
    if any(not isinstance(number, int) or number == tokenizer.unk_token_id for number in numbers):
        raise UsageError(f"{checkpoint.source} has no tokens yes and no, by which a reranker scores")
    names = set(checkpoint.names())
    candidates = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
    name = next((each for each in candidates if each in names), None)
    if name is None:
        raise IpexAssistError(f"{checkpoint.source} has neither lm_head nor an embedding. Download it again.")
    [(_, weight)] = checkpoint.tensors([name])
    if not all(0 <= number < len(weight) for number in numbers):
        raise IpexAssistError(f"{checkpoint.source} scores by the tokens {numbers}, and has {len(weight)}")
    return weight[numbers].float().numpy().copy()


def _logit_score(checkpoint: Checkpoint) -> list[Any]:
    from ipex_assist.embedding.task import modules, small_json

    place = next(each for each in modules(checkpoint.path) if str(each.get("type", "")).endswith("LogitScore"))
    config = small_json(checkpoint.path / str(place.get("path", "")) / "config.json")
    return [config.get("true_token_id"), config.get("false_token_id")]


def _one_label(checkpoint: Checkpoint) -> None:
    labels = checkpoint.config.get("num_labels") or len(checkpoint.config.get("id2label") or {0: "", 1: ""})
    if labels != 1:
        raise UsageError(f"{checkpoint.source} has {labels} labels, and a reranker one: it says no relevance")


def _activation(checkpoint: Checkpoint) -> str:
    """What sentence-transformers' CrossEncoder makes of a logit: a probability, unless the config says otherwise."""
    own = checkpoint.config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or checkpoint.config.get("sbert_ce_default_activation_function")
    if named is None:
        return "Sigmoid"
    name = str(named).rpartition(".")[2]
    if name not in ("Sigmoid", "Identity"):
        raise UsageError(f"{checkpoint.source} has the activation {named}; there are Sigmoid and Identity")
    return name

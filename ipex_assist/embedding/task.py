"""What a checkpoint is for: text, embeddings, or the relevance of documents. Never imports torch."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints.base import Checkpoint, read_json
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import ARCHITECTURES, find

AUTO, GENERATE, EMBED, RERANK = "auto", "generate", "embed", "rerank"
TASKS = (AUTO, GENERATE, EMBED, RERANK)
SCORED = "ForSequenceClassification"
# Decoders whose relevance is that of "yes" against "no" as the next token, if their names say that they rerank.
YES_NO = ("qwen3",)
_RERANKER = re.compile(r"rerank", re.IGNORECASE)


def task_of(checkpoint: Checkpoint, asked: str = AUTO) -> str:
    """GENERATE, EMBED or RERANK: what was asked for, or what the checkpoint's files say.

    sentence-transformers' modules.json makes it an embedder, or a reranker where its last module scores; a head of
    labels makes it a reranker; so does the name of a decoder of YES_NO. A model without any head is an embedder.
    """
    if asked != AUTO:
        return asked
    architecture, types = checkpoint.architecture, module_types(checkpoint.path)
    if architecture.endswith(SCORED) or "LogitScore" in types:
        return RERANK
    if types:
        return EMBED
    if checkpoint.config.get("model_type") in YES_NO and _RERANKER.search(Path(checkpoint.source).name):
        return RERANK
    bare = architecture.endswith("Model") and "LMHead" not in architecture and find(architecture) is None
    return EMBED if bare else GENERATE


def module_types(folder: Path) -> list[str]:
    """The classes of a folder's modules.json, in order; empty where it has none."""
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules(folder)]


def modules(folder: Path) -> list[dict[str, Any]]:
    """The entries of sentence-transformers' modules.json. Raises IpexAssistError where the file is none."""
    import json

    path = folder / "modules.json"
    if not folder.is_dir() or not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise IpexAssistError(f"{path} is no valid JSON ({error}). Download it again.") from None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise IpexAssistError(f"{path} holds no list of objects. Download it again.")
    return found


def small_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model's folder; empty where there is no such file."""
    return (read_json(path) or {}) if path.is_file() else {}


def as_decoder(checkpoint: Checkpoint) -> Checkpoint | None:
    """The checkpoint as a decoder that our executors run for its hidden states; None where transformers must.

    Whatever head it has is left out: one without any loads, and the vocabulary's takes no memory of its own.
    """
    config = checkpoint.config
    if config.get("is_causal") is False or config.get("use_bidirectional_attention") not in (None, False):
        return None
    architecture = find(checkpoint.architecture)
    if architecture is None and checkpoint.architecture.endswith(("Model", SCORED)):
        model_type = config.get("model_type")
        architecture = next((each for each in ARCHITECTURES.values() if each.model_type == model_type), None)
    if architecture is None:
        return None
    decoder = copy.copy(checkpoint)
    decoder.config = {**config, "architectures": [architecture.name]}
    if checkpoint.path.is_dir():  # of GGUF files each tensor has to be of use
        decoder.config["tie_word_embeddings"], decoder.own_head = True, False  # no head is needed
    if decoder.why_not_ours():
        return None
    spec = decoder.decoder_spec()
    if spec.embedding_size not in (None, 0, spec.hidden_size):  # the hidden states that count are projected
        return None
    return decoder

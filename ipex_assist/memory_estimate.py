"""How much memory a model will take, before it is loaded: from headers, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ipex_assist import gguf_file, hub
from ipex_assist.assistants import canonical_id
from ipex_assist.checkpoint import FolderCheckpoint
from ipex_assist.env.errors import IpexAssistError

# Bytes per weight of a linear layer: int8 has an fp32 scale per output row (counted as nothing), int4 one bf16 scale
# and one bf16 zero point per group of 128. Embeddings and norms are not quantised.
LINEAR_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 128}


def estimate_bytes(source: str, precision: str, *, revision: str | None = None, offline: bool = False) -> int | None:
    """Bytes of the packed weights of `source` at `precision` ("fp32", "bf16", "int8", "int4").

    A folder, a GGUF file or a complete copy in the hub cache takes 1 to 30 ms; else the hub is asked once, unless
    offline. None where the size cannot be had: what is wrong with a checkpoint, `open_checkpoint` will say.
    """
    source = canonical_id(source)
    local = Path(source).expanduser()
    on_hub = not local.exists() and hub.is_hub_id(source)
    path = (hub.cached_snapshot(source, revision) or local) if on_hub else local
    try:
        if path.is_file():
            tensors = gguf_file.read_header(path).tensors
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            return packed_bytes(shapes, precision, "output.weight" not in tensors)
        if path.is_dir():
            return _folder_bytes(FolderCheckpoint(source, path), precision)
    except (IpexAssistError, OSError):
        pass  # a copy in the cache that a download has yet to complete, or a checkpoint that will not open
    if not on_hub or offline or hub.offline_by_environment():
        return None
    parameters = hub.parameters_on_hub(source, revision)
    return None if parameters is None else math.ceil(parameters * LINEAR_BYTES[precision])


def packed_bytes(shapes: Mapping[str, tuple[int, ...]], precision: str, tied_head: bool = False) -> int:
    """Bytes of tensors of these shapes once packed.

    Matrices that are no embeddings are packed at `precision`, the rest stays as it is; the head of a model that ties it
    to the embedding is packed beside it.
    """
    plain = 4 if precision == "fp32" else 2
    total = 0.0
    for name, shape in shapes.items():
        elements = math.prod(shape)
        embedding = any(word in name for word in ("embed_tokens", "token_embd", "wte"))
        table = embedding or any(word in name for word in ("embed_positions", "position_embd", "wpe"))
        total += elements * (LINEAR_BYTES[precision] if len(shape) == 2 and not table else plain)
        total += elements * LINEAR_BYTES[precision] if embedding and tied_head else 0
    return math.ceil(total)


def _folder_bytes(checkpoint: FolderCheckpoint, precision: str) -> int:
    config = checkpoint.config
    tied = bool(config.get("tie_word_embeddings", config.get("model_type") in ("opt", "gpt_bigcode")))
    if checkpoint.files[0].suffix == ".safetensors":
        shapes = checkpoint.shapes()
        return packed_bytes(shapes, precision, tied and "lm_head.weight" not in shapes)
    # The headers of .bin files need torch: file sizes, and the embedding's shape by the config, will do.
    width = config.get("word_embed_proj_dim") or config.get("hidden_size") or config.get("n_embd") or 0
    embedding = (config.get("vocab_size") or 0, width)
    linears = (checkpoint.num_parameters - math.prod(embedding), 1)
    return packed_bytes({"embed_tokens": embedding, "linears": linears}, precision, tied)

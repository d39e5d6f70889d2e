"""Estimates how much memory a model will take before it is loaded, by file headers, without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from ipex_assist.checkpoints import hub
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.gguf_file import stored_bytes
from ipex_assist.checkpoints.hub import canonical_id
from ipex_assist.checkpoints.mxfp4 import Mxfp4Checkpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.config import Config
from ipex_assist.quantization.precision import (
    BLOCK_FORMAT,
    BLOCK_TYPES,
    LINEAR_BYTES,
    beside_experts,
    float_head_precision,
)


def estimate_bytes(
    source: str,
    precision: str | None,
    *,
    revision: str | None = None,
    offline: bool = False,
    checkpoints: OpenCheckpoints | None = None,
) -> int | None:
    """Bytes of the packed weights of `source` at `precision` ("fp32", "bf16", "int8", …).

    precision None: as stored where the checkpoint is quantized, else bf16.

    For a folder, a GGUF file or a complete copy in the hub cache this takes 1 to 30 ms; otherwise the hub is asked
    once, unless offline. None where the size is not known; `open_checkpoint` will report a faulty checkpoint.
    checkpoints: those that are open already, to which one opened here is added.
    """
    source = canonical_id(source)
    checkpoints = OpenCheckpoints() if checkpoints is None else checkpoints
    try:
        return _stored_bytes(checkpoints.open(source, revision=revision, offline=True), precision)
    except (IpexAssistError, OSError):
        pass  # a copy in the cache that a download has yet to complete, or a checkpoint that will not open
    on_hub = hub.is_hub_id(source) and not os.path.exists(os.path.expanduser(source))
    if not on_hub or offline or hub.offline_by_environment():
        return None
    if precision is None:
        stored = hub.quantized_bytes_on_hub(source, revision)
        if stored is not None:
            return stored
    parameters = hub.parameters_on_hub(source, revision)
    return None if parameters is None else math.ceil(parameters * LINEAR_BYTES[precision or "bf16"])


def packed_bytes(shapes: Mapping[str, tuple[int, ...]], precision: str, tied_head: bool = False) -> int:
    """Bytes of tensors of these shapes after packing.

    Matrices other than embeddings are packed at `precision`, the rest in floats. A head that is tied to the embedding
    is packed as well, so that it counts beside the embedding.
    """
    plain, beside = 4 if precision == "fp32" else 2, LINEAR_BYTES[beside_experts(precision)]
    total = 0.0
    for name, shape in shapes.items():
        elements = math.prod(shape)
        per_layer = any(word in name for word in ("embed_tokens_per_layer", "per_layer_token_embd"))
        embedding = not per_layer and any(word in name for word in ("embed_tokens", "token_embd", "wte"))
        table = embedding or per_layer or any(word in name for word in ("embed_positions", "position_embd", "wpe"))
        linear = LINEAR_BYTES[precision] if any(word in name for word in ("experts.", "_exps.")) else beside
        total += elements * (linear if len(shape) > 1 and not table else plain)
        total += elements * beside if embedding and tied_head else 0
    return math.ceil(total)


def _stored_bytes(checkpoint: Checkpoint, precision: str | None) -> int:
    if isinstance(checkpoint, GgufCheckpoint):
        tensors = checkpoint.header.tensors
        if precision in (None, "stored") and checkpoint.stored_precision:
            return sum(
                stored_bytes(name, each) if each.type in BLOCK_TYPES else 2 * math.prod(each.shape)
                for name, each in tensors.items()
            )
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        return packed_bytes(shapes, precision or "bf16", "output.weight" not in tensors)
    config = Config(checkpoint.config)
    tied = config.flag("tie_word_embeddings", checkpoint.config.get("model_type") in ("opt", "gpt_bigcode"))
    in_bin = checkpoint.weight_files()[0].suffix != ".safetensors"
    if isinstance(checkpoint, QuantizedCheckpoint):
        if in_bin and precision in (None, "int4"):
            return sum(file.stat().st_size for file in checkpoint.weight_files())
        if not in_bin and (stored := checkpoint.stored_precision) is not None and precision in (None, stored):
            return _quantized_bytes(checkpoint, tied)
    if isinstance(checkpoint, Mxfp4Checkpoint) and precision in (None, "mxfp4"):
        return sum(file.stat().st_size for file in checkpoint.weight_files())
    precision = precision or "bf16"
    if not in_bin:
        shapes = _text_shapes(checkpoint)
        return packed_bytes(shapes, precision, tied and not any("lm_head." in name for name in shapes))
    # Reading headers of .bin files needs torch; file sizes and the config's embedding shape are good enough.
    width = config.integer("word_embed_proj_dim", config.integer("hidden_size", config.integer("n_embd", 0)))
    embedding = (config.integer("vocab_size", 0), width)
    linears = (checkpoint.num_parameters - math.prod(embedding), 1)
    return packed_bytes({"embed_tokens": embedding, "linears": linears}, precision, tied)


def _text_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that a text model is made of: all, but for the vision part of one that has it."""
    shapes = checkpoint.shapes()
    if not isinstance(checkpoint.config.get("text_config"), dict):
        return shapes
    return {name: shape for name, shape in shapes.items() if "language_model." in name or name.startswith("lm_head.")}


def _quantized_bytes(checkpoint: QuantizedCheckpoint, tied_head: bool) -> int:
    """Bytes in the native core of a checkpoint whose linears are kept as they are stored; its head may be in floats."""
    in_blocks = checkpoint.stored_precision == "stored"
    head_bytes = 2 if in_blocks else LINEAR_BYTES[float_head_precision(checkpoint.stored_precision)]
    shapes = checkpoint.shapes()
    floats = {name: shape for name, shape in shapes.items() if name not in checkpoint.modules}
    stored = checkpoint.stored_precision or "bf16"
    total = 0.0
    for name, module in checkpoint.modules.items():
        each = 0.5 + 4 / checkpoint.core_group() if stored == "int4" else LINEAR_BYTES[stored]
        if (number := checkpoint.block_number(name) if stored == "stored" else None) is not None:
            each = BLOCK_TYPES[number - BLOCK_FORMAT]
        total += module.columns * module.width * each
    for name, shape in floats.items():
        total += math.prod(shape) * (head_bytes if name == "lm_head.weight" else 2)
        if tied_head and "lm_head.weight" not in shapes and any(word in name for word in ("embed_tokens", "wte")):
            total += math.prod(shape) * head_bytes
    return math.ceil(total)

"""A GGUF file's tensors by format, and in what the native core computes them. Reads headers only, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.gguf_file import GgufTensor, stored_bytes
from ipex_assist.models import find
from ipex_assist.models.weights import stored_form, weight_shape
from ipex_assist.native.sizes import weight_formats


@dataclass
class TensorFormat:
    """Tensors of one type. computed: "as stored", or the precision that they get. weights: how many numbers."""

    format: str
    computed: str
    tensors: int = 0
    bytes: int = 0
    weights: int = 0


def tensor_formats(checkpoint: GgufCheckpoint) -> list[TensorFormat]:
    """The formats of a file's tensors, those of most bytes first.

    Raises NotComputed for a model that is none of ours, IpexAssistError for a file that is damaged or no core.
    """
    from gguf import GGMLQuantizationType

    spec, architecture = checkpoint.decoder_spec(), find(checkpoint.architecture)
    assert architecture is not None, checkpoint.architecture
    sources = stored_form(architecture.weights(spec), checkpoint.names())
    wanted = checkpoint.block_formats(spec, sources)
    chosen = weight_formats(spec, wanted)
    seen: dict[tuple[str, int], tuple[GgufTensor, str]] = {}
    for ours, source in sources.items():
        kept = ours in wanted and chosen[ours] == wanted[ours]
        matrix = len(weight_shape(spec, ours)) == 2 and not ours.endswith((".router.weight", ".shared_gate.weight"))
        computed = "as stored" if kept else "bf16" if matrix else "fp32"
        for part in checkpoint.parts_of(source):
            seen.setdefault((str(part.path), part.offset), (part, computed))
    found: dict[tuple[int, str], TensorFormat] = {}
    for part, computed in seen.values():
        name = GGMLQuantizationType(part.type).name
        entry = found.setdefault((part.type, computed), TensorFormat(name, computed))
        entry.tensors += 1
        entry.bytes += stored_bytes(name, part)
        entry.weights += math.prod(part.shape)
    return sorted(found.values(), key=lambda each: -each.bytes)

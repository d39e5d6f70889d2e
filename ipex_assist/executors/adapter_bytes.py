"""How many bytes a LoRA adapter takes beside its model, by the headers of its file. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from ipex_assist.checkpoints.lora_folder import lora_shapes
from ipex_assist.executors.adapters import places_of
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.models.weights import weight_shape
from ipex_assist.quantization.precision import FORMATS

_LANES = 16  # kernels.h: LANES
_PART = 64  # adapter.cpp: where the next module's matrices begin


def adapter_bytes(asked: LoadRequest, folders: Iterable[str]) -> int:
    """Bytes of the matrices of these adapters, of the model that `asked` would load.

    Modules that the model does not have count for nothing: loading refuses the adapter. Raises IpexAssistError for a
    folder that holds no adapter.
    """
    places = places_of(asked.sources)
    return sum(
        _part_bytes(asked, ours, rank)
        for folder in folders
        for module, rank in lora_shapes(folder)
        for ours in places.get(module, ())
    )


def _part_bytes(asked: LoadRequest, ours: str, rank: int) -> int:
    columns, width = weight_shape(asked.spec, ours)
    if asked.executor != "native":  # fp32, and B again times its scale
        return 4 * rank * (width + 2 * columns)
    linear = FORMATS[asked.precision]
    depth = _round_up(width, linear.depth)
    low, out = _round_up(rank, _LANES), _round_up(columns, _LANES)
    element = linear.row_bytes  # of an adapter's matrices
    scales = 4 * (low + out) if element == 1 else 0
    return _round_up(element * (low * depth + rank * out) + scales, _PART)


def _round_up(count: int, step: int) -> int:
    return -(-count // step) * step

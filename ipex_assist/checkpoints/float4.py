"""NVFP4 and MXFP4, as compressed-tensors, NVIDIA's Model Optimizer (modelopt) and DeepSeek-V4 store linears in them.

weight_packed        uint8 (out, in / 2)         two values of E2M1, the first in the lower bits; modelopt says weight,
                                                 and so does DeepSeek, of int8
weight_scale         E4M3 (out, in / 16)         NVFP4: times the scale of all
                     uint8 (out, in / 32)        MXFP4: exponents of 2, plus 127; DeepSeek says scale, of E8M0
weight_global_scale  fp32 (1)                    compressed-tensors: values are divided by it
weight_scale_2       fp32 ()                     modelopt: they are multiplied by it

Scales of rows (input_scale, input_global_scale) are not used: the core quantizes rows its own way.
Sources: compressed_tensors.compressors (nvfp4_pack_quantized); modelopt.torch.export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.mxfp4 import MOST_SCALE
from ipex_assist.checkpoints.quantized import Kind, QuantizedLinear

if TYPE_CHECKING:
    import torch

    from ipex_assist.quantization.table_weight import TableWeight

GROUPS: dict[Kind, int] = {"nvfp4": 16, "mxfp4": 32}  # input columns that share a scale
_OF_ALL = ("weight_global_scale", "weight_scale_2")
_SCALES, _EXPONENTS = ("weight_scale", "scale"), ("U8", "F8_E8M0")


def linear_of(
    prefix: str, values: str, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]
) -> QuantizedLinear:
    """The linear whose values are stored as `prefix` + `values`, bytes of two each. ValueError says what is wrong."""
    scale_name = next((prefix + name for name in _SCALES if prefix + name in shapes), None)
    if scale_name is None:
        raise ValueError(f"{prefix}{values} is there, and {prefix}weight_scale is not")
    shape, scale, type_ = shapes[prefix + values], shapes[scale_name], types[scale_name]
    kind: Kind = "mxfp4" if type_ in _EXPONENTS else "nvfp4"
    of_all = tuple(prefix + name for name in _OF_ALL if prefix + name in shapes)
    if type_ not in (*_EXPONENTS, "F8_E4M3"):
        raise ValueError(f"{scale_name} is {type_}")
    if len(of_all) != (1 if kind == "nvfp4" else 0):
        raise ValueError(f"{prefix}{values} has {len(of_all)} of {' and '.join(_OF_ALL)} beside it")
    if any(shapes[name] not in ((), (1,)) for name in of_all):
        raise ValueError(f"{of_all[0]} is {list(shapes[of_all[0]])}, and not one number")
    if len(shape) != 2 or 0 in shape or scale != (shape[0], shape[1] * 2 // GROUPS[kind]):
        raise ValueError(f"{prefix}{values} and {scale_name} have the shapes {shape} and {scale}")
    if shape[1] * 2 % GROUPS[kind]:
        raise ValueError(f"{prefix}{values} has {shape[1] * 2} input columns, no multiple of {GROUPS[kind]}")
    parts = (prefix + values, scale_name, *of_all)
    return QuantizedLinear(shape[0], shape[1] * 2, scale[1], GROUPS[kind], parts, kind)


def block_number(module: QuantizedLinear) -> int | None:
    """The core's number of blocks that hold such a linear; None where its width is no multiple of a block's."""
    from ipex_assist.quantization.block_numbers import COLUMNS, MXFP4, NVFP4

    number = NVFP4 if module.kind == "nvfp4" else MXFP4
    return number if module.width % COLUMNS[number] == 0 else None


def unpack(module: QuantizedLinear, tensors: Mapping[str, torch.Tensor]) -> TableWeight:
    """The matrix of a module's tensors, keyed by the last part of their names. ValueError for scales of no number."""
    import torch

    from ipex_assist.quantization.table_weight import e2m1

    packed, scale = (tensors[part.rpartition(".")[2]] for part in module.parts[:2])
    if module.kind == "mxfp4":
        packed, scale = packed.view(torch.uint8), scale.view(torch.uint8)
        if int(scale.max()) > MOST_SCALE:
            raise ValueError("a scale is NaN, or makes infinity")
        return e2m1(packed, torch.exp2(scale.double() - 127).float(), module.group)
    name = next(name for name in _OF_ALL if name in tensors)
    of_all = tensors[name].float().reshape(())
    factor = float(1 / of_all if name == "weight_global_scale" else of_all)
    scales = scale.float()
    if not scales.isfinite().all() or not 0 < abs(factor) < float("inf"):
        raise ValueError("its scales are not all finite numbers")
    return e2m1(packed, scales, module.group, factor)

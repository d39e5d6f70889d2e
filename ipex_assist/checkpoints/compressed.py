"""Checkpoints in compressed-tensors' layouts (integers of 4 or 8 bits, FP8, 4-bit floats: float4.py) and modelopt's,
and those whose method is "fp8".

How a linear is stored shows in its tensors, by their names and types:

weight_packed     int32 (out, in / 8 or in / 4)    integers of 4 or 8 bits, plus half their range, the first lowest
weight            int8 or float8_e4m3 (out, in)
weight_scale      (1), (out, 1), (out, groups) or (blocks of rows, blocks of columns); also named weight_scale_inv, with
                  the same meaning: weights are multiplied by it; DeepSeek-V4 calls it scale
weight_zero_point int32 (out / 8 or / 4, groups), packed as weights are, along the output columns; or int8 (out, groups)
weight_g_idx      int32 (in), the group of each input column (act-order); -1 everywhere where it has no meaning
weight_shape      int (2), the shape of the matrix that is packed

What the config says of activations is not used: the core quantizes rows its own way, or leaves them in bf16.
Sources: compressed_tensors.compressors (pack_quantized, naive_quantized); transformers' finegrained_fp8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints import float4
from ipex_assist.checkpoints.quantized import Kind, QuantizedCheckpoint, QuantizedLinear, Scheme
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

    from ipex_assist.quantization.scaled_weight import ScaledWeight
    from ipex_assist.quantization.stored_blocks import StoredWeight

METHODS = ("compressed-tensors", "fp8", "fbgemm_fp8", "modelopt", "modelopt_fp4")
FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
    *("dense", "fakequant", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
)
MODELOPT = ("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MIXED_PRECISION")
FP8_SPAN = 128  # input columns that share a scale in the core's fp8
_SCALES = ("weight_scale", "weight_scale_inv", "scale")
_EXTRAS = ("weight_zero_point", "weight_g_idx", "weight_shape")
# What such checkpoints also have beside a linear: scales of rows, which we do not use.
_OF_ROWS = (
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale"),
    *("input_global_scale", "k_scale", "v_scale"),
)
_KINDS: dict[str, Kind] = {"I8": "int8", "F8_E4M3": "fp8"}


class CompressedCheckpoint(QuantizedCheckpoint):
    """A folder with linears in layouts of compressed-tensors or FP8. Faults are reported when weights are needed."""

    @cached_property
    def scheme(self) -> Scheme:
        """The method alone: how each linear is stored is its own. Raises IpexAssistError for one we cannot read."""
        try:
            check_declared(self._declared)
        except ValueError as error:
            raise self._unsupported(str(error)) from error
        return Scheme(str(self._declared["quant_method"]), "compressed", -1)

    @cached_property
    def modules(self) -> dict[str, QuantizedLinear]:
        assert self.scheme
        shapes, types = self._stored.shapes(), self._stored.dtypes()
        found = {}
        for name, shape in shapes.items():
            prefix, _, leaf = name.rpartition(".")
            scaled = f"{prefix}.weight_scale" in shapes
            halves = leaf in ("weight_packed", "weight") and types[name] == "U8" and (scaled or leaf == "weight_packed")
            # DeepSeek-V4's: bytes of two values each, as their scales' type tells.
            if halves or (leaf == "weight" and types[name] == "I8" and types.get(f"{prefix}.scale") == "F8_E8M0"):
                try:
                    found[f"{prefix}.weight"] = float4.linear_of(f"{prefix}.", leaf, shapes, types)
                except ValueError as error:
                    raise self._unsupported(str(error)) from error
            elif leaf == "weight_packed":
                found[f"{prefix}.weight"] = self._packed(f"{prefix}.", shape, shapes)
            elif leaf == "weight" and types[name] in _KINDS:
                found[name] = self._plain(f"{prefix}.", shape, shapes, _KINDS[types[name]])
            elif leaf in ("pre_quant_scale", "weight_quantizer._pre_quant_scale"):
                raise self._unsupported(f"rows are scaled before they are multiplied ({name})")
            elif types[name].startswith("F8_") and leaf not in _SCALES:
                raise self._unsupported(f"{name} is {types[name]}, and not a linear's weight in e4m3")
        return found

    def _packed(self, prefix: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> QuantizedLinear:
        parts = self._parts(prefix, "weight_packed", shapes)
        scale = shapes[parts[1]]
        if len(shape) != 2 or len(scale) != 2 or scale[0] != shape[0]:
            raise self._unsupported(f"{prefix}weight_packed and {parts[1]} have the shapes {shape} and {scale}")
        groups = scale[1]
        # Words and groups together tell bits from group size; where two schemes fit, the stored shape decides.
        fitting = {
            bits: width
            for bits, size in declared_groups(self._declared)
            if (width := shape[1] * 32 // bits) and groups == (1 if size < 1 else -(-width // size))
        }
        if len(fitting) > 1:
            fitting = {bits: width for bits, width in fitting.items() if width == self._shape(prefix, shapes)[1]}
        if len(fitting) != 1:
            known = ", ".join(f"{bits} bits in groups of {size}" for bits, size in declared_groups(self._declared))
            raise self._unsupported(
                f"{prefix}weight_packed has {shape[1]} words a row and {groups} groups, which is none of the schemes "
                f"in config.json ({known})"
            )
        [(bits, width)] = fitting.items()
        sizes = [size for declared, size in declared_groups(self._declared) if declared == bits]
        group = next((size for size in sizes if size > 0 and -(-width // size) == groups), width)
        kind: Kind = "int4" if bits == 4 else "int8"
        return QuantizedLinear(shape[0], width, groups, group, parts, kind, bits=bits)

    def _shape(self, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        name = f"{prefix}weight_shape"
        if shapes.get(name) != (2,):
            raise self._unsupported(f"{prefix}weight_packed fits several schemes, and {name} does not say which")
        [(_, stored)] = self._stored.tensors([name])
        return tuple(stored.tolist())

    def _plain(
        self, prefix: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]], kind: Kind
    ) -> QuantizedLinear:
        parts = self._parts(prefix, "weight", shapes)
        scale = shapes[parts[1]]
        if len(shape) != 2 or 0 in shape:
            raise self._unsupported(f"{prefix}weight has the shape {shape}, which is no matrix's")
        columns, width = shape
        for rows, group in (*block_sizes(self._declared), (columns, width), (1, width), *self._groups(kind)):
            wanted = -(-columns // rows), -(-width // group)
            if scale == wanted or (wanted[1] == 1 and scale == wanted[:1]) or (wanted == (1, 1) and scale == ()):
                return QuantizedLinear(columns, width, wanted[1], group, parts, kind, rows, bits=8)
        raise self._unsupported(f"{prefix}weight is {columns} x {width}, and its {parts[1]} {list(scale)}")

    def _groups(self, kind: Kind) -> Iterator[tuple[int, int]]:
        for bits, size in declared_groups(self._declared):
            if bits == 8 and size > 0 and kind != "int4":
                yield 1, size

    def _parts(self, prefix: str, values: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        scale = next((prefix + name for name in _SCALES if prefix + name in shapes), None)
        if scale is None:
            raise self._unsupported(f"{prefix}{values} is there, and {prefix}weight_scale is not")
        return (prefix + values, scale, *(prefix + name for name in _EXTRAS if prefix + name in shapes))

    def _fits_core(self, name: str) -> bool:
        module = self.modules[name]
        if module.kind == "int8":
            return module.groups == 1 and not any(part.endswith("weight_zero_point") for part in module.parts)
        if module.kind == "fp8":
            return module.groups == 1 or module.group % FP8_SPAN == 0
        return super()._fits_core(name)

    def _blocks_of(self, name: str, module: QuantizedLinear) -> int | None:
        if module.kind in float4.GROUPS:
            return float4.block_number(module)
        packed = module.kind != "fp8" and module.rows == 1
        return super()._blocks_of(name, module) if packed else None

    def _is_symmetric(self, module: QuantizedLinear) -> bool:
        return not any(part.endswith("weight_zero_point") for part in module.parts)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes()
        unused = {name.removesuffix("weight") + leaf for name in self.modules for leaf in _OF_ROWS}
        return {name: shape for name, shape in shapes.items() if name not in unused}

    def _unpack(self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]) -> StoredWeight:
        import torch

        if module.kind in float4.GROUPS:
            try:
                return float4.unpack(module, tensors)
            except ValueError as error:
                raise IpexAssistError(f"{self.source}: {name}: {error}. Download it again") from error
        scale = next(tensors[part] for part in _SCALES if part in tensors)
        if not scale.dtype.is_floating_point:
            raise self._unsupported(f"the scales of {name} are {scale.dtype}")
        scale = scale.float()
        if not scale.isfinite().all():
            raise IpexAssistError(f"{self.source}: the scales of {name} are not all finite. Download it again")
        if "weight_shape" in tensors and tuple(tensors["weight_shape"].tolist()) != (module.columns, module.width):
            stored = tensors["weight_shape"].tolist()
            raise self._unsupported(f"{name} is {module.columns} x {module.width} by its words, and {stored} as stored")
        zeros = tensors.get("weight_zero_point")
        if "weight_packed" not in tensors:
            return self._unpack_plain(tensors["weight"], scale, zeros, module, self._index(name, module, tensors))
        from ipex_assist.quantization import compressed_tensors

        if tensors["weight_packed"].dtype != torch.int32:
            raise self._unsupported(f"{name} is packed in {tensors['weight_packed'].dtype}")
        try:
            return compressed_tensors.unpack(
                tensors["weight_packed"],
                scale,
                zeros,
                width=module.width,
                group=module.group,
                group_index=self._index(name, module, tensors),
                bits=4 if module.kind == "int4" else 8,
            )
        except ValueError as error:
            raise self._unsupported(f"{name}: {error}") from error

    def _unpack_plain(
        self,
        values: torch.Tensor,
        scale: torch.Tensor,
        zeros: torch.Tensor | None,
        module: QuantizedLinear,
        index: torch.Tensor | None,
    ) -> ScaledWeight:
        import torch

        from ipex_assist.quantization.scaled_weight import ScaledWeight, scales_of_rows

        scales = scales_of_rows(scale, module.columns, module.rows)
        if zeros is not None and not zeros.any():
            zeros = None
        if zeros is not None and (zeros.dtype != torch.int8 or zeros.numel() not in (1, scales.numel())):
            raise self._unsupported(f"{module.parts[0]} has zero points {tuple(zeros.shape)} in {zeros.dtype}")
        zeros = (
            None
            if zeros is None
            else zeros.reshape(-1, scales.shape[1] if zeros.numel() > 1 else 1).expand(scales.shape)
        )
        return ScaledWeight(values, scales, module.group, zeros, index)

    def _index(self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
        return self.act_order.get(name) if "weight_g_idx" in tensors and module.groups > 1 else None


def check_declared(declared: Mapping[str, Any]) -> None:
    """Raise ValueError for a `quantization_config` with a method of METHODS that we cannot read, saying why."""
    groups = declared.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ValueError("its config_groups are not schemes by name")
    if declared["quant_method"].startswith("modelopt"):
        kind = str(declared.get("quant_algo")).upper()
        if kind not in MODELOPT:
            raise ValueError(f"its quant_algo is {kind}")
        return
    if declared["quant_method"] != "compressed-tensors":
        kind = str(declared.get("fmt") or declared.get("activation_format") or "e4m3").lower()
        if not kind.startswith(("e4m3", "float8_e4m3")):
            raise ValueError(f"its weights are in {kind}")
        return
    formats = [declared.get("format")]
    formats += [group.get("format") for group in groups.values()]
    for name in formats:
        if name is not None and name not in FORMATS:
            raise ValueError(f"its format is {name}")
    if declared.get("transform_config"):
        raise ValueError("its activations are rotated (transform_config)")
    sparsity = declared.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format") not in (None, "dense"):
        raise ValueError("its weights are stored as sparse ones (sparsity_config)")
    for group in groups.values():
        weights = group.get("weights") or {}
        bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
        if (bits, kind) not in ((4, "int"), (8, "int"), (8, "float"), (4, "float")):
            raise ValueError(f"it has weights of type {kind} with {bits} bits")


def declared_groups(declared: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Bits and group size (-1: a whole row, or less) of each scheme in a `quantization_config`, without repetitions."""
    found = []
    for group in (declared.get("config_groups") or {}).values():
        weights = group.get("weights") or {}
        size = weights.get("group_size")
        found.append((weights.get("num_bits", 8), size if type(size) is int and size > 0 else -1))
    return sorted(set(found))


def block_sizes(declared: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Sizes (output columns, input columns) of blocks that share a scale, as a `quantization_config` names them."""
    named = [declared.get("weight_block_size")]
    for group in (declared.get("config_groups") or {}).values():
        named.append((group.get("weights") or {}).get("block_structure"))
    found = []
    for size in named:
        if isinstance(size, (list, tuple)) and len(size) == 2 and all(type(side) is int and side > 0 for side in size):
            found.append((size[0], size[1]))
    return found

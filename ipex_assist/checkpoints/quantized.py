"""Checkpoints with quantized linears: their matrices as stored, or dequantized. Here: GPTQ, AWQ and auto-round.

`tensors` presents them like any checkpoint: names end in ".weight", and values are dequantized exactly. The native core
takes `stored` instead, and keeps the bits. Layouts of compressed-tensors and FP8 are in compressed.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

    from ipex_assist.quantization.int4_weight import Int4Weight
    from ipex_assist.quantization.scaled_weight import ScaledWeight

Layout = Literal["gptq", "gptq_v2", "awq", "compressed"]
Kind = Literal["int4", "int8", "fp8"]
KNOWN = (
    "GPTQ (formats gptq and gptq_v2), AWQ (version gemm) and auto-round in either layout, all with 4 bits; "
    "compressed-tensors with integers of 4 or 8 bits or FP8; FP8 (e4m3)"
)
# Group sizes (input columns that share a scale) of the native core. Larger groups are split, with equal scales.
CORE_GROUPS = (32, 64, 128)
_PARTS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True)
class Scheme:
    """The quantization scheme by config.json. With group_size -1 an output column has a single group."""

    method: str
    layout: Layout
    group_size: int


@dataclass(frozen=True)
class QuantizedLinear:
    """One quantized linear; its float matrix is (columns, width). parts: the names of its stored tensors.

    rows: how many output columns share their scales.
    """

    columns: int
    width: int
    groups: int
    group: int
    parts: tuple[str, ...]
    kind: Kind = "int4"
    rows: int = 1


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The `quantization_config` of a config.json, or None where the checkpoint is not quantized."""
    declared = config.get("quantization_config") or config.get("compression_config")
    return declared if isinstance(declared, dict) and declared else None


class QuantizedCheckpoint(Checkpoint):
    """A folder with quantized linears. Faults in them are reported when the weights are first needed."""

    def __init__(self, stored: FolderCheckpoint, declared: Mapping[str, Any]) -> None:
        self.source, self.path = stored.source, stored.path
        self.config, self.generation_config = stored.config, stored.generation_config
        self.files = stored.files
        self._stored, self._declared = stored, declared

    @cached_property
    def scheme(self) -> Scheme:
        """How it is quantized. Raises IpexAssistError for a scheme that we cannot read."""
        try:
            return read_scheme(self._declared)
        except ValueError as error:
            raise self._unsupported(str(error)) from error

    @cached_property
    def modules(self) -> dict[str, QuantizedLinear]:
        """The quantized linears by the names of their float matrices, such as "model.layers.0.mlp.up_proj.weight".

        Raises IpexAssistError for a layout that we cannot read.
        """
        layout = self.scheme.layout  # checked first: with another method none of the names below would be found
        shapes = self._stored.shapes()
        scaled = next((name for name in shapes if name.endswith(".act.scales")), None)
        if scaled is not None:
            raise self._unsupported(f"activations are scaled, too ({scaled})")
        prefixes = [name.removesuffix("qweight") for name in shapes if name.endswith(".qweight")]
        return {f"{prefix}weight": self._module(prefix, shapes, layout == "awq") for prefix in prefixes}

    def _module(self, prefix: str, shapes: Mapping[str, tuple[int, ...]], awq: bool) -> QuantizedLinear:
        parts = tuple(prefix + part for part in (*_PARTS, "g_idx") if part in _PARTS or prefix + part in shapes)
        missing = [name for name in parts if name not in shapes]
        if missing:
            raise self._unsupported(f"{prefix}qweight is there, and {missing[0]} is not")
        weight, zeros, scales = (shapes[name] for name in parts[:3])
        if len(weight) != 2 or len(zeros) != 2 or len(scales) != 2 or not scales[1] or not weight[0]:
            raise self._unsupported(f"{prefix}* have the shapes {weight}, {zeros} and {scales}")
        groups, columns = scales
        width = weight[0] * (1 if awq else 8)
        bits = zeros[1] * 32 / columns
        if bits != 4:
            raise self._unsupported(f"{prefix}qzeros has {bits:g} bits a value")
        if zeros[0] != groups or weight[1] * (8 if awq else 1) != columns:
            raise self._unsupported(f"{prefix}* have the shapes {weight}, {zeros} and {scales}")
        group = group_size(width, groups, self.scheme.group_size)
        if group is None:
            raise self._unsupported(f"{prefix}scales has {groups} groups for {width} input columns")
        return QuantizedLinear(columns, width, groups, group, parts)

    def _unsupported(self, what: str) -> IpexAssistError:
        return IpexAssistError(
            f"{self.source}: its quantization cannot be read: {what[:300]}. We read {KNOWN}. Take such a checkpoint, "
            "or the original one with --precision int4, or write one: ipex-assist quantize -m MODEL -o FOLDER"
        )

    @property
    def stored_precision(self) -> str | None:
        return "int4" if self.modules else None

    @property
    def described(self) -> str:
        """How the linears are stored, in words, such as "8-bit integers in groups of 128"."""
        kinds = {"int4": "4-bit integers", "int8": "8-bit integers", "fp8": "FP8"}
        found = {
            f"{kinds[module.kind]} with {'a scale for each row' if module.groups == 1 else f'groups of {module.group}'}"
            for module in self.modules.values()
        }
        return " and ".join(sorted(found))

    def core_group(self) -> int:
        """The largest group size of the native core that fits every matrix exactly; IpexAssistError where none does."""
        best = CORE_GROUPS[-1]
        for name, module in self.modules.items():
            fitting = [size for size in CORE_GROUPS if module.groups == 1 or module.group % size == 0]
            if not fitting:
                raise IpexAssistError(
                    f"{self.source}: {name} is quantized in groups of {module.group} input columns; the native core "
                    "has groups of 32, 64 and multiples of 128. Use --precision bf16, which dequantizes it"
                )
            best = min(best, fitting[-1])
        return best

    @cached_property
    def act_order(self) -> dict[str, torch.Tensor]:
        """The group of each input column, int64 (width,), by name, for matrices with act-order (desc_act)."""
        import torch

        from ipex_assist.quantization.int4_weight import plain_groups

        named = {part: name for name, module in self.modules.items() for part in module.parts if part.endswith("g_idx")}
        indices = {}
        for raw, index in self._stored.tensors(named):
            name, module = named[raw], self.modules[named[raw]]
            if (index == -1).all():  # compressed-tensors writes it where columns are in order
                continue
            if index.shape != (module.width,) or index.min() < 0 or index.max() >= module.groups:
                raise self._unsupported(f"{raw} does not name one of {module.groups} groups for {module.width} columns")
            if not torch.equal(index.long(), plain_groups(module.width, module.group)):
                indices[name] = index.long()
        return indices

    def weight_files(self) -> list[Path]:
        return self._stored.weight_files()

    @property
    def parameter_bytes(self) -> int:
        quantized = {part for module in self.modules.values() for part in module.parts}
        plain = {name: shape for name, shape in self._stored.shapes().items() if name not in quantized}
        return 4 * sum(m.columns * m.width for m in self.modules.values()) + 2 * sum(map(math.prod, plain.values()))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        parts = {part: name for name, module in self.modules.items() for part in module.parts}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in self._stored.shapes().items():
            ours = parts.get(name)
            shapes[ours or name] = shape if ours is None else (self.modules[ours].columns, self.modules[ours].width)
        return shapes

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        import torch

        for name, weight in self.stored(self.shapes() if names is None else names):
            yield name, weight if isinstance(weight, torch.Tensor) else weight.dequantized()
            del weight

    def stored(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor | Int4Weight | ScaledWeight]]:
        """As `tensors`, but quantized matrices are yielded as stored."""
        wanted = list(names)
        raw = [part for name in wanted for part in (self.modules[name].parts if name in self.modules else (name,))]
        stream = self._stored.tensors(raw)
        for name in wanted:
            module = self.modules.get(name)
            if module is None:
                yield name, next(stream)[1]
                continue
            yield name, self._unpack(name, module, {part.rpartition(".")[2]: next(stream)[1] for part in module.parts})

    def bare_type(self, name: str) -> str | None:
        return None if name in self.modules else self._stored.bare_type(name)

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        return None if name in self.modules else self._stored.row_reader(name, precision)

    def _unpack(
        self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]
    ) -> Int4Weight | ScaledWeight:
        import torch

        from ipex_assist.quantization import awq, gptq

        kinds = [tensors[part].dtype for part in _PARTS]
        if kinds[:2] != [torch.int32, torch.int32] or not kinds[2].is_floating_point:
            raise self._unsupported(f"the parts of {name} are {', '.join(map(str, kinds))}")
        if not tensors["scales"].isfinite().all():
            raise IpexAssistError(f"{self.source}: the scales of {name} are not all finite. Download it again")
        if self.scheme.layout == "awq":
            return awq.unpack(tensors, module.group)
        return gptq.unpack(tensors, module.group, minus_one=self.scheme.layout == "gptq")


def read_scheme(declared: Mapping[str, Any]) -> Scheme:
    """The scheme of a `quantization_config`. ValueError says what we cannot read."""
    method = str(declared.get("quant_method") or "gptq").lower().removeprefix("intel/")
    layouts = {"gptq": _gptq_layout, "awq": _awq_layout, "auto-round": _auto_round_layout}
    if method not in layouts:
        raise ValueError(f"its method is {method}")
    bits = declared.get("bits", declared.get("w_bit", 4))
    if bits != 4:
        raise ValueError(f"it has {bits} bits")
    size = declared.get("group_size", declared.get("q_group_size", 128))
    if type(size) is not int or (size < 1 and size != -1):
        raise ValueError(f"its group_size is {size}")
    return Scheme(method, layouts[method](declared), size)


def _gptq_layout(declared: Mapping[str, Any]) -> Layout:
    name = str(declared.get("checkpoint_format") or declared.get("format") or "gptq").lower()
    if declared.get("is_marlin_format"):
        name = "marlin"
    if name not in ("gptq", "gptq_v2"):
        raise ValueError(f"its checkpoint_format is {name}")
    return "gptq" if name == "gptq" else "gptq_v2"


def _awq_layout(declared: Mapping[str, Any]) -> Layout:
    version = str(declared.get("version") or declared.get("format") or "gemm").lower()
    if version != "gemm":
        raise ValueError(f"its version is {version}")
    return "awq"  # zero_point false, as auto-round writes, needs no case of its own: every stored zero is 8


def _auto_round_layout(declared: Mapping[str, Any]) -> Layout:
    data_type = str(declared.get("data_type") or "int")
    if not data_type.startswith("int"):
        raise ValueError(f"its data_type is {data_type}")
    if (declared.get("act_bits") or 16) not in (16, 32):
        raise ValueError(f"its activations have {declared['act_bits']} bits")
    packing = str(declared.get("packing_format") or declared.get("backend") or "auto_round").lower()
    if "awq" in packing:
        return "awq"
    # "auto_round:auto_gptq" is GPTQ's v1; "auto_round" and "auto_round:gptqmodel" store zeros as they are.
    return "gptq" if "gptq" in packing.replace("gptqmodel", "") else "gptq_v2"


def group_size(width: int, groups: int, declared: int) -> int | None:
    """Input columns in a group, for `width` columns in `groups` groups; None where no known size fits.

    It is the declared size where that fits; single modules may differ from it.
    """
    for size in (declared, 128, 64, 32, 256, 512, 1024, 2048, 16):
        if size > 0 and -(-width // size) == groups:
            return size
    return width if groups == 1 else None

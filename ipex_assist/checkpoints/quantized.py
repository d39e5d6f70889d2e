"""Checkpoints with quantized linears: their matrices as stored, or dequantized. Here: GPTQ, AWQ and auto-round.

`tensors` presents them like any checkpoint: names end in ".weight", and values are dequantized exactly. The native core
takes `stored` instead, and keeps the bits. Layouts of compressed-tensors, FP8 and NVFP4 are in compressed.py, those of
bitsandbytes and BitNet in files of their own.
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
from ipex_assist.models.weights import may_be_linear
from ipex_assist.quantization.block_numbers import FEW_BITS, integers_in
from ipex_assist.quantization.precision import BLOCK_FORMAT, BLOCK_TYPES

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ipex_assist.models.spec import DecoderSpec
    from ipex_assist.models.weights import Source
    from ipex_assist.quantization.stored_blocks import StoredWeight

Layout = Literal["gptq", "gptq_v2", "awq", "compressed", "bitsandbytes", "bitnet"]
Kind = Literal["int4", "int8", "fp8", "nvfp4", "mxfp4", "nf4", "fp4"]
KNOWN = (
    "GPTQ (formats gptq and gptq_v2) and auto-round with 2, 3, 4 or 8 bits; AWQ (version gemm) with 4 bits; "
    "compressed-tensors with integers of 4 or 8 bits, FP8, NVFP4 or MXFP4; FP8 (e4m3) and NVFP4 of modelopt; "
    "bitsandbytes with NF4, FP4 or 8 bits; BitNet"
)
# Group sizes (input columns that share a scale) of the native core. Larger groups are split, with equal scales.
CORE_GROUPS = (32, 64, 128)
_PARTS = ("qweight", "qzeros", "scales")
_BITS = (2, 3, 4, 8)
_KIND_NAMES = {"fp8": "FP8", "nvfp4": "NVFP4", "mxfp4": "MXFP4", "nf4": "NF4", "fp4": "FP4"}


@dataclass(frozen=True)
class Scheme:
    """The quantization scheme by config.json. With group_size -1 an output column has a single group."""

    method: str
    layout: Layout
    group_size: int
    maker: str = ""  # the program that wrote the files, where they say so
    symmetric: bool = False


@dataclass(frozen=True)
class QuantizedLinear:
    """One quantized linear; its float matrix is (columns, width). parts: the names of its stored tensors.

    kind: what the core can keep it as; integers of fewer than 4 bits are "int4". rows: how many output columns share
    their scales. bits: of a value.
    """

    columns: int
    width: int
    groups: int
    group: int
    parts: tuple[str, ...]
    kind: Kind = "int4"
    rows: int = 1
    bits: int = 4


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
        bits = zeros[1] * 32 // columns
        if bits not in ((4,) if awq else _BITS) or zeros[1] * 32 != columns * bits:
            raise self._unsupported(f"{prefix}qzeros has {zeros[1] * 32 / columns:g} bits a value")
        width = weight[0] if awq else weight[0] * 32 // bits
        if zeros[0] != groups or weight[1] * (8 if awq else 1) != columns or weight[0] * 32 % bits:
            raise self._unsupported(f"{prefix}* have the shapes {weight}, {zeros} and {scales}")
        group = group_size(width, groups, self.scheme.group_size)
        if group is None:
            raise self._unsupported(f"{prefix}scales has {groups} groups for {width} input columns")
        return QuantizedLinear(columns, width, groups, group, parts, "int8" if bits == 8 else "int4", bits=bits)

    def _unsupported(self, what: str) -> IpexAssistError:
        return IpexAssistError(
            f"{self.source}: its quantization cannot be read: {what[:300]}. We read {KNOWN}. Take such a checkpoint, "
            "or the original one with --precision int4, or write one: ipex-assist quantize -m MODEL -o FOLDER"
        )

    @property
    def stored_precision(self) -> str | None:
        kinds = {module.kind for module in self.modules.values()}
        fits = len(kinds) == 1 and all(self._fits_core(name) for name in self.modules)
        if fits and not any(module.bits < 4 for module in self.modules.values()):
            return kinds.pop()
        in_blocks = bool(kinds) and all(self.block_number(name) for name in self.modules)
        if fits and not (in_blocks and any(self.block_number(name) in FEW_BITS for name in self.modules)):
            return kinds.pop()
        return "stored" if in_blocks else None

    def _fits_core(self, name: str) -> bool:
        """Whether the core's layout of a linear's kind has place for its scales and zeros."""
        return self.modules[name].kind == "int4"  # core_group refuses group sizes that it lacks

    def block_number(self, name: str) -> int | None:
        """The core's number of blocks that hold a linear as it is stored (quantization/stored_blocks.py), or None."""
        return self._block_numbers[name]

    @cached_property
    def _block_numbers(self) -> dict[str, int | None]:
        found = {name: self._blocks_of(name, module) or 0 for name, module in self.modules.items()}
        return {name: each if each - BLOCK_FORMAT in BLOCK_TYPES else None for name, each in found.items()}

    def _blocks_of(self, name: str, module: QuantizedLinear) -> int | None:
        """By headers and small tensors, without torch."""
        if module.width % 32 or (module.groups > 1 and module.group % 32):
            return None
        half, values = 1 << (module.bits - 1), 1 << module.bits
        # Zeros may be anything in a file that does not say that it is symmetric.
        columns = module.width if module.groups == 1 else math.gcd(module.width, module.group)
        least, most = (-half, half - 1) if self._is_symmetric(module) else (-values, values - 1)
        number = integers_in(least, most, columns)
        return number if number is not None and self._has_plain_parts(module) else None

    def _is_symmetric(self, module: QuantizedLinear) -> bool:
        """Whether all zeros are half the range, by the config; that is checked when the matrix is packed."""
        return self.scheme.symmetric

    def _has_plain_parts(self, module: QuantizedLinear) -> bool:
        """Whether a linear's scales are numbers of fp16 and its input columns in order."""
        import numpy as np

        for part in module.parts:
            leaf = part.rpartition(".")[2]
            if leaf in ("scales", "weight_scale", "weight_scale_inv", "g_idx", "weight_g_idx"):
                stored = self._stored.raw(part)
                if stored is None:  # of a .bin file
                    return False
                kind, content = stored
                if leaf.endswith("g_idx"):
                    index = np.frombuffer(content, {"I32": np.int32, "I64": np.int64}.get(kind, np.uint8))
                    if not (index == -1).all() and not np.array_equal(index, np.arange(module.width) // module.group):
                        return False
                elif kind != "F16":
                    scales = _floats(kind, content)
                    if scales is None:
                        return False
                    with np.errstate(over="ignore"):
                        halves = scales.astype(np.float16)
                    if not np.array_equal(halves.astype(np.float32), scales):
                        return False
        return True

    def block_formats(self, spec: DecoderSpec, sources: Mapping[str, Source]) -> dict[str, int]:
        """Our weights that are kept in blocks, and the core's numbers of these."""
        formats = {}
        for ours, source in sources.items():
            name = next((each for each in (source.name, *source.alternatives) if each in self.modules), None)
            whole = source.factor == 1 and source.plus == 0 and not source.heads_transposed and source.expert is None
            if name is not None and whole and may_be_linear(ours) and (number := self.block_number(name)):
                formats[ours] = number
        return formats

    @property
    def described(self) -> str:
        """How the linears are stored, in words, such as "8-bit integers in groups of 128"."""
        found = {
            f"{_KIND_NAMES.get(module.kind, f'{module.bits}-bit integers')} with "
            f"{'a scale for each row' if module.groups == 1 else f'groups of {module.group}'}"
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

    def stored(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor | StoredWeight]]:
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

    def _unpack(self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]) -> StoredWeight:
        import torch

        from ipex_assist.quantization import awq, gptq

        kinds = [tensors[part].dtype for part in _PARTS]
        if kinds[:2] != [torch.int32, torch.int32] or not kinds[2].is_floating_point:
            raise self._unsupported(f"the parts of {name} are {', '.join(map(str, kinds))}")
        if not tensors["scales"].isfinite().all():
            raise IpexAssistError(f"{self.source}: the scales of {name} are not all finite. Download it again")
        scheme = self.scheme
        if scheme.layout == "awq":
            return awq.unpack(tensors, module.group)
        minus_one = scheme.layout == "gptq"
        try:
            return gptq.unpack(
                *(tensors, module.group),
                minus_one=minus_one,
                bits=module.bits,
                maker=scheme.maker,
                symmetric=scheme.symmetric,
            )
        except ValueError as error:
            raise self._unsupported(f"{name}: {error}") from error


def _floats(kind: str, content: bytes) -> NDArray[np.float32] | None:
    """Numbers in BF16 or F32; None for other types."""
    import numpy as np

    if kind == "BF16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(content, np.float32) if kind == "F32" else None


def read_scheme(declared: Mapping[str, Any]) -> Scheme:
    """The scheme of a `quantization_config`. ValueError says what we cannot read."""
    method = str(declared.get("quant_method") or "gptq").lower().removeprefix("intel/")
    layouts = {"gptq": _gptq_layout, "awq": _awq_layout, "auto-round": _auto_round_layout}
    if method not in layouts:
        raise ValueError(f"its method is {method}")
    bits = declared.get("bits", declared.get("w_bit", 4))
    if type(bits) is not int or bits not in ((4,) if method == "awq" else _BITS):
        raise ValueError(f"it has {bits} bits")
    size = declared.get("group_size", declared.get("q_group_size", 128))
    if type(size) is not int or (size < 1 and size != -1):
        raise ValueError(f"its group_size is {size}")
    meta = declared.get("meta")
    maker = str(meta.get("quantizer") or "") if isinstance(meta, dict) else ""
    return Scheme(method, layouts[method](declared), size, maker, declared.get("sym") is True)


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

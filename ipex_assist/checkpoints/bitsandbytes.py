"""Checkpoints that bitsandbytes quantized: NF4 and FP4 with 4 bits, and LLM.int8 with 8.

weight                                   uint8 (out · in / 2, 1)   two codes in a byte, the first in the upper bits
weight.absmax                            fp32 (blocks), or uint8 where it is quantized itself: codes into
weight.nested_quant_map, nested_absmax   fp32 (256) and (blocks of blocks): absmax = map[code] · nested_absmax + offset
weight.quant_map                         fp32 (16)                 the values that codes of weights stand for
weight.quant_state.bitsandbytes__nf4     JSON in bytes: shape, blocksize, nested_blocksize, nested_offset, quant_type
weight, SCB                              int8 (out, in), fp32 (out): LLM.int8, whose weights are weight · SCB / 127

A block is 64 (or another power of two) values of the matrix read row by row. NF4's values are multiples of no number:
the core keeps them to 16 bits, where bitsandbytes computes with products rounded to bf16 or fp16.
Source: bitsandbytes.functional (QuantState, dequantize_4bit).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from struct import unpack
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.quantized import Kind, QuantizedCheckpoint, QuantizedLinear, Scheme
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

    from ipex_assist.quantization.scaled_weight import ScaledWeight
    from ipex_assist.quantization.table_weight import TableWeight

_STATE = ".quant_state.bitsandbytes__"
_KINDS: dict[str, Kind] = {"nf4": "nf4", "fp4": "fp4"}
_NESTED = ("nested_absmax", "nested_quant_map")
_LARGEST_STATE = 1 << 16  # bytes of JSON


class BitsAndBytesCheckpoint(QuantizedCheckpoint):
    """A folder with linears in bitsandbytes' layouts. Faults are reported when weights are first needed."""

    @cached_property
    def scheme(self) -> Scheme:
        return Scheme("bitsandbytes", "bitsandbytes", 64)

    @cached_property
    def modules(self) -> dict[str, QuantizedLinear]:
        shapes, types = self._stored.shapes(), self._stored.dtypes()
        found = {}
        for name, shape in shapes.items():
            weight, _, kind = name.partition(_STATE)
            if kind:
                if kind not in _KINDS or weight not in shapes:
                    raise self._unsupported(f"{name} is of no kind that we know, or of no weight")
                found[weight] = self._of_state(weight, shapes, _KINDS[kind], self._states[name])
            elif name.endswith(".SCB"):
                weight = name.removesuffix("SCB") + "weight"
                if (
                    len(shapes.get(weight, ())) != 2
                    or types[weight] not in ("I8", "BIN")
                    or shape != shapes[weight][:1]
                ):
                    raise self._unsupported(f"{name} has the shape {shape}, and {weight} {shapes.get(weight)}")
                found[weight] = QuantizedLinear(
                    shape[0], shapes[weight][1], 1, shapes[weight][1], (weight, name), "int8", bits=8
                )
        return found

    @cached_property
    def _states(self) -> dict[str, dict[str, Any]]:
        """The JSON of each linear. Small tensors, all of which are read."""
        names = [name for name, shape in self._stored.shapes().items() if _STATE in name]
        states = {}
        for name in names:
            try:
                if math.prod(self._stored.shapes()[name]) > _LARGEST_STATE:
                    raise ValueError(f"its shape is {self._stored.shapes()[name]}")
                state = json.loads(self._bytes(name))
                if not isinstance(state, dict):
                    raise ValueError("it is no object")
            except (ValueError, TypeError, RecursionError) as error:
                raise self._unsupported(f"{name} cannot be read: {error}") from error
            states[name] = state
        return states

    def _bytes(self, name: str) -> bytes:
        if (stored := self._stored.raw(name)) is not None:
            return stored[1]
        [(_, tensor)] = self._stored.tensors([name])
        return bytes(tensor.flatten().tolist())

    def _of_state(
        self, weight: str, shapes: Mapping[str, tuple[int, ...]], kind: Kind, state: Mapping[str, Any]
    ) -> QuantizedLinear:
        shape, block = state.get("shape"), state.get("blocksize")
        if not _is_shape(shape) or not _is_block(block):
            raise self._unsupported(f"{weight} has the shape {shape} by its state, in blocks of {block}")
        assert isinstance(shape, list)
        assert isinstance(block, int)
        values = math.prod(shape)
        blocks = -(-values // block)
        wanted = {"absmax": blocks, "quant_map": 16}
        if f"{weight}.nested_absmax" in shapes or f"{weight}.nested_quant_map" in shapes:
            nested = state.get("nested_blocksize")
            if not _is_block(nested) or not _is_number(state.get("nested_offset")):
                raise self._unsupported(f"{weight} has scales in blocks of {nested}, plus {state.get('nested_offset')}")
            wanted |= {"nested_absmax": -(-blocks // int(nested or 1)), "nested_quant_map": 256}
        for part, count in wanted.items():
            if math.prod(shapes.get(f"{weight}.{part}", (0,))) != count:
                raise self._unsupported(
                    f"{weight}.{part} has the shape {shapes.get(f'{weight}.{part}')}, not ({count},)"
                )
        if values % 2 or math.prod(shapes[weight]) != values // 2:
            raise self._unsupported(f"{weight} has {math.prod(shapes[weight]):,} bytes for {values:,} values")
        # Scales by rows: where a block ends within a row, as often as both have a common measure.
        group = math.gcd(shape[1], block)
        parts = (weight, *(f"{weight}.{part}" for part in wanted))
        return QuantizedLinear(shape[0], shape[1], shape[1] // group, group, parts, kind)

    def _fits_core(self, name: str) -> bool:
        return self.modules[name].kind == "int8"

    def _blocks_of(self, name: str, module: QuantizedLinear) -> int | None:
        from ipex_assist.quantization.block_numbers import COLUMNS, FP4, NF4

        number = {"nf4": NF4, "fp4": FP4}.get(module.kind)
        return number if number is not None and module.group % COLUMNS[number] == 0 and self._usual_tables else None

    @cached_property
    def _usual_tables(self) -> bool:
        """Whether codes stand for what the core takes them for."""
        from ipex_assist.quantization.block_numbers import FP4_VALUES, NF4_VALUES

        usual = {"nf4": NF4_VALUES, "fp4": (*FP4_VALUES, *(-value for value in FP4_VALUES))}
        for name, module in self.modules.items():
            if (values := usual.get(module.kind)) is not None:
                kind, content = self._stored.raw(f"{name}.quant_map") or ("", b"")
                stored = unpack("<16f", content) if kind == "F32" else (math.nan,) * 16
                if not all(abs(a - b) <= 1e-6 for a, b in zip(values, stored, strict=True)):
                    return False
        return True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes()
        beside = [f"{name}{_STATE}{kind}" for name in self.modules for kind in _KINDS]
        beside += [f"{name}_format" for name in self.modules]  # of LLM.int8: how its columns lie
        return {name: shape for name, shape in shapes.items() if name not in beside}

    def _unpack(
        self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]
    ) -> TableWeight | ScaledWeight:
        import torch

        if module.kind == "int8":
            from ipex_assist.quantization.scaled_weight import ScaledWeight

            scales = tensors["SCB"].float().reshape(-1, 1) / 127
            self._require_numbers(name, scales)
            return ScaledWeight(tensors["weight"].to(torch.int8), scales, module.width)
        from ipex_assist.quantization.table_weight import TableWeight

        state = self._states[f"{name}{_STATE}{module.kind}"]
        if tensors["weight"].dtype != torch.uint8 or not tensors["quant_map"].dtype.is_floating_point:
            raise self._unsupported(f"{name} is {tensors['weight'].dtype}, by {tensors['quant_map'].dtype}")
        absmax, table = self._absmax(name, state, tensors), tensors["quant_map"].float().flatten()
        self._require_numbers(name, absmax)
        self._require_numbers(name, table)
        packed = tensors["weight"].flatten()
        codes = torch.stack((packed >> 4, packed & 15), -1).view(module.columns, module.width)
        of_groups = torch.arange(module.columns * module.groups) * module.group // int(state["blocksize"])
        return TableWeight(codes, table, absmax[of_groups].view(module.columns, -1), module.group)

    def _absmax(self, name: str, state: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch

        absmax = tensors["absmax"].flatten()
        if not all(part in tensors for part in _NESTED):
            if not absmax.dtype.is_floating_point:
                raise self._unsupported(f"the scales of {name} are {absmax.dtype}, and nothing says of what")
            return absmax.float()
        if absmax.dtype != torch.uint8:
            raise self._unsupported(f"the scales of {name} are {absmax.dtype}, and not codes")
        scales = tensors["nested_absmax"].float().flatten()
        of_blocks = torch.arange(len(absmax)) // int(state["nested_blocksize"])
        values = tensors["nested_quant_map"].float().flatten()[absmax.int()]
        return values * scales[of_blocks] + float(state["nested_offset"])

    def _require_numbers(self, name: str, scales: torch.Tensor) -> None:
        if not scales.isfinite().all():
            raise IpexAssistError(f"{self.source}: the scales of {name} are not all finite. Download it again")


def _is_shape(shape: object) -> bool:
    return (
        isinstance(shape, list) and len(shape) == 2 and all(type(side) is int and 0 < side < 1 << 31 for side in shape)
    )


def _is_block(block: object) -> bool:
    return type(block) is int and 1 <= block <= 1 << 20


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)

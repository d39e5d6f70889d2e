"""Checkpoints of BitNet (1.58 bits): ternary matrices, four values in a byte, with one scale each.

weight        uint8 (out / 4, in)   of byte (r, k), bits 2 i and 2 i + 1 are the value at row r + i · out / 4, plus one
weight_scale  (1)                   values are divided by it (BitLinear), or multiplied (linear_class "autobitlinear")

transformers also rounds rows to int8 by their largest value; the core does, in spans of 128 columns.
Source: transformers.integrations.bitnet.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.quantized import QuantizedCheckpoint, QuantizedLinear, Scheme
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

    from ipex_assist.quantization.scaled_weight import ScaledWeight


class BitnetCheckpoint(QuantizedCheckpoint):
    """A folder with packed ternary linears. Faults are reported when weights are first needed."""

    @cached_property
    def scheme(self) -> Scheme:
        if self._declared.get("use_rms_norm"):
            raise self._unsupported("each linear has a norm of its own before it (use_rms_norm)")
        linear, mode = str(self._declared.get("linear_class") or "bitlinear"), self._declared.get("quantization_mode")
        if linear not in ("bitlinear", "autobitlinear") or (linear == "autobitlinear" and mode == "online"):
            raise self._unsupported(f"its linears are {linear[:40]} ({str(mode)[:40]}), whose weights are not packed")
        return Scheme(linear, "bitnet", -1)

    @cached_property
    def modules(self) -> dict[str, QuantizedLinear]:
        assert self.scheme
        shapes, types = self._stored.shapes(), self._stored.dtypes()
        found = {}
        for scale in [name for name in shapes if name.endswith(".weight_scale")]:
            name = scale.removesuffix("_scale")
            shape = shapes.get(name, ())
            if len(shape) != 2 or 0 in shape or types[name] not in ("U8", "BIN") or shapes[scale] not in ((1,), ()):
                raise self._unsupported(f"{name} and {scale} have the shapes {shape} and {shapes[scale]}")
            found[name] = QuantizedLinear(shape[0] * 4, shape[1], 1, shape[1], (name, scale), "int8", bits=2)
        return found

    @property
    def stored_precision(self) -> str | None:
        in_blocks = bool(self.modules) and all(self.block_number(name) for name in self.modules)
        return "stored" if in_blocks else "int8" if self.modules else None

    def _blocks_of(self, name: str, module: QuantizedLinear) -> int | None:
        from ipex_assist.quantization.block_numbers import COLUMNS, TQ2_0

        return TQ2_0 if module.width % COLUMNS[TQ2_0] == 0 else None

    @property
    def described(self) -> str:
        return "ternary, with a scale for each matrix"

    def _unpack(self, name: str, module: QuantizedLinear, tensors: dict[str, torch.Tensor]) -> ScaledWeight:
        import torch

        from ipex_assist.quantization.scaled_weight import ScaledWeight

        packed, scale = tensors["weight"], tensors["weight_scale"].float().reshape(1, 1)
        if packed.dtype != torch.uint8:
            raise self._unsupported(f"{name} is packed in {packed.dtype}")
        scale = scale if self.scheme.method == "autobitlinear" else 1 / scale
        if not scale.isfinite().all():
            raise IpexAssistError(f"{self.source}: the scale of {name} is no finite number. Download it again")
        values = torch.cat([packed >> shift & 3 for shift in range(0, 8, 2)])
        if (values == 3).any():
            raise IpexAssistError(f"{self.source}: {name} has values that are not -1, 0 or 1. Download it again")
        return ScaledWeight(values.to(torch.int8) - 1, scale.expand(module.columns, 1), module.width)

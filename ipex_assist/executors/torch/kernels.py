"""The kernels that executors differ in: packed linears and norms. `TorchKernels` is the reference and runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from ipex_assist.models.attention_spec import HeadNorm

# A packed linear: (rows, in) → (rows, out).
Linear = Callable[[torch.Tensor], torch.Tensor]


class Kernels(Protocol):
    """The operators of a decoder that an executor supplies."""

    dtype: torch.dtype
    # The row counts that decode passes may have, smallest first; a pass is padded to one of them.
    row_sizes: tuple[int, ...]

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Pack weight (out, in) and bias (out,) of any float type. The weight itself is not kept."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm of x (…, size) by weight (size,), computed in float32."""
        ...

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Layer norm of x (…, size) by weight and bias (size,)."""
        ...


class TorchKernels:
    """PyTorch's own operators, in fp32 or bf16."""

    row_sizes: tuple[int, ...] = (4, 8, 16)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Pack into oneDNN's blocked layout: with a plain weight a pass of 1 to 8 rows takes 2 to 5 times as long."""
        weight = weight.to(self.dtype)
        bias = bias.to(self.dtype) if bias is not None else None
        if torch.backends.mkldnn.is_available() and (
            self.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        ):
            return _onednn_linear(weight, bias)
        # A slice of a larger checkpoint tensor would keep the whole tensor in memory.
        weight = weight.clone() if weight.untyped_storage().nbytes() > weight.nbytes else weight
        return lambda x: functional.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise x (…, size) as Llama does: scale in float32, round to the dtype, then multiply by the weight."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return wide.to(self.dtype) * weight

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Normalise x (…, size) with PyTorch's operator, which computes in float32."""
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def norm_heads(
    kernels: Kernels, kind: HeadNorm | None, heads: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Normalise queries or keys (rows, heads, head_dim); for `kind` see AttentionSpec.qk_norm. weight: or None."""
    heads = heads.contiguous()
    if weight is None:
        return kernels.rms_norm(heads, torch.ones(heads.shape[-1], dtype=heads.dtype), eps)
    if kind == "head":
        return kernels.rms_norm(heads, weight, eps)
    if kind == "all_heads":
        return kernels.rms_norm(heads.flatten(1), weight, eps).view_as(heads)
    return kernels.layer_norm(heads, None, None, eps) * weight.view(heads.shape[1:])


def _onednn_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    # The operators that torch.compile uses for a frozen linear; the layout is chosen for 8 rows.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, bias, "none", [], "")


def make_torch_kernels(precision: str) -> TorchKernels:
    """PyTorch's own kernels, for bf16 or fp32."""
    return TorchKernels(torch.float32 if precision == "fp32" else torch.bfloat16)

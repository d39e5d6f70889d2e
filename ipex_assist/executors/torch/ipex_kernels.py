"""Kernels of Intel Extension for PyTorch: prepacked linears, fused norms, weight-only quantized linears."""

from __future__ import annotations

import intel_extension_for_pytorch as ipex
import torch
from intel_extension_for_pytorch.quantization import (
    WoqActQuantMode,
    WoqLowpMode,
    WoqWeightDtype,
    convert,
    get_weight_only_quant_qconfig_mapping,
    prepare,
)

from ipex_assist.executors.torch.kernels import Linear, TorchKernels
from ipex_assist.quantization.precision import INT4_GROUP


class _LinearParent(torch.nn.Module):
    """ipex.optimize and WOQ's convert replace the children of a module, so a linear needs a parent."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        self.linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self.linear.bias = torch.nn.Parameter(bias, requires_grad=False)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class IpexKernels(TorchKernels):
    """Kernels for bf16 and fp32: IPEX's prepacked linears and RMS norm, the rest PyTorch's."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Prepack with ipex.optimize, for oneDNN in fp32 as well (where IPEX would choose MKL)."""
        wrapped = _LinearParent(weight.to(self.dtype), None if bias is None else bias.to(self.dtype))
        return ipex.optimize(wrapped, dtype=self.dtype, inplace=True, auto_kernel_selection=True).linear

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise x (…, size) with IPEX's fused operator."""
        return torch.ops.torch_ipex.rmsnorm(x, weight, eps)


class WeightOnlyKernels(IpexKernels):
    """int8 weights with a scale per output channel, or int4 with one per `group` inputs; rows are quantized to int8."""

    # With a row count of 1 as well: padding a pass to 4 rows costs int4 time.
    row_sizes = (1, 4, 8, 16)

    def __init__(self, precision: str, group: int = INT4_GROUP) -> None:
        super().__init__(torch.bfloat16)
        int4 = precision == "int4"
        self.qconfig = get_weight_only_quant_qconfig_mapping(
            weight_dtype=WoqWeightDtype.INT4 if int4 else WoqWeightDtype.INT8,
            lowp_mode=WoqLowpMode.INT8,
            # A scale per row and block of columns: one per tensor would make a row depend on its neighbours.
            act_quant_mode=WoqActQuantMode.PER_BATCH_IC_BLOCK_SYM,
            group_size=group if int4 else -1,
        )

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Quantize with IPEX, by minimum and maximum of each channel or group."""
        wrapped = _LinearParent(weight.float(), None if bias is None else bias.float())
        prepared = prepare(wrapped, self.qconfig, inplace=True)
        return convert(prepared, inplace=True).linear


def make_ipex_kernels(precision: str, group: int) -> IpexKernels:
    """IPEX's kernels for a precision; int4 has groups of `group` input columns."""
    if precision in ("int8", "int4"):
        return WeightOnlyKernels(precision, group)
    return IpexKernels(torch.float32 if precision == "fp32" else torch.bfloat16)

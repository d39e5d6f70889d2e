"""MLPs and experts of a layer in PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from ipex_assist.executors.torch.experts import ExpertLayer, run_experts
from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.executors.torch.mixers.layer_rows import See
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.mlp_spec import CLAMP, SIGMOID_GAIN, MlpSpec
from ipex_assist.models.spec import LayerSpec

ACTIVATION_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def run_mlp(
    spec: LayerSpec,
    layer: Layer,
    x: torch.Tensor,
    see: See,
    norm: Callable[[torch.Tensor, str], torch.Tensor] | None = None,
    defer: Callable[[torch.Tensor], None] | None = None,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows x (rows, hidden) through a layer's MLP, or its experts; norm, defer, tokens: see `run_experts`."""
    assert layer.mlp is not None, "a layer without an MLP"
    if isinstance(layer.mlp, ExpertLayer):
        assert spec.experts is not None
        seen = replace(layer.mlp, router=partial(_seen_router, layer.mlp.router, see))
        shared = partial(_up_down, spec.experts.shared) if spec.experts.shared_size else None
        made = run_experts(spec.experts, seen, x, partial(_up_down, spec.each_mlp), shared, norm, defer, tokens)
        see("add_experts", "delta", made)
        return made
    up, down = layer.mlp
    active = _xielu(up(x), *layer.xielu) if spec.each_mlp.activation == "xielu" else _active(spec.each_mlp, up(x))
    see("mlp", "active", active)
    made = down(active)
    see("mlp", "delta", made)
    return made


def run_aside(spec: LayerSpec, layer: Layer, x: torch.Tensor, rows: torch.Tensor, see: See) -> torch.Tensor:
    """What a layer aside gives, of what attention gave after its norm, rows (rows, hidden). x: the residual stream."""
    assert layer.aside is not None
    see("prepare_mlp", "residual stream", x)
    see("prepare_mlp", "mlp inputs", rows)
    made = layer.aside(run_mlp(spec, layer, rows, see))
    see("aside_linear", "delta", made)
    return made


def _seen_router(router: Linear, see: See, x: torch.Tensor) -> torch.Tensor:
    logits = router(x)
    see("route", "router logits", logits)
    return logits


def _xielu(
    x: torch.Tensor, alpha_p: torch.Tensor, alpha_n: torch.Tensor, beta: torch.Tensor, eps: torch.Tensor
) -> torch.Tensor:
    """XIELU (Huang and Schlag 2024, arXiv:2411.13010) of x, in fp32."""
    wide = x.float()
    above = functional.softplus(alpha_p) * wide.square()
    below = (beta + functional.softplus(alpha_n)) * (torch.expm1(torch.minimum(wide, eps)) - wide)
    return (torch.where(wide > 0, above, below) + beta * wide).to(x.dtype)


def _up_down(spec: MlpSpec, x: torch.Tensor, up: Linear, down: Linear) -> torch.Tensor:
    return down(_active(spec, up(x)))


def _active(spec: MlpSpec, h: torch.Tensor) -> torch.Tensor:
    """What the second linear reads, of what the first one gives."""
    if spec.gated:
        return activate_gated(spec, *h.chunk(2, -1))
    return ACTIVATION_FUNCTIONS[spec.activation](h)


def activate_gated(spec: MlpSpec, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What a gated MLP makes of its gate and up."""
    if spec.activation == "clamped_swiglu":
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return gate * torch.sigmoid(SIGMOID_GAIN * gate) * (up + 1)
    function = ACTIVATION_FUNCTIONS[spec.activation]
    if spec.sparsity:
        wide = gate.float()
        cutoff = wide.mean(-1, keepdim=True) + spec.deviations * wide.std(-1, keepdim=True, unbiased=False)
        gate = functional.relu(wide - cutoff).to(gate.dtype)
    if spec.limit is None:
        return function(gate) * up
    up = up.clamp(-spec.limit, spec.limit)
    if spec.limits_gates:
        return function(gate.clamp(max=spec.limit)) * up
    return function(gate).clamp(max=spec.limit) * up


def gated(rows: torch.Tensor, gate: tuple[Linear, Linear] | None) -> torch.Tensor:
    """What a norm gave, rows (rows, hidden), times what these linears make of it; as it is where there are none."""
    if gate is None:
        return rows
    down, up = gate
    return rows * torch.sigmoid(up(functional.silu(down(rows))))

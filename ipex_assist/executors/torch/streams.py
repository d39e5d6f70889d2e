"""Several residual streams in PyTorch's operators: see StreamSpec. Rows are (rows, count · hidden)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.stream_spec import StreamSpec


@dataclass
class StreamLayer:
    """What makes the numbers of a row, in fp32."""

    projection: Linear  # (rows, count · hidden) → (rows, numbers)
    base: torch.Tensor  # (numbers,)
    scale: torch.Tensor  # one for each kind of number


def _logits(spec: StreamSpec, layer: StreamLayer, x: torch.Tensor, norm_eps: float) -> list[torch.Tensor]:
    """Of each kind of number: (rows, count), (rows, count), (rows, count²), as far as there are such."""
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm_eps)
    sizes = (spec.count, spec.count, spec.count**2)[: len(layer.scale)]
    parts = zip((layer.projection(wide) * factor).split(sizes, 1), layer.base.split(sizes), layer.scale, strict=True)
    return [part * scale + base for part, base, scale in parts]


def read_streams(spec: DecoderSpec, x: torch.Tensor, layer: StreamLayer | None) -> torch.Tensor:
    """What the norm before attention, an MLP or the head gets of rows x: (rows, hidden)."""
    if spec.streams is None:
        return x
    if layer is None:
        return x.float().unflatten(-1, (spec.streams.count, -1)).mean(1).to(x.dtype)
    read = torch.sigmoid(_logits(spec.streams, layer, x, spec.norm_eps)[0]) + spec.streams.eps
    return (read[..., None] * x.float().unflatten(-1, (spec.streams.count, -1))).sum(1).to(x.dtype)


def write_streams(spec: DecoderSpec, x: torch.Tensor, delta: torch.Tensor, layer: StreamLayer | None) -> torch.Tensor:
    """Rows x after what was made of what `read_streams` gave: delta (rows, hidden)."""
    streams = spec.streams
    if streams is None or layer is None:
        return x + delta
    _, written, *mixed = _logits(streams, layer, x, spec.norm_eps)
    rows = x.float().unflatten(-1, (streams.count, -1))
    if mixed:
        rows = _mixture(streams, mixed[0]).transpose(1, 2) @ rows
    added = (streams.gain * torch.sigmoid(written) + streams.gain_eps)[..., None] * delta.float()[:, None]
    return (rows + added).flatten(1).to(x.dtype)


def check_hidden(spec: DecoderSpec, hidden: object | None) -> None:
    """Raise IpexAssistError where hidden states are asked for of a model that gives none."""
    streams = spec.streams or spec.altup
    if hidden is not None and streams is not None:
        raise IpexAssistError(f"hidden states of a model whose residual stream has {streams.count} rows")


def _mixture(spec: StreamSpec, logits: torch.Tensor) -> torch.Tensor:
    """The matrix that mixes streams (rows, count, count), of logits (rows, count²)."""
    made = torch.softmax(logits.unflatten(-1, (spec.count, -1)), -1) + spec.eps
    made = made / (made.sum(1, keepdim=True) + spec.eps)
    for _ in range(spec.sinkhorn_steps - 1):
        made = made / (made.sum(2, keepdim=True) + spec.eps)
        made = made / (made.sum(1, keepdim=True) + spec.eps)
    return made

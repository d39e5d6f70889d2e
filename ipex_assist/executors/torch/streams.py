"""Several residual streams in PyTorch's operators: see StreamSpec. Rows are (rows, count · hidden)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import HiddenRows
from ipex_assist.executors.torch.kernels import Kernels, Linear
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.stream_spec import HEAD_STREAMS, STREAMS, StreamSpec


@dataclass
class GatedStreams:
    """The norm of all streams, and the gates of what it gives."""

    kernels: Kernels
    norm: torch.Tensor  # (count · hidden,)
    gate: tuple[Linear, Linear]  # (rows, count · hidden) → (rows, gate_rank), and back

    def normed(self, spec: DecoderSpec, x: torch.Tensor) -> torch.Tensor:
        """Each stream of rows x through its part of the norm."""
        parts = zip(x.split(spec.hidden_size, 1), self.norm.split(spec.hidden_size), strict=True)
        return torch.cat([self.kernels.rms_norm(part.contiguous(), norm, spec.norm_eps) for part, norm in parts], 1)

    def read(self, spec: DecoderSpec, x: torch.Tensor) -> torch.Tensor:
        """The mean of what gates let through: (rows, hidden)."""
        assert spec.streams is not None
        y, (down, up) = self.normed(spec, x), self.gate
        y = y * torch.sigmoid(up(functional.silu(down(y) / spec.streams.count)))
        return y.float().unflatten(-1, (spec.streams.count, -1)).mean(1).to(x.dtype)


@dataclass
class StreamLayer:
    """What makes the numbers of a row, in fp32; and, of gated residuals, what reads its streams."""

    projection: Linear | None  # (rows, count · hidden) → (rows, numbers); None: gated ones of the head
    base: torch.Tensor | None = None  # (numbers,); None where residuals are gated, as the next
    scale: torch.Tensor | None = None  # one for each kind of number
    gated: GatedStreams | None = None


_GATED = {  # the norm and its gate
    **dict(zip(STREAMS, (("attention_norm", "mixer_gate"), ("mlp_norm", "mlp_gate")), strict=True)),
    HEAD_STREAMS: ("final_norm", "head_gate"),
}


def stream_layer(
    spec: DecoderSpec, kernels: Kernels, linears: dict[str, Linear], tensors: dict[str, torch.Tensor], name: str
) -> StreamLayer | None:
    """Of one of STREAMS in a layer, or of the head's; None where it has none. name: with the layer's."""
    prefix, leaf = name[: name.rfind(".") + 1], name.rpartition(".")[2]
    if spec.gates_streams:
        norm, gate = _GATED[leaf]
        if f"{prefix}{gate}_up" not in linears:
            return None
        both = linears[f"{prefix}{gate}_down"], linears[f"{prefix}{gate}_up"]
        return StreamLayer(linears.get(name), gated=GatedStreams(kernels, tensors[f"{prefix}{norm}.weight"], both))
    if name not in linears:
        return None
    return StreamLayer(linears[name], tensors[f"{name}_base.weight"], tensors[f"{name}_scale.weight"])


def _logits(spec: StreamSpec, layer: StreamLayer, x: torch.Tensor, norm_eps: float) -> list[torch.Tensor]:
    """Of each kind of number: (rows, count), (rows, count), (rows, count²), as far as there are such."""
    assert layer.projection is not None
    assert layer.base is not None
    assert layer.scale is not None
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm_eps)
    sizes = (spec.count, spec.count, spec.count**2)[: len(layer.scale)]
    parts = zip((layer.projection(wide) * factor).split(sizes, 1), layer.base.split(sizes), layer.scale, strict=True)
    return [part * scale + base for part, base, scale in parts]


def read_streams(spec: DecoderSpec, x: torch.Tensor, layer: StreamLayer | None) -> torch.Tensor:
    """What the norm before attention, an MLP or the head gets of rows x: (rows, hidden); or these, without a norm."""
    if spec.streams is None:
        return x
    if layer is not None and layer.gated is not None:
        return layer.gated.read(spec, x)
    if layer is None and spec.gates_streams:  # embeddings of n-grams
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
    if layer.gated is not None:
        assert layer.projection is not None
        written, mixed = layer.projection(layer.gated.normed(spec, x).float()) / streams.count, []
    else:
        _, written, *mixed = _logits(streams, layer, x, spec.norm_eps)
    rows = x.float().unflatten(-1, (streams.count, -1))
    if mixed:
        rows = _mixture(streams, mixed[0]).transpose(1, 2) @ rows
    added = (streams.gain * torch.sigmoid(written) + streams.gain_eps)[..., None] * delta.float()[:, None]
    return (rows + added).flatten(1).to(x.dtype)


def check_hidden(spec: DecoderSpec, hidden: HiddenRows | None) -> None:
    """Raise IpexAssistError where hidden states are asked for of a model that gives none."""
    streams = spec.streams or spec.altup
    if hidden is None:
        return
    one = hidden.taps.streams is None
    known = streams is None if one else spec.streams is not None and not hidden.taps.normed
    if one and hidden.taps.normed and spec.weighs_streams:  # what the final norm gives
        known = set(hidden.taps.layers) == {spec.num_hidden_layers}
    if not known and streams is None:
        raise IpexAssistError("hidden states of several residual streams, of which the model has one")
    if not known and streams is not None:
        raise IpexAssistError(f"hidden states of a model whose residual stream has {streams.count} rows")


def _mixture(spec: StreamSpec, logits: torch.Tensor) -> torch.Tensor:
    """The matrix that mixes streams (rows, count, count), of logits (rows, count²)."""
    made = torch.softmax(logits.unflatten(-1, (spec.count, -1)), -1) + spec.eps
    made = made / (made.sum(1, keepdim=True) + spec.eps)
    for _ in range(spec.sinkhorn_steps - 1):
        made = made / (made.sum(2, keepdim=True) + spec.eps)
        made = made / (made.sum(1, keepdim=True) + spec.eps)
    return made

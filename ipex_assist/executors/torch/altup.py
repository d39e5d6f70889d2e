"""AltUp's residual streams in PyTorch's operators: see AltUpSpec. Rows are (rows, count · hidden)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.models.stream_spec import ALTUP_VECTORS, AltUpSpec


@dataclass
class AltUpLayer:
    """A layer's numbers, in fp32; the norm is ÷ hidden."""

    router_norm: torch.Tensor  # (hidden,)
    router: torch.Tensor  # (count, hidden)
    predict: torch.Tensor  # (count², count)
    correct: torch.Tensor  # (count, count)
    scale: torch.Tensor | None  # (hidden,)

    def routed(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        """What predicts and corrects streams is made of: of rows x (rows, hidden) in fp32, (rows, count)."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.router_norm.float()
        return torch.tanh(normed @ self.router.t())


def altup_layer(spec: AltUpSpec, tensors: Mapping[str, torch.Tensor], prefix: str) -> AltUpLayer:
    """A layer's numbers out of a model's tensors by our names, which begin with `prefix`."""
    router, predict, correct = (tensors[f"{prefix}{name}.weight"] for name in ALTUP_VECTORS[:3])
    return AltUpLayer(
        tensors[prefix + "altup_router_norm.weight"],
        router.view(spec.count, -1),
        predict.view(-1, spec.count),
        correct.view(spec.count, -1),
        tensors.get(prefix + "altup_scale.weight"),
    )


def enter_streams(x: torch.Tensor, projections: Sequence[Linear]) -> torch.Tensor:
    """The streams of embeddings x (rows, hidden), the first of which they are."""
    return torch.cat((x, *(_as_large(projection(x), x) for projection in projections)), 1)


def leave_streams(x: torch.Tensor, projections: Sequence[Linear]) -> torch.Tensor:
    """What the final norm reads, (rows, hidden)."""
    first, *others = x.chunk(len(projections) + 1, 1)
    back = [_as_large(out(each.contiguous()), first) for out, each in zip(projections, others, strict=True)]
    return torch.stack((first, *back)).float().mean(0).to(x.dtype)


def _as_large(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    wide, other = x.float(), like.float()
    size = torch.sqrt(wide.square().mean(-1, keepdim=True).clamp(min=1e-5))
    return (wide * other.square().mean(-1, keepdim=True).sqrt() / size).to(x.dtype)


def predicted(spec: AltUpSpec, layer: AltUpLayer, x: torch.Tensor, eps: float) -> torch.Tensor:
    """The streams before a layer (rows, count, hidden), in fp32."""
    streams = x.float().unflatten(-1, (spec.count, -1))
    numbers = layer.routed(streams[:, spec.active], eps) @ layer.predict.t()
    return streams + numbers.unflatten(-1, (spec.count, spec.count)) @ streams


def corrected(
    spec: AltUpSpec, layer: AltUpLayer, streams: torch.Tensor, made: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The streams after a layer that has made `made` (rows, hidden) of the active one, and what embeddings read."""
    wide = made.float()
    numbers = 1 + layer.routed(wide, eps) @ layer.correct.t()
    streams = streams + numbers[..., None] * (wide - streams[:, spec.active])[:, None]
    read = streams[:, spec.active]
    return streams, (read if layer.scale is None else read * layer.scale).to(made.dtype)

"""LoRA adapters of a model: what each of its weights gets, by our names, and which adapter a sequence has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ipex_assist.checkpoints.lora_folder import LoraPart
from ipex_assist.env.errors import UsageError
from ipex_assist.models import Source
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import check_numbers, head_dim_of, layer_of, part_of, weight_shape

if TYPE_CHECKING:
    import torch

_WEIGHT = ".weight"
# Linears of attention and of plain MLPs.
ADAPTABLE = ("q_proj", "k_proj", "v_proj", "o_proj", "g_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class AdapterChoice:
    """The adapter of a sequence, by its name, and the factor of what it adds."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True)
class AdapterMatrices:
    """What one of our weights gets: scale · B · A. Shapes: a (rank, in), b (out, rank), both fp32."""

    name: str
    a: torch.Tensor
    b: torch.Tensor
    scale: float


@runtime_checkable
class TakesAdapters(Protocol):
    """A model whose sequences may have an adapter each."""

    adapters: Mapping[str, object]

    def add_adapter(self, name: str, matrices: Iterable[AdapterMatrices]) -> None:
        """Have an adapter by this name, for `new_sequence`; in place of an earlier one of the same name."""
        ...


def adapter_matrices(
    spec: DecoderSpec, sources: Mapping[str, Source], parts: Iterable[LoraPart], folder: str
) -> Iterable[AdapterMatrices]:
    """An adapter's matrices for our weights: a module that holds several of them (`qkv_proj`) is cut as its weight is.

    Raises UsageError for a module that the model does not have, one whose linear takes no adapter, and wrong shapes.
    """
    places = places_of(sources)
    for part in parts:
        wanted = places.get(part.module, [])
        if not wanted:
            raise UsageError(f"{folder}: the adapter is for {part.module}, which this {spec.model_type} does not have")
        for ours in wanted:
            if reason := _why_not(spec, ours):
                raise UsageError(
                    f"{folder}: the adapter is for {part.module}, and {reason} take none here: linears of attention "
                    "and of plain MLPs do. Merge it into its model by PEFT (merge_and_unload)"
                )
            yield _matrices(spec, sources[ours], ours, part, folder)


def places_of(sources: Mapping[str, Source]) -> dict[str, list[str]]:
    """Our weights that a module of the checkpoint holds, by its name."""
    places: dict[str, list[str]] = {}
    for ours, source in sources.items():
        for name in (source.name, *source.alternatives):
            if name.endswith(_WEIGHT):
                places.setdefault(name.removesuffix(_WEIGHT), []).append(ours)
    return places


def _why_not(spec: DecoderSpec, ours: str) -> str:
    """What a weight is that takes no adapter; empty where it takes one."""
    *prefix, leaf, _ = ours.split(".")
    layer = layer_of(spec, ours)
    if layer is None:
        return "embeddings and heads"
    if len(prefix) > 2 or leaf in ("router", "shared_gate"):
        return "experts and their routers"
    if layer.aside:
        return "blocks that several layers share"
    if layer.recurrent is not None and leaf not in ("gate_proj", "up_proj", "down_proj"):
        return "recurrent projections"
    return "" if leaf in ADAPTABLE else f"linears such as {leaf}"


def _matrices(spec: DecoderSpec, source: Source, ours: str, part: LoraPart, folder: str) -> AdapterMatrices:
    check_numbers(f"lora_A of {part.module}", part.a)
    check_numbers(f"lora_B of {part.module}", part.b)
    columns, width = weight_shape(spec, ours)
    try:
        # B has the rows of the weight, (out, …), however the checkpoint stores that.
        b = part_of(part.b, replace(source, transposed=False), head_dim_of(spec, ours))
    except RuntimeError:
        b = part.b
    if tuple(b.shape) != (columns, b.shape[-1]) or part.a.shape[1] != width:
        raise UsageError(
            f"{folder}: the adapter's matrices for {part.module} are of {part.b.shape[0]} × {part.a.shape[1]}, and "
            f"this model needs {columns} × {width} for {ours}: it is an adapter of another model"
        )
    return AdapterMatrices(ours, part.a.contiguous(), b.float().contiguous(), part.scale)

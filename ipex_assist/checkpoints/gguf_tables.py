"""How Hugging Face's tensors lie in GGUF files of families whose tensors llama.cpp's converter cuts apart or changes.

A family is a `GgufTable`: for each Hugging Face name the GGUF tensors that it is made of, and what is done to them.
Source: conversion/*.py of llama.cpp (`modify_tensors`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.gguf_file import GgufHeader, GgufTensor
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]
# From the tensors of a GGUF file that one of Hugging Face's is made of, and the config, to that one.
Restore = Callable[[Sequence["torch.Tensor"], Config], "torch.Tensor"]


@dataclass(frozen=True)
class Parts:
    """GGUF's names of the tensors that one of Hugging Face's is made of, in the order that `restore` takes them."""

    names: tuple[str, ...]
    restore: Restore | None = None  # None: one tensor, as it is

    @classmethod
    def of(cls, *names: str, by: Restore | None = None) -> Parts:
        """The tensors of these names, restored by `by`."""
        return cls(names, by)


@dataclass(frozen=True)
class GgufTable:
    """A family's tensors by Hugging Face's names. A name's first entry of which the file has all parts counts.

    layer: names within a layer, after `prefix` and its number, to GGUF's after "blk.N.". outside: whole names. experts:
    as `layer`, with {} for an expert's number. numbers: tensors of one number that files have as lists by layer in
    their metadata, to those keys. further: of the blocks that predict further tokens, {} in whose `prefix` is a block's
    number; None where they are not read.
    """

    layer: tuple[tuple[str, Parts], ...]
    outside: tuple[tuple[str, Parts], ...]
    experts: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "model.layers."
    further: GgufTable | None = None


@dataclass(frozen=True)
class RestoredTensor:
    """A Hugging Face tensor in a GGUF file. restore: None where it is one tensor that is read as `gguf_config` says."""

    parts: tuple[GgufTensor, ...]
    restore: Restore | None = None
    further: bool = False  # of a block that predicts further tokens


def same(names: Mapping[str, str]) -> tuple[tuple[str, Parts], ...]:
    """Modules that are kept as they are, with their biases, by Hugging Face's names."""
    suffixes = (".weight", ".bias")
    return tuple((theirs + each, Parts.of(ours + each)) for theirs, ours in names.items() for each in suffixes)


def read_table(header: GgufHeader, table: GgufTable, family: str, layers: int) -> dict[str, RestoredTensor]:
    """The file's tensors by Hugging Face's names, in file order.

    Blocks after the first `layers` predict further tokens. Raises IpexAssistError for tensors that belong to no such
    model.
    """
    first, end = layers if is_drafting_alone(header) else 0, header.required("block_count") if table.further else layers
    order = {name: place for place, name in enumerate(header.tensors)}
    found: dict[str, tuple[int, RestoredTensor]] = {}
    used: set[str] = set()

    def add(theirs: str, parts: Parts, place: str = "", drafts: bool = False) -> None:
        names = [place + name for name in parts.names]
        if theirs not in found and all(name in order for name in names):
            stored = tuple(header.tensors[name] for name in names)
            found[theirs] = order[names[0]], RestoredTensor(stored, parts.restore or as_it_is, drafts)
            used.update(names)

    for theirs, parts in table.outside:
        add(theirs, parts)
    for layer in range(first, end):
        drafts, place, prefix = layer >= layers, f"blk.{layer}.", f"{table.prefix}{layer}."
        used_here = table
        if drafts:
            assert table.further is not None
            used_here, prefix = table.further, table.further.prefix.format(layer)
        for leaf, parts in used_here.layer:
            add(prefix + leaf, parts, place, drafts)
        for leaf, parts in used_here.outside if drafts else ():
            add(prefix + leaf, parts, "", drafts)
        for leaf, name in used_here.experts.items():
            if place + name.format(0) in order:
                for expert in range(header.required("expert_count")):
                    add(prefix + leaf.format(expert), Parts.of(name.format(expert)), place, drafts)
        for leaf, key in used_here.numbers.items():
            values = header.get(key) or []
            value = values[layer] if isinstance(values, list) else values
            found[prefix + leaf] = len(order), RestoredTensor((), partial(_number, value))
    over = [
        name
        for name in order
        if name not in used and name != "rope_freqs.weight" and not is_further(name, header, layers)
    ]
    if over:
        raise IpexAssistError(
            f"{header.path}: {len(over)} tensors do not belong to a {family} model, the first is {over[0]}. "
            "Pass the model's Hugging Face id or folder instead of the GGUF file."
        )
    return {name: stored for name, (_, stored) in sorted(found.items(), key=lambda each: each[1][0])}


def drafting(table: GgufTable, last: str = "shared_head.norm") -> GgufTable:
    """The table of a family whose blocks that predict further tokens are named as its layers are.

    last: what their last norm is called (models/mtp_layouts.py). Files have it by one of two names; where they have
    none, it is the final one. Their norms weight as that does.
    """
    by = next(parts.restore for _, parts in table.outside if parts.names == ("output_norm.weight",))
    layer = (
        *table.layer,
        *around({"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", last: "shared_head_norm"}, by),
        (f"{last}.weight", Parts.of("layer_output_norm.weight", by=by)),
    )
    outside = ((f"{last}.weight", Parts.of("output_norm.weight", by=by)),)
    return replace(table, further=GgufTable(layer, outside, table.experts, prefix=f"{table.prefix}{{}}."))


def around(names: Mapping[str, str], by: Restore | None = None) -> tuple[tuple[str, Parts], ...]:
    """What stands around such a block, by Hugging Face's names; its norms are restored by `by`."""
    return tuple(
        (f"{theirs}.weight", Parts.of(f"nextn.{ours}.weight", by=by if ours.endswith("norm") else None))
        for theirs, ours in names.items()
    )


def is_further(name: str, header: GgufHeader, layers: int) -> bool:
    """Whether a tensor is of a block behind the layers, which predicts further tokens."""
    block = name.split(".")[1] if name.startswith("blk.") else ""
    return block.isdecimal() and layers <= int(block) < header.required("block_count")


def is_drafting_alone(header: GgufHeader) -> bool:
    """Whether a file has no blocks but those that predict further tokens, as `--mtp` of the converter writes it."""
    drafts = header.get("{arch}.nextn_predict_layers") or 0
    return bool(drafts) and not any(name.startswith("blk.0.") for name in header.tensors)


def as_it_is(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    return parts[0]


def _number(value: float, parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    import torch

    return torch.tensor([float(value)])


def less_one(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """A norm that weights by 1 + w, stored so."""
    return parts[0].float() - 1


def a_log(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """The logarithm of a decay that is stored as -exp(A_log), and in Mamba-2 layers as a column."""
    return (-parts[0].float()).log().reshape(-1)


def decays(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """The logarithms of decays of each element of the state, (channels, state), that are stored as -exp(A_log)."""
    return (-parts[0].float()).log()


def vector(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """A vector that is stored as a column, or by groups."""
    return parts[0].reshape(-1)


def convolution(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Weights of a convolution by channels (channels, 1, kernel), stored without the middle."""
    return parts[0].unsqueeze(1)


def row(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """A matrix of one row, stored as a vector."""
    return parts[0].reshape(1, -1)


def stacked(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Matrices that are one, by rows."""
    import torch

    return torch.cat(list(parts))


# Llama's names, and Qwen's of experts.
ATTENTION = {f"self_attn.{leaf}_proj": f"attn_{leaf}" for leaf in "qkv"} | {"self_attn.o_proj": "attn_output"}
MLP = {f"mlp.{leaf}_proj": f"ffn_{leaf}" for leaf in ("gate", "up", "down")}
EXPERTS = {f"mlp.experts.{{}}.{leaf}_proj.weight": f"ffn_{leaf}_exps.{{}}.weight" for leaf in ("gate", "up", "down")}
MIXTRAL_PLACE = "block_sparse_moe"
MIXTRAL_EXPERTS = {
    f"{MIXTRAL_PLACE}.experts.{{}}.{theirs}.weight": f"ffn_{ours}_exps.{{}}.weight"
    for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
}
HEAD = same({"lm_head": "output"})
EMBEDDING = same({"model.embed_tokens": "token_embd"})
OUTSIDE = (*EMBEDDING, *HEAD, *same({"model.norm": "output_norm"}))


def layers_with(header: GgufHeader, tensor: str, count: int) -> list[bool]:
    """Which of the first `count` layers have this tensor."""
    return [f"blk.{layer}.{tensor}" in header.tensors for layer in range(count)]


def mlp_layer_types(header: GgufHeader, count: int) -> list[str]:
    """Which of the first `count` layers have experts, as configs of transformers list it."""
    return ["sparse" if each else "dense" for each in layers_with(header, "ffn_gate_inp.weight", count)]


def has(header: GgufHeader, tensor: str) -> bool:
    """Whether any layer has this tensor."""
    return any(name.endswith(f".{tensor}") for name in header.tensors)


def rotary_share(header: GgufHeader, config: Config, default: float = 1.0) -> float:
    """How much of a head is rotated."""
    rotated = header.get("{arch}.rope.dimension_count")
    return default if rotated is None else share_of(rotated, config["head_dim"])


def share_of(rotated: int, head_dim: int) -> float:
    """The share of a head that is so many of its values, where that is rounded down."""
    share = rotated / head_dim
    return share if int(head_dim * share) == rotated else math.nextafter(share, 1)

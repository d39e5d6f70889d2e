"""What the files of draft heads share: a head's spec beside where its weights are, and the names of its own layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ipex_assist.models.config import NotComputed
from ipex_assist.models.names import renamed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source


class DraftHead(NamedTuple):
    """A draft head: its DecoderSpec, whose `head` is not None, and where a checkpoint has each of its weights.

    Without those that it shares with its target. tokens: the name of the tensor that says which tokens of the target
    the rows of its lm_head are, as differences from their own numbers; None where they are all of them, in order.
    ordering: the name of that with the tokens of its clusters. further: heads of the drafted tokens after the first,
    where each has its own (executors/layer_chain.py).
    """

    spec: DecoderSpec
    sources: dict[str, Source]
    tokens: str | None = None
    ordering: str | None = None
    further: tuple[DraftHead, ...] = ()


def under(sources: Mapping[str, Source], rename: Callable[[str], str]) -> dict[str, Source]:
    """The sources of layers, by other names."""
    inside = {ours: source for ours, source in sources.items() if ours.startswith("layers.")}
    return {ours: renamed(source, lambda name: [rename(name)]) for ours, source in inside.items()}


def check_target(head: DecoderSpec, target: DecoderSpec) -> None:
    """Raise NotComputed where a head was made for a target of another width, vocabulary or number of layers."""
    assert head.head is not None
    compared = (
        ("hidden states of {} values", head.head.target_hidden_size, target.tap_width(head.head.taps)),
        ("a vocabulary of {:,} tokens", head.vocab_size, target.vocab_size),
    )
    for what, wanted, found in compared:
        if wanted != found:
            raise NotComputed(f"it was made for a model with {what.format(wanted)}, and this one has {found:,}")
    if (last := max(head.head.taps.layers)) > target.num_hidden_layers:
        raise NotComputed(f"it reads hidden states of layer {last}, and the model has {target.num_hidden_layers}")

"""Zamba2: Mamba-2 layers, some of which read what a few blocks of attention and MLP give, whose weights they share."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ipex_assist.models.common import activation, check_kinds, llama_like, rope
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.mamba_layers import mamba_fields, mamba_mixer, mamba_names
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, named, renamed, stacked
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Product, Source

ARCHITECTURE = "Zamba2ForCausalLM"
EXAMPLES = ("Zyphra/Zamba2-7B-Instruct", "Zyphra/Zamba2-2.7B-Instruct", "Zyphra/Zamba2-1.2B-Instruct")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "layer_types": "layers_block_type", "linear_num_value_heads": "n_mamba_heads"},
    **{"linear_num_key_heads": "mamba_ngroups", "n_groups": "mamba_ngroups", "linear_key_head_dim": "mamba_d_state"},
    "linear_conv_kernel_dim": "mamba_d_conv",
}
_HYBRID = "hybrid"
_OLD_KINDS = {"mamba": LINEAR}
_USUAL = [LINEAR, *[*[LINEAR] * 5, _HYBRID] * 7, *[LINEAR] * 4, _HYBRID, *[LINEAR] * 3, _HYBRID, *[LINEAR] * 2]
_UP = "gate_up_proj"
_LINEARS = {
    **LLAMA_LINEARS,
    **{"gate_proj": f"feed_forward.{_UP}", "up_proj": f"feed_forward.{_UP}", "down_proj": "feed_forward.down_proj"},
    "aside_proj": "linear",
}
_ATTENTION = ("q_proj", "k_proj", "v_proj")


def spec(config: Config) -> DecoderSpec:
    """A hybrid layer is two here: a shared block aside, and Mamba-2, which reads what that gives."""
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    bias = config.flag("add_bias_linear", False)
    if hidden < 1 or heads < 1 or 2 * hidden % heads:
        raise ConfigError("num_attention_heads", heads, f"a divisor of twice the width, {2 * hidden:,}")
    adapted = config.flag("use_shared_attention_adapter", False)
    if adapted and config.integer("num_key_value_heads", heads) != heads:
        raise ConfigError("num_key_value_heads", config.integer("num_key_value_heads", heads), f"{heads} with adapters")
    rotated, longer = config.flag("use_mem_rope", False), config.flag("use_long_context", False)
    if rotated and longer:  # whose theta transformers 4 stretches, and 5 does not
        raise NotComputed("use_long_context with use_mem_rope is not supported")
    head_dim = 2 * hidden // heads
    alike = llama_like(
        "zamba2",
        config,
        num_hidden_layers=1,
        head_dim=head_dim,
        intermediate_size=config.optional_integer("intermediate_size") or 4 * hidden,
        activation=activation(config.text("hidden_act", "gelu")),
        mlp_bias=bias,
        norm_eps=config.number("norm_eps", 1e-5),
        max_position_embeddings=16384 if longer else config.integer("max_position_embeddings", 4096),
        ropes=(rope(config),) if rotated else (),
        attention_scale=(head_dim / 2) ** -0.5,
        tied_head=config.flag("tie_word_embeddings", True),
    )
    return replace(alike, layers=tuple(_layers(config, alike.layers[0], LayerSpec(_mixer(config, bias), None))))


def _layers(config: Config, block: LayerSpec, mixer: LayerSpec) -> Iterator[LayerSpec]:
    kinds = [_OLD_KINDS.get(kind, kind) for kind in config.optional_texts("layer_types") or _USUAL]
    check_kinds(kinds, LINEAR, _HYBRID)
    if len(kinds) != (count := config.integer("num_hidden_layers", len(_USUAL))):
        raise ConfigError("layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    hybrid = [number for number, kind in enumerate(kinds) if kind == _HYBRID]
    if list(config.integers("hybrid_layer_ids")) not in ([], hybrid):
        raise NotComputed("hybrid_layer_ids that are not those of layers_block_type are not supported")
    blocks, uses = config.integer("num_mem_blocks", 1), 0
    if blocks < 1:
        raise ConfigError("num_mem_blocks", blocks, "1 at least")
    for kind in kinds:
        if kind == _HYBRID:
            yield replace(block, aside=1 + uses % blocks)
            uses += 1
        yield mixer


def _mixer(config: Config, bias: bool) -> RecurrentSpec:
    """Its convolution has a bias whatever `use_conv_bias` says."""
    width, heads = config.integer("mamba_expand", 2) * config.integer("hidden_size"), "linear_num_value_heads"
    count = config.integer(heads, 8)
    if count < 1 or width % count:
        raise ConfigError(heads, count, f"a divisor of {width:,}, the width of a Mamba-2 layer")
    return mamba_mixer(
        config,
        "silu",
        heads=count,
        value_dim=width // count,
        key_heads=config.integer("linear_num_key_heads", 1),
        key_dim=config.integer("linear_key_head_dim", 64),
        conv_bias=True,
        bias=bias,
        step_limit=(config.number("time_step_min", 0.001), math.inf),
        norm_eps=1e-5,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """A block's weights are those of the first layer that has it, or what adapters of each layer make of them."""
    mlp = next((layer.inner_size for layer in spec.layers if layer.aside), 0)
    made = named(
        spec,
        linears=_LINEARS,
        norms={"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"},
        outside={**LLAMA_OUTSIDE, "final_norm": "model.final_layernorm"},
        fields={**mamba_fields(spec.recurrents[0]), **stacked({"gate_proj": mlp, "up_proj": mlp})},
        recurrent=mamba_names("mamba"),
    )
    places = _places(spec)
    for ours, source in made.items():
        place, _, rest = ours.partition(".")
        if place == "layers":
            number, leaf = rest.split(".")[:2]
            where = partial(_moved, f"layers.{number}.", places[int(number)], leaf)
            made[ours] = renamed(source, where)
    return made


def products(spec: DecoderSpec, config: Mapping[str, Any], stored: Collection[str]) -> dict[str, Product]:
    """What adapters of each layer make of a block's weights: of its MLP's first, and, if the config says so, of its
    queries', keys' and values'.
    """

    def where(place: _Place, name: str) -> str:
        names = [f"model.{prefix}{name}" for prefix in place.blocks]
        return next((name for name in names if name in stored), names[-1])

    adapted = Config(config).flag("use_shared_attention_adapter", False)
    made = {}
    for place in _places(spec):
        if place.use is None:
            continue
        parts = {f"feed_forward.{_UP}": f"feed_forward.{_UP}_adapter_list"}
        if adapted:
            parts |= {f"self_attn.{leaf}": f"self_attn.linear_{leaf[0]}_adapter_list" for leaf in _ATTENTION}
        for part, adapter in parts.items():
            down, up = (where(place, f"{adapter}.{place.use}.{number}.weight") for number in (0, 1))
            name = f"{part}.weight"
            made[_adapted(f"model.{place.blocks[0]}{name}", place.use)] = Product(where(place, name), up, down)
    return made


@dataclass(frozen=True)
class _Place:
    """Where a layer of ours is in a checkpoint: what names of its own tensors begin with.

    blocks: likewise of the block that it has: of its own copy, which is only stored where nothing is shared
    (`tie_word_embeddings` false), and of the first one. use: which it is of all uses of blocks.
    """

    own: str
    blocks: tuple[str, ...] = ()
    use: int | None = None


def _places(spec: DecoderSpec) -> list[_Place]:
    first: dict[int, int] = {}  # of each block, the first layer that has it
    found: list[_Place] = []
    number, uses, hybrid = 0, 0, False
    for layer in spec.layers:
        if layer.aside:
            numbers = dict.fromkeys((number, first.setdefault(layer.aside, number)))
            blocks = tuple(f"layers.{each}.shared_transformer." for each in numbers)
            found.append(_Place(f"layers.{number}.", blocks, uses))
            uses, hybrid = uses + 1, True
            continue
        found.append(_Place(f"layers.{number}.mamba_decoder." if hybrid else f"layers.{number}."))
        number, hybrid = number + 1, False
    return found


def _adapted(name: str, use: int) -> str:
    """The name of what an adapter makes of a tensor."""
    return f"{name}+{use}"


def _moved(here: str, place: _Place, leaf: str, name: str) -> list[str]:
    """A tensor's names in a checkpoint, of its name in a layer of ours."""
    if place.use is None or leaf == "aside_proj":
        return [name.replace(here, place.own, 1)]
    moved = [name.replace(here, prefix, 1) for prefix in place.blocks]
    if leaf in _ATTENTION:
        return [_adapted(moved[0], place.use), *moved]
    return [_adapted(moved[0], place.use)] if name.endswith(f"{_UP}.weight") else moved

"""What the model files share of reading configs; names.py has what they share of checkpoints' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from ipex_assist.models.attention_spec import ATTENTION_RANGES
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.mlp_spec import ACTIVATIONS, Activation, Experts
from ipex_assist.models.rope_spec import ROPE_RANGES, Rope, RopeKind
from ipex_assist.models.spec import RANGES, DecoderSpec

ROPE_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)
FULL, SLIDING = "full_attention", "sliding_attention"


def activation(name: str) -> Activation:
    """Our name of an activation; NotComputed for one we do not have."""
    if name not in ACTIVATIONS:
        raise NotComputed(f"activation {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def refuse(config: Config, **usual: Any) -> None:
    """Raise NotComputed where the config has another value than the usual one that we compute (null counts as it)."""
    for name, value in usual.items():
        found = config.values.get(name)
        if found is not None and found != value:
            raise NotComputed(f"{name} {found!r} is not supported, only {value!r}")


def rope(config: Config, default_theta: float = 10000.0, *, kind: str | None = None, partial: bool = False) -> Rope:
    """Rotary positions of a config, as written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).

    kind: of layers ("full_attention"), whose own entry it is where rope_parameters has one for each kind. partial:
    whether the caller takes care of `partial_rotary_factor`. Raises ConfigError for values that cannot be, NotComputed
    for rules we do not have.
    """
    part = Config(config.part("rope_parameters") or config.part("rope_scaling"))
    if kind is not None and kind in part.values:
        part = Config(part.part(kind))
    rule = part.text("rope_type", part.text("type", "default"))
    if rule == "su" or (rule == "yarn" and "short_factor" in part.values):  # Phi-3's first names of it
        rule = "longrope"
    if rule == "mrope":  # Qwen2-VL's name of sections, whose positions are alike in text
        rule = "default"
    if rule not in ROPE_KINDS:
        raise NotComputed(f"rope type {rule!r} is not supported; known: {', '.join(ROPE_KINDS)}")
    if any(isinstance(value, dict) for value in part.values.values()):
        raise NotComputed("rotary positions that differ by the kind of layer are not supported")
    share = part.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if rule == "proportional" and partial:
        raise NotComputed("proportional rotary positions over a part of each head are not supported")
    if not partial and share != 1.0 and rule != "proportional":
        raise NotComputed("rotary positions over a part of each head (partial_rotary_factor) are not supported")
    theta = part.number("rope_theta", config.number("rope_theta", default_theta))
    scaling: dict[str, Any] = {"partial_rotary_factor": share, "factor": 1.0} if rule == "proportional" else {}
    for name in ROPE_RANGES:
        if name not in ("rope_theta", "partial_rotary_factor") and (value := part.optional_number(name)) is not None:
            scaling[name] = value
    if "mrope_section" in part.values:
        scaling["mrope_section"] = part.integers("mrope_section")
        scaling["mrope_interleaved"] = part.flag("mrope_interleaved", False)
    if rule == "yarn":
        scaling["truncate"] = part.flag("truncate", True)
        trained = part.optional_number("original_max_position_embeddings")
        if "factor" not in scaling and trained:
            scaling["factor"] = config.integer("max_position_embeddings") / trained
    if rule == "longrope":
        _longrope(config, part, scaling)
    return Rope(theta=float(theta), kind=rule, scaling=scaling)


def _longrope(config: Config, part: Config, scaling: dict[str, Any]) -> None:
    for name in ("short_factor", "long_factor"):
        scaling[name] = part.numbers(name)
    trained = config.optional_integer("original_max_position_embeddings")
    if trained is not None:  # older than rope_parameters, and before them
        scaling["original_max_position_embeddings"] = trained
    longest = config.integer("max_position_embeddings", 2048)
    trained = scaling.setdefault("original_max_position_embeddings", longest)
    if trained >= 1:  # else it is refused
        scaling.setdefault("factor", longest / trained)


def rotary_part(config: Config, head_dim: int, default: float) -> int:
    """How many values of each head are rotated. ConfigError where that is none, or more than a head."""
    part = Config(config.part("rope_parameters") or config.part("rope_scaling"))
    share = part.number("partial_rotary_factor", config.number("partial_rotary_factor", default))
    if not 0 < share <= 1 or int(head_dim * share) < 2:
        name = config.stored_name("partial_rotary_factor")
        raise ConfigError(name, share, f"from {2 / max(head_dim, 2):g} to 1")
    return int(head_dim * share)


def ropes_by_kind(
    ropes: Mapping[str, Config], kinds: Sequence[str], head_dim: int, rotated: float = 1.0
) -> dict[str, Any]:
    """Rotary positions of layers that see everything and of those with windows, and how much of a head they rotate.

    ropes: what `rope` reads of layers of a kind. rotated: the share of a head where that does not say it. Returns
    fields of `llama_like`.
    """
    parts = {kind: rotary_part(ropes[kind], head_dim, rotated) for kind in (FULL, SLIDING)}
    return {
        "ropes": tuple(rope(ropes[kind], partial=True) for kind in (FULL, SLIDING)),
        "layer_ropes": tuple(int(kind == SLIDING) for kind in kinds),
        "rotary_dims": tuple(parts[kind] for kind in kinds),
    }


def text_part(config: Config) -> Config:
    """The part of a config that is the text model's, where the whole takes images, too; all of it without such parts.

    Its head is the embedding where both parts say so, or one of them and the other nothing: where they differ, the
    tensors decide (`names.inside`).
    """
    text = config.part("text_config") or dict(config.values)
    said = [part.flag("tie_word_embeddings", False) for part in (config, Config(text)) if _says_tied(part)]
    return Config({**text, "tie_word_embeddings": bool(said) and all(said)}, config.other_names)


def _says_tied(config: Config) -> bool:
    return config.values.get("tie_word_embeddings") is not None


def by_either_name(config: Config, **other: str) -> Config:
    """The config by these names of fields where it has no value by its family's usual ones."""
    missing = {name: key for name, key in other.items() if config.values.get(config.stored_name(name)) is None}
    return Config(config.values, {**config.other_names, **missing})


def number_or_none(config: Config, name: str, default: float | None) -> float | None:
    """A number that may be null, which is not the same as the default of a config that lacks it."""
    return config.optional_number(name) if config.stored_name(name) in config.values else default


def positive(config: Config, name: str, default: float) -> float:
    """A number above zero."""
    value = config.number(name, default)
    if value <= 0:
        raise ConfigError(config.stored_name(name), value, "above 0")
    return value


def layer_count(config: Config) -> int:
    """The number of layers, for what has an entry a layer: no more than a spec may have, which says so itself."""
    return min(config.integer("num_hidden_layers"), int(RANGES["num_hidden_layers"][1]) + 1)


def check_kinds(kinds: Sequence[str], *known: str, what: str = "layers") -> None:
    """Raise NotComputed where one of the kinds that a config lists is none that we know."""
    if unknown := sorted(set(kinds) - set(known)):
        raise NotComputed(f"{what} of the type {unknown[0]!r} are not supported")


def layer_kinds(config: Config, usual: Callable[[int], bool]) -> list[str]:
    """`layer_types`, or where it is not given, a window where `usual` says so. Raises NotComputed for other kinds."""
    kinds = config.optional_texts("layer_types") or [
        SLIDING if usual(layer) else FULL for layer in range(layer_count(config))
    ]
    check_kinds(kinds, FULL, SLIDING)
    return kinds


def windows(config: Config, kinds: Sequence[str], default: int | None = None) -> tuple[int | None, ...]:
    """Each layer's window. Raises NotComputed where the config has none for a layer that asks for it.

    default: of a config without the key; null is none.
    """
    window = config.optional_integer("sliding_window") if "sliding_window" in config.values else default
    if window is None and SLIDING in kinds:
        raise NotComputed("layers with a sliding window, and a config that gives no sliding_window")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def every_layer(config: Config, window: int | None) -> tuple[int | None, ...]:
    """This window in all layers; empty, as `uniform_decoder` takes it, where there is none."""
    return () if window is None else (window,) * layer_count(config)


def qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Each layer's window, by Qwen's layer_types or max_window_layers; none unless use_sliding_window. NotComputed."""
    layers = layer_count(config)
    if not config.flag("use_sliding_window", False) or config.optional_integer("sliding_window") is None:
        return ()
    first = config.integer("max_window_layers", layers)
    return windows(config, layer_kinds(config, lambda layer: layer >= first))


def even_head_dim(config: Config) -> int:
    """Return hidden_size ÷ heads, where the config gives no head_dim. Raises ConfigError where it is not whole."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if heads < 1 or hidden_size % heads:
        raise ConfigError(config.stored_name("num_attention_heads"), heads, f"a divisor of the width, {hidden_size:,}")
    return hidden_size // heads


def experts(config: Config, **fields: Any) -> Experts:
    """The experts of a config, which calls their number num_experts or num_local_experts, depending on who wrote it."""
    if "activation" not in fields:
        fields["activation"] = activation(config.text("hidden_act", "silu"))
    return Experts(
        count=expert_count(config),
        per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.integer("moe_intermediate_size"),
        **fields,
    )


def sparse_layers(config: Config, **fields: Any) -> dict[str, Any]:
    """The experts of Qwen's mixtures and which layers have them: every `decoder_sparse_step`-th but `mlp_only_layers`.

    The others have an MLP of `intermediate_size`. fields: of the Experts. Returns fields of `llama_like`. ConfigError.
    """
    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers")
    if step < 1:
        raise ConfigError("decoder_sparse_step", step, "at least 1")
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(layer_count(config))]
    if expert_count(config) == 0 or not any(sparse):
        return {}
    return {"experts": experts(config, **fields), "sparse": sparse}


def deepseek_experts(config: Config, **fields: Any) -> Experts:
    """Experts as DeepSeek-V3 routes to them: sigmoid scores, a correction bias, groups judged by their best two.

    fields: of the Experts, with `shared`, the number of shared experts, each as wide as the others. ConfigError.
    """
    return experts(
        config,
        **{
            "scores": "sigmoid",
            "correction_bias": True,
            "normalised": config.flag("norm_topk_prob", True),
            "groups": config.integer("n_group", 1),
            "groups_per_token": config.integer("topk_group", 1),
            "scaling": config.number("routed_scaling_factor", 1.0),
            "added_to_sum": 1e-20,
            "shared_size": fields.pop("shared", 0) * config.integer("moe_intermediate_size"),
            **fields,
        },
    )


def dense_first(config: Config, dense: int, experts: Experts) -> dict[str, Any]:
    """These experts in all layers but the first `dense`, which have an MLP. Returns fields of `llama_like`."""
    sparse = [layer >= dense for layer in range(layer_count(config))]
    return {"experts": experts, "sparse": sparse} if any(sparse) else {}


def sparse_kinds(config: Config, first: int = 1) -> list[bool]:
    """Which layers have experts: as `mlp_layer_types` says, or all but the first `first_k_dense_replace`.

    first: how many those are in a config without it. Raises NotComputed for other kinds than the two.
    """
    count, dense = layer_count(config), config.integer("first_k_dense_replace", first)
    kinds = config.optional_texts("mlp_layer_types")
    if kinds is None:
        return [layer >= dense for layer in range(count)]
    check_kinds(kinds, "dense", "sparse", what="MLPs")
    if len(kinds) != count:
        raise ConfigError("mlp_layer_types", f"a list of {len(kinds)}", f"one for each of {count} layers")
    return [kind == "sparse" for kind in kinds]


def sparse_fields(config: Config, **fields: Any) -> dict[str, Any]:
    """DeepSeek-V3's experts in the layers of `sparse_kinds`. fields: of the Experts. Returns fields of `llama_like`."""
    sparse = sparse_kinds(config)
    return {"experts": deepseek_experts(config, **fields), "sparse": sparse} if any(sparse) else {}


def expert_count(config: Config) -> int:
    """How many experts a layer has."""
    names = [name for name in ("num_experts", "num_local_experts") if config.values.get(name) is not None]
    return Config(config.values).integer(names[0]) if names else config.integer("num_experts")


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """ALiBi's slopes: 2^(-most · i / n) for n heads, a power of two; more heads take every second of the next power's.

    Source: Press et al. 2021, arXiv:2108.12409, and its reference code.
    """
    heads = min(heads, int(ATTENTION_RANGES["num_attention_heads"][1][1]) + 1)  # more are refused
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-most * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-most * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return tuple(slopes)


def llama_like(model_type: str, config: Config, **differences: Any) -> DecoderSpec:
    """The spec of a model that is Llama but for `differences`."""
    heads, head_dim = config.integer("num_attention_heads"), config.optional_integer("head_dim")
    if head_dim is None and "head_dim" not in differences:
        head_dim = even_head_dim(config)
    fields: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "max_position_embeddings": config.integer("max_position_embeddings", 2048),
        "norm_eps": config.number("norm_eps", 1e-6),
        "tied_head": config.flag("tie_word_embeddings", False),
    }
    if "experts" not in differences or not all(differences.get("sparse", ())):
        if "intermediate_size" not in differences:
            fields["intermediate_size"] = config.integer("intermediate_size")
        if "activation" not in differences:
            fields["activation"] = activation(config.text("hidden_act", "silu"))
    if "num_hidden_layers" not in differences:
        fields["num_hidden_layers"] = config.integer("num_hidden_layers")
    if "ropes" not in differences:
        fields["ropes"] = (rope(config),)
    return uniform_decoder(**{**fields, **differences})

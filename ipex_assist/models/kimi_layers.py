"""The layers of Kimi Linear: which are recurrent, and what `linear_attn_config` of published files says of these."""

from __future__ import annotations

from ipex_assist.models.common import FULL, check_kinds, layer_count
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.gated_delta import LINEAR

# Of `linear_attn_config`, which published configs have in the place of these.
_INNER = {"linear_num_heads": "num_heads", "linear_head_dim": "head_dim"}
_INNER |= {"linear_conv_kernel_dim": "short_conv_kernel_size"}


def with_inner_names(config: Config) -> Config:
    """The config with what `linear_attn_config` has beside its other values."""
    inner = config.part("linear_attn_config")
    found = {ours: inner[theirs] for ours, theirs in _INNER.items() if theirs in inner}
    return Config({**config.values, **found}, config.other_names)


def mixer_kinds(config: Config) -> list[str]:
    """Of layers: Kimi Delta Attention or attention. Raises NotComputed for others."""
    inner = Config(config.part("linear_attn_config"))
    kinds, count = config.optional_texts("layer_types"), layer_count(config)
    if kinds is None and {"full_attn_layers", "kda_layers"} <= set(inner.values):
        full, linear = set(inner.integers("full_attn_layers")), set(inner.integers("kda_layers"))
        if full & linear or full | linear != set(range(1, count + 1)):
            raise ConfigError("linear_attn_config", dict(inner.values), f"lists of layers 1 to {count}, each in one")
        kinds = [FULL if layer + 1 in full else LINEAR for layer in range(count)]
    kinds = kinds or [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(count)]
    check_kinds(kinds, FULL, LINEAR)
    return kinds

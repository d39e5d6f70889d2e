"""What checkpoints call the layers that predict further tokens (MTP), and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MtpLayout:
    """Names in a checkpoint; {0} stands for the number of the layer, counted on from those of the target, {1} from 0.

    layers: what the names of the layer's tensors begin with, which in the target's own are `first`; `parts` of them are
    others, too: (in the target's, here). before_norm: it reads the target's hidden states, and its own, before their
    final norms. token, head: of several residual streams the linear of the token's embedding, and what the names of
    what weighs or gates them before the final norm begin with.
    """

    layers: str
    fc: str
    embed_norm: str
    hidden_norm: str
    final_norm: str | None
    first: str = "layers.0."
    parts: tuple[tuple[str, str], ...] = ()
    before_norm: bool = False
    token: str | None = None
    head: str = ""

    def inside(self, name: str) -> str:
        """What a tensor of the target's own first layer is called within the layer."""
        rest = name.partition(self.first)[2]
        for part, other in self.parts:
            rest = rest.replace(part, other)
        return rest


def _gated(place: str) -> MtpLayout:
    """Qwen4's. place: what all of its names begin with."""
    mixer, norm = f"{place}hyper_connection_mixer.", f"{place}pre_fc_norm_"
    names = f"{place}layers.0.", f"{place}fc_hidden", f"{norm}embedding", f"{norm}hidden", f"{mixer}hc_norm"
    return MtpLayout(*names, token=f"{place}fc_embedding", head=mixer)


def _next(place: str, norm: str = "final_layernorm", inside: str = "", **more: Any) -> MtpLayout:
    """By DeepSeek-V3's names, but for the last norm's. inside: what the layer's names begin with after `place`."""
    names = f"{place}eh_proj", f"{place}enorm", f"{place}hnorm", f"{place}{norm}"
    return MtpLayout(place + inside, *names, **more)


_LAYER, _MTP, _V4 = "model.layers.{0}.", "model.mtp.layers.{1}.", "mtp.{1}."
_TEXT_LAYER, _HY4, _M3 = "model.language_model.layers.{0}.", "model.mtp_layers.{1}.", f"language_model.{_MTP}"
LAYOUTS = (
    MtpLayout("mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
    _next(_LAYER, "shared_head.norm"),
    _next(_TEXT_LAYER, "shared_head.norm"),
    _next(_LAYER),  # Hunyuan 3, Ling 3
    _next(_LAYER, "transformer.shared_head.norm", before_norm=True),  # Step 3.7
    _next(_M3, inside="transformer_layer."),  # MiniMax-M3
    _next(_HY4),
    _next(_MTP, parts=(("post_attention_layernorm", "pre_mlp_layernorm"),), before_norm=True),  # MiMo-V2-Flash
    MtpLayout(  # LongCat-Flash, whose own layers have two of each part
        *(_MTP, f"{_MTP}eh_proj", f"{_MTP}enorm.m", f"{_MTP}hnorm.m", "model.mtp.norm"),
        parts=((".0.", "."), ("mlp.", "transformer_layer.mlp.")),
    ),
    MtpLayout(
        *(_V4, f"{_V4}h_proj", f"{_V4}enorm", f"{_V4}hnorm", f"{_V4}norm"), token=f"{_V4}e_proj", head=f"{_V4}hc_head_"
    ),
    *(_gated(f"{part}mtp.") for part in ("", "model.", "language_model.", "model.language_model.")),
    MtpLayout(
        *("model.mtp_block.0.", "model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", None)
    ),
    # As `speculators` saves one that it has trained.
    MtpLayout(
        *("mtp_layers.0.", "mtp_layers.0.input_proj", "mtp_layers.0.token_layernorm", "mtp_layers.0.hidden_layernorm"),
        "mtp_layers.0.final_layernorm",
    ),
    # Nemotron-H: the blocks of one layer of ours have numbers of their own.
    MtpLayout(
        *("mtp.layers.", "mtp.layers.0.eh_proj", "mtp.layers.0.enorm", "mtp.layers.0.hnorm"),
        *("mtp.layers.1.final_layernorm", "layers."),
    ),
)

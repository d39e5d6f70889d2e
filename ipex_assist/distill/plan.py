"""What of a target a head is made for: layers that it reads, its own shape, and what cannot be distilled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.draft_head import Taps
from ipex_assist.models.spec import DecoderSpec

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint

KINDS = ("eagle3", "dflash", "mtp")
DRAFT_VOCABULARY = 16384  # tokens that a new head tells apart, where the target knows more
LAYERS = {"eagle3": 1, "dflash": 2, "mtp": 1}
DRAFT_TOKENS = {"eagle3": 4, "dflash": 7, "mtp": 3}
TRAINED_MTP = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # model_type of what `speculators` 0.9 has layers for
INNER = 2  # of EAGLE-3's MLP, in hidden sizes
MTP = "mtp."  # what names of its tensors begin with
STORED_BYTES = 2  # of a value: bf16
TOKEN_BYTES = 8  # of a token's id beside its hidden states


@dataclass(frozen=True)
class HeadPlan:
    """A head before it is trained. aux_layers: whose incoming residual streams it reads (Taps.layers)."""

    kind: str
    aux_layers: tuple[int, ...]
    layers: int
    draft_tokens: int
    draft_vocab_size: int
    start_from: str | None = None  # folder of a head that training goes on with

    def taps(self, spec: DecoderSpec) -> Taps:
        """What is stored of each row: these layers, and the stream after the last one, before the final norm.

        Of MTP, which reads that stream alone, it is after the norm, as engines give it.
        """
        if self.kind == "mtp":
            return Taps((spec.num_hidden_layers,), normed=True)
        return Taps((*self.aux_layers, spec.num_hidden_layers))


def check_target(checkpoint: Checkpoint, kind: str) -> DecoderSpec:
    """The target's spec. Raises IpexAssistError where no head can be distilled from it."""
    if reason := checkpoint.why_not_ours():
        raise IpexAssistError(
            f"{checkpoint.source} runs through transformers, not our own decoder ({reason}), and only that gives the "
            "hidden states that a head learns from"
        )
    spec = checkpoint.decoder_spec()
    lacks = {
        "its final norm is no RMS norm": spec.norm != "rms" or not spec.final_norm or not spec.norm_affine,
        "its logits are capped": spec.logit_cap is not None,
        "its lm_head has a bias": spec.head_bias,
        "its embedding has another width than its layers": spec.embedding_size not in (None, spec.hidden_size),
        "it has one layer": spec.num_hidden_layers < 2,
        "its embedding is scaled": kind == "dflash" and spec.embedding_multiplier != 1,
    }
    if found := [what for what, is_so in lacks.items() if is_so]:
        raise IpexAssistError(
            f"{checkpoint.source} cannot be distilled into {kind}: {' and '.join(found)}, which `speculators` does not "
            "compute"
        )
    if kind == "mtp":
        check_mtp(checkpoint)
    return spec


def text_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The part of a config that is about text."""
    found: dict[str, Any] = checkpoint.config.get("text_config", checkpoint.config)
    return found


def check_mtp(checkpoint: Checkpoint) -> None:
    """Raise IpexAssistError where a target brings no MTP layer that `speculators` trains."""
    model_type, names = text_config(checkpoint).get("model_type"), checkpoint.names()
    if model_type not in TRAINED_MTP:
        raise IpexAssistError(
            f"{checkpoint.source} is of the type {model_type}, and `speculators` 0.9 trains MTP layers of "
            f"{', '.join(TRAINED_MTP)} only, which their checkpoints bring: use --kind eagle3"
        )
    if not any(name.startswith(MTP) for name in names):
        raise IpexAssistError(
            f"{checkpoint.source} brings no MTP layer (tensors {MTP}*), and `speculators` 0.9 trains none from the "
            "beginning: use --kind eagle3"
        )


def aux_layers(layers: int) -> tuple[int, ...]:
    """Near the first, the middle and the last layer, as `speculators` chooses them; evenly where there are few."""
    usual = 2, layers // 2, layers - 3
    if sorted(set(usual)) == list(usual):
        return usual
    return tuple(sorted({layers // 4, layers // 2, layers - 1}))


def new_plan(kind: str, spec: DecoderSpec, layers: int | None, draft_vocab_size: int | None) -> HeadPlan:
    """A head that is new, but for MTP: that of the target's checkpoint."""
    if kind == "mtp" and (layers or draft_vocab_size):
        raise UsageError("--kind mtp has the layer and the vocabulary of its target: leave out --layers and the like")
    if kind == "mtp":
        draft_vocab_size = spec.vocab_size
    return HeadPlan(
        kind,
        (spec.num_hidden_layers,) if kind == "mtp" else aux_layers(spec.num_hidden_layers),
        layers or LAYERS[kind],
        DRAFT_TOKENS[kind],
        min(draft_vocab_size or DRAFT_VOCABULARY, spec.vocab_size),
    )


def plan_from(head: Checkpoint, target: Checkpoint, kind: str | None) -> HeadPlan:
    """The plan of a head that training goes on with. Raises IpexAssistError where that cannot be."""
    from ipex_assist.executors.load import head_of

    stored = head.config.get("speculators_model_type")
    if stored not in KINDS:
        said = f"is of the kind {stored!r}" if stored else "is no checkpoint that `speculators` wrote"
        raise IpexAssistError(
            f"--start-from {head.source} {said}: training goes on with {' and '.join(KINDS)} heads of `speculators`, "
            "which converts published ones by `speculators convert`"
        )
    if kind is not None and stored != kind:
        raise IpexAssistError(f"--start-from {head.source} is an {stored} head, and --kind asks for {kind}")
    found = head_of(target, head)
    assert found is not None
    assert found.spec.head is not None
    block = found.spec.head.block_size
    return HeadPlan(
        stored,
        found.spec.head.taps.layers,
        found.spec.num_hidden_layers,
        block - 1 if block else DRAFT_TOKENS[stored],
        found.spec.head.draft_vocab_size or found.spec.vocab_size,
        str(head.path),
    )


def layer_config(spec: DecoderSpec, plan: HeadPlan) -> dict[str, Any]:
    """A head's layers as a config.json has them: as wide as the target's, with all positions in sight."""
    attention = next(
        (each for each in reversed(spec.attentions) if isinstance(each, AttentionSpec) and each.latent is None), None
    )
    head_dim = attention.head_dim if attention is not None else 64
    heads = attention.heads if attention is not None else max(1, spec.hidden_size // head_dim)
    last = spec.layers[-1]
    inner = last.inner_size if last.experts is None and last.inner_size else 3 * spec.hidden_size
    kv_heads = attention.kv_heads if attention is not None else heads
    if plan.kind == "eagle3":  # a draft's token is seen through values only; and a smaller MLP learns more an hour
        inner, kv_heads = min(inner, INNER * spec.hidden_size), heads
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": inner,
        "num_hidden_layers": plan.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.ropes[0].theta if spec.ropes else 10000.0,
        "tie_word_embeddings": False,
    }


def stored_bytes(spec: DecoderSpec, plan: HeadPlan, tokens: int) -> int:
    """Bytes on disk of the hidden states of so many tokens."""
    taps = 2 if plan.kind == "mtp" else len(plan.taps(spec).layers)  # `speculators` wants a last one beside others
    return tokens * (taps * spec.hidden_size * STORED_BYTES + TOKEN_BYTES)

"""Tiny random checkpoints with draft heads, saved as their makers publish them, and what is drafted with them."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import tiny_models
import torch
from numpy.typing import NDArray

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Model, Rows
from ipex_assist.executors.load import load_head

# Of recorded heads, and of a target for them.
SIZES = {
    **{"vocab_size": tiny_models.VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5},
}
_RECORDED = Path(__file__).parent / "executors" / "recorded_heads.json"

# What a target's layers are called in a checkpoint, and the layer that predicts further tokens; {} is their number.
NEXT_LAYER = ("model.layers.{}.", "model.layers.{}.eh_proj", "model.layers.{}.enorm", "model.layers.{}.hnorm")
QWEN = ("mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
ERNIE = ("model.mtp_block.0.", "model.mtp_linear_proj.0", "model.mtp_emb_norm.0", "model.mtp_hidden_norm.0")
MTP = "model.mtp.layers.{1}."
LAYOUTS = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v32", "glm_moe_dsa"), (*NEXT_LAYER, "model.layers.{}.shared_head.norm")),
    **dict.fromkeys(("hy_v3", "bailing_hybrid"), (*NEXT_LAYER, "model.layers.{}.final_layernorm")),
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "glm4_moe_lite"), (*NEXT_LAYER, "model.layers.{}.shared_head.norm")),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "exaone_moe"), (*QWEN, "mtp.norm")),
    "ernie4_5_moe": (*ERNIE, None),
    "hy_v4": tuple(f"model.mtp_layers.0.{name}" for name in ("", "eh_proj", "enorm", "hnorm", "final_layernorm")),
    "glm5_next_text": tuple(
        name.replace("model.", "model.language_model.") for name in (*NEXT_LAYER, "model.layers.{}.shared_head.norm")
    ),
    "step3p5": (*NEXT_LAYER, "model.layers.{}.transformer.shared_head.norm"),
    "minimax_m3_vl_text": (
        *(f"language_model.{MTP}{name}" for name in ("transformer_layer.", "eh_proj", "enorm", "hnorm")),
        f"language_model.{MTP}final_layernorm",
    ),
    "mimo_v2_flash": (*(f"{MTP}{name}" for name in ("", "eh_proj", "enorm", "hnorm", "final_layernorm")),),
    "longcat_flash": (*(f"{MTP}{name}" for name in ("", "eh_proj", "enorm.m", "hnorm.m")), "model.mtp.norm"),
}
# What the names of that layer's tensors are within it, by patterns of those of the target's own; "" is none of it.
PARTS = {
    "mimo_v2_flash": {"post_attention_layernorm": "pre_mlp_layernorm"},
    "longcat_flash": {r"^(mlp|.*\.0)\..*": "", r"\.1\.": ".", r"^mlps\.": "transformer_layer.mlp."},
    **{kind: {r"^(hc_|attn_hc\.|ffn_hc\.).*": ""} for kind in ("glm5_next_text", "hy_v4")},  # one residual stream
}
# Of families whose lists in a published config go on with those of such layers.
LONGER = ("step3p5",)
# Lists with an entry for that layer, where that says which kind it is.
_SHARED = ["full", "shared", "full", "shared", "shared", "full"]
LAST: dict[str, dict[str, Any]] = {
    "glm-moe-dsa": {"indexer_types": _SHARED},
    "hy-v4": {"indexer_types": _SHARED, "mlp_layer_types": ["dense", *["sparse"] * 5]},
    "glm5-next": {
        "layer_types": [*["linear_attention", "full_attention", "full_attention"] * 2],
        "indexer_types": ["full", "full", "shared", "full", "full", "full"],
        "mlp_layer_types": ["dense", *["sparse"] * 5],
    },
    "hy-v3": {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
    "bailing-hybrid": {"layer_types": [*["linear_attention", "full_attention"] * 2, "full_attention"]},
    "step3p7": {
        "layer_types": [*["full_attention", "sliding_attention", "sliding_attention"] * 2][:5],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"],
        "swiglu_limits": [0.0, 0.2, 0.0, 0.3, 0.0],
        "swiglu_limits_shared": [0.4, 0.0, 0.1, 0.3, 0.2],
    },
    "minimax-m3": {
        "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
    },
    "mimo-v2-flash": {
        "layer_types": [*["full_attention", "sliding_attention", "sliding_attention"] * 2][:5],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"],
    },
}


def save_mtp(folder: Path, variant: str, told: Mapping[str, Any], number: int = 1, **changes: Any) -> Any:
    """Save a random model of `variant` that has so many such layers.

    told: what its config says of them. changes: of the config, where lists with an entry a layer have one for each of
    them, too. Returns transformers' model of all layers, whose last they are; it has `mtp`, the tensors beside the
    first of them, by "fc", "embed_norm", "hidden_norm" and "final_norm", and `mtps` with those of each.
    """
    fields = tiny_models.VARIANTS[variant]
    text = fields.get("text_config", fields) | changes
    counted = "num_layers" if "num_layers" in text else "num_hidden_layers"
    count = text[counted]
    deeper = text | {counted: count + number}
    model = tiny_models.save(
        folder, variant, **({**fields, "text_config": deeper} if "text_config" in fields else deeper)
    )
    layout, parts = LAYOUTS[text["model_type"]], PARTS.get(text["model_type"], {})
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    model.mtps = [outside_layer(text["hidden_size"], "" if number == 1 else str(each)) for each in range(number)]
    model.mtp = model.mtps[0]
    for each, beside in enumerate(model.mtps):
        layer, *outside = (name and name.format(count + each, each) for name in layout)
        for name in [name for name in stored if re.match(_layer_of(count + each), name)]:
            rest, tensor = re.sub(_layer_of(count + each), "", name), stored.pop(name)
            for pattern, new in parts.items():
                rest = re.sub(pattern, new, rest)
            if rest:
                stored[layer + rest] = tensor
        stored |= {f"{name}.weight": beside[kind] for name, kind in zip(outside, beside, strict=True) if name}
    config = json.loads((folder / "config.json").read_text())
    part = config.get("text_config", config)
    lists = {
        name: value[:count] for name, value in part.items() if isinstance(value, list) and len(value) == count + number
    }
    lists = {} if part["model_type"] in LONGER else lists
    part |= {counted: count, "num_nextn_predict_layers": number, **lists, **told}
    write(folder, config, stored)
    return model


def save_nemotron_mtp(folder: Path, **changes: Any) -> Any:
    """Likewise a Nemotron-H of experts, whose layer is two blocks: attention, and experts."""
    pattern = changes.pop("hybrid_override_pattern", tiny_models.VARIANTS["nemotron-h-moe"]["hybrid_override_pattern"])
    count = len(pattern)
    model = tiny_models.save(folder, "nemotron-h-moe", hybrid_override_pattern=pattern + "*E", **changes)
    model.mtp = outside_layer(model.config.hidden_size)
    model.mtps = [model.mtp]
    tensors = {
        re.sub(
            rf"^(backbone|model)\.layers\.({count}|{count + 1})\.", lambda n: f"mtp.layers.{int(n[2]) - count}.", name
        ): t
        for name, t in safetensors.torch.load_file(folder / "model.safetensors").items()
    }
    names = ("0.eh_proj", "0.enorm", "0.hnorm", "1.final_layernorm")
    tensors |= {f"mtp.layers.{name}.weight": each for name, each in zip(names, model.mtp.values(), strict=True)}
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value[:count] for key, value in config.items() if isinstance(value, list) and len(value) == count + 2}
    write(folder, config | kept, tensors)
    return model


def kinds_of(variant: str, number: int = 1) -> dict[str, Any]:
    """Lists of `variant` with an entry for each of so many such layers."""
    return {name: [*kinds, *kinds[-1:] * (number - 1)] for name, kinds in LAST.get(variant, {}).items()}


def _layer_of(number: int) -> str:
    return rf"^(language_model\.)?model\.(language_model\.)?layers\.{number}\."


def save_mtp_often_right(folder: Path, variant: str = "glm4-moe", **changes: Any) -> Any:
    """Save a random model with a layer that predicts as the model does, often: both add little to the last token."""
    model = save_mtp(folder, variant, {}, **kinds_of(variant), **changes)
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for key, tensor in tensors.items():  # layers add little to the embedding of the last token, which the head reads
        if any(name in key for name in ("o_proj", "down_proj", "hc_")):
            tensor.mul_(0.02)
        elif key.endswith("eh_proj.weight"):
            tensor.copy_(torch.eye(*tensor.shape))
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return model


def outside_layer(size: int, name: str = "") -> dict[str, torch.Tensor]:
    """Random weights of what stands around a layer of this name."""
    shapes = {"fc": (size, 2 * size), **dict.fromkeys(("embed_norm", "hidden_norm", "final_norm"), (size,))}
    return {kind: numbers(f"{kind}{name}", shape) for kind, shape in shapes.items()}


@contextlib.contextmanager
def all_layers_share() -> Iterator[None]:
    """transformers 5.23 refuses configs whose layers all read those of another model, which its assistants are."""
    import transformers

    original = transformers.Gemma4TextConfig.kv_sharing_modes

    def modes(config: Any) -> Any:
        count = config.num_hidden_layers
        return ["reuse"] * count if config.num_kv_shared_layers == count else original.fget(config)

    with mock.patch.object(transformers.Gemma4TextConfig, "kv_sharing_modes", property(modes)):
        yield


def save_assistant(
    target: Path, head: Path, variant: str, longer: Mapping[str, Any] | None = None, **changes: Any
) -> tuple[Any, Any]:
    """Save a Gemma 4 of `variant`, and an assistant of two layers, narrower than it; returns transformers' models.

    longer: changes of the target's config. changes: of the assistant's. To be called in `all_layers_share`.
    """
    import transformers

    model = tiny_models.save(target, variant, **(longer or {}))
    sizes = tiny_models.VARIANTS[variant]
    names = ("head_dim", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "vocab_size")
    kept = {key: sizes[key] for key in (*names, "num_key_value_heads", "rope_parameters") if key in sizes}
    text = transformers.Gemma4TextConfig(
        **{**kept, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"num_kv_shared_layers": 2, "sliding_window": 9},
        **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False},
        **{"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0},
    )
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=sizes["hidden_size"], **changes)
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    assistant = transformers.Gemma4AssistantForCausalLM(config).eval()
    tiny_models.randomise(assistant)
    if assistant.masked_embedding is not None:
        assistant.masked_embedding.token_ordering.copy_(torch.randperm(sizes["vocab_size"]))
    assistant.save_pretrained(head)
    return model, assistant


def load(
    folder: Path,
    head: Path | None = None,
    executor: str = "torch",
    precision: str = "fp32",
    kv_precision: str | None = None,
) -> tuple[Model, Model]:
    """A target and its draft head."""
    target = tiny_models.model(folder, executor, precision, kv_precision=kv_precision)
    checkpoint = None if head is None else open_checkpoint(str(head))
    found = load_head(open_checkpoint(str(folder)), target, checkpoint, precision, executor, kv_precision=kv_precision)
    return target, found


def check_drafts(head: Model, read: list[int], hidden: NDArray[Any], expected: list[tuple[int, float]]) -> None:
    """A draft of 4 tokens and one of 2, in one call, are these tokens with these probabilities."""
    assert isinstance(head, DraftsInOneCall)
    requests = [DraftInput(head.new_sequence(64), read, length, 0.0, hidden) for length in (4, 2)]
    for drafted, confidences in head.draft_many(requests):
        wanted = expected[: len(drafted)]
        assert drafted == [token for token, _ in wanted]
        assert confidences == pytest.approx([share for _, share in wanted], rel=1e-4)


def hidden_of(target: Model, head: Model, tokens: list[int]) -> NDArray[np.float32]:
    """What a head reads of a target that has read `tokens`: (tokens, taps · hidden_size)."""
    assert head.spec.head is not None
    hidden = HiddenRows(head.spec.head.taps)
    target.forward([Rows(target.new_sequence(len(tokens)), tokens, 0)], hidden=hidden)
    assert hidden.rows is not None
    return hidden.rows


def numbers(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A weight of recorded heads, the same whatever versions of libraries are here: norms are near 1."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy((1 + drawn * 0.1 if len(shape) == 1 else drawn * 0.15).astype(np.float32))


def hidden_numbers(rows: int, taps: int) -> NDArray[np.float32]:
    """Hidden states that recorded heads read."""
    drawn = np.random.default_rng(1).standard_normal((rows, taps * SIZES["hidden_size"]))
    return np.asarray(drawn, dtype=np.float32)


def text() -> list[int]:
    """The tokens that recorded heads read."""
    return np.random.default_rng(2).integers(SIZES["vocab_size"], size=30).tolist()


def recorded(name: str) -> dict[str, Any]:
    """What record_heads.py wrote down of a head: "config", shapes of "tensors", "d2t" and "logits"."""
    found: dict[str, Any] = json.loads(_RECORDED.read_text())[name]
    return found


def save_recorded(folder: Path, name: str) -> None:
    """Save a recorded head as `speculators` does."""
    found = recorded(name)
    tensors = {each: numbers(each, tuple(shape)) for each, shape in found["tensors"].items()}
    if found["d2t"] is not None:
        tensors["d2t"] = torch.tensor(found["d2t"])
        tensors["t2d"] = torch.zeros(SIZES["vocab_size"], dtype=torch.bool)
        tensors["t2d"][tensors["d2t"] + torch.arange(len(tensors["d2t"]))] = True
    write(folder, found["config"], tensors)


def save_target(folder: Path, **changes: Any) -> Any:
    """Save a target for recorded heads, with the embedding and lm_head that they share; transformers' model of it."""
    model = tiny_models.save(folder, "llama", **{**SIZES, "num_hidden_layers": 6, **changes})
    with torch.no_grad():
        for name in ("embed_tokens", "lm_head"):
            weight = model.get_input_embeddings().weight if name == "embed_tokens" else model.lm_head.weight
            weight.copy_(numbers(f"{name}.weight", tuple(weight.shape)))
    model.save_pretrained(folder)
    return model


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Save a config and tensors as a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(dict(tensors), folder / "model.safetensors", {"format": "pt"})


@contextlib.contextmanager
def rounds_of(generator: Any) -> Iterator[list[tuple[list[int], list[int], torch.Tensor]]]:
    """What a candidate generator of transformers drafts: of a round all tokens, those drafted, their logits."""
    rounds: list[tuple[list[int], list[int], torch.Tensor]] = []
    original = generator.get_candidates

    def seen(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found, logits = original(self, input_ids, *args, **kwargs)
        if logits is not None:
            read = input_ids[0].tolist()
            rounds.append((read, found[0, len(read) :].tolist(), logits[0]))
        return found, logits

    with mock.patch.object(generator, "get_candidates", seen):
        yield rounds

"""Layers of a checkpoint that predict further tokens draft what transformers' MTP drafts, with its confidence."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import compressed_files
import draft_heads
import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import EXECUTORS
from native_models import tokens
from test_sparse_attention import lower_of_equal
from transformers import AutoModelForCausalLM

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, Rows
from ipex_assist.models import step3p7
from ipex_assist.models.config import Config

candidate_generator = pytest.importorskip("transformers.generation.candidate_generator")
if not hasattr(candidate_generator, "MTPCandidateGenerator"):
    pytest.skip("this transformers drafts with no such layers", allow_module_level=True)

from transformers.cache_utils import MtpCache  # noqa: E402
from transformers.modeling_layers import MtpModel  # noqa: E402

_FULL = {"mtp_layer_types": ["full_attention"]}
_KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"]
_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
# What a config says of the added layer, and lists with its entry.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek-v3": ({}, {}),
    "deepseek-v3-direct": ({}, {}),
    "glm4-moe": ({}, {}),
    "glm4-moe-lite": ({"mtp_mlp_layer_types": ["sparse"]}, {}),
    "qwen3-next": (_FULL, {"layer_types": _KINDS}),
    "qwen3.5": (_FULL, {"layer_types": _KINDS}),
    "qwen3.5-published": (_FULL, {"layer_types": _KINDS}),
    "qwen3.5-moe": (_FULL, {"layer_types": _KINDS}),
    "exaone-moe": (
        {"mtp_layer_types": ["sliding_attention"], "mtp_mlp_layer_types": ["dense"]},
        {"layer_types": _WINDOWS, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"]},
    ),
}
PROMPT = tokens(21, 3)
BEFORE_NORM = ("mimo-v2-flash", "step3p7")  # whose layers read hidden states before the final norm


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", CASES)
def test_drafts_as_transformers_does(variant: str, executor: str, tmp_path: Path) -> None:
    """Every first token that transformers drafts, and its confidence; a wrong order of [embedding, hidden], a norm
    left out, or hidden states of the wrong position would change them.
    """
    told, changes = CASES[variant]
    draft_heads.save_mtp(tmp_path, variant, told, **changes)
    rounds = _transformers_rounds(tmp_path, told)
    target, head = draft_heads.load(tmp_path, executor=executor)
    assert len(rounds) > 8
    for read, token, logits in rounds:
        hidden = draft_heads.hidden_of(target, head, read[:-1])
        assert isinstance(head, DraftsInOneCall)
        [(drafted, confidences)] = head.draft_many([DraftInput(head.new_sequence(64), read[1:], 1, 0.0, hidden)])
        assert drafted == [token]
        assert confidences[0] == pytest.approx(float(logits.softmax(0)[token]), rel=1e-4)


def test_further_tokens(tmp_path: Path) -> None:
    """The layer again, with its own hidden states after their norm: drafts that end are those that go on."""
    draft_heads.save_mtp(tmp_path, "glm4-moe", {})
    model = _transformers(tmp_path, {})
    cache, count = MtpCache(config=model.config.get_mtp_config()), len(PROMPT) - 1
    layers, expected = MtpModel.from_pretrained(model).eval(), []
    with torch.no_grad():
        states = model(torch.tensor([PROMPT[:-1]]), output_hidden_states=True).hidden_states[-1]
        read = torch.tensor([PROMPT[1:]])
        for step in range(4):
            positions = torch.arange(cache.get_seq_length(), count + step)[None] + 1
            states = layers.forward_layer(0, states, positions, cache, input_ids=read)[:, -1:]
            shares = layers._project_to_logits(states)[0, 0].softmax(0)
            expected.append((int(shares.argmax()), float(shares.max())))
            read = shares.argmax()[None, None]
    target, head = draft_heads.load(tmp_path)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    draft_heads.check_drafts(head, PROMPT[1:], hidden, expected)
    assert isinstance(head, DraftsInOneCall)
    sequence = head.new_sequence(64)
    [(drafted, _)] = head.draft_many([DraftInput(sequence, PROMPT[1:], 4, expected[0][1] + 1e-3, hidden)])
    assert drafted == [expected[0][0]]
    assert sequence.length == count


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("variant", "number"), [("deepseek-v3", 2), ("glm4-moe", 3)])
def test_a_layer_for_each_token(variant: str, number: int, executor: str, tmp_path: Path) -> None:
    """All tokens of each round of transformers, whether the head reads a text at once, or what is new of it after
    each round: rows that a layer read with drafted tokens are read again with those that took their places.
    """
    draft_heads.save_mtp(tmp_path, variant, {}, number)
    model = _transformers(tmp_path, {"num_mtp_layers": number})
    count = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{count + layer}\..*" for layer in range(number)]
    with draft_heads.rounds_of(candidate_generator.MTPCandidateGenerator) as rounds:
        options = {"use_mtp": True, "max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
        model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), **options)
    target, head = draft_heads.load(tmp_path, executor=executor)
    assert isinstance(head, DraftsInOneCall)
    sequence = head.new_sequence(64)
    for read, drafted, logits in rounds:
        assert len(drafted) == number
        likely = pytest.approx(logits.softmax(1).amax(1).tolist(), rel=1e-4)
        hidden = draft_heads.hidden_of(target, head, read[:-1])
        whole = DraftInput(head.new_sequence(64), read[1:], number, 0.0, hidden)
        new = DraftInput(sequence, read[sequence.length + 1 :], number, 0.0, hidden[sequence.length :])
        assert head.draft_many([whole, new]) == [(drafted, likely), (drafted, likely)]
        assert sequence.length == len(read) - 1
    sequence.truncate(len(read) - 5)
    new = DraftInput(sequence, read[-4:], 1, 0.0, hidden[-4:])
    [(first, confidence)] = head.draft_many([new])  # fewer tokens than layers, which read nevertheless
    assert first == drafted[:1]
    sequence.truncate(len(read) - 2)
    ended = DraftInput(sequence, read[-1:], number, confidence[0] + 1e-3, hidden[-1:])
    assert [len(each) for each, _ in head.draft_many([ended])] == [1]
    sequence.truncate(len(read) - 2)
    assert head.draft_many([DraftInput(sequence, read[-1:], number, 0.0, hidden[-1:])]) == [(drafted, likely)]


@pytest.mark.parametrize("part", ["eh_proj", "enorm", "hnorm"])
def test_an_incomplete_last_layer_of_several(part: str, tmp_path: Path) -> None:
    """The layers before it draft what they draft."""
    draft_heads.save_mtp(tmp_path, "glm4-moe", {}, 3)
    drafts = []
    for number in (3, 2):
        target, head = draft_heads.load(tmp_path)
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        assert isinstance(head, DraftsInOneCall)
        [(drafted, _)] = head.draft_many([DraftInput(head.new_sequence(64), PROMPT[1:], number, 0.0, hidden)])
        assert head.spec.num_hidden_layers == number
        drafts.append(drafted)
        path = tmp_path / "model.safetensors"
        tensors, last = safetensors.torch.load_file(path), target.spec.num_hidden_layers + 2
        tensors.pop(f"model.layers.{last}.{part}.weight", None)
        safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert drafts[1] == drafts[0][:2]


def test_a_layer_of_step_that_lists_do_not_name() -> None:
    """Dense where no list says more, and with as many heads as windows have in the target."""
    own = {str(layer): {"num_attention_heads": 6} for layer in (1, 2)}
    text = tiny_models._like_llama("step3p5", **tiny_models._STEP) | {"mlp_layer_types": None, "per_layer_config": own}
    del text["num_sliding_attention_heads"]
    for kind, heads in (("sliding_attention", 6), ("full_attention", text["num_attention_heads"])):
        text["mtp_layer_types"] = [kind]
        layer = step3p7.layer_after(Config({"text_config": text}), 0)
        assert layer.experts is None
        assert layer.attention.heads == heads


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    "variant",
    [
        *("ernie4-5-moe", "nemotron-h-moe"),
        *tiny_models.known("deepseek-v32", "glm-moe-dsa", "hy-v3", "bailing-hybrid", "mimo-v2-flash", "longcat-flash"),
        *tiny_models.known("step3p7", "minimax-m3", "axk1", "axk2", "hy-v4", "glm5-next"),
    ],
)
def test_families_that_transformers_drafts_none_with(variant: str, executor: str, tmp_path: Path) -> None:
    """Their layers, run by transformers' own modules between what stands around them."""
    model = _SAVED[variant](tmp_path)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    logits = head.forward([Rows(head.new_sequence(64), PROMPT[1:], len(PROMPT) - 1, hidden)])
    assert head.spec.head is not None
    assert head.spec.head.taps.normed == (variant not in BEFORE_NORM)
    with torch.no_grad(), lower_of_equal():
        e = _rms(model, model.get_input_embeddings()(torch.tensor([PROMPT[1:]])), "embed_norm")
        rows = torch.cat((e, _rms(model, torch.from_numpy(hidden)[None], "hidden_norm")), -1) @ model.mtp["fc"].T
        body = _body(model)
        states = body(inputs_embeds=rows, use_cache=False).last_hidden_state
        expected = model.lm_head(states if variant.startswith("ernie") else _rms(model, states, "final_norm"))[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def _body(model: Any) -> Any:
    return getattr(model.model, "language_model", model.model)


def _rms(model: Any, x: torch.Tensor, kind: str, layer: int = 0) -> torch.Tensor:
    config = _body(model).config
    eps = getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon
    weight = model.mtps[layer][kind] + (config.model_type in ("step3p5", "minimax_m3_vl_text"))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", tiny_models.known(*BEFORE_NORM))
def test_layers_before_the_norm(variant: str, executor: str, tmp_path: Path) -> None:
    """A layer for each token, whose hidden states are those before the norm: the target's, and the earlier layer's."""
    changes = draft_heads.kinds_of(variant, 2)
    model = draft_heads.save_mtp(tmp_path, variant, {}, 2, **changes)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden, body = draft_heads.hidden_of(target, head, PROMPT[:-1]), _body(model)
    further, body.norm = list(body.layers[-2:]), torch.nn.Identity()
    body.layers, body.config.num_hidden_layers = body.layers[:-2], len(body.layers) - 2
    body.config.layer_types = changes["layer_types"][:-2]
    with torch.no_grad():
        h = body(torch.tensor([PROMPT[:-1]]), use_cache=False).last_hidden_state
        torch.testing.assert_close(torch.from_numpy(hidden), h[0], atol=1e-4, rtol=1e-4)
        body.config.num_hidden_layers, body.config.layer_types = 1, changes["layer_types"][-1:]
        read, expected = PROMPT[1:], []
        for number, layer in enumerate(further):
            body.layers = torch.nn.ModuleList([layer])
            e = _rms(model, model.get_input_embeddings()(torch.tensor([read])), "embed_norm", number)
            rows = torch.cat((e, _rms(model, h, "hidden_norm", number)), -1) @ model.mtps[number]["fc"].T
            h = body(inputs_embeds=rows, use_cache=False).last_hidden_state
            shares = model.lm_head(_rms(model, h[0, -1], "final_norm", number)).softmax(0)
            expected.append((int(shares.argmax()), float(shares.max())))
            read = [*read[1:], expected[-1][0]]
    assert isinstance(head, DraftsInOneCall)
    [(drafted, likely)] = head.draft_many([DraftInput(head.new_sequence(64), PROMPT[1:], 2, 0.0, hidden)])
    assert drafted == [token for token, _ in expected]
    assert likely == pytest.approx([share for _, share in expected], rel=1e-4)


def _saved_ernie(folder: Path) -> Any:
    """Without the final norm: transformers' model of its last layer alone."""
    model = draft_heads.save_mtp(folder, "ernie4-5-moe", {})
    model.model.layers, model.model.norm = model.model.layers[-1:], torch.nn.Identity()
    model.config.num_hidden_layers = 1
    return model


def _saved_nemotron(folder: Path) -> Any:
    """The layer is two blocks: attention, and experts."""
    model = draft_heads.save_nemotron_mtp(folder)
    body = model.model
    body.layers, body.norm_f = body.layers[-2:], torch.nn.Identity()
    model.config.layers_block_type = model.config.layers_block_type[-2:]
    return model


def _saved_last(variant: str, folder: Path) -> Any:
    """transformers' model of the last layer alone, where lists of a kind for each layer say which it is."""
    changes = draft_heads.kinds_of(variant)
    model = draft_heads.save_mtp(folder, variant, {}, **changes)
    body = _body(model)
    body.layers, body.norm, body.config.num_hidden_layers = body.layers[-1:], torch.nn.Identity(), 1
    for name in ("layer_types", "mlp_layer_types"):
        if name in changes:
            setattr(body.config, name, getattr(body.config, name)[-1:])
    if hasattr(body, "hc_head"):  # its streams are alike
        layer, mixed = body.layers[0], variant == "glm5-next"
        layer.attn_hc, layer.ffn_hc, body.hc_head = (_OneStream(mixed), _OneStream(mixed), _Mean())
    return model


class _OneStream(torch.nn.Module):
    """Hyper-connections of streams that are alike, to each of which all is added."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.mixed = mixed

    def forward(self, x: torch.Tensor) -> Any:
        """x: (batch, rows, streams, hidden)."""
        streams = x.shape[2]
        mixture = [torch.eye(streams).expand(*x.shape[:2], streams, streams)] if self.mixed else []
        return torch.ones(x.shape[:3]), *mixture, x[:, :, 0]


class _Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, rows, streams, hidden)."""
        return x.mean(2)


def _saved_longcat(folder: Path) -> Any:
    """The second half of one of its layers, whose first adds nothing."""
    model = draft_heads.save_mtp(folder, "longcat-flash", {})
    layer = model.model.layers[-1]
    layer.mlp.forward = torch.zeros_like
    with torch.no_grad():
        for linear in (layer.self_attn[0].o_proj, layer.mlps[0].down_proj):
            linear.weight.zero_()
    model.model.layers, model.model.norm = model.model.layers[-1:], torch.nn.Identity()
    model.config.num_layers = 1
    return model


_SAVED = {
    **{"ernie4-5-moe": _saved_ernie, "nemotron-h-moe": _saved_nemotron, "longcat-flash": _saved_longcat},
    **{variant: partial(_saved_last, variant) for variant in ("deepseek-v32", "axk1", "axk2", *draft_heads.LAST)},
}


@pytest.mark.parametrize(("executor", "precision", "error"), [("torch", "fp32", 0.0), ("native", "fp8", 0.1)])
def test_inside_a_quantized_checkpoint(executor: str, precision: str, error: float, tmp_path: Path) -> None:
    """The layer's linears in FP8, as those of the target, and what stands around it in floats: as with their values."""
    if executor not in EXECUTORS:
        pytest.skip("no native core here")
    dense, stored = tmp_path / "dense", tmp_path / "stored"
    told, changes = CASES["qwen3.5"]
    draft_heads.save_mtp(dense, "qwen3.5", told, **changes)
    scheme = compressed_files.Scheme("fp8", method="fp8", block=(128, 128))
    config = json.loads((dense / "config.json").read_text())
    floats, parts = {}, {}
    for name, tensor in safetensors.torch.load_file(dense / "model.safetensors").items():
        floats[name] = parts[name] = tensor
        if compressed_files.is_linear(name) and not any(
            kept in name for kept in ("conv1d", "in_proj_a.", "in_proj_b.")
        ):
            made, value = compressed_files.store(parts.pop(name), scheme)
            floats[name] = value.contiguous()
            parts |= {f"{name.removesuffix('weight')}{part}": each.contiguous() for part, each in made.items()}
    draft_heads.write(dense, config, floats)
    draft_heads.write(stored, config, parts)
    compressed_files.declare(stored, scheme.declared())
    logits = []
    for folder, kind, bits in ((dense, "torch", "fp32"), (stored, executor, precision)):
        target, head = draft_heads.load(folder, executor=kind, precision=bits)
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        logits.append(head.forward([Rows(head.new_sequence(64), PROMPT[1:], len(PROMPT) - 1, hidden)]))
    assert float((logits[1] - logits[0]).norm() / logits[0].norm()) <= error


def test_a_checkpoint_without(tmp_path: Path) -> None:
    """One whose config has such layers, and whose tensors lack them, as derived models do."""
    tiny_models.save(tmp_path, "glm4-moe", num_nextn_predict_layers=1)
    with pytest.raises(UsageError, match="has no layers that predict further tokens"):
        draft_heads.load(tmp_path)


Rounds = list[tuple[list[int], int, torch.Tensor]]


def _transformers_rounds(folder: Path, told: dict[str, Any]) -> Rounds:
    """Of each round of transformers: all tokens known, the drafted one, and its logits (vocab,)."""
    model = _transformers(folder, told)
    return _rounds_of_prefixes(model) if model._is_stateful else _generated_rounds(model)


def _transformers(folder: Path, told: dict[str, Any]) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    text = model.config.get_text_config()
    for name, value in {"num_mtp_layers": 1, **told}.items():
        setattr(text, name, value)
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{text.num_hidden_layers}\..*", r"^mtp\..*"]
    return model


def _generated_rounds(model: Any) -> Rounds:
    """Those of generate(use_mtp=True)."""
    rounds: Rounds = []
    kind = candidate_generator.MTPCandidateGenerator
    original = kind.get_candidates

    def recorded(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found, logits = original(self, input_ids, *args, **kwargs)
        if logits is not None:
            rounds.append((input_ids[0].tolist(), int(found[0, -1]), logits[0, 0]))
        return found, logits

    with mock.patch.object(kind, "get_candidates", recorded):
        options = {"use_mtp": True, "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        prompt = torch.tensor([PROMPT])
        model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return rounds


@torch.no_grad()
def _rounds_of_prefixes(model: Any) -> Rounds:
    """The same model of layers, where generate() refuses recurrent targets: over each prefix by itself."""
    layers = MtpModel.from_pretrained(model).eval()
    states = model(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1]
    rounds: Rounds = []
    for count in range(10, len(PROMPT)):
        cache, positions = MtpCache(config=model.config.get_mtp_config()), torch.arange(1, count + 1)[None]
        found, logits, _ = layers(torch.tensor([PROMPT[1 : count + 1]]), states[:, :count], None, positions, cache)
        rounds.append((PROMPT[: count + 1], int(found[0, -1]), logits[0, 0]))
    return rounds


@pytest.mark.parametrize("variant", ["qwen3.5", "qwen3.5-moe", "qwen3-next"])
def test_as_speculators_stores_it(variant: str, tmp_path: Path) -> None:
    """A layer by `speculators`' names, in a checkpoint of its own, drafts what the target's does."""
    told, changes = CASES[variant]
    draft_heads.save_mtp(tmp_path / "target", variant, told, **changes)
    outside = {
        "mtp.fc.": "input_proj.",
        "mtp.norm.": "final_layernorm.",
        "mtp.pre_fc_norm_hidden.": "hidden_layernorm.",
        "mtp.pre_fc_norm_embedding.": "token_layernorm.",
        "mtp.layers.0.": "",
    }
    tensors, experts = {}, {}
    for name, tensor in safetensors.torch.load_file(tmp_path / "target" / "model.safetensors").items():
        for theirs, kept in outside.items():
            if name.startswith(theirs):
                tensors[f"mtp_layers.0.{kept}{name.removeprefix(theirs)}"] = tensor
    for name in [name for name in tensors if re.search(r"experts\.\d+\.", name)]:
        number, part = re.findall(r"experts\.(\d+)\.(\w+)\.weight", name)[0]
        experts[int(number), part] = tensors.pop(name)
    if experts:
        numbers = sorted({number for number, _ in experts})
        both = [torch.cat([experts[number, "gate_proj"], experts[number, "up_proj"]]) for number in numbers]
        tensors["mtp_layers.0.mlp.experts.gate_up_proj"] = torch.stack(both)
        tensors["mtp_layers.0.mlp.experts.down_proj"] = torch.stack([experts[each, "down_proj"] for each in numbers])
    draft_heads.write(tmp_path / "head", {"speculators_model_type": "mtp"}, tensors)
    drafts = []
    for folder in (None, tmp_path / "head"):
        target, head = draft_heads.load(tmp_path / "target", folder)
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        assert isinstance(head, DraftsInOneCall)
        [(drafted, confidences)] = head.draft_many([DraftInput(head.new_sequence(64), PROMPT[1:], 3, 0.0, hidden)])
        drafts.append((drafted, list(confidences)))
    assert drafts[0] == drafts[1]

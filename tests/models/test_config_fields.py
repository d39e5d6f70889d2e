"""Each family's config with each of its fields changed: the right logits or a refusal, never another model's text."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_IPEX, HAS_NATIVE, some_quick
from native_models import relative
from transformers import AutoConfig

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.products import with_products
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.config import NotComputed
from ipex_assist.models.spec import DecoderSpec

TOLERANCE = 1e-4
PROMPT = [3, 17, 150, 9, 42, 77, 101, 5, 63, 12, 140, 8]
# What no forward pass of transformers reads.
NOT_MATHEMATICS = (
    *(
        "drop",
        "token_id",
        "initializer",
        "cache",
        "return",
        "output",
        "dtype",
        "architectures",
        "model_type",
        "version",
    ),
    *(
        "label",
        "problem",
        "encoder",
        "name",
        "chunk",
        "summary",
        "task",
        "seed",
        "embedding_fraction",
        "torchscript",
        "init_device",
    ),
    *("cross_attention", "pretraining_tp", "is_decoder", "norm_type"),
)
# A variant of each family; where it has an optional part, the one that has it.
_VARIANTS = (
    *("llama", "mistral-window", "qwen2-window", "qwen3", "opt", "gpt-bigcode", "phi3-longrope", "granite", "olmo2"),
    *("smollm3", "gpt-neox", "gpt2", "starcoder2-window", "stablelm", "phi", "gemma", "gemma2", "gemma3"),
    *("falcon-new", "gptj", "bloom", "mpt", "cohere", "cohere2", "glm", "glm4", "exaone4"),
    *("mixtral-window", "qwen2-moe", "qwen3-moe-window", "olmoe-biases", "granitemoe"),
    *tiny_models.known("glm4-moe", "minimax-m2", "dots1-window", "ernie4-5", "ernie4-5-moe", "seed-oss", "olmo3-yarn"),
    *tiny_models.known("lfm2", "lfm2-moe", "granite-hybrid-moe", "bamba", "nemotron-h-moe", "mamba2"),
    *tiny_models.known("apertus", "arcee", "exaone-moe", "hunyuan-alpha", "hunyuan-moe", "ministral3", "phimoe"),
    *tiny_models.known("mistral3-ministral3", "olmo-hybrid-rope", "qwen3.5-published", "qwen3.5-moe-published"),
    *tiny_models.known("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-vl-moe"),
    *tiny_models.known("deepseek-v2", "deepseek-v3", "glm4-moe-lite", "gemma4-everything", "gemma4-published"),
    *tiny_models.known("kimi-linear", "llama4", "llama4-published", "falcon-h1", "jamba", "mamba", "falcon-mamba"),
    *tiny_models.known("nanochat", "minicpm3", "mistral4", "afmoe", "granitemoe-swa", "laguna", "cohere2-moe"),
    *tiny_models.known("recurrent-gemma", "gemma3n"),
    *tiny_models.known("deepseek-v32", "glm-moe-dsa", "axk1", "mimo-v2-flash", "step3p7", "apertus1p5-text"),
    *tiny_models.known("longcat-flash", "hy-v4", "axk2", "deepseek-v4"),
    *tiny_models.known("bailing-hybrid", "glm5-next"),
    *tiny_models.known("mistral-large4"),
    *tiny_models.known("minimax-m3", "qwen4-exp", "zamba2-adapted"),
)
# Of those that differ from these by names, or by which parts of theirs they have.
_ALIKE = tiny_models.known(
    *("exaone", "olmo", "nemotron", "jais2", "youtu", "solar-open", "sarvam-moe", "hy-v3", "granitemoeshared"),
    *("granite-swa", "gemma3-published", "kimi-k25", "lfm3"),
)
_FIELDS = {variant: tiny_models.VARIANTS[variant] for variant in (*_VARIANTS, *_ALIKE)}
FAMILIES = {fields["model_type"]: variant for variant, fields in _FIELDS.items()}
# The fields that we read are the same on both stacks: IPEX's quick part has one family of each kind of layer.
_ALL = {_FIELDS[variant]["model_type"] for variant in _VARIANTS}
# Their text parts are those of gemma4_text, llama4_text, qwen2_vl, and of qwen3_vl and qwen3_moe.
_ALL -= {"gemma4", "llama4", "qwen2_5_vl", "qwen3_vl_moe"}
QUICK = _ALL if not HAS_IPEX else ("llama", "gemma2", "deepseek_v3", "qwen2_moe", "qwen3_5", "jamba", "lfm2")
# Those of which every value that transformers takes is computed: they name no activation.
ALL_COMPUTED = ("lfm2", "lfm2_moe", "qwen4_exp")


Known = tuple[DecoderSpec, dict[str, torch.Tensor], torch.Tensor]  # a model that was run, and its logits


class InMemory(Checkpoint):
    """A model of transformers as a checkpoint, with a config of its own."""

    source, path = "memory", Path("memory")
    parameter_bytes = 0

    def __init__(self, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        self.config, self.generation_config, self.state = config, {}, state

    def weight_files(self) -> list[Path]:
        return []

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.state if names is None else names:
            yield name, self.state[name]


def changes(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configs that differ in one field, by what differs; fields of parts ("rope_parameters") count as fields."""
    for name, value in config.items():
        if any(part in name for part in NOT_MATHEMATICS):
            continue
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", config | {name: changed}) for inner, changed in changes(value))
            continue
        for other in others(name, value):
            yield f"{name}={other!r}", config | {name: other}


def finite(config: dict[str, Any]) -> dict[str, Any]:
    """With a large number where transformers writes {"__float__": "Infinity"}, which it reads in files alone."""
    limit = config.get("time_step_limit")
    return config | ({"time_step_limit": [limit[0], 1e6]} if limit else {})


def others(name: str, value: Any) -> list[Any]:
    """Other values that a field may have."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value // 2] if value % 2 == 0 and value > 1 else [value + 1]
    if isinstance(value, float):
        return [value * 1.5]
    if isinstance(value, str):
        return [{"relu": "gelu"}.get(value, "relu"), "quick_gelu"] if "act" in name else ["linear", "dynamic"]
    if isinstance(value, list):
        return [value[::-1]]
    if name in ("rope_scaling", "rope_parameters"):
        return [{"rope_type": "linear", "factor": 2.0}]
    return [True] if name.startswith("use_") else [8]


def reference(config: dict[str, Any]) -> tuple[Any, torch.Tensor] | None:
    """transformers' model of a config, with random weights, and its logits; None where it cannot run it."""
    torch.manual_seed(0)
    try:
        made = AutoConfig.for_model(**copy.deepcopy(config))
        model = tiny_models.from_config(made)
        tiny_models.randomise(model)
        with torch.no_grad():
            return model, model(torch.tensor([PROMPT])).logits[0]
    except Exception:  # whatever transformers does not take
        return None


@pytest.mark.parametrize("model_type", some_quick(FAMILIES, QUICK))
def test_right_logits_or_a_refusal(model_type: str) -> None:
    """A field that our spec does not read must not change what transformers computes."""
    fields = copy.deepcopy(tiny_models.VARIANTS[FAMILIES[model_type]])
    base = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config = finite(json.loads(base.to_json_string(use_diff=False)))
    architecture = next(each for each in ARCHITECTURES.values() if each.model_type == model_type)
    right, refused, wrong = 0, 0, []
    known: list[Known] = []
    for what, changed in (("nothing", config), *changes(config)):
        expected = reference(changed)
        if expected is None:
            continue
        model, logits = expected
        checkpoint = with_products(InMemory(changed | {"architectures": [architecture.name]}, stored(model)))
        try:
            got = our_logits(checkpoint, known)
        except (NotComputed, IpexAssistError):
            assert what != "nothing"
            refused += 1
            continue
        if got.shape == logits.shape and relative(got, logits) <= TOLERANCE:
            right += 1
        else:
            wrong.append(what)
    assert not wrong, f"another model's text: {wrong}"
    assert right > 6
    assert refused > 0 or model_type in ALL_COMPUTED


def our_logits(checkpoint: Checkpoint, known: list[Known]) -> torch.Tensor:
    """Our model's logits; where its spec and its weights are those of one before, what that one gave."""
    spec = checkpoint.decoder_spec()
    state = dict(checkpoint.tensors())
    for before, weights, logits in known:
        alike = spec == before and weights.keys() == state.keys()
        if alike and all(torch.equal(tensor, state[name]) for name, tensor in weights.items()):
            return logits
    ours = load_model(LoadRequest(checkpoint, "fp32", "native" if HAS_NATIVE else "torch", exact=False))
    known.append((spec, state, ours.extend(ours.new_sequence(len(PROMPT)), PROMPT, len(PROMPT))))
    return known[-1][-1]


def stored(model: Any) -> dict[str, torch.Tensor]:
    """The tensors that transformers would save: tied ones once."""
    state = dict(model.state_dict())
    if getattr(model.config, "tie_word_embeddings", False):
        state.pop("lm_head.weight", None)
        state.pop("embed_out.weight", None)
    return state


HOSTILE: list[Any] = [-1, 0, 1 << 40, 0.5, -2.0, 1e300, True, None, "x", [], [-1], [None], {}, {"rope_type": "x"}]


@pytest.mark.one_stack
@pytest.mark.parametrize("model_type", FAMILIES)
def test_hostile_values(model_type: str) -> None:
    """A damaged config ends in a sentence of ours, whatever is in it, and takes no memory on the way."""
    fields = copy.deepcopy(tiny_models.VARIANTS[FAMILIES[model_type]])
    config = json.loads(AutoConfig.for_model(fields.pop("model_type"), **fields).to_json_string(use_diff=False))
    architecture = next(each for each in ARCHITECTURES.values() if each.model_type == model_type)
    refused, named = 0, list[Any]()
    parts = [value for value in config.values() if isinstance(value, dict)]
    for name in {name for part in (config, *parts) for name in part}:
        for value in HOSTILE:
            inside = in_part(config, name, value)
            for changed in (config | {name: value}, *([config | inside] if inside else [])):
                try:
                    spec = architecture.spec(changed)
                    if spec not in named:  # weights are named by the spec alone
                        architecture.weights(spec)
                        named.append(spec)
                except IpexAssistError:
                    refused += 1
    assert refused > 50


def in_part(config: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The parts of a config that have this field, with another value in it."""
    return {key: part | {name: value} for key, part in config.items() if isinstance(part, dict) and name in part}

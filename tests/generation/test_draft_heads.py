"""Draft heads by name: inside the target's checkpoint, or one of their own, through load and generate."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import checkpoint_files
import deepseek_v4_drafts
import pytest
import qwen4_drafts
import safetensors.torch
import tiny_models
from conftest import HAS_NATIVE
from draft_heads import (
    all_layers_share,
    kinds_of,
    save_assistant,
    save_mtp,
    save_recorded,
    save_target,
)

import ipex_assist
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.memory_need import estimate_need
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.resolved import resolve
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.assistant_name import AssistantName, parse_assistant
from ipex_assist.speculative.sources.default_assistants import DEFAULT_HEADS, default_head

pytestmark = pytest.mark.one_stack

PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31] * 4
NAMES = ["mtp", "lookup+mtp", "mtp-layers", "eagle3-llama", "dflash", "dspark"]
NAMES += ["mtp-deepseek-v4", "mtp-dspark-deepseek-v4"] if tiny_models.known("deepseek-v4") else []
NAMES += [f"mtp-{variant}" for variant in tiny_models.known("bailing-hybrid", "longcat-flash", "mimo-v2-flash")]
NAMES += [f"mtp-{variant}" for variant in tiny_models.known("minimax-m3", "qwen4-exp", "step3p7", "glm5-next", "hy-v4")]
READING = ["shared_kv"] if tiny_models.known("gemma4") else []  # keys and values of its target
AT_ONCE = (
    "dflash",
    "dspark",
    "dspark-few-tokens",
    "mtp-layers",
    "mtp-dspark-deepseek-v4",
    "mtp-mimo-v2-flash",
    "mtp-step3p7",
)  # all tokens of a draft at one price
BLOCK = Costs((1e-3,) * 16, 0.0, (1e-6,) * 16, 1e-7, block=(1e-6,) * 8)
STEPS = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)


def save(folder: Path, name: str) -> str:
    """A target in `folder` and a head for it; returns what --assistant-model calls the head."""
    if name == "mtp-layers":
        save_mtp(folder / "target", "glm4-moe", {}, 3)
    elif name == "mtp-deepseek-v4":
        deepseek_v4_drafts.save_mtp(folder / "target")
    elif name == "mtp-qwen4-exp":
        qwen4_drafts.save_mtp(folder / "target")
    elif name == "mtp-dspark-deepseek-v4":
        deepseek_v4_drafts.save_dspark(folder / "target")
    elif name in ("mtp", "lookup+mtp"):
        save_mtp(folder / "target", "glm4-moe", {})
    elif name.startswith("mtp-"):
        variant, number = name.removeprefix("mtp-"), 3 if name in AT_ONCE else 1
        save_mtp(folder / "target", variant, {}, number, **kinds_of(variant, number))
    elif name == "shared_kv":
        with all_layers_share():
            clusters = {"use_ordered_embeddings": True, "num_centroids": 32, "centroid_intermediate_top_k": 7}
            save_assistant(folder / "target", folder / "head", "gemma4", **clusters)
    else:
        save_target(folder / "target")
        save_recorded(folder / "head", name)
    checkpoint_files.tiny_tokenizer().save_pretrained(folder / "target")
    return name.partition("-")[0] if "mtp" in name else str(folder / "head")


def load(folder: Path, assistant: str, executor: str, **options: Any) -> Any:
    return ipex_assist.load(str(folder / "target"), assistant, executor=executor, precision="fp32", **options)


@pytest.mark.parametrize("name", NAMES + READING)
def test_a_head_drafts_and_the_text_is_the_targets(
    name: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and sampled; the result names the head and its kind."""
    monkeypatch.setattr(PairCache, "costs", lambda *_: BLOCK if name in AT_ONCE else STEPS)
    model = load(tmp_path, save(tmp_path, name), executor)
    kind = "dflash" if "dspark" in name else name.rpartition("+")[2].partition("-")[0]
    for how in ({"ignore_eos": True}, {"ignore_eos": True, "do_sample": True, "seed": 5}):
        plain = model.generate(PROMPT, max_new_tokens=30, assisted=False, **how)
        ours = model.generate(PROMPT, max_new_tokens=30, num_assistant_tokens=3, **how)
        assert ours.tokens == plain.tokens
        assert ours.draft.drafted
        assert ours.draft_head == kind
        assert ours.assistant == name.partition("-")[0] if "mtp" in name else ours.assistant.endswith("head")
        adaptive = model.generate(PROMPT, max_new_tokens=30, **how)
        assert adaptive.tokens == plain.tokens


@pytest.mark.skipif(not HAS_NATIVE, reason="int8 and int4 are the native core's")
@pytest.mark.parametrize("name", [*(each for each in NAMES if "+" not in each), *READING])
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_heads_in_every_precision_are_measured(name: str, precision: str, tmp_path: Path) -> None:
    """A real calibration, which must know a head's calls; then as many tokens as plainly, and the same."""
    assistant = save(tmp_path, name)
    model = ipex_assist.load(
        str(tmp_path / "target"), assistant, executor="native", precision=precision, assistant_precision=precision
    )
    costs = model.drafting.costs
    assert bool(costs.block) == (name in AT_ONCE)
    assert (costs.draft > 0) != bool(costs.block)
    assert len(costs.rows) == 16
    assert (costs.read > 0) == (name != "shared_kv")  # which needs one hidden state, however many tokens came
    assert costs.read <= costs.rows[-1]
    plain = model.generate(PROMPT, max_new_tokens=40, assisted=False, ignore_eos=True)
    assert model.generate(PROMPT, max_new_tokens=40, ignore_eos=True).tokens == plain.tokens


@pytest.mark.parametrize("name", ["dspark", "dspark-few-tokens"])
def test_texts_at_once_are_those_alone(name: str, tmp_path: Path, executor: str) -> None:
    """Greedy and sampled ones, whose blocks share passes, and go on while others have ended."""
    model = load(tmp_path, save(tmp_path, name), executor, calibrate=False)
    prompts = [PROMPT[i:] + PROMPT[:i] for i in range(6)]
    options = [
        GenerationOptions(
            max_new_tokens=12 + 3 * i, num_assistant_tokens=5, ignore_eos=True, do_sample=i % 2 > 0, seed=i
        )
        for i in range(len(prompts))
    ]
    plain = [model.generate(*each, assisted=False).tokens for each in zip(prompts, options, strict=True)]
    engine = model.engine()
    handles = [engine.submit(*each) for each in zip(prompts, options, strict=True)]
    while not all(handle.ended for handle in handles):
        engine.step()
    rounds = [list(handle) for handle in handles]
    assert [[token for each in made for token in each.tokens] for made in rounds] == plain
    assert all(sum(each.drafted for each in made) for made in rounds)


def test_the_checkpoints_own_head_is_the_default(tmp_path: Path) -> None:
    """Before the family's small model; where there is none, `mtp` is refused, in a sentence that says what to type."""
    save(tmp_path / "with", "mtp")
    found = resolve(LoadOptions.of(target=str(tmp_path / "with" / "target")), OpenCheckpoints())
    assert (found.name, found.assistant, found.assistant_precision) == (AssistantName(False, "mtp"), None, "bf16")
    assert found.head is not None
    assert found.identity(False).draft_head == "mtp"
    tiny_models.save(tmp_path / "without", "llama")
    options = LoadOptions.of(target=str(tmp_path / "without"), assistant="mtp")
    with pytest.raises(UsageError, match=r"no layers that predict further tokens.*name another assistant"):
        resolve(options, OpenCheckpoints())


def test_layers_that_are_incomplete_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody asked for them, so that something else drafts; a warning says that they would."""
    save(tmp_path, "mtp")
    path = tmp_path / "target" / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = next(name for name in tensors if name.endswith("hnorm.weight"))
    del tensors[name]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    with caplog.at_level(logging.WARNING, "ipex_assist"):
        assert resolve(LoadOptions.of(target=str(tmp_path / "target")), OpenCheckpoints()).head is None
    assert "no draft head" in caplog.text
    assert name in caplog.text


def test_a_published_head_before_the_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the target's id; one that is another target's is passed over where nobody named it."""
    head = save(tmp_path, "dflash")
    monkeypatch.setitem(DEFAULT_HEADS, str(tmp_path / "target"), head)
    options = LoadOptions.of(target=str(tmp_path / "target"))
    found = resolve(options, OpenCheckpoints())
    assert found.assistant is not None
    assert found.assistant.source == head
    assert found.identity(False).draft_head == "dflash"
    save_target(tmp_path / "target", hidden_size=64)
    checkpoint_files.tiny_tokenizer().save_pretrained(tmp_path / "target")
    assert resolve(options, OpenCheckpoints()).head is None
    assert default_head("qwen/qwen3-8b") == "z-lab/Qwen3-8B-DFlash-b16"
    assert default_head("some/other") is None


def test_the_head_of_another_target_is_refused(tmp_path: Path) -> None:
    """With both numbers."""
    head = save(tmp_path, "eagle3-llama")
    save_target(tmp_path / "target", hidden_size=64)
    with pytest.raises(IpexAssistError, match=r"hidden states of 32 values.*64"):
        load(tmp_path, head, "torch")


def test_its_name() -> None:
    assert parse_assistant("mtp") == AssistantName(False, "mtp")
    assert parse_assistant("lookup+mtp") == AssistantName(True, "mtp")


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core says what it takes")
@pytest.mark.parametrize("assistant", ["auto", "mtp"])
@pytest.mark.parametrize("name", [each for each in NAMES if each.startswith("mtp")])
def test_memory_is_planned_for_the_head(name: str, assistant: str, tmp_path: Path) -> None:
    """As many bytes as the core then has for it: what it shares with the target is not counted twice."""
    save(tmp_path, name)
    need = estimate_need(str(tmp_path / "target"), assistant, "bf16", None, 64, native=True)
    model: Any = ipex_assist.load(str(tmp_path / "target"), assistant, executor="native")
    assert need.assistant == sum(each.packed.nbytes for each in getattr(model.assistant, "layers", [model.assistant]))

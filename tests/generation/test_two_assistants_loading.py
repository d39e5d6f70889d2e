"""A draft head and a small model by name: loaded together, refused in sentences, and counted each by itself."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
from conftest import HAS_NATIVE
from draft_heads import save_mtp, save_recorded, save_target
from still_clock import stop_clock
from test_draft_heads import BLOCK, PROMPT, STEPS

import ipex_assist
from ipex_assist.bench.measure import Sample
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.memory_need import estimate_need
from ipex_assist.commands.shared.output import statistics_text
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.resolved import resolve
from ipex_assist.serve.draft_report import DraftCounts, report
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.sources.assistant_name import AssistantName, parse_assistant

pytestmark = pytest.mark.one_stack


def save(folder: Path, kind: str) -> str:
    """A target, a head for it, and a small model in `folder`/small; returns what --assistant-model calls both."""
    if kind == "mtp":
        save_mtp(folder / "target", "glm4-moe", {})
    else:
        save_target(folder / "target")
        save_recorded(folder / "head", kind)
    tiny_models.save(folder / "small", "llama")
    for name in ("target", "small"):
        checkpoint_files.tiny_tokenizer().save_pretrained(folder / name)
    return f"{'mtp' if kind == 'mtp' else folder / 'head'}+{folder / 'small'}"


def load(folder: Path, assistant: str, executor: str = "torch", precision: str = "fp32", **options: Any) -> Any:
    return ipex_assist.load(str(folder / "target"), assistant, executor=executor, precision=precision, **options)


@pytest.mark.parametrize("kind", ["mtp", "dflash", "eagle3-llama"])
@pytest.mark.parametrize("lookup", [False, True])
def test_both_draft_and_the_text_is_the_targets(
    kind: str, lookup: bool, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and sampled; the result names both, and counts what each of them drafted."""
    stop_clock(monkeypatch)
    monkeypatch.setattr(
        *(PairCache, "costs"), lambda self, _: BLOCK if self._acceptance_file.facts["head"] == "dflash" else STEPS
    )
    name = save(tmp_path, kind)
    model = load(tmp_path, f"lookup+{name}" if lookup else name, executor)
    for how in ({"ignore_eos": True}, {"ignore_eos": True, "do_sample": True, "seed": 5}):
        plain = model.generate(PROMPT, max_new_tokens=40, assisted=False, **how)
        ours = model.generate(PROMPT, max_new_tokens=40, **how)
        fixed = model.generate(PROMPT, max_new_tokens=40, num_assistant_tokens=3, **how)
        assert ours.tokens == fixed.tokens == plain.tokens
        assert ours.assistant == (f"lookup+{name}" if lookup else name)
        assert ours.draft_head == kind.partition("-")[0]
        assert ours.assistant_precision == "fp32+fp32"
        counts = ours.draft.by_source
        assert sum(each.drafted for each in counts.values()) == ours.draft.drafted
        assert sum(each.accepted for each in counts.values()) == ours.draft.accepted
        assert set(counts) <= {ours.draft_head, "model", "lookup"}
    assert plain.draft.by_source is None


@pytest.mark.skipif(not HAS_NATIVE, reason="int8 and int4 are the native core's")
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_both_are_measured(precision: str, tmp_path: Path) -> None:
    """A real calibration of each, with its own cache; what is learnt goes to each; then the same tokens."""
    model = load(tmp_path, save(tmp_path, "mtp"), "native", precision)
    head, small = model.drafting, model.drafting.second
    assert head.costs.draft != small.costs.draft
    assert head.cache is not small.cache
    plain = model.generate(PROMPT, max_new_tokens=60, assisted=False, ignore_eos=True)
    assert model.generate(PROMPT, max_new_tokens=60, ignore_eos=True).tokens == plain.tokens
    planner, known = head.planner(), small.model_acceptance.seen
    planner.learnt()[1].observe([0.5], 1, 1)  # whether passes so small are worth a draft is not said
    head.learn(planner, planner.join(10))
    assert small.model_acceptance.seen > min(known, 23.0)
    head.forget()
    assert head.model_acceptance.seen == small.model_acceptance.seen == 0


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("mtp+org/small", AssistantName(False, "mtp", "org/small")),
        ("org/small+mtp", AssistantName(False, "mtp", "org/small")),
        ("mtp+auto", AssistantName(False, "mtp", "auto")),
        ("mtp+self", AssistantName(False, "mtp", "self")),
        ("org/head+org/small", AssistantName(False, "org/head", "org/small")),
        ("lookup+mtp+org/small", AssistantName(True, "mtp", "org/small")),
        ("mtp+org/small+lookup", AssistantName(True, "mtp", "org/small")),
    ],
)
def test_names(name: str, parsed: AssistantName) -> None:
    assert parse_assistant(name) == parsed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mtp+", r"a small model must follow mtp\+"),
        ("+mtp", r"a small model must follow"),
        ("mtp+none", r"a small model must follow mtp\+"),
        ("mtp+mtp", r"names the same assistant twice"),
        ("org/a+org/a", r"names the same assistant twice"),
        ("self+org/small", r"a draft head and a small model"),
        ("auto+org/small", r"a draft head and a small model"),
        ("mtp+lookup+org/small", r"a draft head and a small model"),
        ("mtp+org/a+org/b", r"at most two models"),
        ("lookup+mtp+", r"a small model must follow mtp\+"),
        ("mtp+slef", r"slef: no such folder here"),
    ],
)
def test_wrong_names_are_refused(name: str, words: str) -> None:
    """Before anything is opened, and with what to type."""
    with pytest.raises(UsageError, match=words):
        parse_assistant(name)


def test_a_folder_with_a_plus_is_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a+b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_assistant("a+b") == AssistantName(False, "a+b")
    assert parse_assistant("mtp+a+b") == AssistantName(False, "mtp", "a+b")


def refused(folder: Path, assistant: str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load(folder, assistant, **options)
    return str(caught.value)


def test_wrong_pairs_are_refused(tmp_path: Path) -> None:
    """No head, two heads, two models, another vocabulary, --universal, and no known sibling."""
    save(tmp_path, "mtp")
    save(tmp_path / "other", "dflash")
    small, head = tmp_path / "small", tmp_path / "other" / "head"
    assert "both are whole models" in refused(tmp_path, f"{small}+{tmp_path / 'other' / 'small'}")
    assert "both are draft heads" in refused(tmp_path, f"mtp+{head}")
    assert "no layers that predict further tokens" in refused(tmp_path / "other", f"mtp+{small}")
    assert "leave it out" in refused(tmp_path, f"mtp+{small}", universal=True)
    assert "name one, or take mtp alone" in refused(tmp_path, "mtp+auto")
    shutil.rmtree(small)
    tiny_models.save(small, "llama")
    checkpoint_files.tiny_tokenizer(("<|other|>", "<|im_start|>", "<|im_end|>")).save_pretrained(small)
    assert "does not share the target's vocabulary" in refused(tmp_path, f"mtp+{small}")


def test_either_order(tmp_path: Path) -> None:
    """A head is recognised by its config, wherever it stands."""
    name = save(tmp_path, "dflash")
    head, _, small = name.partition("+")
    options = LoadOptions.of(target=str(tmp_path / "target"), assistant=f"{small}+{head}")
    found = resolve(options, OpenCheckpoints())
    assert found.head is not None
    assert found.second is not None
    assert found.second.checkpoint.source == small
    assert found.identity(False).assistant == name
    assert found.identity(False).assistant_precision == "bf16+bf16"


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core says what it takes")
@pytest.mark.parametrize("second", ["small", "self"])
def test_memory_is_planned_for_both(second: str, tmp_path: Path) -> None:
    """As many bytes as the core then has for both, and the keys and values of all three."""
    small = str(tmp_path / "small") if save(tmp_path, "mtp") and second == "small" else "self"
    need = estimate_need(str(tmp_path / "target"), f"mtp+{small}", "bf16", None, 64, native=True)
    model = load(tmp_path, f"mtp+{small}", "native", "bf16")
    models = (model.assistant, model.drafting.second.assistant)
    spec = model.target.spec
    shared = 2 * spec.vocab_size * spec.hidden_size if second == "self" else 0  # no page of its own table is written
    assert need.assistant == sum(each.packed.nbytes for each in models) - shared
    alone = estimate_need(str(tmp_path / "target"), "mtp", "bf16", None, 64, native=True)
    assert need.kv > alone.kv
    assert {each.blocks.count for each in models} == {model.target.blocks.count}


def test_every_report_says_which_drafted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json, the statistics, an answer's timings and metrics, and a dataset's file that is read again."""
    monkeypatch.setattr(PairCache, "costs", lambda *_: STEPS)
    result = load(tmp_path, save(tmp_path, "mtp")).generate(PROMPT, max_new_tokens=60, ignore_eos=True)
    counts = result.draft.by_source
    assert counts["mtp"].drafted > 0
    assert counts["model"].drafted > 0
    assert f"model: {counts['model'].drafted}, " in statistics_text(result)
    assert "head      = mtp in fp32" in statistics_text(result)
    fields = result.as_dict()
    assert fields["draft"]["by_source"]["mtp"]["drafted"] == counts["mtp"].drafted
    answer = report([fields, fields], DraftCounts(1, 1, 1, 1, [0, 1]))
    assert answer["metrics"]["draft"]["by_source"]["model"]["drafted"] == 2 * counts["model"].drafted
    assert answer["timings"]["draft_n_accepted_by_source"]["mtp"] == 2 * counts["mtp"].accepted
    sample = Sample.of(result)
    assert Sample.from_dict(json.loads(json.dumps(dataclasses.asdict(sample)))) == sample

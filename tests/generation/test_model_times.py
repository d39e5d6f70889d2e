"""What each model did and how long it took, by an invented clock: loading, prompt, passes, choosing, drafting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
from decoding import GREEDY, PROMPT, run
from test_speedup import Clock, Timed

import ipex_assist
from ipex_assist.engine import request as request_module
from ipex_assist.engine import scheduler as scheduler_module
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.generation import loading
from ipex_assist.generation import stats as stats_module
from ipex_assist.generation.result import AssistantTimes, TargetTimes, Times
from ipex_assist.generation.stats import Loading, Statistics
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.sources.assistant_model import AssistantModel

pytestmark = pytest.mark.one_stack

CHOOSING = 0.003


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time passes in passes, and CHOOSING seconds of it where tokens are chosen."""
    clock, verify = Clock(), scheduler_module.verify

    def slow(*arguments: Any) -> Any:
        clock.now += CHOOSING
        return verify(*arguments)

    monkeypatch.setattr(stats_module, "time", clock)
    monkeypatch.setattr(request_module, "time", clock)  # where rounds end
    monkeypatch.setattr(scheduler_module, "verify", slow)
    return clock


def times(clock: Clock, folder: Path, assisted: bool, new: int) -> Times:
    """Times of one text; a draft of the target's own weights is always right."""
    tiny_models.save(folder / "target", "llama")
    target = Timed(tiny_models.model(folder / "target"), clock, 0.010, 0.0002)
    draft = Timed(tiny_models.model(folder / "target"), clock, 0.002, 0.0001)
    source = AssistantModel(draft, GREEDY, tiny_models.VOCAB) if assisted else None
    counts = Statistics(len(PROMPT), _started=clock.now)
    run(
        target,
        source,
        3,
        new=new,
        each=lambda round_: counts.count(round_, len(round_.tokens)),
        clock=clock.perf_counter,
    )
    return Times.of(counts, Loading(2.0, 0.5 if assisted else None))


def test_of_an_assisted_text_by_hand(clock: Clock, tmp_path: Path) -> None:
    """20 tokens of prompt; 1 + 4 + 4 new ones. Choosing is in no pass, nor the prompt's reading in later drafts."""
    assert len(PROMPT) == 20
    found = times(clock, tmp_path, assisted=True, new=9)
    target, assistant = found.target, found.assistant
    assert (target.load_s, assistant.load_s) == (2.0, 0.5)
    assert target.prompt_s == pytest.approx(0.010 + 20 * 0.0002)
    assert target.prompt_tokens_per_s == pytest.approx(20 / 0.014)
    assert (target.passes, target.tokens) == (2, 8)
    assert target.eval_s == pytest.approx(2 * (0.010 + 4 * 0.0002))
    assert target.token_s == pytest.approx(0.0216 / 8)
    assert target.choose_s == pytest.approx(3 * CHOOSING)
    # A draft of three: it reads the text, 21 tokens and then 2, and feeds itself two.
    assert (assistant.first_tokens, assistant.later_tokens) == (3, 3)
    assert assistant.first_s == pytest.approx(3 * 0.002 + (21 + 2) * 0.0001)
    assert assistant.later_s == pytest.approx(3 * 0.002 + (2 + 2) * 0.0001)
    assert assistant.token_s == pytest.approx(0.0064 / 3)
    # Every second is in one of them.
    parts = (target.prompt_s, target.eval_s, target.choose_s, assistant.first_s, assistant.later_s)
    assert found.total_s == pytest.approx(sum(part or 0.0 for part in parts))


def test_of_a_plain_text_by_hand(clock: Clock, tmp_path: Path) -> None:
    """Nothing drafted: a token a pass, and no figure of an assistant."""
    found = times(clock, tmp_path, assisted=False, new=4)
    assert (found.target.passes, found.target.tokens) == (3, 3)
    assert found.target.eval_s == pytest.approx(3 * 0.0102)
    assert found.target.token_s == pytest.approx(0.0102)
    assert found.assistant == AssistantTimes()
    only = times(clock, tmp_path, assisted=False, new=1)  # the prompt's pass brought all there is
    assert (only.target.passes, only.target.eval_s, only.target.token_s) == (0, None, None)
    assert only.target.choose_s == pytest.approx(CHOOSING)


def test_what_was_not_measured_is_none() -> None:
    """transformers tells neither choosing from passes nor drafting from verifying: no figure may be made of that."""
    counts = Statistics(10)
    assert Times.of(counts, Loading()).target == TargetTimes(passes=0, tokens=0)
    for round_ in (Round([1], target_s=0.5, prompt=True), Round([2, 3], 3, 1, target_s=0.25)):
        counts.count(round_, len(round_.tokens))
    found = Times.of(counts, Loading(1.0, 0.5))
    assert found.target == TargetTimes(load_s=1.0, passes=1, tokens=2)
    assert found.assistant == AssistantTimes(load_s=0.5)


def test_loading_is_timed_by_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model's own seconds, in every result; tokenizers and calibration are no part of it."""
    clock, load_model = Clock(), loading.load_model

    def slow(request: LoadRequest) -> Any:
        clock.now += 2.0 if request.exact else 0.5
        return load_model(request)

    monkeypatch.setattr(loading, "time", clock)
    monkeypatch.setattr(loading, "load_model", slow)
    target = str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "target"))
    for assistant, seconds in ((None, None), ("self", 0.5)):
        model = ipex_assist.load(target, assistant, executor="torch", precision="fp32", assistant_precision="bf16")
        result = model.generate("the quick brown fox", max_new_tokens=4)
        assert (result.times.target.load_s, result.times.assistant.load_s) == (2.0, seconds)
        assert result.as_dict()["times"]["target"]["prompt_s"] > 0

"""Passes that are put together beside the one before: their tokens are those of passes that were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
from conftest import HAS_NATIVE
from native_models import loaded, tokens

from ipex_assist.engine.engine import Engine
from ipex_assist.engine.next_steps import NextSteps
from ipex_assist.engine.request import RequestHandle
from ipex_assist.executors.interface import LogitsError
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.library import unavailable
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

DRAWN = {"do_sample": True, "temperature": 1.2, "top_k": 40}
PENALISED = {**DRAWN, "presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
KINDS: list[dict[str, Any]] = [
    {},
    {**DRAWN, "seed": 3},
    {**PENALISED, "seed": 4},
    {"presence_penalty": 2.0, "logit_bias": {5: 3.0, 9: -2.0}},  # greedy, and what it said before is unlikely
    {"logit_bias": {7: 4.0}},
]


class Run:
    """An engine whose passes have something beside them, or not, and how many of them were prepared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, beside: bool, model: NativeModel | None = None) -> None:
        eos = frozenset({11}) if model is None else frozenset[int]()
        drafting = Drafting(tiny_models.VOCAB, lambda: pytest.fail("nothing is drafted"))
        self.engine = Engine(model or loaded("llama", "int8"), drafting, eos)
        self.prepared = 0
        self._beside = (lambda: False) if beside else None
        run = NextSteps.run

        def counted(*given: Any) -> Any:
            found = run(*given)
            self.prepared += found is not None
            return found

        monkeypatch.setattr(NextSteps, "run", counted)

    def submit(self, number: int, length: int, limit: int, **given: Any) -> RequestHandle:
        options = GenerationOptions.of(max_new_tokens=limit, assisted=False, **given)
        return self.engine.submit(tokens(length, number), options)

    def step(self) -> bool:
        return self.engine.step(self._beside)


def found_by(handle: RequestHandle) -> list[int]:
    return [token for round_ in handle for token in round_.tokens]


def texts(run: Run, change: Callable[[Run, int, list[RequestHandle]], None]) -> list[list[int]]:
    """Texts of all kinds, some of which take another block soon; `change` is called between passes."""
    handles = [run.submit(i, 251 + i, 30 + i, ignore_eos=i % 2 == 0, **kind) for i, kind in enumerate(KINDS)]
    number = 0
    while run.step():
        change(run, number, handles)
        number += 1
    return [found_by(handle) for handle in handles]


def nothing(run: Run, number: int, handles: list[RequestHandle]) -> None:
    pass


def comings(run: Run, number: int, handles: list[RequestHandle]) -> None:
    if number in (7, 11, 12):
        handles.append(run.submit(number, 5, 9, ignore_eos=True))
    if number == 20:
        handles.append(run.submit(number, 300, 12, ignore_eos=True, logprobs=2))


def goings(run: Run, number: int, handles: list[RequestHandle]) -> None:
    if number == 6:
        handles[1].cancel()
    if number == 9:
        handles[2].pause()
    if number == 15:
        handles[2].resume()


@pytest.mark.parametrize("change", [nothing, comings, goings])
def test_texts_are_those_of_passes_put_together_between(
    change: Callable[[Run, int, list[RequestHandle]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a token, a position or a penalty of the pass before, and a pass of who has ended or come."""
    with monkeypatch.context() as patch:
        run = Run(patch, beside=True)
        found = texts(run, change)
        assert run.prepared > 8
    with monkeypatch.context() as patch:
        plain = Run(patch, beside=False)
        assert found == texts(plain, change)
        assert plain.prepared == 0


def test_other_passes_of_the_model_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines over one model: what one has prepared is not run behind the pass of the other."""
    alone = []
    for number in (0, 1):
        with monkeypatch.context() as patch:
            run = Run(patch, beside=True)
            handle = run.submit(number, 9, 20, ignore_eos=True)
            alone.append(found_by(handle))
    with monkeypatch.context() as patch:
        runs = [Run(patch, beside=True) for _ in range(2)]
        handles = [run.submit(number, 9, 20, ignore_eos=True) for number, run in enumerate(runs)]
        for _ in range(24):
            for run in runs:
                run.step()
        assert [found_by(handle) for handle in handles] == alone


def test_a_text_whose_logits_are_wrong_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a prepared pass: the other goes on, and its text is what it is alone."""
    run = Run(monkeypatch, beside=True)
    first, second = (run.submit(number, 9, 20, ignore_eos=True) for number in (0, 1))
    sample = NextSteps.run

    def wrong_once(steps: NextSteps, *given: Any) -> Any:
        found = sample(steps, *given)
        if found is not None and run.prepared == 3:
            found.tokens[0] = -1
        return found

    monkeypatch.setattr(NextSteps, "run", wrong_once)
    while run.step():
        pass
    with pytest.raises(LogitsError):
        found_by(first)
    other = Run(monkeypatch, beside=False).submit(1, 9, 20, ignore_eos=True)
    assert found_by(second) == found_by(other)


def test_prepared_steps_keep_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches blocks of texts that were cancelled when their next pass was prepared already."""
    run = Run(monkeypatch, beside=True)
    model, handles = run.engine.target, [run.submit(i, 250, 40, ignore_eos=True) for i in range(3)]
    assert model.blocks is not None
    for _ in range(9):
        run.step()
    for handle in handles:
        handle.cancel()
    run.engine.close()
    assert model.blocks.free == model.blocks.count

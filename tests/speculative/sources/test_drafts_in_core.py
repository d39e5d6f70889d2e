"""Drafts that the core makes in one call are those of a pass per token with NumPy's choice, and as sure."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import HAS_NATIVE

if not HAS_NATIVE:
    pytest.skip("the native core is not built", allow_module_level=True)

from one_hot_model import ROWS, model_of_rows, some_sampling

from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.batched_proposals import propose_together
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack


def by_passes(source: Any) -> Any:
    """The same source, which asks for logits after each token."""
    source._in_one_call = False
    return source


def assert_same(found: Any, expected: Any, *, as_sure: bool = True) -> None:
    assert isinstance(found, Proposal)
    assert isinstance(expected, Proposal)
    assert found.tokens == expected.tokens
    assert not as_sure or found.confidence == pytest.approx(expected.confidence, rel=2e-3)
    assert found.read == expected.read


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocabulary", [33, 128, 2049, 5003])
def test_every_combination_of_options_drafts_what_passes_do(vocabulary: int, threads: int) -> None:
    """Texts of one call have options of their own, two rounds each. Catches noise of another position, penalties that
    forget what was drafted, masks, and drafts that end elsewhere.
    """
    model, chance = model_of_rows(vocabulary, threads), random.Random(vocabulary)
    drafted = 0
    for _ in range(12):
        steps: list[Any] = []
        sources: list[list[AssistantModel]] = [[], []]
        texts, plans = [], []
        for _ in range(9):
            texts.append([chance.randrange(ROWS) for _ in range(chance.choice([1, 3, 40]))])
            left_out = chance.choice([(0, 0), (0, 0), (2, 1)])
            sampling = some_sampling(chance, vocabulary, chance.randrange(len(texts[-1]) + 1) + left_out[0])
            narrow = chance.choice([None, 30])
            masked = frozenset(chance.sample(range(20), 3)) if chance.random() < 0.3 else frozenset()
            # At 100 a confidence is of logits whose sum in fp32 is too coarse.
            least = 0.0 if sampling.temperature > 2 else chance.choice([0.0, 0.0, 0.3])
            plans.append((DraftPlan(chance.randrange(1, 9), least), left_out))
            for each in sources:
                each.append(AssistantModel(model, sampling, vocabulary, narrow, 400, masked))
        for source in sources[1]:
            by_passes(source)
        for _ in range(2):
            made = []
            for each in sources:
                steps = [source.steps(t, *plan) for source, t, plan in zip(each, texts, plans, strict=True)]
                made.append(propose_together(steps))
            for place, (found, expected) in enumerate(zip(*made, strict=True)):
                assert_same(found, expected, as_sure=sources[0][place].sampling.temperature <= 2)
                assert isinstance(found, Proposal)
                kept = chance.randrange(len(found.tokens) + 1)
                drafted += len(found.tokens)
                for each in sources:
                    each[place].accept(kept)
                texts[place] += [*found.tokens[:kept], chance.randrange(ROWS)]
    assert drafted > 500


@pytest.mark.parametrize("sampling", [{"top_k": 0}, {"top_k": 0, "top_p": 0.9}, {"top_k": 20, "top_p": 0.8}])
def test_a_vocabulary_of_152064(sampling: dict[str, Any]) -> None:
    """Rows with many chunks of columns, the flat ones among them."""
    model = model_of_rows(152064, 2)
    for token in (0, 4, 12, 13):
        drawn = Sampling(do_sample=True, temperature=0.8, seed=token, prompt_length=1, **sampling)
        ours, theirs = (AssistantModel(model, drawn, 152064, None, 40) for _ in range(2))
        plan = DraftPlan(2)
        assert_same(
            propose_together([ours.steps([token], plan)])[0],
            propose_together([by_passes(theirs).steps([token], plan)])[0],
        )

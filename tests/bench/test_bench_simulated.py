"""Simulated acceptance: what it claims to be, measured on the decode loop itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import checkpoint_files
import pytest

import ipex_assist
from ipex_assist.bench.measure import Case, Contender, measure, run
from ipex_assist.bench.simulated import SimulatedDraft
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

VOCAB = 50


class Source(DraftSource):
    """Proposes token 7 for ever, and notes what it is asked."""

    def __init__(self, token: int = 7) -> None:
        self.token = token
        self.asked: list[tuple[int, int, float]] = []
        self.accepted: list[int] = []

    def unread(self, tokens: list[int]) -> int:
        """Return any number."""
        return 3

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Propose tokens with their confidence, as the native core does."""
        self.asked.append((len(tokens), plan.k, plan.min_confidence))
        yield from ()  # no model is asked
        return Proposal([self.token] * plan.k, confidence=[0.001] * plan.k)

    def accept(self, count: int) -> None:
        """Keep the count that was accepted."""
        self.accepted.append(count)


def test_the_ends_are_exact() -> None:
    """Acceptance 1 is the text, 0 never is, even where the source is right by itself."""
    text = [7] * 30
    assert SimulatedDraft(Source(), text, 1.0, VOCAB).propose(text[:10], 6).tokens == [7] * 6
    assert 7 not in SimulatedDraft(Source(), text, 0.0, VOCAB).propose(text[:10], 6).tokens
    wrapped = SimulatedDraft(Source(VOCAB - 1), [VOCAB - 1] * 30, 0.0, VOCAB).propose([1] * 10, 6).tokens
    assert all(0 <= token < VOCAB - 1 for token in wrapped)


@pytest.mark.parametrize("acceptance", [0.3, 0.8])
def test_the_share_is_the_chosen_one(acceptance: float) -> None:
    """It holds over 20,000 positions, within four deviations; a source that is always right must not add to it."""
    text = [7] * 20_000
    proposed = SimulatedDraft(Source(), text, acceptance, VOCAB, (1, 2)).propose([], 20_000).tokens
    share = sum(token == 7 for token in proposed) / 20_000
    assert abs(share - acceptance) < 4 * math.sqrt(acceptance * (1 - acceptance) / 20_000)


def test_the_source_does_its_work() -> None:
    """It is asked for every token and hears what was kept; its low confidence must not end a draft early."""
    source = Source()
    draft = SimulatedDraft(source, list(range(20)), 0.5, VOCAB)
    proposal = draft.propose(list(range(5)), 4, min_confidence=0.9)
    draft.accept(2)
    assert source.asked == [(5, 4, 0.0)]
    assert source.accepted == [2]
    assert draft.unread([]) == 3
    assert len(proposal.tokens) == 4
    assert proposal.confidence == []


def test_coins_belong_to_positions() -> None:
    """A longer draft meets the same luck as a shorter one, or curves over k would compare chances."""
    text = list(range(40))
    short = SimulatedDraft(Source(), text, 0.5, VOCAB, (3,)).propose(text[:10], 3).tokens
    long = SimulatedDraft(Source(), text, 0.5, VOCAB, (3,)).propose(text[:10], 8).tokens
    other = SimulatedDraft(Source(), text, 0.5, VOCAB, (4,)).propose(text[:10], 8).tokens
    assert long[:3] == short
    assert other != long


def test_beyond_the_text_the_source_is_left_alone() -> None:
    """The plain run may have been shorter."""
    assert SimulatedDraft(Source(), [1, 2], 1.0, VOCAB).propose([1], 3).tokens == [2, 7, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ipex_assist.AssistedModel:
    """A target with an assistant of other weights."""
    folder = tmp_path_factory.mktemp("pair")
    target = checkpoint_files.save(
        checkpoint_files.tiny_model("llama", max_position_embeddings=2048), folder / "target"
    )
    helper = checkpoint_files.save(
        checkpoint_files.tiny_model("llama", seed=1, max_position_embeddings=2048), folder / "assistant"
    )
    loaded = ipex_assist.load(str(target), str(helper), precision="fp32", executor="torch", calibrate=False)
    assert isinstance(loaded, ipex_assist.AssistedModel)
    return loaded


def test_decoding_accepts_what_was_chosen_and_stays_lossless(model: ipex_assist.AssistedModel) -> None:
    """Runs of accepted tokens follow Leviathan's law, (1 - a^(k+1)) / (1 - a) tokens a pass, and the text is plain."""
    acceptance, k, count = 0.7, 4, 600
    case = Case("1", [5, 6, 7], {"max_new_tokens": count, "ignore_eos": True}, repeats=1, seed=11)
    plain, assisted = measure(model, case, [Contender(), Contender(k, acceptance)])
    assert plain.equals_plain is None
    assert assisted.equals_plain is True
    expected = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    assert assisted.tokens_per_pass == pytest.approx(expected, rel=0.12)


def test_all_and_nothing(model: ipex_assist.AssistedModel) -> None:
    """The extremes leave no room for luck: k + 1 tokens a pass, or one."""
    case = Case("1", [5, 6, 7], {"max_new_tokens": 41, "ignore_eos": True}, repeats=1)
    plain = run(model, case, Contender(), 0, None)
    always = run(model, case, Contender(4, 1.0), 0, plain).draft
    never = run(model, case, Contender(4, 0.0), 0, plain).draft
    assert (always.rounds, always.accepted) == (8, 32)
    assert (never.rounds, never.accepted) == (40, 0)

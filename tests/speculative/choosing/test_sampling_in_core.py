"""The core chooses the tokens that the NumPy reference does: same noise, same filters, same ties."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import HAS_NATIVE

if not HAS_NATIVE:
    pytest.skip("the native core is not built", allow_module_level=True)

from one_hot_model import HIDDEN, ROWS, model_of_rows, one_hot_model, sample_each, some_sampling

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.row_choice import RowChoice, SamplingRule
from ipex_assist.speculative.choosing.grammar import Grammar, GrammarError, Mask
from ipex_assist.speculative.choosing.logit_edits import SeenTokens
from ipex_assist.speculative.choosing.row_choices import plan_choices
from ipex_assist.speculative.choosing.sampling import INVALID_LOGITS, Sampling
from ipex_assist.speculative.choosing.verify import choices, verify

pytestmark = pytest.mark.one_stack


class Letters(Grammar):
    """A grammar that allows a part of the vocabulary, another one after each token."""

    def __init__(self, vocabulary: int, keep: float, tokens: Sequence[int] = ()) -> None:
        self.vocabulary, self.keep, self._tokens = vocabulary, keep, list(tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def ended(self) -> bool:
        return False

    def mask(self) -> Mask:
        chance = np.random.default_rng([sum(self._tokens), len(self._tokens)])
        mask = chance.random(self.vocabulary) < self.keep
        mask[chance.integers(self.vocabulary)] = True  # the only one where nothing else is kept
        return mask

    def advance(self, token: int) -> None:
        if not self.mask()[token]:
            raise GrammarError(f"{token} may not follow")
        self._tokens.append(token)

    def truncate(self, length: int) -> None:
        del self._tokens[length:]

    def copy(self) -> Letters:
        return Letters(self.vocabulary, self.keep, self._tokens)


def reference(
    logits: torch.Tensor, sampling: Sampling, context: list[int], grammar: Grammar | None
) -> Iterator[tuple[int, Grammar | None]]:
    for row in logits:
        own = None if grammar is None else grammar.copy()
        yield next(choices(row[None], sampling, context, (), own)), own


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("vocabulary", [33, 128, 2049, 5003])
def test_every_combination_of_options_chooses_what_the_reference_does(vocabulary: int, threads: int) -> None:
    """Rows of one pass have options of their own. Catches another order of operations, a filter's border, lost ties,
    noise of another token, and rows that change each other.
    """
    target, chance = model_of_rows(vocabulary, threads), random.Random(vocabulary)
    texts = [target.new_sequence(4) for _ in range(ROWS)]
    logits = target.forward([Rows(text, [token]) for token, text in enumerate(texts)])
    for _ in range(30):
        planned, expected = [], []
        for row in range(ROWS):
            context = [chance.randrange(vocabulary) for _ in range(chance.choice([1, 3, 40]))]
            sampling = some_sampling(chance, vocabulary, chance.randrange(len(context) + 1))
            grammar = Letters(vocabulary, chance.choice([0.0, 0.01, 0.7])) if chance.random() < 0.3 else None
            seen = SeenTokens(sampling, vocabulary) if sampling.changes_logits else None
            planned += plan_choices(sampling, context, seen=seen, grammar=grammar).rows
            expected.append(next(reference(logits[row : row + 1], sampling, context, grammar))[0])
        assert sample_each(target, list(range(ROWS)), planned).tokens == expected


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("top_k", [0, 50, 3000])
def test_a_vocabulary_of_152064(top_k: int, top_p: float) -> None:
    """Many chunks, and the last one short; the flat rows make top-p ask again and again."""
    target = model_of_rows(152064, 2)
    texts = [target.new_sequence(4) for _ in range(ROWS)]
    logits = target.forward([Rows(text, [token]) for token, text in enumerate(texts)])
    rows = [0, 4, 9, 12, 13, 17]
    for seed in range(2):
        sampling = Sampling(do_sample=True, temperature=0.8, top_k=top_k, top_p=top_p, seed=seed)
        found = sample_each(target, rows, [RowChoice(sampling.rule, 5 + row) for row in rows]).tokens
        assert found == [next(choices(logits[row][None], sampling, [1] * (5 + row))) for row in rows]


def test_the_number_of_threads_and_rows_beside_it_change_no_token() -> None:
    """Rows alone on one thread, and together on up to five."""
    rule = SamplingRule(temperature=1.1, top_p=0.8, seed=7)
    each = [RowChoice(rule, 100 + row) for row in range(ROWS)]
    alone = [sample_each(model_of_rows(5003), [row], [each[row]]).tokens[0] for row in range(ROWS)]
    for threads in (1, 2, 3, 5):
        assert sample_each(model_of_rows(5003, threads), list(range(ROWS)), each).tokens == alone


@pytest.mark.parametrize("rule", [SamplingRule(), SamplingRule(0.7, seed=1), SamplingRule(0.7, 5, 0.9, seed=1)])
def test_nan_and_infinity_are_told_of_their_row_alone(rule: SamplingRule) -> None:
    """-infinity is a token that cannot be chosen. A mask must not hide NaN, as it does not in the reference."""
    vocabulary = 300
    rows = np.zeros((HIDDEN, vocabulary), np.float32)
    rows[0, 7] = 50
    rows[HIDDEN - 2, 11], rows[HIDDEN - 1, 11] = 1e30, -1e30  # infinity, and NaN
    rows[HIDDEN - 3, 5] = 30
    target = one_hot_model(rows)
    mask = np.ones(vocabulary, np.bool_)
    mask[11] = False
    tokens = [0, HIDDEN - 2, HIDDEN - 1, HIDDEN - 3, HIDDEN - 2, HIDDEN - 1]
    given = [RowChoice(rule)] * 4 + [RowChoice(rule, mask=mask)] * 2
    assert sample_each(target, tokens, given).tokens == [7, INVALID_LOGITS, INVALID_LOGITS, 5, -1, -1]
    rows[HIDDEN - 2] = -1e30
    rows[HIDDEN - 2, 250] = 3e-18
    rows[HIDDEN - 1] = 0
    target = one_hot_model(rows)
    only, none = np.zeros(vocabulary, np.bool_), np.zeros(vocabulary, np.bool_)
    only[3] = True
    given = [RowChoice(rule), RowChoice(rule, mask=only), RowChoice(rule, mask=none)]
    assert sample_each(target, [HIDDEN - 2, 0, 0], given).tokens == [250, 3, INVALID_LOGITS]
    assert sample_each(target, [HIDDEN - 2], [RowChoice(rule, mask=only)]).tokens == [INVALID_LOGITS]


def test_logits_leave_before_they_are_changed_and_only_where_asked_for() -> None:
    """Log-probabilities are of the model's own logits; the memory is the same in each pass."""
    target = model_of_rows(2049, 2)
    texts = [target.new_sequence(4) for _ in range(3)]
    logits = target.forward([Rows(text, [token]) for token, text in enumerate(texts)]).numpy()
    biased = Sampling(do_sample=True, seed=3, logit_bias={5: 90.0})
    edits = SeenTokens(biased, 2049).edits([])
    given = [RowChoice(biased.rule, 0, edits, keep_logits=True), RowChoice(), RowChoice(keep_logits=True)]
    found = sample_each(target, [0, 1, 2], given)
    assert found.tokens[0] == 5
    assert found.logits[1] is None
    for row in (0, 2):
        np.testing.assert_array_equal(found.logits[row], logits[row])
    again = sample_each(target, [2, 1, 0], given)
    assert found.logits[0] is not None
    assert again.logits[0] is not None
    assert again.logits[0].ctypes.data == found.logits[0].ctypes.data


@pytest.mark.parametrize("forbidden", [False, True])
def test_drafted_tokens_are_verified_as_by_the_reference(forbidden: bool) -> None:
    """Penalties and grammars follow the drafted tokens; rows after one that may not follow are never reached."""
    vocabulary, fed, accepted = 5003, HIDDEN - 4, 0
    target = model_of_rows(vocabulary, 2)
    logits = torch.cat([target.extend(target.new_sequence(8), [token]) for token in range(fed)])
    for seed in range(20):
        sampling = Sampling(
            do_sample=True, seed=seed, repetition_penalty=1.4, frequency_penalty=0.5, top_p=0.9, prompt_length=2
        )
        sampling = replace(sampling, logit_bias=dict.fromkeys(range(fed), 99.0))
        prompt, own, theirs = [3, seed], Letters(vocabulary, 0.5), Letters(vocabulary, 0.5)
        drafted: list[int] = []
        walk = own.copy()
        for _ in range(3):  # what it will choose, up to a token that it will not
            last = logits[[*prompt, *drafted][-1]][None]
            drafted.append(next(choices(last, sampling, [*prompt, *drafted], (), walk)))
        drafted[-1] = int(np.flatnonzero(walk.mask()[:fed] != forbidden)[0])
        rows = logits[[prompt[-1], *drafted]]
        planned = plan_choices(sampling, prompt, drafted, seen=SeenTokens(sampling, vocabulary), grammar=own)
        assert not own.tokens
        found = target.sample([Rows(target.new_sequence(8), [prompt[-1], *drafted], 4)], planned.rows).tokens
        expected = verify(choices(rows, sampling, prompt, drafted, theirs), drafted)
        assert verify(planned.tokens(found), drafted) == expected
        assert own.tokens == theirs.tokens == expected[0]
        accepted += expected[1]
    assert accepted >= 40


def test_seen_tokens_grow_with_the_text() -> None:
    """Counts kept from pass to pass are those of the whole text, also after it was computed again from its start."""
    sampling = Sampling(repetition_penalty=1.2, logit_bias={9: 1.0, 70: 2.0}, prompt_length=3)
    text = [9, 4, 9, 4, 4, 60, 9, *range(30, 50), 4]
    kept = SeenTokens(sampling, 64)
    for length in (1, 4, 5, 6, 27, 28, 4):
        expected = SeenTokens(sampling, 64)._of(text[:length])
        np.testing.assert_array_equal(kept.edits(text[:length]), expected)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (RowChoice(SamplingRule(temperature=-1)), "a temperature is -1"),
        (RowChoice(SamplingRule(1.0, top_p=0.0)), "top_p is 0"),
        (RowChoice(SamplingRule(1.0, top_k=-1)), "top_k is -1"),
        (RowChoice(position=-1), "the position of an output token is -1"),
        (RowChoice(edits=SeenTokens(Sampling(logit_bias={900: 1.0}), 901).edits([])), "whose logit changes is 900"),
        (RowChoice(mask=np.ones(5, np.bool_)), "a mask of 5 tokens for 128 logits"),
    ],
)
def test_what_the_core_refuses(choice: RowChoice, said: str) -> None:
    """Before any memory is touched."""
    with pytest.raises(IpexAssistError, match=said):
        sample_each(model_of_rows(128), [0], [choice])

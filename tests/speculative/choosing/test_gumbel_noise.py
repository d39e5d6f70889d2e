"""Noise by seed, position and token: the right distribution into the far tail, independent, and the same in parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, chisquare, kstest, norm

from ipex_assist.speculative.choosing.gumbel_noise import all_bits, bits, bits_above, from_bits, gumbel
from ipex_assist.speculative.choosing.sampling import Row, Sampling, choose, choose_for_draft
from ipex_assist.speculative.options import fresh_seed

pytestmark = pytest.mark.one_stack

VOCAB = 151_936
IDS = np.arange(VOCAB)
SEEDS = (0, 1, 2**63 - 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("position", [0, 1, 100_000])
def test_it_is_gumbels_distribution(seed: int, position: int) -> None:
    """Kolmogorov and Smirnov over a whole vocabulary."""
    assert kstest(gumbel(seed, position, IDS), "gumbel_r").pvalue > 1e-4


def test_the_far_tail_is_right() -> None:
    """How many of 15 million are above what a token of probability 1e-3 to 1e-6 needs: P(G > g) = 1 - exp(-exp(-g))."""
    noise = np.concatenate([gumbel(5, position, IDS) for position in range(100)])
    for share in (1e-3, 1e-4, 1e-5, 1e-6):
        above = int((noise > -math.log(-math.log1p(-share))).sum())
        assert binomtest(above, len(noise), share).pvalue > 1e-4, (share, above)


def test_the_largest_and_the_smallest_are_finite() -> None:
    """And the steps near the largest noise are small: tokens of probability 1e-9 differ."""
    ends = np.array([0, 1 << 12, 2 << 12, (1 << 64) - 1], dtype=np.uint64)
    noise = from_bits(ends)
    assert np.isfinite(noise).all()
    assert (np.diff(noise) < 0).all()
    assert noise[0] > 36


@pytest.mark.parametrize("noise", [-7.0, -1.0, 0.0, 3.0, 11.9, 30.0])
def test_bits_tell_large_noise(noise: float) -> None:
    """No token with more noise may be missed, and hardly one with less may be looked at."""
    random = np.concatenate([all_bits(9, position, VOCAB) for position in range(10)])
    above, told = from_bits(random) > noise, random <= np.uint64(bits_above(noise))
    assert not (above & ~told).any()
    assert (told & ~above).sum() <= 1


def test_a_part_is_a_part() -> None:
    """Any ids in any order and shape have the noise that they have among all."""
    chosen = np.random.default_rng(0).permutation(VOCAB)[:1001]
    assert np.array_equal(bits(3, 7, chosen), all_bits(3, 7, VOCAB)[chosen])
    assert np.array_equal(gumbel(3, 7, chosen), gumbel(3, 7, IDS)[chosen])
    assert np.array_equal(gumbel(3, 7, chosen[:2]), gumbel(3, 7, chosen)[:2])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p-value of no linear relation between long arrays of independent numbers."""
    together = np.corrcoef(a, b)[0, 1] * math.sqrt(len(a))
    return float(2 * norm.sf(abs(together)))


@pytest.mark.parametrize("offset", [1, 2, 64, 4096])
def test_positions_seeds_and_tokens_are_independent(offset: int) -> None:
    """No relation with the next position's noise, the next seed's, the next token's, nor to the bits' halves."""
    one = gumbel(1, 50, IDS)
    pairs = {
        "position": gumbel(1, 50 + offset, IDS),
        "seed": gumbel(1 + offset, 50, IDS),
        "seed and position": gumbel(1 + offset, 50 - 1, IDS),
        "token": np.roll(one, offset),
        "token and position": np.roll(gumbel(1, 50 + offset, IDS), 1),
    }
    for name, other in pairs.items():
        assert correlation(one, other) > 1e-4, name
        # Noise that is large here must not be large there: what is rare decides.
        both = int(((one > 4) & (other > 4)).sum())
        assert binomtest(both, VOCAB, (1 - math.exp(-math.exp(-4))) ** 2).pvalue > 1e-4, name


def test_each_bit_is_a_fair_coin() -> None:
    """Over tokens, positions and seeds."""
    shifts = np.arange(64, dtype=np.uint64)
    one = np.uint64(1)
    tokens = all_bits(0, 0, 20_000)
    positions = np.array([bits(0, position, IDS[:1])[0] for position in range(20_000)])
    seeds = np.array([bits(seed, 0, IDS[:1])[0] for seed in range(20_000)])
    for random in (tokens, positions, seeds):
        ones = ((random[:, None] >> shifts) & one).sum(0)
        assert chisquare(np.stack((ones, 20_000 - ones)), axis=0).pvalue.min() > 1e-5


def test_fresh_seeds_differ_and_fit_into_json() -> None:
    """Readers of JSON keep whole numbers below 2^53 only."""
    seeds = [fresh_seed() for _ in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**53 for seed in seeds)


def peaked(seed: int) -> Row:
    """A vocabulary as models give it: a few likely tokens, and a long tail."""
    generator = np.random.default_rng(seed)
    row = generator.normal(0, 2, VOCAB).astype(np.float32)
    row[generator.integers(0, VOCAB, 40)] += generator.gamma(4, 2, 40).astype(np.float32)
    return row


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0, 50.0])
def test_the_noise_of_few_tokens_decides_as_that_of_all(temperature: float) -> None:
    """Of most tokens the bits alone say that they cannot win; a wrong bound shows where the tail often wins."""
    sampling = Sampling(do_sample=True, top_k=0, temperature=temperature, seed=4)
    tail = 0
    for position in range(60):
        row = peaked(position)
        expected = int((row.astype(np.float64) / temperature + gumbel(4, position, IDS)).argmax())
        assert choose(row, sampling, position) == expected
        tail += row[expected] < row.max() - 7 * temperature
    assert tail > 0 or temperature != 1


def test_a_tail_of_equals_is_drawn_from_evenly() -> None:
    """152,000 tokens of probability 5e-7 each, beside one of a quarter: a coarse noise prefers some of them."""
    row = np.zeros(VOCAB, dtype=np.float32)
    row[7] = math.log((VOCAB - 1) / 3)
    chosen = np.array(
        [choose(row, Sampling(do_sample=True, top_k=0, seed=seed), 0) for seed in range(2000)], dtype=np.int64
    )
    assert binomtest(int((chosen == 7).sum()), 2000, 0.25).pvalue > 1e-4
    others = chosen[chosen != 7]
    assert chisquare(np.bincount(others * 20 // VOCAB, minlength=20)).pvalue > 1e-4
    assert chisquare(np.bincount(others % 16, minlength=16)).pvalue > 1e-4


def test_of_equals_the_lowest_id_is_chosen() -> None:
    """Greedy; with noise there are no equals."""
    row = np.zeros(9, dtype=np.float32)
    row[[3, 6]] = 1
    assert choose(row, Sampling(), 0) == 3


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_a_drafts_confidence(temperature: float, top_p: float) -> None:
    """The choice is `choose`'s; the confidence a number that is large where the choice was clear."""
    hits: list[tuple[float, bool]] = []
    sampling = Sampling(do_sample=True, top_k=0, top_p=top_p, temperature=temperature, seed=2)
    generator = np.random.default_rng(1)
    for position in range(400):
        row = peaked(position)[:3000]
        token, confidence = choose_for_draft(row, sampling, position)
        assert token == choose(row, sampling, position)
        assert 0 < confidence <= 1
        other = row + generator.normal(0, 1, 3000).astype(np.float32)
        hits.append((confidence, choose(other, sampling, position) == token))
    hits.sort()
    rate = [sum(hit for _, hit in part) / 100 for part in (hits[:100], hits[-100:])]
    assert rate[1] > rate[0] + 0.2


def test_without_noise_the_confidence_is_the_models_own() -> None:
    """Greedy, and at a temperature at which noise decides nothing, the softmax's largest value."""
    for seed in range(10):
        row = peaked(seed)
        expected = 1 / float(np.exp(row.astype(np.float64) - row.max()).sum())
        for sampling in (Sampling(), Sampling(do_sample=True, top_k=0, temperature=1e-3, seed=1)):
            assert choose_for_draft(row, sampling, 0)[1] == pytest.approx(expected, rel=0.05)

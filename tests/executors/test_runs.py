"""Attention over many blocks, merged in runs of 8: bits follow from a row's position, not from who merged what."""

from __future__ import annotations

import functools

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import loaded, pool
from test_rows import random_model, some_tokens

from ipex_assist.executors.interface import DraftInput, Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.rope_spec import Rope
from ipex_assist.native.library import unavailable
from ipex_assist.native.rows import DECODE_ROWS
from ipex_assist.native.shares import text_shares

pytestmark = [
    pytest.mark.one_stack,  # the core is the same C++ on both; torch holds the numbers
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]

TEXT = some_tokens(4400, 1)
ENDS = (1030, 2054, 4100, 4400)  # within the first run, across a border of runs, across the next, and 17 blocks
STEPS = 12  # rows up to each of these, which lie on both sides of a border
PRECISIONS = ["fp32", "fp32+int8"]  # with linears of bf16 the last bits would not show
CASES = {
    "all": {},
    "window in two runs": {"sliding_windows": (700,)},  # from the third block of a run on, and from the last
    "window in three runs": {"sliding_windows": (3000,)},
    "slopes": {"ropes": (), "alibi": (0.5, 0.01, 0.002, 0.001)},
    "sinks and a cap": {"attention_sinks": True, "attention_cap": 2.0},
    "gates": {"output_gate": True},
    "gates of heads": {"output_gate": True, "gate_per_head": True, "gate_activation": "softplus"},
}
# Keys and values of 8 bits are read where all others are: the quick part shows it of whole texts and of a window.
EIGHT_BITS = ("all", "window in three runs")
EACH = [
    pytest.param(case, precision, marks=pytest.mark.full if "int8" in precision and case not in EIGHT_BITS else ())
    for case in CASES
    for precision in PRECISIONS
]


@functools.cache
def model(case: str, precision: str, threads: int) -> NativeModel:
    """One layer, two KV heads: of one thread or two each has whole runs, of more they share their blocks."""
    own, _, kv_precision = precision.partition("+")
    settings = {"ropes": (Rope(),), "attention_sinks": False} | CASES[case]
    spec = uniform_decoder(
        model_type="random",
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=5000,
        norm="rms",
        activation="silu",
        **settings,  # type: ignore[arg-type]
    )
    return random_model(spec, own, pool(threads), 128, kv_precision or None)


@functools.cache
def alone(case: str, precision: str) -> list[torch.Tensor]:
    """The last rows before each of ENDS, each in a pass of its own, by one thread."""
    own, found = model(case, precision, 1), []
    sequence = own.new_sequence(len(TEXT))
    for end in ENDS:
        own.extend(sequence, TEXT[sequence.length : end - STEPS])
        found.append(torch.cat([own.extend(sequence, [token]) for token in TEXT[end - STEPS : end]]))
    return found


@pytest.mark.parametrize(("case", "precision"), EACH)
def test_threads_share_runs_or_blocks(case: str, precision: str) -> None:
    """A run that is merged where it is computed, or by who combines: the sums of both are in one order."""
    expected = alone(case, precision)
    for threads in range(1, 9) if case == "all" else (2, 3, 8):
        own = model(case, precision, threads)
        sequence = own.new_sequence(len(TEXT))
        for end, rows in zip(ENDS, expected, strict=True):
            own.extend(sequence, TEXT[sequence.length : end - STEPS])
            assert torch.equal(own.extend(sequence, TEXT[end - STEPS : end - STEPS + 1]), rows[:1]), (threads, end)
            assert torch.equal(own.extend(sequence, TEXT[end - STEPS + 1 : end], STEPS - 1), rows[1:]), (threads, end)


@pytest.mark.parametrize(("case", "precision"), EACH)
def test_a_prompt_is_its_rows_over_many_blocks(case: str, precision: str) -> None:
    """A prompt's tiles merge for all their rows together, whose windows begin in different blocks and runs."""
    own = model(case, precision, 2)
    for end, rows in zip(ENDS, alone(case, precision), strict=True):
        whole = own.new_sequence(end)
        assert torch.equal(own.extend(whole, TEXT[:end], STEPS), rows), end
        chunks = own.new_sequence(end)
        own.extend(chunks, TEXT[: end - 300])
        assert torch.equal(own.extend(chunks, TEXT[end - 300 : end], STEPS), rows), end


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_of_different_lengths_share_a_pass(precision: str) -> None:
    """Threads' shares then begin in the middle of any text; where partials lie follows from the longest."""
    expected = alone("all", precision)
    for threads in (2, 3, 7):
        own = model("all", precision, threads)
        made = [own.new_sequence(end) for end in ENDS]
        for sequence, end in zip(made, ENDS, strict=True):
            own.extend(sequence, TEXT[: end - STEPS])
        for step in range(0, STEPS, 3):
            parts = [Rows(s, TEXT[s.length : s.length + 3], 3) for s in made]
            assert torch.equal(own.forward(parts), torch.cat([rows[step : step + 3] for rows in expected])), threads


@pytest.mark.parametrize(("case", "precision"), EACH)
def test_a_long_text_among_many_rows(case: str, precision: str) -> None:
    """Threads of a pass of many rows split the one that sees most; merged in the order of its runs."""
    expected = alone(case, precision)
    for threads in (1, 2, 3, 8) if case == "all" else (3,):
        own = model(case, precision, threads)
        others = [own.new_sequence(100) for _ in range(DECODE_ROWS)]
        sequence = own.new_sequence(len(TEXT))
        for end, rows in zip(ENDS, expected, strict=True):
            own.extend(sequence, TEXT[sequence.length : end - STEPS])
            for first, last in ((0, 1), (1, 4), (4, STEPS)):
                parts = [Rows(each, TEXT[:1]) for each in others]
                part = TEXT[end - STEPS + first : end - STEPS + last]
                found = own.forward([*parts[:5], Rows(sequence, part, len(part)), *parts[5:]])
                assert torch.equal(found[5 : 5 + len(part)], rows[first:last]), (threads, end)


@pytest.mark.parametrize(("case", "precision"), EACH)
def test_texts_with_drafts_share_blocks(case: str, precision: str) -> None:
    """More rows than a step has and fewer tiles than threads: blocks are shared, and those appended by who reads them.

    Rows of other counts, and without logits, which end before attention and whose keys are kept all the same.
    """
    expected = alone(case, precision)
    for threads in (11, 40):
        assert text_shares(4, 2, 16, 4000, STEPS, 4, [0] * threads).splits_kv
        own = model(case, precision, threads)
        for first, last in ((0, STEPS), (STEPS - 1, STEPS), (5, STEPS)):  # rows that have logits
            made = [own.new_sequence(end) for end in ENDS]
            for sequence, end in zip(made, ENDS, strict=True):
                own.extend(sequence, TEXT[: end - STEPS])
            parts = [Rows(s, TEXT[s.length : end], last - first) for s, end in zip(made, ENDS, strict=True)]
            assert torch.equal(own.forward(parts), torch.cat([rows[first:last] for rows in expected])), threads
            for sequence in made:
                sequence.truncate(sequence.length - 1)
            again = [Rows(s, TEXT[end - 1 : end], 1) for s, end in zip(made, ENDS, strict=True)]
            assert torch.equal(own.forward(again), torch.cat([rows[-1:] for rows in expected])), threads


@pytest.mark.parametrize("variant", tiny_models.known("deepseek-v3-dense"))
def test_latents_of_texts_with_drafts_share_blocks(variant: str) -> None:
    """Parts of the query heads are other ones where blocks are shared; their latents are appended before."""
    one, many = (loaded(variant, "fp32", threads) for threads in (1, 24))
    texts = [some_tokens(690, seed) for seed in range(3)]
    found = []
    for own in (one, many):
        made = [own.new_sequence(700) for _ in texts]
        for sequence, tokens in zip(made, texts, strict=True):
            own.extend(sequence, tokens[:681])
        found.append(own.forward([Rows(s, tokens[681:], 9) for s, tokens in zip(made, texts, strict=True)]))
    assert torch.equal(*found)


def test_drafts_after_a_long_text_among_many() -> None:
    """Their first passes split the long text; once few texts go on, they take the other path."""
    for threads in (2, 8):
        own = model("all", "fp32", threads)
        ends = [2040, *range(30, 30 + DECODE_ROWS)]
        texts = [own.new_sequence(end + 20) for end in ends]
        for each, end in zip(texts, ends, strict=True):
            own.extend(each, TEXT[:end])
        counts = [12, *(number % 4 + 1 for number in range(DECODE_ROWS))]
        requests = [DraftInput(each, [TEXT[each.length]], count) for each, count in zip(texts, counts, strict=True)]
        together = [tokens for tokens, _ in own.draft_many(requests)]
        for each, end in zip(texts, ends, strict=True):
            each.truncate(end)
        one_by_one = [own.draft(each, [TEXT[end]], n)[0] for each, end, n in zip(texts, ends, counts, strict=True)]
        assert together == one_by_one, threads


def test_a_draft_goes_over_the_border_of_a_run() -> None:
    """Partials are reserved before it is known whether threads will take runs."""
    for threads in (1, 5):
        own = model("all", "fp32", threads)
        sequence = own.new_sequence(2100)
        own.extend(sequence, TEXT[:2040])
        drafted, _ = own.draft(sequence, TEXT[2040:2041], 12)
        sequence.truncate(2040)
        greedy, feed = [], TEXT[2040]
        for _ in range(12):
            feed = int(own.extend(sequence, [feed])[-1].argmax())
            greedy.append(feed)
        assert drafted == greedy, threads

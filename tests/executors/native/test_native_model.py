"""The native model: a row's bits do not depend on what runs beside it, and drafting is decoding."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_models import INT8_KEYS, PRECISIONS, VARIANTS, folder, loaded, pool, relative, text, tokens

from ipex_assist.executors.interface import PassThreads, Rows
from ipex_assist.executors.native.model import NativeModel, NativeSequence
from ipex_assist.native.library import unavailable
from ipex_assist.native.rows import DECODE_ROWS

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

# Sequences of the property test: all of them, or their windows, reach the end of a block of 256 positions on the way.
LENGTHS = (3, 247, 300, 509)
FOLLOWING = DECODE_ROWS


@functools.cache
def sequences(variant: str, precision: str) -> tuple[list[NativeSequence], list[torch.Tensor]]:
    """One sequence of each of LENGTHS, and the logits of the rows that follow it, each alone in its pass."""
    model = loaded(variant, precision)
    made, alone = [], []
    for length in LENGTHS:
        sequence = model.new_sequence(length + FOLLOWING)
        for token in tokens(length):
            model.extend(sequence, [token])
        made.append(sequence)
        alone.append(torch.cat([model.extend(sequence, [token]) for token in tokens(FOLLOWING, length)]))
    return made, alone


# ---- bits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_have_the_bits_they_have_alone(variant: str, precision: str, data: st.DataObject) -> None:
    """Rows of up to four sequences in passes of any grouping: a sum whose order follows the rows beside it."""
    model = loaded(variant, precision)
    made, alone = sequences(variant, precision)
    for sequence, length in zip(made, LENGTHS, strict=True):
        sequence.length = length
    for _ in range(data.draw(st.integers(1, 4), label="passes")):
        rows, expected = [], []
        for index in data.draw(st.permutations(range(len(LENGTHS))), label="order"):
            done = made[index].length - LENGTHS[index]
            count = data.draw(st.integers(0, FOLLOWING - done), label="rows")
            last = data.draw(st.integers(0, count), label="wanted")
            following = tokens(FOLLOWING, LENGTHS[index])[done : done + count]
            if following:
                rows.append(Rows(made[index], following, last))
                expected.append(alone[index][done + count - last : done + count])
        if rows:
            assert torch.equal(model.forward(rows), torch.cat(expected))


@pytest.mark.parametrize("variant", ["llama", "gpt-bigcode", "opt-350m", "qwen2-moe"])
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
def test_any_number_of_threads_gives_the_same_bits(variant: str, precision: str) -> None:
    """The prompt's path and the steps' path; heads that threads share by blocks, and slices of unequal size."""
    prompt, following = tokens(270), tokens(DECODE_ROWS, 1)
    first: list[torch.Tensor] = []
    for threads in (1, 2, 3, 4):
        model = text(variant, precision, threads)
        model.truncate(0)
        read = model.forward(prompt, last=40)
        step = model.forward(following[:1])
        together = model.forward(following[1:], last=DECODE_ROWS - 1)
        results = [read, step, together]
        first = first or results
        for got, expected in zip(results, first, strict=True):
            assert torch.equal(got, expected), threads


@pytest.mark.parametrize("variant", ["llama", "opt-350m", "qwen2-moe"])
def test_two_models_of_a_pool_change_their_numbers_of_threads(variant: str) -> None:
    """In the middle of a text, each model for itself, with callers in two Python threads.

    Passes that lose a thread, that wait for one which takes no part, or whose rows are shared among more than run them.
    """
    shared = pool(3)

    def decode(precision: str, numbers: Iterable[int]) -> list[torch.Tensor]:
        model = NativeModel(loaded(variant, precision, 3).packed)
        assert model.packed.pool is shared
        made, results = tiny_models.Text(model, 400), []
        for index, number in enumerate(numbers):
            model.pass_threads = PassThreads(number, 300 if index % 3 == 0 else 16)
            results.append(made.forward(tokens(260 if index == 0 else 1 + index % 5, index), last=1))
        drafted, probabilities = made.draft(tokens(1, 9), 4)
        return [*results, torch.tensor(drafted), torch.tensor(probabilities)]

    expected = {precision: decode(precision, [0] * 7) for precision in ("int8", "bf16")}
    with ThreadPoolExecutor(2) as callers:
        orders = [("int8", (2, 1, 0, 3, 2, 9, 1)), ("bf16", (1, 3, 2, 1, 0, 2, 2))]
        found = list(callers.map(lambda each: (each[0], decode(*each)), orders))
    for precision, results in found:
        for index, (got, want) in enumerate(zip(results, expected[precision], strict=True)):
            assert torch.equal(got, want), (precision, index)


def test_numbers_of_threads_that_are_tried() -> None:
    """All come first, since they are what is kept where nothing is faster."""
    assert pool(1).fewer() == (1,)
    assert pool(3).fewer() == (3, 1)
    assert pool(4).fewer() == (4, 2, 1)
    assert pool(4).first_node == 4


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
def test_a_prompt_is_its_rows(variant: str, precision: str) -> None:
    """A long prompt in one pass and decoded token by token: one order of sums, and so the same bits."""
    model = text(variant, precision)
    prompt = tokens(300, 2)
    model.truncate(0)
    whole = model.forward(prompt, last=300)
    model.truncate(0)
    rows = torch.cat([model.forward([token]) for token in prompt])
    assert torch.equal(whole, rows)


def test_experts_that_a_pass_reads() -> None:
    """Those of a row in each layer; of many rows each once, however many of them share it."""
    model = loaded("qwen2-moe", "bf16", 2)
    experts, layers = model.spec.experts, model.spec.num_hidden_layers
    assert experts is not None
    sequence = model.new_sequence(400)
    model.extend(sequence, [5])
    assert model.packed.experts_read == layers * experts.per_token
    model.extend(sequence, tokens(200))
    # Of the last layer, where only the row with wanted logits goes on, those of that row.
    assert layers * experts.per_token < model.packed.experts_read <= (layers - 1) * experts.count + experts.per_token
    model.forward([])
    draft = model.draft(sequence, [7], 4)
    assert len(draft[0]) * layers * experts.per_token == model.packed.experts_read
    assert loaded("llama", "bf16").packed.experts_read == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_fewer_bits_stay_near_fp32(variant: str) -> None:
    """A wrong scale, zero or group would be far off; the bounds are half as much again as what was measured."""
    prompt = tokens(40, 3)
    logits = {}
    for precision in PRECISIONS:
        model = text(variant, precision)
        model.truncate(0)
        logits[precision] = torch.cat((model.forward(prompt, last=40), model.forward(tokens(9, 4), last=9)))
    errors = {precision: relative(logits[precision], logits["fp32"]) for precision in PRECISIONS}
    print(variant, {precision: f"{error:.4f}" for precision, error in errors.items()})
    assert errors["bf16"] < 0.02
    assert errors["int8"] < 0.06
    assert errors["int4"] < 0.65
    assert errors["bf16"] < errors["int4"]
    assert errors["int8"] < errors["int4"]


# ---- memory


def test_a_new_sequence_has_the_memory_of_the_last_one() -> None:
    """Pages that are there already; what they hold has no part in the new text, and a sequence beside it has others."""
    model, prompt = tiny_models.model(folder("llama"), "native", "bf16"), tokens(40)
    assert isinstance(model, NativeModel)
    first = model.new_sequence(300)
    expected = model.extend(first, prompt)
    model.extend(first, tokens(230, 3))
    blocks = first.blocks
    assert len(set(blocks)) == 2
    del first
    second, third = model.new_sequence(200), model.new_sequence(200)
    assert second.blocks == [], "a sequence takes blocks when it needs them"
    assert torch.equal(model.extend(second, prompt), expected)
    assert torch.equal(model.extend(third, prompt), expected)
    assert [second.blocks, third.blocks] == [[block] for block in blocks]
    larger = model.new_sequence(600)
    assert torch.equal(model.extend(larger, prompt), expected)
    assert larger.blocks[0] not in blocks
    assert larger.capacity == 600


def test_memory_of_many_sequences_is_not_kept() -> None:
    """Of those that are freed one at most: a burst of texts must not hold its memory for ever."""
    model = tiny_models.model(folder("llama"), "native", "fp32")
    assert isinstance(model, NativeModel)
    model.extend(model.new_sequence(1024), [3] * 1000)  # the buffers of passes are there
    before = resident()
    texts = [model.new_sequence(1024) for _ in range(60)]
    model.forward([Rows(each, [3] * 1000, 0) for each in texts])
    each = (resident() - before) / len(texts)
    assert each > 0.9 * 4 * model.packed.block_bytes("fp32")
    peak, kept = resident(), texts.pop()
    texts.clear()
    assert peak - resident() < 2 * each, "a text is there: its neighbours' memory is for the next one"
    del kept
    assert peak - resident() > 50 * each
    assert model.blocks.free == model.blocks.count
    for _ in range(3):
        model.extend(model.new_sequence(1024), [3] * 1000)
    assert resident() - before < 5 * each


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# ---- drafting


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize("length", [1, 16, 17, 250, 280])
def test_draft_is_greedy_decoding(variant: str, precision: str, length: int) -> None:
    """The tokens of single steps, their softmax, and a cache that goes on from there: after short and long prompts."""
    model, prompt, count = text(variant, precision), tokens(length, 5), 12
    model.truncate(0)
    if length > 1:
        model.forward(prompt[:-1])
    expected, certain, step = [], [], prompt[-1:]
    for _ in range(count):
        logits = model.forward(step)[0, :150]
        step = [int(logits.argmax())]
        expected += step
        certain.append(float(logits.softmax(-1).max()))
    following = model.forward(step)
    assert model.length == length + count

    model.truncate(0)
    drafted, probabilities = model.draft(prompt, count, vocabulary=150)
    assert drafted == expected
    assert probabilities == pytest.approx(certain, rel=1e-4)
    assert model.length == length + count - 1, "the last token is not in the cache"
    assert torch.equal(model.forward(step), following)


def test_draft_stops_behind_an_unlikely_token() -> None:
    """`min_confidence` saves passes over tokens nobody will accept; the token that fell below it is still given."""
    model, prompt = text("qwen3", "bf16"), tokens(30, 6)
    model.truncate(0)
    drafted, probabilities = model.draft(prompt, 16)
    assert len(drafted) == 16
    stops = 0
    for min_confidence in (0.0, *sorted(probabilities), 1.0):
        model.truncate(0)
        some, likely = model.draft(prompt, 16, min_confidence=min_confidence)
        unlikely = [index for index, probability in enumerate(probabilities) if probability < min_confidence]
        wanted = unlikely[0] + 1 if unlikely else 16
        assert (some, likely) == (drafted[:wanted], probabilities[:wanted])
        assert model.length == len(prompt) + wanted - 1
        stops += wanted < 16
    assert stops > 3, "the probabilities leave nothing to test"


def test_drafting_goes_on_after_a_rejection() -> None:
    """Rounds of drafting and rolling back leave the cache as plain decoding would have it."""
    model, written = text("llama", "int8"), tokens(20, 7)
    model.truncate(0)
    for accepted in (0, 3, 1, 4):
        drafted, _ = model.draft(written[model.length :], 4)
        written = [*written, *drafted[:accepted], 7]
        model.truncate(min(model.length, len(written) - 1))
    rest = written[model.length :]
    assert rest
    after = model.forward(rest)
    model.truncate(0)
    model.forward(written[:19])
    for start in range(19, len(written)):
        expected = model.forward(written[start : start + 1])
    assert torch.equal(after, expected)


# ---- what the process around it does


# ---- instruction sets


# ---- threads

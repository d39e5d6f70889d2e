"""Sequences that share blocks against sequences of their own: forks, prefixes, and a pool that is full."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from conftest import HAS_NATIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_models import INT8_KEYS, PRECISIONS, VARIANTS, loaded, tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import DraftInput, Rows, Sequence
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native.model import NativeModel, NativeSequence
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack

native = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
SIZE = 256


def model_of(blocks: int, kv_precision: str = "fp32") -> NativeModel:
    """A model whose pool has this number of blocks."""
    packed = loaded("llama", "fp32").packed
    made = NativeModel(packed, KvMemory(blocks * packed.block_bytes(kv_precision)), kv_precision)
    assert made.blocks.count == blocks
    return made


@native
@pytest.mark.parametrize("length", [1, 255, 256, 257, 300, 512])
@pytest.mark.parametrize("rows", [1, 2, 255, 256, 600])
def test_blocks_are_taken_as_foretold(length: int, rows: int) -> None:
    """Catches an engine that lets a pass begin for which there are no blocks, or preempts a text for nothing."""
    model = model_of(16)
    sequence = model.new_sequence(2000)
    model.forward([Rows(sequence, tokens(length), 0)])
    for each in (sequence, sequence.fork()):
        free, foretold = model.blocks.free, each.blocks_for(rows)  # type: ignore[attr-defined]
        model.forward([Rows(each, tokens(rows, 1), 1)])
        assert free - model.blocks.free == foretold
        assert each.blocks_for(1) == (each.length % SIZE == 0)  # type: ignore[attr-defined]


@native
def test_a_full_pool_refuses_and_changes_nothing() -> None:
    """The first of two texts had its blocks before the second was refused."""
    model = model_of(3)
    long, short = model.new_sequence(1000), model.new_sequence(1000)
    model.forward([Rows(long, tokens(300)), Rows(short, tokens(10, 1))])
    before = (long.blocks, short.blocks, long.length, short.length)
    fresh, alone = model_of(3), torch.empty(0)
    for rows in ([Rows(long, tokens(100, 2)), Rows(short, tokens(250, 3))], [Rows(long, tokens(250, 2))]):
        with pytest.raises(NoBlocksError, match="1 more blocks of 256 tokens are needed, and 0 of 3 are free"):
            model.forward(rows)
        with pytest.raises(NoBlocksError):
            model.choose(rows)
        assert (long.blocks, short.blocks, long.length, short.length) == before
    with pytest.raises(NoBlocksError):
        model.draft_many([DraftInput(long, [1], 3), DraftInput(short, [2], 300)])
    assert (long.blocks, short.blocks, long.length, short.length) == before
    got = model.extend(long, tokens(5, 4), 5)
    sequence = fresh.new_sequence(1000)
    fresh.extend(sequence, tokens(300))
    alone = fresh.extend(sequence, tokens(5, 4), 5)
    assert torch.equal(got, alone)
    del short
    model.extend(long, tokens(300, 5))
    with pytest.raises(NoBlocksError, match="0 of 3"):
        model.extend(long.fork(), [1])


@native
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
def test_forks_go_on_as_texts_of_their_own(variant: str, precision: str) -> None:
    """Whichever of them writes to the shared part first, and wherever the fork is: at a block's end, or within."""
    model, text = loaded(variant, precision), tokens(300)
    for length in (300, 290, 256, 255, 17, 0):
        whole = model.new_sequence(700)
        model.extend(whole, text[:290])
        model.extend(whole, text[290:])
        fork = whole.fork(length)
        assert fork.length == length
        assert fork.blocks == whole.blocks[: len(fork.blocks)]
        own, other = tokens(3, 1), tokens(3, 2)
        first = model.extend(fork, own, 3) if length % 2 else None
        theirs = model.extend(whole, other, 3)
        first = model.extend(fork, own, 3) if first is None else first
        assert not set(fork.blocks[length // SIZE :]) & set(whole.blocks[length // SIZE :])
        for got, before, rows in ((theirs, text, other), (first, text[:length], own)):
            fresh = model.new_sequence(700)
            for start in (slice(0, 290), slice(290, None)):
                if before[start]:
                    model.extend(fresh, before[start])
            assert torch.equal(got, model.extend(fresh, rows, 3)), length


@native
def test_a_sequence_begins_with_blocks_of_another() -> None:
    """A prefix that is known already; it is read, and never written."""
    model, text = loaded("qwen3", "bf16"), tokens(600)
    first = model.new_sequence(700)
    model.extend(first, text)
    second = model.new_sequence(700, blocks=first.blocks[:2])
    assert second.length == 512
    assert [model.blocks.references(block) for block in first.blocks] == [2, 2, 1]
    again = model.new_sequence(700)
    model.extend(again, text[:512])
    assert torch.equal(model.extend(second, text[512:], 5), model.extend(again, text[512:], 5))
    second.truncate(300)
    assert [model.blocks.references(block) for block in first.blocks] == [2, 2, 1]
    expected = model.extend(first.fork(600), [1])
    model.extend(second, [9] * 30)
    assert [model.blocks.references(block) for block in first.blocks] == [2, 1, 1]
    assert torch.equal(model.extend(first.fork(600), [1]), expected)
    with pytest.raises(IpexAssistError, match="2 blocks of 256 tokens in a sequence of 256"):
        model.new_sequence(256, blocks=first.blocks[:2])


class Twin:
    """A text, the sequence that has it, and what its next logits must be: those of a sequence filled from nothing."""

    def __init__(self, sequence: NativeSequence, text: list[int]) -> None:
        self.sequence, self.text = sequence, text


@native
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_schedules_of_forks_and_writes(data: st.DataObject) -> None:
    """Against texts computed from nothing: a block that is written while another text reads it, or freed under it."""
    model = model_of(64, data.draw(st.sampled_from(["fp32", "int8"])))
    twins = [Twin(model.new_sequence(1000), [])]
    for number in range(data.draw(st.integers(1, 12))):
        twin = twins[data.draw(st.integers(0, len(twins) - 1))]  # hypothesis would hold on to a twin
        step = data.draw(st.sampled_from(["write", "write", "fork", "truncate", "drop"]))
        if step == "write":
            count = data.draw(st.sampled_from([1, 2, 40, 200, 256]))
            rows = tokens(min(count, 1000 - len(twin.text)), number)
            if rows:
                logits(model, twin.sequence, rows)
                twin.text = twin.text + rows
        elif step == "fork" and len(twins) < 5:
            length = data.draw(st.integers(0, len(twin.text)))
            twins.append(Twin(twin.sequence.fork(length), twin.text[:length]))
        elif step == "truncate":
            length = data.draw(st.integers(0, len(twin.text)))
            twin.sequence.truncate(length)
            twin.text = twin.text[:length]
        elif step == "drop" and len(twins) > 1:
            twins.remove(twin)
        del twin
        references = Counter(block for each in twins for block in each.sequence.blocks)
        assert all(model.blocks.references(block) == held for block, held in references.items())
        assert 64 - model.blocks.free == len(references)
        assert all(len(each.sequence.blocks) == -(-len(each.text) // SIZE) for each in twins)
    for each in twins:
        each.sequence.truncate(min(len(each.text), 999))
        fresh = model.new_sequence(1000)
        if each.text[:999]:
            logits(model, fresh, each.text[:999])
        assert torch.equal(model.extend(each.sequence.fork(), [5]), model.extend(fresh, [5]))
    twins.clear()
    del each, fresh
    assert model.blocks.free == 64


def logits(model: NativeModel, sequence: Sequence, rows: list[int]) -> None:
    """Append rows by passes of decode steps, whose sums are those of any split."""
    for first in range(0, len(rows), 16):
        model.extend(sequence, rows[first : first + 16], 0)


@native
def test_a_thousand_sequences_come_and_go() -> None:
    """No block is lost, and no more memory taken than the texts at one time had."""
    model = model_of(40)
    generator = torch.Generator().manual_seed(1)
    live: list[Sequence] = []
    for number in range(1000):
        sequence = live[number % len(live)].fork() if number % 5 == 0 and live else model.new_sequence(600)
        rows = int(torch.randint(1, 300, (), generator=generator))
        model.extend(sequence, tokens(min(rows, 600 - sequence.length), number) or [1][: 600 - sequence.length], 0)
        live.append(sequence)
        del sequence
        if len(live) > 9:
            live.pop(int(torch.randint(10, (), generator=generator)))
    assert max(block for each in live for block in each.blocks) < 40  # type: ignore[attr-defined]
    live.clear()
    assert model.blocks.free == 40

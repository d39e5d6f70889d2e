"""What a pass costs on this machine: measured when a pair is loaded for the first time (pair_cache.py keeps it)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from ipex_assist.executors.interface import Decoder, NarrowDecoder
from ipex_assist.speculative.costs import Costs

# To be spent on the target's passes, the assistant's, and its steps; a pass that was begun is finished.
TARGET_SECONDS, DRAFT_SECONDS, STEP_SECONDS = 0.9, 0.25, 0.06
# The first are the most telling, for models of which there is time for few passes.
TARGET_ROWS = (1, 5, 9, 3, 2, 4, 7, 6, 8, 16, 12)
DRAFT_ROWS = (1, 2, 16, 8, 4)
READ_TOKENS = 64  # of a stretch by which the speed of reading is measured …
READ_SECONDS = 0.25  # … where it should take no longer than this
FIRST_SIZES, FIRST_TURNS = 3, 3  # so many sizes have so many turns before the others begin
MOST_TURNS = 20  # small models need no more to show their fastest pass
_DRAFTED = 4
_BEFORE = 8  # rows in the cache

Clock = Callable[[], float]


def calibrate(
    target: Decoder,
    assistant: Decoder | None,
    draft_vocabulary: int | None = None,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Time the target's pass at 1 to 16 rows and the assistant's steps. Takes 1.5 s, or a few passes of large models.

    Each number of rows has several turns, and its fastest pass counts: what others do on the machine makes passes
    slower, never faster. Both caches are empty afterwards.
    """
    verify = time_passes(target, TARGET_ROWS, TARGET_SECONDS, clock)
    if assistant is None:
        return Costs(verify)
    rows = time_passes(assistant, DRAFT_ROWS, DRAFT_SECONDS, clock)
    return Costs(verify, _time_step(assistant, draft_vocabulary, clock), rows, _time_reading(assistant, rows, clock))


def time_passes(decoder: Decoder, sizes: Sequence[int], seconds: float, clock: Clock) -> tuple[float, ...]:
    """Seconds of a pass over 1, 2, … rows, never falling; sizes there was no time for are interpolated.

    The first of `sizes` have all their turns before the others have one: of a few sizes it is better to know the time
    undisturbed than of many to know it as it happened to be.
    """
    largest = max(1, min(max(sizes), decoder.spec.context_length - _BEFORE))
    fastest: dict[int, float] = {}
    started = clock()
    _start(decoder, largest + _BEFORE)
    for number, size in enumerate(_turns([size for size in sizes if size <= largest])):
        if number >= 2 and clock() - started >= seconds:
            break
        fastest[size] = min(fastest.get(size, float("inf")), _time_pass(decoder, size, clock))
    decoder.truncate(0)
    known = sorted(fastest)
    return tuple(interpolate(known, rising([fastest[size] for size in known]), range(1, known[-1] + 1)))


def _turns(sizes: Sequence[int]) -> Iterator[int]:
    for _ in range(FIRST_TURNS):
        yield from sizes[:FIRST_SIZES]
    for _ in range(FIRST_TURNS):
        yield from sizes[FIRST_SIZES:]
    for _ in range(MOST_TURNS - FIRST_TURNS):
        yield from sizes


def _start(decoder: Decoder, tokens: int) -> None:
    decoder.reserve(tokens)
    decoder.forward(_tokens(decoder, min(_BEFORE, tokens - 1)))
    decoder.forward(_tokens(decoder, 1))  # the first pass of its shape brings pages and threads
    decoder.truncate(min(_BEFORE, tokens - 1))


def _tokens(decoder: Decoder, count: int) -> list[int]:
    return [(7 * i + 3) % decoder.spec.vocab_size for i in range(count)]


def _time_pass(decoder: Decoder, rows: int, clock: Clock) -> float:
    before = decoder.length
    tokens = _tokens(decoder, rows)
    started = clock()
    decoder.forward(tokens, last=rows).argmax(-1)
    elapsed = clock() - started
    decoder.truncate(before)
    return elapsed


def _time_step(decoder: Decoder, vocabulary: int | None, clock: Clock) -> float:
    """Seconds of one greedily drafted token, the fastest of a few."""
    decoder.reserve(_BEFORE + _DRAFTED + 1)
    decoder.forward(_tokens(decoder, _BEFORE))
    best, began = float("inf"), clock()
    while best == float("inf") or clock() - began < STEP_SECONDS:
        started = clock()
        if isinstance(decoder, NarrowDecoder):
            decoder.draft([3], _DRAFTED, vocabulary)
        else:
            for _ in range(_DRAFTED):
                decoder.forward([3]).argmax(-1)
        best = min(best, (clock() - started) / _DRAFTED)
        decoder.truncate(_BEFORE)
    decoder.truncate(0)
    return best


def _time_reading(decoder: Decoder, rows: Sequence[float], clock: Clock) -> float:
    """Seconds a token of a stretch that is longer than a decode step."""
    each = rows[-1] / len(rows)
    if decoder.spec.context_length < READ_TOKENS or READ_TOKENS * each > READ_SECONDS:
        return each
    decoder.reserve(READ_TOKENS)
    started = clock()
    decoder.forward(_tokens(decoder, READ_TOKENS))
    elapsed = clock() - started
    decoder.truncate(0)
    return min(each, elapsed / READ_TOKENS)


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls, by least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def interpolate(known: Sequence[int], values: Sequence[float], wanted: Iterable[int]) -> list[float]:
    """Values at `wanted` places on straight lines between `known` ones, ascending; level beyond both ends."""
    results = []
    for place in wanted:
        right = next((i for i, at in enumerate(known) if at >= place), len(known) - 1)
        left = right if known[right] <= place or right == 0 else right - 1
        span = known[right] - known[left]
        share = (place - known[left]) / span if span else 0.0
        results.append(values[left] + share * (values[right] - values[left]))
    return results


def describe(costs: Costs) -> str:
    """In milliseconds, for people."""
    passes = ", ".join(f"{1e3 * seconds:.1f}" for seconds in costs.verify[:9])
    return f"a target pass of 1, 2, … rows takes {passes} ms, a draft step {1e3 * costs.draft:.1f} ms"

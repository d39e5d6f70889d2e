"""Calibration: measures what passes cost on this machine, once for each pair (pair_cache.py stores the result)."""

from __future__ import annotations

import itertools
import time
from collections import abc
from collections.abc import Callable, Iterable, Iterator

from ipex_assist.executors.interface import (
    ALL_THREADS,
    DraftsInOneCall,
    FewerThreads,
    Model,
    PassThreads,
    Rows,
    Sequence,
    experts_a_layer,
    samples_in_one_call,
)
from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.speculative.costs.draft_threads import choose_threads
from ipex_assist.speculative.costs.expert_costs import ExpertCosts
from ipex_assist.speculative.costs.head_calibration import calibrate_head
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import longest_draft

# Time to spend on the target's passes, the assistant's passes, and its decode steps.
TARGET_SECONDS, DRAFT_SECONDS, STEP_SECONDS = 1.0, 0.25, 0.06
# Most informative first, for models with time for few passes: sizes in between can be interpolated, sizes beyond
# cannot.
TARGET_ROWS = (1, 5, 16, 9, 3, 2, 4, 7, 6, 8, 12)
DRAFT_ROWS = (1, 2, 16, 8, 4)
# Passes that several requests share; a size is timed if the previous one predicts that it fits into the seconds.
# Kernels take rows in tiles of 16: one row more may cost half as much again.
WIDE_ROWS, WIDE_SECONDS, WIDE_TURNS = (17, 32, 33, 48, 64), 0.5, 2
# Passes of equal tokens, which read few experts: the difference is the cost of an expert.
ALIKE_ROWS, ALIKE_TURNS = 5, 3
READ_TOKENS = 64  # of a prompt chunk by which the prefill speed is measured …
READ_SECONDS = 0.25  # … if it should take no longer than this
# A chunk's token usually takes less than this share of one in a pass of 16 rows. If not, the chunk is timed again.
READ_SHARE, READ_TURNS = 0.75, 4
# Where the fastest two passes of a size differ by more than this ratio, others disturb them: they get more time.
SETTLED, MORE_TIME = 1.2, 2.0
FIRST_SIZES, FIRST_TURNS = 3, 3  # the first 3 sizes are timed 3 times before the others
MOST_TURNS = 20  # enough for small models to show their fastest pass
_DRAFTED = 4
_BEFORE = 8  # tokens in the sequence before the timed rows

Clock = Callable[[], float]


def calibrate(
    target: Model,
    assistant: Model | None,
    draft_vocabulary: int | None = None,
    clock: Clock = time.perf_counter,
) -> Costs:
    """Time the target's passes of 1 to 64 rows and the assistant's steps. Takes 3 s, or a few passes of large models.

    Each number of rows is timed several times and the fastest pass counts: other processes make passes slower, never
    faster. Other sequences are not touched. The assistant is left with the number of threads that was fastest.
    """
    read: dict[int, float] = {}
    few = time_passes(target, TARGET_ROWS, TARGET_SECONDS, clock, read)
    verify = _widened(target, few, clock, read)
    experts = _expert_costs(target, verify, read, clock)
    if assistant is None:
        return Costs(verify, experts=experts)
    if assistant.spec.head is not None:
        return calibrate_head(target, assistant, Costs(verify, experts=experts), draft_vocabulary, clock)
    threads = _choose_threads(assistant, draft_vocabulary, clock)
    rows = time_passes(assistant, DRAFT_ROWS, DRAFT_SECONDS, clock, {})
    step, reading = _time_step(assistant, draft_vocabulary, clock), _time_reading(assistant, rows, clock)
    return Costs(verify, step, rows, reading, experts, threads).plausible()


def time_passes(
    model: Model,
    sizes: abc.Sequence[int],
    seconds: float,
    clock: Clock,
    read: dict[int, float],
) -> tuple[float, ...]:
    """Return the seconds of a pass over 1, 2, … rows, non-decreasing; sizes that were not timed are interpolated.

    The first of `sizes` get all their repetitions before the others get one: a few undisturbed times are better than
    many disturbed ones. While other processes disturb those, they take up to twice the `seconds`. read: filled with the
    distinct experts a layer of each size.
    """
    largest = max(1, min(max(sizes), model.spec.context_length - _BEFORE))
    times: dict[int, list[float]] = {}
    started = clock()
    sequence = _started(model, largest + _BEFORE)
    for number, size in enumerate(_turns([size for size in sizes if size <= largest])):
        if number >= 2 and clock() - started >= seconds * (1.0 if _settled(times, sizes) else MORE_TIME):
            break
        times.setdefault(size, []).append(_time_pass(model, sequence, size, clock))
        _note_experts(model, size, read)
    known = sorted(times)
    return tuple(interpolate(known, rising([min(times[size]) for size in known]), range(1, known[-1] + 1)))


def _settled(times: dict[int, list[float]], sizes: abc.Sequence[int]) -> bool:
    """Whether the fastest time of each of the first sizes was seen twice; large models have no time for that."""
    fastest = (sorted(times.get(size, ()))[:2] for size in sizes[:FIRST_SIZES])
    return all(pair[-1] <= SETTLED * pair[0] for pair in fastest if pair)


def _note_experts(model: Model, size: int, read: dict[int, float]) -> None:
    experts = experts_a_layer(model)
    if experts is not None:
        read[size] = experts


def _expert_costs(model: Model, verify: tuple[float, ...], read: dict[int, float], clock: Clock) -> ExpertCosts | None:
    """Return the costs of a mixture of experts; None for a dense model.

    Compares passes of the same number of rows with different tokens and with one token repeated, which read few
    experts.
    """
    size = min(ALIKE_ROWS, len(verify))
    if size not in read or len(read) < 2 or model.spec.experts is None:
        return None
    mixture = model.spec.experts
    sequence = _started(model, size + _BEFORE)
    alike = min(_time_pass(model, sequence, size, clock, alike=True) for _ in range(ALIKE_TURNS))
    fewer = read[size] - (experts_a_layer(model) or read[size])
    if fewer < mixture.per_token:  # equal tokens read other experts all the same: fall back to the slope over rows
        alike, fewer = verify[0], read[size] - read[min(read)]
    known = sorted(read)
    each = tuple(interpolate(known, [read[count] for count in known], range(1, len(verify) + 1)))
    seconds = max(0.0, verify[size - 1] - alike) / fewer if fewer > 0 else 0.0
    return ExpertCosts(mixture.count, mixture.per_token, each, seconds)


def _widened(model: Model, verify: tuple[float, ...], clock: Clock, read: dict[int, float]) -> tuple[float, ...]:
    """Extend the seconds to larger passes, as far as there is time to measure them."""
    known = {len(verify): verify[-1]}
    for size in WIDE_ROWS:
        before, seconds = max(known.items())
        if len(verify) < max(TARGET_ROWS) or size + _BEFORE > model.spec.context_length:
            break
        if seconds * size / before > WIDE_SECONDS:
            break
        sequence = _started(model, size + _BEFORE)
        known[size] = min(_time_pass(model, sequence, size, clock) for _ in range(WIDE_TURNS))
        _note_experts(model, size, read)
    sizes = sorted(known)
    wider = interpolate(sizes, rising([known[size] for size in sizes]), range(len(verify) + 1, sizes[-1] + 1))
    return (*verify, *(max(verify[-1], seconds) for seconds in wider))


def _turns(sizes: abc.Sequence[int]) -> Iterator[int]:
    for _ in range(FIRST_TURNS):
        yield from sizes[:FIRST_SIZES]
    for _ in range(FIRST_TURNS):
        yield from sizes[FIRST_SIZES:]
    for _ in range(MOST_TURNS - FIRST_TURNS):
        yield from sizes


def _started(model: Model, capacity: int) -> Sequence:
    before = min(_BEFORE, capacity - 1)
    sequence = model.new_sequence(capacity)
    _read(model, sequence, _tokens(model, before))
    _read(model, sequence, _tokens(model, 1))  # warm-up: the first pass of a shape touches pages and wakes threads
    sequence.truncate(before)
    return sequence


def _read(model: Model, sequence: Sequence, tokens: list[int], last: int = 1) -> None:
    """Append tokens and take the arg-max of the last rows, by the same call that requests use."""
    if samples_in_one_call(model):
        model.sample([Rows(sequence, tokens, last)], [RowChoice()] * last)
    else:
        model.extend(sequence, tokens, last=last).argmax(-1)


def _tokens(model: Model, count: int) -> list[int]:
    return [(7 * i + 3) % model.spec.vocab_size for i in range(count)]


def _time_pass(model: Model, sequence: Sequence, rows: int, clock: Clock, *, alike: bool = False) -> float:
    before = sequence.length
    tokens = _tokens(model, 1) * rows if alike else _tokens(model, rows)
    kept = rows <= longest_draft(model.spec) + 1
    timed = sequence if kept else sequence.fork()  # it cannot be taken back any further
    started = clock()
    _read(model, timed, tokens, rows)
    elapsed = clock() - started
    if kept:
        sequence.truncate(before)
    return elapsed


def _choose_threads(model: Model, vocabulary: int | None, clock: Clock) -> PassThreads:
    if not isinstance(model, FewerThreads):
        return ALL_THREADS
    most = max(1, min(max(DRAFT_ROWS), model.spec.context_length - _BEFORE))
    stepped, passed = model.new_sequence(_BEFORE + _DRAFTED + 1), _started(model, most + _BEFORE)
    _read(model, stepped, _tokens(model, _BEFORE))
    return choose_threads(
        model,
        lambda: _time_draft(model, stepped, vocabulary, clock),
        lambda rows: _time_pass(model, passed, rows, clock),
        most,
    )


def _time_draft(model: Model, sequence: Sequence, vocabulary: int | None, clock: Clock) -> float:
    """Return the mean seconds of a few greedily drafted tokens."""
    before = sequence.length
    started = clock()
    if isinstance(model, DraftsInOneCall):
        model.draft(sequence, [3], _DRAFTED, vocabulary)
    else:
        for _ in range(_DRAFTED):
            model.extend(sequence, [3]).argmax(-1)
    elapsed = clock() - started
    sequence.truncate(before)
    return elapsed / _DRAFTED


def _time_step(model: Model, vocabulary: int | None, clock: Clock) -> float:
    """Return the seconds of one greedily drafted token, the fastest of several runs."""
    sequence = model.new_sequence(_BEFORE + _DRAFTED + 1)
    _read(model, sequence, _tokens(model, _BEFORE))
    best, began = float("inf"), clock()
    while best == float("inf") or clock() - began < STEP_SECONDS:
        best = min(best, _time_draft(model, sequence, vocabulary, clock))
    return best


def _time_reading(model: Model, rows: abc.Sequence[float], clock: Clock) -> float:
    """Return the seconds per token of a prompt chunk."""
    each = rows[-1] / len(rows)
    if model.spec.context_length < READ_TOKENS or READ_TOKENS * each > READ_SECONDS:
        return each
    sequence, tokens = model.new_sequence(READ_TOKENS), _tokens(model, READ_TOKENS)
    best, began = each, clock()
    for _ in range(READ_TURNS):
        started = clock()
        _read(model, sequence, tokens)
        best = min(best, (clock() - started) / READ_TOKENS)
        sequence.truncate(0)
        if best <= READ_SHARE * each or clock() - began >= READ_SECONDS:
            break
    return best


def rising(values: abc.Sequence[float]) -> list[float]:
    """Return the minimum of each value and all later ones: a pass of fewer rows does not take longer.

    So a disturbed measurement is corrected by an undisturbed one of more rows.
    """
    return list(itertools.accumulate(reversed(values), min))[::-1]


def interpolate(known: abc.Sequence[int], values: abc.Sequence[float], wanted: Iterable[int]) -> list[float]:
    """Interpolate linearly at `wanted` between `known` points (ascending), constant beyond both ends."""
    results = []
    for place in wanted:
        right = next((i for i, at in enumerate(known) if at >= place), len(known) - 1)
        left = right if known[right] <= place or right == 0 else right - 1
        span = known[right] - known[left]
        share = (place - known[left]) / span if span else 0.0
        results.append(values[left] + share * (values[right] - values[left]))
    return results


def describe(costs: Costs) -> str:
    """Return the costs in milliseconds as a line for the log."""
    passes = ", ".join(f"{1e3 * seconds:.1f}" for seconds in costs.verify[:9])
    threads = f" by {costs.threads.threads} threads" if costs.threads.threads else ""
    draft = f"a block draft {1e3 * costs.block[0]:.1f}" if costs.block else f"a draft step {1e3 * costs.draft:.1f}"
    return f"a target pass of 1, 2, … rows takes {passes} ms, {draft} ms{threads}"

"""What checksums.py runs on a model: texts in passes of some rows, and the bits that come out."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from checksums_models import BASE, KINDS, LONG, LONG_TEXT, Setup

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.interface import DraftInput, Rows, TokenLogprob, truncate_or_clear
from ipex_assist.executors.interface import Sequence as TokenSequence
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel


class Bits:
    """A checksum of what is put in."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def logits(self, found: torch.Tensor) -> None:
        """Add rows of logits."""
        self._digest.update(struct.pack("<qq", *found.shape) + found.float().contiguous().numpy().tobytes())

    def choices(self, found: Sequence[TokenLogprob]) -> None:
        """Add tokens with their probabilities, and the likeliest."""
        for each in found:
            self._digest.update(struct.pack("<if", each.token, each.log_probability))
            for token, log in each.top:
                self._digest.update(struct.pack("<if", token, log))

    def drafts(self, found: Sequence[tuple[list[int], list[float]]]) -> None:
        """Add drafted tokens with their probabilities."""
        for tokens, probabilities in found:
            self._digest.update(struct.pack(f"<i{len(tokens)}i{len(tokens)}f", len(tokens), *tokens, *probabilities))

    def hex(self) -> str:
        """Return 128 bits of it."""
        return self._digest.hexdigest()[:32]


def text(count: int, seed: int = 0) -> list[int]:
    """Random tokens; every model has these."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(160, (count,), generator=generator).tolist()


PROMPT = text(40)
CAPACITY = 100
FEWER = 100  # of the vocabulary


def prompt(model: NativeModel, bits: Bits) -> None:
    """More rows than a step's, in one pass."""
    bits.logits(model.extend(model.new_sequence(CAPACITY), PROMPT, len(PROMPT)))


def chunks(model: NativeModel, bits: Bits) -> None:
    """The same prompt, cut."""
    sequence = model.new_sequence(CAPACITY, len(PROMPT))
    for first, last in ((0, 7), (7, 24), (24, 40)):
        bits.logits(model.extend(sequence, PROMPT[first:last], last - first))


def steps(model: NativeModel, bits: Bits) -> None:
    """Token by token."""
    sequence = model.new_sequence(CAPACITY)
    for token in PROMPT[:14]:
        bits.logits(model.extend(sequence, [token]))


def cut(model: NativeModel, sequence: TokenSequence, tokens: list[int]) -> None:
    """Bring a sequence back to `tokens`, its first ones; a recurrent one whose state is after more reads them again."""
    truncate_or_clear(sequence, len(tokens))
    if not sequence.length:
        model.extend(sequence, tokens, 0)


def passes(model: NativeModel, bits: Bits) -> None:
    """Passes of 2 to 16 rows, and of 17 to 33, behind some tokens to which the text is cut back."""
    sequence = model.new_sequence(CAPACITY, 5)
    model.extend(sequence, PROMPT[:5])
    for rows in (*range(2, 18), 33):
        bits.logits(model.extend(sequence, PROMPT[5 : 5 + rows], rows))
        cut(model, sequence, PROMPT[:5])


def together(model: NativeModel, bits: Bits) -> None:
    """Rows of several texts in one pass, a few and many; one of them shares the beginning of another."""
    first = model.new_sequence(CAPACITY)
    model.extend(first, PROMPT[:20], 0)
    texts = [
        first,
        first.fork(20 if model.spec.keeps_states else 9),
        *(model.new_sequence(CAPACITY, count) for count in (3, 21, 1)),
    ]
    bits.logits(
        model.forward(
            [
                Rows(texts[0], [7]),
                Rows(texts[1], PROMPT[3:8], 5),
                Rows(texts[2], PROMPT[9:12], 3),
                Rows(texts[3], PROMPT[19:], 2),
                Rows(texts[4], [150]),
            ]
        )
    )
    for number in range(3):
        bits.logits(model.forward([Rows(each, [number, 11], 2) for each in texts[: 3 + number]], FEWER))
    bits.logits(model.forward([Rows(each, text(12, index), 12) for index, each in enumerate(texts)]))


def choose(model: NativeModel, bits: Bits) -> None:
    """The likeliest tokens, found in the core."""
    texts = [model.new_sequence(CAPACITY, 9) for _ in range(3)]
    bits.choices(model.choose([Rows(texts[0], PROMPT, 12), Rows(texts[1], PROMPT[2:4], 2)], 5))
    bits.choices(model.choose([Rows(each, [number + 3]) for number, each in enumerate(texts)], 0, FEWER))
    bits.choices(model.choose([Rows(texts[0], PROMPT[:5], 5)], 3, FEWER))


def draft(model: NativeModel, bits: Bits) -> None:
    """Greedy tokens in one call, of one text and of several; a row behind them shows the keys and values they left."""
    texts = [model.new_sequence(CAPACITY, 9) for _ in range(4)]
    bits.drafts([model.draft(texts[0], PROMPT[:20], 8)])
    bits.drafts([model.draft(texts[1], [5], 6, FEWER, 0.02)])
    requests = [DraftInput(each, PROMPT[i : 2 * i + 1], 2 + i, 0.01 * i) for i, each in enumerate(texts)]
    bits.drafts(model.draft_many(requests, FEWER))
    bits.logits(model.forward([Rows(each, [8]) for each in texts]))


PATTERNS: tuple[Callable[[NativeModel, Bits], None], ...] = (prompt, chunks, steps, passes, together, choose, draft)


def long_context(model: NativeModel, bits: Bits, count: int) -> None:
    """Behind thousands of positions: steps, some rows, many rows, several texts, drafts."""
    sequence = model.new_sequence(count + 100, count)
    bits.logits(model.extend(sequence, text(count), 20))
    for rows in (1, 2, 5, 16, 40):
        bits.logits(model.extend(sequence, PROMPT[:rows], rows))
        cut(model, sequence, text(count))
    other = sequence.fork(sequence.length if model.spec.keeps_states else count - 200)
    bits.logits(model.forward([Rows(sequence, [3, 4], 2), Rows(other, PROMPT[:3], 3)]))
    bits.drafts(model.draft_many([DraftInput(sequence, [9], 5), DraftInput(other, [9], 3)]))
    bits.logits(model.extend(sequence, [5]))


def among_many(model: NativeModel, bits: Bits, count: int) -> None:
    """A text of thousands of positions and 16 short ones in passes of more rows than a step's: threads share it."""
    sequence = model.new_sequence(count + 100, count)
    model.extend(sequence, text(count), 0)
    short = [model.new_sequence(CAPACITY) for _ in range(16)]
    for number, each in enumerate(short):
        model.extend(each, PROMPT[: number + 1], 0)
    every = [*short[:9], sequence, *short[9:]]
    for rows in (1, 3):
        bits.logits(model.forward([Rows(each, PROMPT[:rows], rows) for each in every]))
    bits.drafts(model.draft_many([DraftInput(each, [number], 3) for number, each in enumerate(every)]))


def fewer_threads(model: NativeModel, bits: Bits) -> None:
    """Passes of few rows by one thread of two."""
    model.use_threads(1)
    passes(model, bits)


def pair(model: NativeModel, bits: Bits, checkpoint: Path) -> None:
    """A draft that looks tokens up in the table of its target."""
    prompt(load(checkpoint, "int4", table_of=model), bits)


def patterns_of(name: str, precision: str, checkpoint: Path, setup: Setup) -> Iterator[tuple[str, Callable[..., None]]]:
    """What is run on a model, by name."""
    if name in LONG:
        count = LONG_TEXT.get(name, 2300)
        yield "long context", lambda model, bits: long_context(model, bits, count)
        yield "among many", lambda model, bits: among_many(model, bits, count)
        return
    for pattern in PATTERNS:
        yield pattern.__name__, pattern
    if name in KINDS and precision in BASE:
        if setup.threads > 1:
            yield "fewer threads", fewer_threads
        if not name.endswith("mxfp4"):
            yield "pair", lambda model, bits: pair(model, bits, checkpoint)


def load(checkpoint: Path, precision: str, table_of: NativeModel | None = None) -> NativeModel:
    """A model in one of our precisions' names ("int4-32+int8")."""
    plain, _, disk = precision.partition(" ")
    linears, _, kv = plain.partition("+")
    linears, _, group = linears.partition("-")
    request = LoadRequest(
        open_checkpoint(str(checkpoint)),
        linears,
        "native",
        cache_packed=bool(disk),
        table_of=table_of,
        group=int(group or 64),
        kv_precision=kv or None,
    )
    model = load_model(request)
    assert isinstance(model, NativeModel)
    return model

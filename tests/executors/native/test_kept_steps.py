"""Steps whose description is kept from pass to pass: tokens are those of passes that are described anew."""

from __future__ import annotations

import gc
import weakref

import pytest
from conftest import HAS_NATIVE
from native_models import loaded, tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.kept_steps import KeptSteps
from ipex_assist.executors.native.model import NativeModel, NativeSequence
from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
LENGTHS = (250, 254, 3, 255)  # most of them soon take another block


def begun(model: NativeModel, capacity: int = 400) -> list[NativeSequence]:
    made = [model.new_sequence(capacity) for _ in LENGTHS]
    for sequence, length in zip(made, LENGTHS, strict=True):
        model.extend(sequence, tokens(length, length), 0)
    return made


def step(model: NativeModel, sequences: list[NativeSequence], last: list[int]) -> list[int]:
    rows = [Rows(sequence, [token]) for sequence, token in zip(sequences, last, strict=True)]
    return model.sample(rows, [RowChoice()] * len(rows)).tokens


def texts(model: NativeModel, rounds: int) -> list[list[int]]:
    """What sequences go on with: some leave, one comes back to an earlier length, and one is a fork."""
    sequences, found = begun(model), []
    last = [7] * len(sequences)
    for number in range(rounds):
        last = step(model, sequences, last)
        found.append(last)
        if number == 4:
            sequences[1].truncate(sequences[1].length - 2)
        if number == 6:
            sequences, last = [*sequences[1:], sequences[2].fork()], [*last[1:], 9]
        if number == 9:
            sequences[0], sequences[2] = sequences[2], sequences[0]
    return found


@pytest.mark.parametrize("variant", ["llama", "mistral-window", "llama-dynamic"])
def test_tokens_are_those_of_passes_described_anew(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a length, a block or a token of an earlier pass."""
    model, again, kept = loaded(variant, "int8"), KeptSteps.again, []
    monkeypatch.setattr(KeptSteps, "again", lambda *given: kept.append(again(*given)) or kept[-1])
    found = texts(model, 16)
    assert sum(batch is not None for batch in kept) >= 8
    monkeypatch.setattr(KeptSteps, "again", lambda *_: None)
    assert found == texts(model, 16)


def test_ended_sequences_are_not_kept() -> None:
    """Catches a description that holds the blocks of texts that have ended."""
    model = loaded("llama", "int8")
    free = model.blocks.free
    sequences = begun(model)
    step(model, sequences, step(model, sequences, [1] * len(sequences)))
    ended = weakref.ref(sequences.pop())
    gc.collect()
    assert ended() is None
    del sequences
    assert model.blocks.free == free


def test_what_is_refused_changes_nothing() -> None:
    """A sequence that is full, and a token that the core does not know: the pass after it is right again."""
    model = loaded("llama", "int8")
    sequences = begun(model, 258)
    last = step(model, sequences, step(model, sequences, [1] * len(sequences)))
    with pytest.raises(IpexAssistError, match="token id"):
        step(model, sequences, [1 << 33] * len(sequences))
    with pytest.raises(IpexAssistError):
        step(model, sequences, [1 << 20] * len(sequences))
    assert [each.length for each in sequences] == [length + 2 for length in LENGTHS]
    step(model, sequences, last)
    assert [each.length for each in sequences] == [length + 3 for length in LENGTHS]
    with pytest.raises(IpexAssistError, match="in a sequence of 258"):
        step(model, sequences, last)

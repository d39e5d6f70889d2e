"""The interface of every executor: a Model (weights), and Sequences (the keys and values of one request each)."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.draft_head import Taps
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.rows import PASS_ROWS

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ipex_assist.executors.adapters import AdapterChoice
    from ipex_assist.executors.blocks import BlockPool
    from ipex_assist.executors.image_rows import PromptImages
    from ipex_assist.executors.recurrent_states import RecurrentState, StatePool
    from ipex_assist.executors.row_choice import RowChoice, SampledRows

Tokens: TypeAlias = "abc.Sequence[int]"
# Something that need not stand between two passes, a little at a time; False where nothing is left of it. It runs no
# passes: the one that it runs beside holds their lock.
Meanwhile: TypeAlias = "abc.Callable[[], bool]"

ANY_ROWS = 1 << 30  # Model.exact_rows where a row's bits never depend on the number of rows


class LogitsError(IpexAssistError):
    """Logits that hold NaN or infinity. No token can be chosen by them: arg-max would silently return the first one."""

    def __init__(self, who: str, tokens: int) -> None:
        """who: "the target" or "the assistant". tokens: how many tokens come before these logits."""
        super().__init__(
            f"{who} computed NaN or infinity instead of logits after {tokens} tokens: its numbers grow beyond the "
            "range of its precision. Try --precision fp32; if it is the same then, the model is damaged"
        )


class Sequence(Protocol):
    """The keys and values of one request, computed by the model that made it. One thread uses it at a time.

    Its memory is freed with the object.
    """

    @property
    def capacity(self) -> int:
        """The most tokens that the sequence can hold."""
        ...

    @property
    def length(self) -> int:
        """How many tokens have keys and values here; also the position of the next token."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on; `length` is at most the present length."""
        ...

    def fork(self, length: int | None = None) -> Sequence:
        """A new sequence with the same first `length` tokens (all where None) and the same capacity.

        The two are independent. Where the model has blocks they share them, and a shared block is copied before either
        writes to it; otherwise all keys and values are copied now.
        """
        ...


@runtime_checkable
class HasBlocks(Protocol):
    """A sequence whose keys and values lie in blocks of its model's pool."""

    @property
    def blocks(self) -> list[int]:
        """Its blocks in the order of positions, BlockPool.size positions each; the last may be partly filled."""
        ...

    def blocks_for(self, rows: int) -> int:
        """How many blocks its next `rows` rows take from the pool, including the copy of a shared last block."""
        ...


class Rows(NamedTuple):
    """Tokens to append to a sequence; logits are returned for the last `last` of them, which may be 0.

    hidden: for a draft head, a row of its target's hidden states for each token (tokens, HeadSpec.input_size), or, for
    tokens that it drafted itself, of its own (tokens, hidden_size); those of a pass are of one kind.
    """

    sequence: Sequence
    tokens: Tokens
    last: int = 1
    hidden: NDArray[np.float32] | None = None


@dataclass
class HiddenRows:
    """Asks a pass for hidden states of all of its rows, or of those with logits, and holds them after it.

    of_logit_rows: rows without logits need not pass through the layers that only read what others keep. rows: (rows of
    the pass, or those with logits, len(taps.layers) · hidden_size), in the order of the rows; None before the pass.
    """

    taps: Taps
    of_logit_rows: bool = False
    rows: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """A token, the natural logarithm of its probability, and the likeliest tokens at its position with theirs.

    top: (token, log-probability), best first.
    """

    token: int
    log_probability: float
    top: list[tuple[int, float]] = field(default_factory=list)


def check_rows(sequence: Sequence, count: int, last: int = 0) -> None:
    """Raise IpexAssistError where `count` more tokens do not fit, or `last` is not between 0 and `count`."""
    if not 0 <= last <= count:
        raise IpexAssistError(f"logits of {last} rows were asked for, of {count} in the pass")
    if sequence.length + count > sequence.capacity:
        raise IpexAssistError(f"{sequence.length} + {count} tokens in a sequence of {sequence.capacity}")


def check_length(sequence: Sequence, length: int) -> None:
    """Raise IpexAssistError where a sequence cannot be truncated to `length`."""
    if not 0 <= length <= sequence.length:
        raise IpexAssistError(f"cannot truncate {sequence.length} tokens to {length}")


@runtime_checkable
class HasState(Protocol):
    """A sequence with a state, which is that after its first `settled` tokens."""

    @property
    def settled(self) -> int:
        """The fewest tokens that it can be truncated to, but for 0."""
        ...


class HasSlot(HasState, Protocol):
    """One whose state lies in a slot of its model's pool."""

    state: RecurrentState | None

    def take_state(self) -> None:
        """Have a slot. Raises NoStatesError."""
        ...

    def give_state(self) -> RecurrentState | None:
        """The state, which is the caller's from now on: the sequence is of no more use."""
        ...


def check_rollback(length: int, settled: int) -> None:
    """Raise IpexAssistError where a sequence whose state is after `settled` tokens cannot be cut to `length`."""
    if 0 < length < settled:
        raise IpexAssistError(
            f"a sequence with a state cannot be truncated to {length} tokens: its state is that after {settled}"
        )


def truncate_or_clear(sequence: Sequence, length: int) -> None:
    """Truncate a sequence, or clear it where its state is after more tokens already: it has to read them again."""
    settled: int = getattr(sequence, "settled", 0)  # asking for the protocol HasState takes microseconds
    sequence.truncate(0 if length < settled else length)


class Model(Protocol):
    """The weights of a decoder, for any number of sequences and threads. A row is one token at its position.

    A row's logits are the same, bit for bit, whatever rows run beside it in a decode step, of its own sequence or of
    others. Appending beyond a sequence's capacity raises IpexAssistError; naming a sequence twice in one call is a bug
    of the caller.
    """

    spec: DecoderSpec
    kv_precision: str = "bf16"  # how keys and values are stored: fp32, bf16 or int8
    # Of a draft head with a vocabulary of its own: which token of the target each row of its lm_head is, ascending.
    target_tokens: NDArray[np.int32] | None = None
    token_order: NDArray[np.int32] | None = None  # of a draft head with clusters: their tokens, cluster by cluster
    pass_rows: int = PASS_ROWS  # rows of a pass at most; a call with more of them takes several passes

    @property
    def exact_rows(self) -> int:
        """How many rows one pass over the weights can verify exactly; at 1, verifying costs a pass for each token."""
        ...

    @property
    def experts_read(self) -> int:
        """Distinct experts that the last pass read, summed over layers; 0 where they are not counted."""
        return 0

    @property
    def blocks(self) -> BlockPool | None:
        """The pool that sequences take their blocks from; None where each sequence has memory of its own."""
        return None

    @property
    def states(self) -> StatePool | None:
        """The pool that sequences take the slots of their states from, beside `blocks`, if any."""
        return None

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
        adapter: AdapterChoice | None = None,
        images: PromptImages | None = None,
    ) -> Sequence:
        """A sequence that may hold up to `capacity` tokens. Raises IpexAssistError where there is no memory.

        prompt_length: rows before this position get the rotary embedding of a prompt of that length, however the
        prompt is cut into calls; None: of the first call's length. It matters only with by-length rope (dynamic,
        longrope). blocks: cached blocks of the pool that hold the sequence's first tokens; the sequence takes
        references of its own, and the caller truncates it to the tokens that are right. Without them it is empty.
        state: that after those tokens or some fewer; it is copied. adapter: of all its rows, one that
        the model has (executors/adapters.py: TakesAdapters). images: rows at these positions are theirs, whatever the
        tokens there. Raises IpexAssistError for a model that cannot take them.
        """
        ...

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        """Append tokens to each sequence; returns logits (sum of `last`, vocab) in the order of `rows`.

        vocabulary: return logits of the first `vocabulary` token ids only. hidden: gets hidden states of all rows.
        Raises NoBlocksError before any change. A draft head's logits are of its own vocabulary (HeadSpec). One that
        drafts blocks takes hidden states alone, which become keys and values: `tokens` only says how many, and `last`
        is 0.
        """
        ...

    def extend(self, sequence: Sequence, tokens: Tokens, last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        """`forward` of one sequence: append `tokens`; returns logits (last, vocab) of the last `last` of them."""
        return self.forward([Rows(sequence, tokens, last)], vocabulary)


class SamplesInOneCall(Model, Protocol):
    """A model that chooses tokens itself, by every rule, so that logits leave it only where they are asked for."""

    def sample(
        self,
        rows: abc.Sequence[Rows],
        choices: abc.Sequence[RowChoice],
        hidden: HiddenRows | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> SampledRows:
        """`forward`, and a token for each row of logits, as `choices` has one for each of them.

        meanwhile: called while the pass runs, or before it.
        """
        ...


# Runs a pass whose rows are these tokens, a step of each sequence; None where it is no longer what comes next.
RunSteps: TypeAlias = "abc.Callable[[Tokens, Meanwhile], SampledRows | None]"


@runtime_checkable
class PreparesSteps(Protocol):
    """A model that puts the next step of the same sequences together while this one runs: only its tokens are open."""

    def prepare_steps(self, choices: abc.Sequence[RowChoice]) -> RunSteps | None:
        """While `sample` runs a step of each sequence: what runs the step after it. None where none can be prepared.

        choices: how its tokens are chosen. One with `following` counts its row's own token in the place of that.
        """
        ...


def samples_in_one_call(model: object) -> TypeGuard[SamplesInOneCall]:
    """Whether a model is one; checking the protocol itself takes a tenth of a millisecond."""
    return hasattr(model, "sample")


@runtime_checkable
class DraftsInOneCall(Protocol):
    """A model that decodes several tokens in one call, which is faster than one call for each token."""

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then decode up to `count` tokens greedily; returns them and their probabilities.

        vocabulary: only the first `vocabulary` token ids are candidates. The draft ends after a token whose probability
        is below `min_confidence`. The last token is not appended to the sequence.
        """
        ...

    def draft_many(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft` for several sequences, whose rows share passes; each has its choices and ends independently.

        A draft whose logits hold NaN or infinity ends with the token -1 and the probability NaN, which is its last
        token and so is not appended; the others go on. Raises NoBlocksError before any change.
        """
        ...


@dataclass(frozen=True)
class DraftInput:
    """The arguments of `draft` for one of several sequences.

    hidden: of a draft head, as in Rows; of a block draft (HeadSpec "dflash"), any number of rows that become keys and
    values, and `tokens` is the last token alone. shared_kv: the target's sequence, whose keys and values such a head
    reads. choice: how the first token is chosen, from which the choices of later ones follow; only of a model that
    chooses tokens itself (SamplesInOneCall), and without a mask that depends on tokens. None: the likeliest tokens.
    """

    sequence: Sequence
    tokens: Tokens
    count: int
    min_confidence: float = 0.0
    hidden: NDArray[np.float32] | None = None
    shared_kv: Sequence | None = None
    choice: RowChoice | None = None


class PassThreads(NamedTuple):
    """Passes of up to `rows` rows run on `threads` threads, larger ones on all; threads = 0 also means all."""

    threads: int = 0
    rows: int = 0

    def of(self, rows: int) -> int:
        """How many threads run a pass of `rows` rows; 0 for all."""
        return self.threads if rows <= self.rows else 0


ALL_THREADS = PassThreads()


@runtime_checkable
class FewerThreads(Protocol):
    """A model whose decode passes can run on fewer threads. The results do not depend on it."""

    pass_threads: PassThreads

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """Thread counts worth measuring, from all threads downwards; a single one where there is no choice."""
        ...

    def use_threads(self, number: int) -> None:
        """Run all decode passes on `number` threads from now on; `thread_choices` then has this number alone."""
        ...


def experts_a_layer(model: Model) -> float | None:
    """Distinct experts that the last pass read, averaged over layers with experts; None without experts or a count."""
    read = model.experts_read
    return read / len(model.spec.expert_layers) if read else None

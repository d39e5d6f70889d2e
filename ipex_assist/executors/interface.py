"""What every executor offers: a Model, which is weights, and Sequences, the keys and values of one text each."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import DecoderSpec

if TYPE_CHECKING:
    import torch

    from ipex_assist.executors.blocks import BlockPool

Tokens: TypeAlias = "abc.Sequence[int]"

ANY_ROWS = 1 << 30  # Model.exact_rows where a row's bits depend on no number of rows


class LogitsError(IpexAssistError):
    """Logits that hold NaN or infinity: no token can be chosen by them, and the likeliest would be the first one."""

    def __init__(self, who: str, behind: int) -> None:
        """who: "the target" or "the assistant". behind: tokens of the text that these logits follow."""
        super().__init__(
            f"{who} computed NaN or infinity instead of logits behind the {behind} tokens so far: its numbers grow "
            "beyond what they are computed in. Try --precision fp32; if it is the same then, the model is damaged"
        )


class Sequence(Protocol):
    """Keys and values of one text, of the model that made it. One thread uses it at a time.

    Its memory is freed with the object.
    """

    @property
    def capacity(self) -> int:
        """How many tokens there is room for."""
        ...

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held; the next token's position."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on, which is at most the present length."""
        ...

    def fork(self, length: int | None = None) -> Sequence:
        """A sequence of the same first `length` tokens (all where None) and the same capacity; both go on as they like.

        Where the model has blocks the two share them, and one is copied before either writes to it; else all is copied.
        """
        ...


@runtime_checkable
class HasBlocks(Protocol):
    """A sequence whose keys and values lie in blocks of its model's pool."""

    @property
    def blocks(self) -> list[int]:
        """The block of each stretch of BlockPool.size positions, from the first on; the last may be part full."""
        ...


class Rows(NamedTuple):
    """Tokens by which a sequence goes on; logits are wanted of the last `last` of them, which may be none."""

    sequence: Sequence
    tokens: Tokens
    last: int = 1


@dataclass(frozen=True)
class Choice:
    """A token of a row, the natural logarithm of its probability, and the likeliest tokens, best first, with theirs."""

    token: int
    log_probability: float
    top: list[tuple[int, float]] = field(default_factory=list)


def check_rows(sequence: Sequence, count: int, last: int = 0) -> None:
    """Raise IpexAssistError where `count` further tokens do not fit, or `last` of them are none."""
    if not 0 <= last <= count:
        raise IpexAssistError(f"logits of {last} rows are wanted of {count}")
    if sequence.length + count > sequence.capacity:
        raise IpexAssistError(f"{sequence.length} + {count} tokens in a sequence of {sequence.capacity}")


def check_length(sequence: Sequence, length: int) -> None:
    """Raise IpexAssistError where a sequence cannot be truncated to `length`."""
    if not 0 <= length <= sequence.length:
        raise IpexAssistError(f"cannot truncate {sequence.length} tokens to {length}")


class Model(Protocol):
    """Weights of a decoder, for any number of sequences and threads. A row is one token at its position.

    A row's logits are the same, bit for bit, whatever rows run beside it in a decode step, of its own sequence or of
    others. IpexAssistError is raised for what reaches beyond a sequence's capacity; a sequence named twice is our own
    bug.
    """

    spec: DecoderSpec
    kv_precision: str = "bf16"  # of keys and values: fp32, bf16 or int8

    @property
    def exact_rows(self) -> int:
        """Rows that one pass over the weights can verify exactly; 1 means that verifying costs a pass a token."""
        ...

    @property
    def experts_read(self) -> int:
        """Distinct experts that the last pass read, of all layers together; 0 where nobody counts."""
        return 0

    @property
    def blocks(self) -> BlockPool | None:
        """The pool that sequences take blocks of; None where each has memory of its own."""
        return None

    def new_sequence(self, capacity: int, prompt_length: int | None = None, blocks: abc.Sequence[int] = ()) -> Sequence:
        """A sequence that may hold up to `capacity` tokens. Raises IpexAssistError where there is no memory.

        prompt_length: positions below it turn as in a prompt of that length, however it is cut into calls; None: as in
        the first call's. (It matters with the rope kind "dynamic" alone.) blocks: what it begins with, blocks of the
        pool whose contents are right for it, up to where it is truncated next; it takes references of its own. Else it
        is empty, and takes blocks as it grows.
        """
        ...

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        """Append each one's tokens to its sequence; logits (sum of `last`, vocab) in the order of `rows`.

        vocabulary: logits of the first so many tokens are enough. Raises NoBlocksError before anything has changed.
        """
        ...

    def extend(self, sequence: Sequence, tokens: Tokens, last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        """`forward` of one sequence: append `tokens`; logits (last, vocab) of the last `last` of them."""
        return self.forward([Rows(sequence, tokens, last)], vocabulary)


@runtime_checkable
class DraftsInOneCall(Protocol):
    """A model that decodes several tokens greedily in one call, which is faster than a call a token."""

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then up to `count` greedy tokens out of the first `vocabulary`, and their probabilities.

        Ends behind a token whose probability is below `min_confidence`. The last token is not appended.
        """
        ...

    def draft_many(
        self, requests: abc.Sequence[DraftRequest], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft` for several sequences, whose rows share passes; each ends by itself.

        A draft that comes to NaN or infinity ends with the token -1 and the probability NaN, and that token is the one
        that is not appended; the others go on. Raises NoBlocksError before anything has changed.
        """
        ...


@dataclass(frozen=True)
class DraftRequest:
    """What `draft` takes, for one of several sequences."""

    sequence: Sequence
    tokens: Tokens
    count: int
    min_confidence: float = 0.0


@runtime_checkable
class ChoosesInOneCall(Protocol):
    """A model that finds the likeliest tokens itself, so that no logits need to leave it."""

    def choose(self, rows: abc.Sequence[Rows], top: int = 0, vocabulary: int | None = None) -> list[Choice]:
        """`forward`, and of each row that it would return the likeliest token, of equals the lowest id.

        top: how many of the likeliest come with it. A token of -1 stands for a row that holds NaN or infinity.
        """
        ...


class PassThreads(NamedTuple):
    """Passes of up to `rows` rows are run by `threads` threads, others by all there are; 0 is all as well."""

    threads: int = 0
    rows: int = 0

    def of(self, rows: int) -> int:
        """How many run a pass of `rows` rows; 0 for all."""
        return self.threads if rows <= self.rows else 0


ALL_THREADS = PassThreads()


@runtime_checkable
class FewerThreads(Protocol):
    """A model whose passes need not be run by all threads. None of their bits depends on it."""

    pass_threads: PassThreads

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """Numbers of threads that may be fastest, from all on downwards; one alone where there is no choice."""
        ...

    def use_threads(self, number: int) -> None:
        """Let so many threads run all passes of few rows; there is no choice from then on."""
        ...


def experts_a_layer(model: Model) -> float | None:
    """Distinct experts that the last pass read, the mean of the layers that have any; None where nobody counts them."""
    read = model.experts_read
    return read / len(model.spec.expert_layers) if read else None

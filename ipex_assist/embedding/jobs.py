"""A job: the texts of one request that go through the model together, and the vectors they get."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ipex_assist.embedding.facts import EncodedText

JOB_TOKENS, JOB_TEXTS = 1024, 64  # of one job, unless a single text is longer


class JobRunner(Protocol):
    """Runs passes for all of its jobs."""

    def step(self) -> bool:
        """Run a pass. Returns False if there is nothing to do."""
        ...

    def drop(self, job: EmbeddingJob) -> None:
        """Forget a job, whether it has begun or not, and what it holds."""
        ...

    def pause(self, job: EmbeddingJob, paused: bool) -> None:
        """Set a job aside, without memory; or let it go on."""
        ...


@dataclass(eq=False)
class EmbeddingJob:
    """The owner's side: what a worker's loop does with a generation, it does with a job.

    vectors: in the order of the texts; None until they are there. rows_read: tokens that passes have read for it.
    """

    runner: JobRunner
    texts: Sequence[EncodedText]
    number: int = 0
    vectors: list[NDArray[np.float32] | None] = field(default_factory=list)
    next_text: int = 0  # the first that no pass has begun
    rows_read: int = 0
    paused: bool = False
    finished: bool = False
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.vectors = [None] * len(self.texts)

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(len(text.tokens) for text in self.texts)

    def put(self, index: int, vector: NDArray[np.float32]) -> None:
        """Take a text's vector; the last one ends the job."""
        self.vectors[index] = vector
        self.finished = all(each is not None for each in self.vectors)

    def fail(self, error: Exception) -> None:
        """End it with an error, which its owner gets."""
        self.error, self.finished = error, True

    # As a worker's loop knows them of Generation.

    shares_passes = True

    def in_hand(self) -> bool:
        """Whether the end can be fetched without another pass."""
        return self.finished

    def ready(self) -> bool:
        """Run a pass unless it has ended; whether it has."""
        if not self.finished:
            self.runner.step()
        return self.finished

    def __next__(self) -> Any:
        """There are no parts of it: raises StopIteration, or its error."""
        if self.error is not None:
            raise self.error
        raise StopIteration

    def interrupt(self) -> str:
        """End it before the next pass."""
        self.runner.drop(self)
        return ""

    def pause(self) -> None:
        """Release its memory before the next pass; vectors that are there stay."""
        self.runner.pause(self, True)

    def resume(self) -> None:
        """Let it go on."""
        self.runner.pause(self, False)

    def result(self) -> JobResult:
        """What it gave."""
        return JobResult([vector for vector in self.vectors if vector is not None], self.tokens)

    def run(self, after_pass: Callable[[], object] = lambda: None) -> list[NDArray[np.float32]]:
        """Run passes until it has ended; its vectors. Raises its error."""
        while not self.ready():
            after_pass()
        if self.error is not None:
            raise self.error
        return self.result().vectors


@dataclass(frozen=True)
class JobResult:
    """The vectors, and the tokens that were read for them."""

    vectors: list[NDArray[np.float32]]
    prompt_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """For a worker's reply: vectors as base64 of little-endian fp32."""
        vectors = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in self.vectors]
        return {"vectors": vectors, "prompt_tokens": self.prompt_tokens, "tokens": [], "stop_reason": "stop"}


@dataclass(frozen=True)
class EmbeddingInputs:
    """How the ids of a request to an engine are cut into texts. lengths, skips: of each. types: of each token."""

    lengths: tuple[int, ...]
    skips: tuple[int, ...]
    types: tuple[int, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[EncodedText]) -> tuple[list[int], EmbeddingInputs]:
        """The ids of all texts, and this."""
        tokens = [token for text in texts for token in text.tokens]
        types: list[int] = []
        if any(text.types for text in texts):
            types = [kind for text in texts for kind in text.types or [0] * len(text.tokens)]
        lengths, skips = tuple(len(text.tokens) for text in texts), tuple(text.skip for text in texts)
        return tokens, cls(lengths, skips, tuple(types))

    def texts(self, tokens: Sequence[int]) -> list[EncodedText]:
        """The inverse of `of`."""
        found, first, types = [], 0, list(self.types)
        for length, skip in zip(self.lengths, self.skips, strict=True):
            end = first + length
            found.append(EncodedText(list(tokens[first:end]), skip, types[first:end]))
            first = end
        return found


def in_jobs(texts: Sequence[EncodedText]) -> list[list[int]]:
    """The indices of texts in jobs of about JOB_TOKENS tokens, in order."""
    jobs: list[list[int]] = []
    tokens = 0
    for index, text in enumerate(texts):
        count = len(text.tokens)
        if not jobs or tokens + count > JOB_TOKENS or len(jobs[-1]) >= JOB_TEXTS:
            jobs.append([])
            tokens = 0
        jobs[-1].append(index)
        tokens += count
    return jobs

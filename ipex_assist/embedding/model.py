"""What every loaded embedding model offers, whoever runs it."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipex_assist.embedding.facts import EmbeddingFacts, EncodedText
from ipex_assist.embedding.jobs import EmbeddingJob
from ipex_assist.embedding.steps import Finisher
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import Meanwhile
from ipex_assist.generation.result import Identity
from ipex_assist.tokenization.tokenizer import checked_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EmbeddingModel(ABC):
    """Jobs come and go between passes; a pass has rows of all of them. Not thread-safe."""

    tokenizer: PreTrainedTokenizerBase
    identity: Identity
    facts: EmbeddingFacts
    one_at_a_time = False
    pauses = True
    prefix_blocks = 0
    pass_seconds: None = None  # its passes are of prompts
    adapters: Mapping[str, str] = {}
    sampling_defaults: Mapping[str, Any] = {}
    images: None = None
    lm_head_rows: None = None

    def __init__(self, finish: Finisher) -> None:
        self.engine_stats = EngineStats()
        self.jobs: list[EmbeddingJob] = []
        self._finish = finish
        self._numbers = itertools.count()

    @property
    def context_length(self) -> int | None:
        """Tokens of a text."""
        return self.facts.max_tokens

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""

    @property
    def kv_blocks(self) -> BlockPool | None:
        """The blocks of keys and values that texts take while they are read; None where there are none."""
        return None

    def begin(self, texts: Sequence[EncodedText]) -> EmbeddingJob:
        """Queue texts. Raises UsageError for an empty one, ids there are not, and what is too long."""
        for text in texts:
            self.check(text)
        job = EmbeddingJob(self, texts, next(self._numbers))
        self.jobs.append(job)
        return job

    def check(self, text: EncodedText) -> None:
        """Raise UsageError where a text cannot be read."""
        if not text.tokens:
            raise UsageError("a text is empty: it must have a token at least")
        most = self.facts.max_tokens
        if most is not None and len(text.tokens) > most:
            raise UsageError(
                f"a text has {len(text.tokens):,} tokens, and {self.identity.target} reads {most:,}: shorten it"
            )
        if text.skip >= len(text.tokens):
            raise UsageError("a text is empty after its prompt, whose tokens this model leaves out")
        checked_ids(text.tokens, self.vocab_size, self.tokenizer, self.identity.target)

    def close_prefixes(self, seconds: float) -> None:  # noqa: B027 - it keeps none
        """Nothing: no prefixes are kept."""

    def embed(self, texts: Sequence[EncodedText]) -> list[NDArray[np.float32]]:
        """The vectors of texts, in order."""
        return self.begin(texts).run()

    def drop(self, job: EmbeddingJob) -> None:
        """See JobRunner."""
        if job in self.jobs:
            self._release(job)
            self.jobs.remove(job)
            self.engine_stats.cancelled += 1
        job.finished = True

    def pause(self, job: EmbeddingJob, paused: bool) -> None:
        """See JobRunner."""
        if paused and not job.paused and job in self.jobs:
            self._release(job)
            self.engine_stats.preempted += 1
        job.paused = paused

    def step(self, meanwhile: Meanwhile | None = None) -> bool:
        """Run a pass of rows of all jobs, as far as it has room. A job that fails ends with its error.

        meanwhile: called before it.
        """
        while meanwhile is not None and meanwhile():
            pass
        started = time.perf_counter()
        jobs = [job for job in self.jobs if not job.paused]
        stats = self.engine_stats
        stats.running, stats.waiting = len(jobs), len(self.jobs) - len(jobs)
        stats.most_running = max(stats.most_running, len(jobs))
        if not jobs:
            return False
        try:
            self._pass(jobs)
        except Exception as error:
            for job in jobs:
                self._release(job)
                job.fail(error)
        for job in [job for job in jobs if job.finished]:
            self._release(job)
            self.jobs.remove(job)
            stats.failed += job.error is not None
            stats.finished += job.error is None
        stats.step_s += time.perf_counter() - started
        return True

    def _put(self, job: EmbeddingJob, index: int, pooled: NDArray[np.float32]) -> None:
        """Finish a text's pooled vector. NaN or infinity is the job's error."""
        vector = self._finish(pooled)
        if np.isfinite(vector).all():
            job.put(index, vector)
        elif job.error is None:
            job.fail(
                IpexAssistError(
                    "the model computed NaN or infinity instead of a vector: its numbers grow beyond the range of its "
                    "precision. Try --precision fp32; if it is the same then, the model is damaged"
                )
            )

    @abstractmethod
    def _pass(self, jobs: Sequence[EmbeddingJob]) -> None:
        """Run a pass for these jobs."""

    @abstractmethod
    def _release(self, job: EmbeddingJob) -> None:
        """Give up what a job holds; its texts that have no vector yet begin again."""

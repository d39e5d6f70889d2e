"""Embeddings by a decoder of ours: prompts of several texts share passes, and a vector's bits are the text's alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipex_assist.embedding.facts import EmbeddingFacts, EncodedText
from ipex_assist.embedding.jobs import EmbeddingJob
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.embedding.pooling import Pooler
from ipex_assist.embedding.steps import Finisher
from ipex_assist.env.errors import UsageError
from ipex_assist.executors import interface
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import ANY_ROWS, HiddenRows, Model, Rows
from ipex_assist.generation.result import Identity
from ipex_assist.models.draft_head import Taps

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEWEST_ROWS = 16  # of a job in a pass, where it has them: more jobs take turns
SHARED_PREFIX = 16  # tokens that the texts of a job begin with, from which on reading them once is worth a copy
PREFIX = -1  # the index of what the texts of a job begin with


@dataclass(eq=False)
class TextReading:
    """A text that passes have begun to read, or will in this one. index: of its job's texts, or PREFIX."""

    index: int
    tokens: Sequence[int]
    sequence: interface.Sequence
    pooler: Pooler | None
    blocks: int  # of the pool, when it is read to its end

    @property
    def left(self) -> int:
        """Tokens that have not been read."""
        return len(self.tokens) - self.sequence.length


@dataclass
class JobReading:
    """What a job holds: texts that are being read, the oldest first, and the sequence of what all begin with."""

    prefix_length: int
    texts: list[TextReading] = field(default_factory=list)
    prefix: TextReading | None = None

    @property
    def blocks(self) -> int:
        """Of the pool, for all of them."""
        return sum(text.blocks for text in self.texts) + (0 if self.prefix is None else self.prefix.blocks)


class DecoderEmbedder(EmbeddingModel):
    """A Model, of which each pass gives hidden states and no logits."""

    def __init__(
        self,
        model: Model,
        tokenizer: PreTrainedTokenizerBase,
        identity: Identity,
        facts: EmbeddingFacts,
        poolings: Sequence[str],
        finish: Finisher,
    ) -> None:
        super().__init__(finish)
        self.model, self.tokenizer, self.identity, self.facts = model, tokenizer, identity, facts
        self._poolings = tuple(poolings)
        self._taps = Taps((model.spec.num_hidden_layers,), normed=True)
        self._readings: dict[EmbeddingJob, JobReading] = {}
        # Keys of the same first tokens then differ between texts of different lengths.
        self._by_length = any(rope.by_length for rope in model.spec.ropes)
        # Elsewhere the order of sums depends on how a prompt is cut, and on what is read beside it.
        self._chunks = model.exact_rows >= ANY_ROWS and model.blocks is not None

    @property
    def vocab_size(self) -> int:
        return self.model.spec.vocab_size

    @property
    def kv_blocks(self) -> BlockPool | None:
        return self.model.blocks

    def check(self, text: EncodedText) -> None:
        super().check(text)
        pool = self.model.blocks
        if pool is not None and (needed := self._blocks(len(text.tokens))) > pool.count:
            raise UsageError(
                f"the keys and values of {len(text.tokens):,} tokens take {needed} blocks of {pool.size}, and there is "
                f"memory for {pool.count}: shorten the text, or give more by --kv-memory"
            )

    def _blocks(self, tokens: int) -> int:
        pool = self.model.blocks
        return 0 if pool is None else -(-tokens // pool.size)

    def _release(self, job: EmbeddingJob) -> None:
        self._readings.pop(job, None)
        job.next_text = next((i for i, vector in enumerate(job.vectors) if vector is None), len(job.texts))

    # ---- what a pass holds

    def _pass(self, jobs: Sequence[EmbeddingJob]) -> None:
        parts = self._parts(jobs)
        rows = [Rows(text.sequence, text.tokens[text.sequence.length :][:count], 0) for _, text, count in parts]
        hidden = HiddenRows(self._taps)
        started = time.perf_counter()
        self.model.forward(rows, None, hidden)
        count = sum(each for _, _, each in parts)
        self.engine_stats.count_pass(count, time.perf_counter() - started)
        self.engine_stats.prompt_tokens += count
        assert hidden.rows is not None
        first = 0
        for job, text, read in parts:
            job.rows_read += read
            if text.pooler is not None:
                text.pooler.take(hidden.rows[first : first + read])
            first += read
            if not text.left:
                self._read(job, text)

    def _read(self, job: EmbeddingJob, text: TextReading) -> None:
        """A text has been read to its end."""
        reading = self._readings[job]
        reading.texts.remove(text)
        if text.index == PREFIX:
            reading.prefix = text
            return
        assert text.pooler is not None
        self._put(job, text.index, text.pooler.vector())

    def _parts(self, jobs: Sequence[EmbeddingJob]) -> list[tuple[EmbeddingJob, TextReading, int]]:
        """(job, text, rows) of the next pass: first the same for each job, then what room is left.

        Those of which the least has been read come first, so that a short text does not wait for long ones.
        """
        if not self._chunks:
            return self._whole(jobs)
        ordered = sorted(jobs, key=lambda job: (job.rows_read, job.number))
        rows = self.model.pass_rows
        room, parts = rows, dict[TextReading, tuple[EmbeddingJob, int]]()
        for most in (max(FEWEST_ROWS, rows // len(jobs)), rows):
            for job in ordered:
                room -= self._take(job, min(most, room), parts)
        return [(job, text, rows) for text, (job, rows) in parts.items()]

    def _take(self, job: EmbeddingJob, room: int, parts: dict[TextReading, tuple[EmbeddingJob, int]]) -> int:
        """Add up to `room` rows of a job; returns how many."""
        taken = 0
        while taken < room:
            text = self._next(job, parts)
            if text is None:
                break
            already = parts.get(text, (job, 0))[1]
            rows = min(room - taken, text.left - already)
            parts[text] = job, already + rows
            taken += rows
        return taken

    def _next(self, job: EmbeddingJob, parts: dict[TextReading, tuple[EmbeddingJob, int]]) -> TextReading | None:
        """The text of a job that has further rows for this pass; one is begun where there is memory for it."""
        reading = self._readings.get(job)
        if reading is None:
            reading = self._readings[job] = JobReading(self._shared(job))
        for text in reading.texts:
            if parts.get(text, (job, 0))[1] < text.left:
                return text
        if any(text.index == PREFIX for text in reading.texts):  # the others begin when it has been read
            return None
        begun = self._begin_prefix(reading, job) if reading.prefix_length and reading.prefix is None else None
        if begun is None and job.next_text < len(job.texts):
            begun = self._begin_text(reading, job)
        if begun is not None:
            reading.texts.append(begun)
        return begun

    def _begin_prefix(self, reading: JobReading, job: EmbeddingJob) -> TextReading | None:
        longest = max(len(text.tokens) for text in job.texts)
        blocks = self._blocks(reading.prefix_length)
        if not self._admits(blocks + self._blocks(longest), 2):
            reading.prefix_length = 0  # there is no memory for it beside the longest text
            return None
        sequence = self.model.new_sequence(longest, reading.prefix_length)
        return TextReading(PREFIX, job.texts[0].tokens[: reading.prefix_length], sequence, None, blocks)

    def _begin_text(self, reading: JobReading, job: EmbeddingJob) -> TextReading | None:
        text = job.texts[job.next_text]
        blocks = self._blocks(len(text.tokens))
        if not self._admits(blocks):
            return None
        if reading.prefix is not None:
            sequence = reading.prefix.sequence.fork()
        else:
            sequence = self.model.new_sequence(len(text.tokens), len(text.tokens))
        # Of a last token alone it does not matter which tokens before it count.
        skip = 0 if reading.prefix is not None else text.skip
        pooler = Pooler(self._poolings, self.model.spec.hidden_size, skip)
        job.next_text += 1
        return TextReading(job.next_text - 1, text.tokens, sequence, pooler, blocks)

    def _admits(self, blocks: int, sequences: int = 1) -> bool:
        """Whether there is memory for these: all texts that were begun can be read to their ends, then."""
        pool, states = self.model.blocks, self.model.states
        if pool is None:
            return True
        begun = [text for reading in self._readings.values() for text in (*reading.texts, reading.prefix) if text]
        if states is not None and len(begun) + sequences > states.count:
            return False
        return sum(text.blocks for text in begun) + blocks <= pool.count

    def _shared(self, job: EmbeddingJob) -> int:
        """How many tokens all texts of a job begin with, if reading them once is worth it, and enough for a vector."""
        if len(job.texts) < 2 or set(self._poolings) != {"lasttoken"} or self._by_length:
            return 0
        texts = [text.tokens for text in job.texts]
        first, last = min(texts), max(texts)  # whatever these two begin with, all do
        most = min(map(len, texts)) - 1
        count = next((i for i in range(most) if first[i] != last[i]), most)
        return count if count >= SHARED_PREFIX else 0

    def _whole(self, jobs: Sequence[EmbeddingJob]) -> list[tuple[EmbeddingJob, TextReading, int]]:
        """One text, whole: of the job of which the least has been read."""
        job = min(jobs, key=lambda each: (each.rows_read, each.number))
        reading = self._readings.setdefault(job, JobReading(0))
        text = self._begin_text(reading, job)
        assert text is not None
        reading.texts.append(text)
        return [(job, text, text.left)]

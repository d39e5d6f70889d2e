"""The first line that a worker is sent: what to load, and for how many requests. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.prefix_options import PrefixOptions


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker. max_new_tokens: of its requests, for which there must be memory.

    threads: where no launcher has planned them. verbose: whether to report loading. concurrency: the most requests at
    a time; None leaves it to the worker. lengths: in tokens, of the longest requests to come, the longest first.
    neighbours: how many instances share its nodes' memory, this one among them. grammars: whether requests may have
    grammars, so that the vocabulary is prepared before the worker is ready. task: of embedding/task.py; "auto" is what
    the model's files say. matryoshka: its vectors may be cut, whatever its files say. prefixes: where they are kept.
    """

    load: LoadOptions
    max_new_tokens: int
    threads: int | None = None
    verbose: bool = False
    concurrency: int | None = None
    lengths: tuple[int, ...] = ()
    neighbours: int = 1
    grammars: bool = False
    task: str = "generate"
    matryoshka: bool = False
    prefixes: PrefixOptions = field(default_factory=PrefixOptions)

    @property
    def concurrent_lengths(self) -> tuple[int, ...]:
        """The requests that there must be memory for at a time; empty where the worker takes what memory allows."""
        return () if self.concurrency is None else self.lengths[: self.concurrency]

"""How long the sequences of a file of prompts become, estimated before anything is tokenized. Never imports torch."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ipex_assist.batch.prompts import Entry
from ipex_assist.native.rows import BLOCK
from ipex_assist.workers.capacity import DEFAULT_CONCURRENCY

LINE_BYTES_PER_TOKEN = 3  # English has four, code and most other scripts fewer


def longest_requests(entries: Iterable[Entry], count: int = DEFAULT_CONCURRENCY) -> tuple[int, ...]:
    """Estimate the tokens, prompt and answer, of the `count` longest requests, the longest first."""
    tokens = (entry.length // LINE_BYTES_PER_TOKEN + entry.max_new_tokens for entry in entries)
    return tuple(-(-length // BLOCK) * BLOCK for length in heapq.nlargest(count, tokens))

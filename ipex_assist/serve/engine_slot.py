"""A slot for an engine process, and the requests that are active in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from ipex_assist.serve.backend import GenerationRequest, OutputChunk, ServerStatistics
from ipex_assist.serve.count_sums import sum_counts
from ipex_assist.serve.output_queue import OutputQueue
from ipex_assist.serve.routing import KnownPrefixes, block_keys
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.workers.restarts import RestartState
from ipex_assist.workers.wire import BlockCounts, EmbedRequest, Measured, Request, TextRequest


@dataclass(eq=False)
class ActiveRequest:
    """A request that waits or runs. number: id of the current attempt. slot: where it runs; None before it is sent.
    paused: it waits in the queue, and its slot's engine has its tokens.

    delivered: output tokens given to the reader. seen: how many of them the current attempt has reached; a retry
    produces the same ones, since every request has a seed. tried: slots in which it failed.
    """

    request: GenerationRequest
    options: GenerationOptions
    keys: list[int]
    output: OutputQueue = field(default_factory=OutputQueue)
    number: int = 0
    slot: int | None = None
    paused: bool = False
    delivered: list[int] = field(default_factory=list)
    seen: int = 0
    tried: list[int] = field(default_factory=list)
    sent_at: float = 0.0
    cancelled_at: float | None = None
    expiry: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, request: GenerationRequest, drafts: DraftOptions) -> ActiveRequest:
        """drafts: the server's defaults for options that the request does not set."""
        own = request.options.changed()
        changes = {name: value for name, value in drafts.changed().items() if name not in own}
        return cls(request, replace(request.options, **changes).seeded(), block_keys(request.tokens))

    def deliver(self, chunk: OutputChunk) -> bool:
        """Give the reader the new tokens of a chunk; returns False if an earlier attempt had other tokens."""
        if self.output.over:
            return True
        tokens = [delta.token for delta in chunk.token_deltas]
        known = self.delivered[self.seen : self.seen + len(tokens)]
        if known != tokens[: len(known)]:
            return False
        self.seen += len(tokens)
        self.delivered += tokens[len(known) :]
        if not known:
            self.output.put(chunk)
        elif len(known) < len(tokens):
            logprobs = None if chunk.logprobs is None else chunk.logprobs[len(known) :]
            self.output.put(structs.replace(chunk, token_deltas=chunk.token_deltas[len(known) :], logprobs=logprobs))
        return True

    def message(self) -> Request:
        """The request as an engine process gets it."""
        asked = self.request
        if asked.inputs is not None:
            return EmbedRequest(self.number, asked.tokens, asked.inputs)
        chat = not asked.continues
        return TextRequest(
            self.number,
            asked.tokens,
            chat=chat,
            options=self.options,
            stream=True,
            grammar=asked.grammar,
            images=list(asked.images),
            tokens_only=asked.tokens_only,
        )


@dataclass
class EngineSlot(RestartState):
    """A slot for an engine process.

    requests: by number, including paused ones, and cancelled ones until the engine confirms it. pauses: whether the
    engine can pause a request. past: summed counters of earlier processes in the slot. heard_at: time.monotonic of the
    last event.
    """

    concurrency: int = 1
    pauses: bool = False
    requests: dict[int, ActiveRequest] = field(default_factory=dict)
    known: KnownPrefixes = field(default_factory=KnownPrefixes)
    counts: dict[str, Any] = field(default_factory=dict)
    past: dict[str, Any] = field(default_factory=dict)
    blocks: BlockCounts | None = None
    heard_at: float = 0.0
    starts: int = 0
    ending: bool = False  # killed, but not ended yet

    @property
    def running(self) -> list[ActiveRequest]:
        """Its requests that are not paused."""
        return [active for active in self.requests.values() if not active.paused]

    @property
    def has_room(self) -> bool:
        """Whether another request can run."""
        return self.ready and not self.ending and len(self.running) < self.concurrency

    @property
    def load(self) -> float:
        """Running requests ÷ concurrency."""
        return len(self.running) / self.concurrency

    def take(self, active: ActiveRequest, number: int) -> None:
        """Start a request under this number."""
        active.number, active.seen, active.sent_at = number, 0, time.monotonic()
        self.requests[number] = active
        self.known.keep(active.keys)

    def measure(self, event: Measured) -> None:
        """Take the counts of its process."""
        self.counts, self.blocks = event.engine, event.blocks
        if self.blocks is not None:
            self.known.most = self.blocks.total

    def take_over_requests(self) -> list[ActiveRequest]:
        """Reset the slot after its process has ended; returns the unfinished requests."""
        self.past = sum_counts([self.past, self.counts])
        self.counts, self.blocks, self.ending = {}, None, False
        self.known.forget()
        lost = [active for active in self.requests.values() if not active.output.over]
        self.requests.clear()
        return lost

    def unresponsive_since(self) -> float | None:
        """Since when it has not confirmed a cancellation, by time.monotonic; None if none is pending."""
        cancelled = [active.cancelled_at for active in self.requests.values() if active.cancelled_at is not None]
        return max(min(cancelled), self.heard_at) if cancelled else None


def statistics_of(slots: Sequence[EngineSlot], waiting: int) -> ServerStatistics:
    """The statistics of all slots, and of a queue of `waiting` requests."""
    blocks = [slot.blocks for slot in slots if slot.blocks is not None]
    return ServerStatistics(
        waiting=waiting,
        running=sum(len(slot.running) for slot in slots),
        engine=sum_counts([counts for slot in slots for counts in (slot.past, slot.counts)]),
        blocks_used=sum(each.used for each in blocks) if blocks else None,
        blocks_total=sum(each.total for each in blocks) if blocks else None,
        blocks_cached=sum(each.cached for each in blocks),
        blocks_least=min((each.total for each in blocks), default=None),
        slots=len(slots),
        alive=sum(slot.ready for slot in slots),
        restarts=sum(max(0, slot.starts - 1) for slot in slots),
    )

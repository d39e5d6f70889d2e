"""One place of the server, the engine process there, and the texts that it is at; and a text on its way to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ipex_assist.serve.backend import ModelFacts, Part, Piece, TextRequest
from ipex_assist.serve.counts import total
from ipex_assist.serve.delivery import Delivery
from ipex_assist.serve.routing import KnownPrefixes, block_keys
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.workers.restarts import RestartState


@dataclass(eq=False)
class Text:
    """A request on its way. number: of the try under way. place: where that is; None while it waits.

    delivered: tokens that its reader has, or will have. seen: those of them that this try has come to; further tries
    come by the same ones, since every text has a seed. tried: places at which it was lost.
    """

    request: TextRequest
    options: GenerationOptions
    keys: list[int]
    delivery: Delivery = field(default_factory=Delivery)
    number: int = 0
    place: int | None = None
    delivered: list[int] = field(default_factory=list)
    seen: int = 0
    tried: list[int] = field(default_factory=list)
    sent_at: float = 0.0
    cancelled_at: float | None = None
    expiry: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, request: TextRequest, drafts: DraftOptions) -> Text:
        """drafts: the server's, for what the request leaves as it is by default."""
        own = request.options.changed()
        changes = {name: value for name, value in drafts.changed().items() if name not in own}
        return cls(request, replace(request.options, **changes).seeded(), block_keys(request.tokens))

    def deliver(self, part: Part) -> bool:
        """Give the reader what of a part it has not yet; False where an earlier try had other tokens."""
        if self.delivery.over:
            return True
        tokens = [piece.token for piece in part.pieces]
        known = self.delivered[self.seen : self.seen + len(tokens)]
        if known != tokens[: len(known)]:
            return False
        self.seen += len(tokens)
        self.delivered += tokens[len(known) :]
        if not known:
            self.delivery.put(part)
        elif len(known) < len(tokens):
            logprobs = None if part.logprobs is None else part.logprobs[len(known) :]
            self.delivery.put(replace(part, pieces=part.pieces[len(known) :], logprobs=logprobs))
        return True

    def fields(self) -> dict[str, Any]:
        """As an engine process takes it."""
        grammar = self.request.grammar
        return {
            "id": self.number,
            "prompt": self.request.tokens,
            "chat": False,
            "messages": None,
            "options": self.options.changed(),
            "stream": True,
            "grammar": None if grammar is None else {"kind": grammar.kind, "value": grammar.value},
        }


def part_of(chunk: Mapping[str, Any]) -> Part:
    """What `Streamed` brought, as readers get it."""
    pieces = [Piece(text, token, drafted) for text, token, drafted in chunk["pieces"]]
    return Part(pieces, chunk["logprobs"], chunk["drafted"], chunk["accepted"])


@dataclass
class Place(RestartState):
    """An engine process, or the place for one.

    running: what it is at, by number, cancelled texts among them until it says that they have ended. past: what the
    processes before this one have counted. heard_at: when it last said something, by time.monotonic.
    """

    concurrency: int = 1
    running: dict[int, Text] = field(default_factory=dict)
    known: KnownPrefixes = field(default_factory=KnownPrefixes)
    counts: dict[str, Any] = field(default_factory=dict)
    past: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, int] | None = None
    heard_at: float = 0.0
    starts: int = 0
    ending: bool = False  # it was killed, and has not ended yet

    @property
    def has_room(self) -> bool:
        """Whether it takes another text."""
        return self.ready and not self.ending and len(self.running) < self.concurrency

    @property
    def load(self) -> float:
        """How busy it is, as a part of what it takes at a time."""
        return len(self.running) / self.concurrency

    def take(self, text: Text, number: int) -> None:
        """Begin with a text, under this number."""
        text.number, text.seen, text.sent_at = number, 0, time.monotonic()
        self.running[number] = text
        self.known.keep(text.keys)

    def measure(self, stats: Mapping[str, Any]) -> None:
        """Take in what `Measured` says."""
        self.counts, self.blocks = dict(stats.get("engine", {})), stats.get("blocks")
        if self.blocks is not None:
            self.known.most = self.blocks["total"]

    def lose(self) -> list[Text]:
        """Its process has ended; returns what it was at and somebody still waits for."""
        self.past = total([self.past, self.counts])
        self.counts, self.blocks, self.ending = {}, None, False
        self.known.forget()
        lost = [text for text in self.running.values() if not text.delivery.over]
        self.running.clear()
        return lost

    def deaf_since(self) -> float | None:
        """When it was last heard of, if it has not ended a text that was cancelled before; None if all is well."""
        cancelled = [text.cancelled_at for text in self.running.values() if text.cancelled_at is not None]
        return max(min(cancelled), self.heard_at) if cancelled else None


def model_facts(name: str, facts: Mapping[str, Any]) -> ModelFacts:
    """What an engine said when it had loaded its model. name: as requests call it."""
    return ModelFacts(
        name=name,
        target=facts["target"],
        assistant=facts.get("assistant"),
        precision=facts["precision"],
        executor=facts["executor"],
        context_length=facts.get("context_length"),
        vocab_size=facts.get("vocab_size") or 0,
        created=int(time.time()),
    )

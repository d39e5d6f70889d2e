"""The messages between a pool and its workers, each described here once. Never imports torch.

A message is a line of JSON with its kind in `type`. A worker first gets its WorkerSettings, then messages of ToWorker;
what it sends are those of FromWorker.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ipex_assist.embedding.facts import EmbeddingFacts
from ipex_assist.embedding.jobs import EmbeddingInputs
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions

M = TypeVar("M")


class TextRequest(Struct, frozen=True, tag="text"):
    """A text to write: after a prompt, a text or token ids, or as the answer to messages.

    id: of the request, in whatever is said of it. chat: put a text into the chat template, as a user's message; of
    token ids, that they are those of a conversation. stream: send each chunk as it comes. grammar: what the text must
    be. images: contents of files, for the placeholders of the prompt or messages. tokens_only: of a request with
    images, to write nothing, and answer with the ids of the prompt, those of images among them.
    """

    id: int
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    chat: bool = False
    options: GenerationOptions = msgspec.field(default_factory=GenerationOptions)
    stream: bool = False
    grammar: GrammarSpec | None = None
    images: list[bytes] = []
    tokens_only: bool = False


class EmbedRequest(Struct, frozen=True, tag="embed"):
    """Texts that become vectors or scores: the token ids of all, and how they are cut."""

    id: int
    tokens: list[int]
    inputs: EmbeddingInputs


class Cancel(Struct, frozen=True, tag="cancel"):
    """Give up a request; it is answered with an error, unless it has just ended."""

    id: int


class Pause(Struct, frozen=True, tag="pause"):
    """Set a request aside, where `Ready` says that this is possible."""

    id: int


class Resume(Struct, frozen=True, tag="resume"):
    """Go on with a request that was paused."""

    id: int


Request: TypeAlias = TextRequest | EmbedRequest
ToWorker: TypeAlias = Request | Cancel | Pause | Resume


class WorkerEvent(Struct, kw_only=True, omit_defaults=True):
    """instance: the worker's number in its pool, which sets it."""

    instance: int = 0


class ModelDescription(Struct, kw_only=True, omit_defaults=True):
    """A loaded model. context_length: in tokens. draft_head: the assistant's kind, where it is a draft head.

    adapters: folders by their names. sampling: defaults of options, by the model's files. embedding: of a model that
    gives vectors or scores, and writes no text.
    vocab_size: 0 where it is not known. lm_head_rows: how many token ids have a logit, the first ones; 0 as above.
    images: whether it takes any.
    """

    target: str
    precision: str
    executor: str
    assistant: str | None = None
    draft_head: str | None = None
    context_length: int | None = None
    vocab_size: int = 0
    lm_head_rows: int = 0
    adapters: dict[str, str] = {}
    sampling: dict[str, Any] = {}
    embedding: EmbeddingFacts | None = None
    images: bool = False


class Ready(WorkerEvent, tag="ready"):
    """The worker has loaded its model, in load_s seconds.

    concurrency: the most requests that it takes at a time; None: as many as are asked for. pauses: whether requests
    can be paused.
    """

    model: ModelDescription
    load_s: float
    chat_template: bool = False
    concurrency: int | None = None
    pauses: bool = False

    def concurrent(self, asked: int | None) -> int:
        """How many requests it gets at a time, where so many are asked for; None: as many as it takes, else one."""
        wanted = asked or self.concurrency or 1
        return min(wanted, self.concurrency or wanted)


class Refused(WorkerEvent, tag="refused"):
    """The worker cannot load its model, and ends. exit_code: what a command would end with."""

    message: str
    exit_code: int

    def error(self) -> IpexAssistError:
        """What a command raises that can do without no worker."""
        return (UsageError if self.exit_code == UsageError.exit_code else IpexAssistError)(self.message)


class PhaseReport(WorkerEvent, tag="phase"):
    """What a worker that loads does now. share: of that, from 0 to 1, or None; seconds: since it began."""

    name: str
    share: float | None
    seconds: float


class TokenDelta(Struct, frozen=True, array_like=True):
    """Text released with one token; may be empty, or include held-back text of earlier tokens. token: its id. drafted:
    whether it was drafted and accepted."""

    text: str
    token: int
    drafted: bool


class OutputChunk(Struct, frozen=True):
    """The output of one pass of the target. logprobs: for each token delta, if requested.

    drafted, accepted: tokens drafted for this pass, and those of them that were accepted. cached: in the first chunk,
    the tokens of the prompt that the prefix cache had.
    """

    token_deltas: list[TokenDelta]
    logprobs: list[TokenLogprob] | None
    drafted: int
    accepted: int
    cached: int = 0


class Streamed(WorkerEvent, tag="chunk"):
    """New tokens of a request that is streamed."""

    id: int
    chunk: OutputChunk


class Answered(WorkerEvent, tag="answer"):
    """The worker has finished a request, and can take another. Answers come in any order.

    result: `Result.as_dict()` or `JobResult.as_dict()`, or None with `error`. again: another try may succeed. refused:
    the request itself is wrong.
    """

    id: int
    result: dict[str, Any] | None = None
    error: str | None = None
    again: bool = False
    refused: bool = False


class BlockCounts(Struct, frozen=True):
    """KV blocks of a worker. cached: of those in use, the ones that only the prefix cache holds."""

    used: int
    total: int
    cached: int = 0


class Measured(WorkerEvent, tag="counts"):
    """Counts since the worker's start. engine: `EngineStats.as_dict()`."""

    engine: dict[str, Any]
    blocks: BlockCounts | None = None


FromWorker: TypeAlias = Ready | Refused | PhaseReport | Streamed | Answered | Measured


class LogLine(WorkerEvent):
    """A line on the worker's standard error."""

    line: str


class Ended(WorkerEvent):
    """The worker has ended. refusal: where it reported itself that it cannot load."""

    reason: str
    refusal: Refused | None = None


Event: TypeAlias = Ready | PhaseReport | Streamed | Answered | Measured | LogLine | Ended  # of a pool

_encoder = msgspec.json.Encoder()


def encoded(message: Any) -> bytes:
    """A message, or settings, as a line."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair: in a prompt, or in the name of a file that is not UTF-8
        return json.dumps(msgspec.to_builtins(message, str_keys=True)).encode() + b"\n"


class MessageDecoder(Generic[M]):
    """Reads lines that `encoded` has made, as messages of one type."""

    def __init__(self, kind: Any) -> None:
        self._kind, self._decoder = kind, msgspec.json.Decoder(kind)

    def read(self, line: bytes) -> M:
        """The message. Raises msgspec.ValidationError for one of no such kind."""
        try:
            return self._decoder.decode(line)  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:  # half of a surrogate pair
            return msgspec.convert(json.loads(line), self._kind, str_keys=True)  # type: ignore[no-any-return]


to_worker: MessageDecoder[ToWorker] = MessageDecoder(ToWorker)
from_worker: MessageDecoder[FromWorker] = MessageDecoder(FromWorker)

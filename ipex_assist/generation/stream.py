"""One generation: rounds in, pieces of text out, and the result at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from types import GeneratorType
from typing import Protocol

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.executors.traffic import Traffic
from ipex_assist.generation.result import Chunk, DraftResult, Identity, Result, StopReason, Times, TokenPiece, short
from ipex_assist.generation.stats import Loading, Statistics
from ipex_assist.speculative.round import Round
from ipex_assist.tokenization.detokenizer import IncrementalDetokenizer, TokenDecoder
from ipex_assist.tokenization.thinking import ThoughtAndAnswer, ThoughtReader
from ipex_assist.tokenization.tokenizer import special_names


class RoundStream(Protocol):
    """Where the rounds of one generation come from: a request of an engine, or `OwnRounds`."""

    def __next__(self) -> Round:
        """The next round; runs passes until there is one."""
        ...

    def ready(self) -> bool:
        """Whether a round, or the end, can be fetched without a pass. Where not at first, one pass is run."""
        ...

    def in_hand(self) -> bool:
        """Whether a round, or the end, can be fetched without a pass. None is run."""
        ...

    def close(self) -> None:
        """Ask for no further round."""
        ...

    def pause(self) -> None:
        """Give way to others until `resume`."""
        ...

    def resume(self) -> None:
        """Go on after `pause`."""
        ...


class OwnRounds:
    """Rounds of an iterator that shares no passes with other requests, and so never waits for them."""

    def __init__(self, rounds: Iterator[Round]) -> None:
        self._rounds = rounds

    def __next__(self) -> Round:
        return next(self._rounds)

    def ready(self) -> bool:
        return True

    def in_hand(self) -> bool:
        return True

    def close(self) -> None:
        if isinstance(self._rounds, GeneratorType):  # it ends here, and not when it is collected
            with contextlib.suppress(ValueError):  # a round is running, in another thread or under a signal's handler
                self._rounds.close()

    def pause(self) -> None:
        pass  # it keeps nobody waiting

    def resume(self) -> None:
        pass


class Generation(Iterator[Chunk]):
    """Iterate for text as it is accepted; `result()` is the whole, or the part so far."""

    def __init__(
        self,
        rounds: RoundStream,
        tokenizer: TokenDecoder,
        identity: Identity,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        eos: frozenset[int] = frozenset(),
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        assisted: bool = False,
        limit_is_context: bool = False,
        traffic: Traffic | None = None,
        loading: Loading | None = None,
        seed: int | None = None,
        thoughts: ThoughtReader | None = None,
    ) -> None:
        """`limit_is_context` says that max_new_tokens is what the model's context leaves, not what was asked for.

        before: the prompt's tokens, where the text goes on after them and is no answer.
        traffic: what a pass of the target reads, where that is known. loading: how long loading took, likewise.
        seed: by which tokens are drawn. thoughts: what tells them from the answer, in a conversation.
        """
        self._parts = None if thoughts is None else ThoughtAndAnswer(thoughts)
        self._loading, self._seed = loading or Loading(), seed
        self.statistics = Statistics(prompt_tokens, traffic)
        self._text = IncrementalDetokenizer(tokenizer, stop, before, special_names(tokenizer, stop) if stop else None)
        self._rounds, self._identity, self._eos, self._assisted = rounds, identity, eos, assisted
        self._max_new_tokens = max_new_tokens
        self._at_limit: StopReason = "context" if limit_is_context else "length"
        self._stop_reason: StopReason | None = None
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_logprobs: list[TokenLogprob] | None = None

    def __repr__(self) -> str:
        state = self._stop_reason or "running"
        text, tokens = short("".join(self._pieces)), len(self._text.tokens)
        return f"Generation({state}, new_tokens={tokens}, text={text!r}, target={self._identity.target!r})"

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Chunk:
        if self._closed():
            raise StopIteration
        round_ = next(self._rounds)
        if self._closed():  # interrupted while the round ran
            raise StopIteration
        return self._chunk(round_)

    def _closed(self) -> bool:
        """Whether it has ended: then no round is asked for any more."""
        if self._stop_reason is None:
            return False
        self._rounds.close()
        return True

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk, where rounds can be awaited: of a model whose engine has a thread (`AssistedModel.start`)."""
        if self._closed():
            raise StopAsyncIteration
        if not isinstance(self._rounds, AsyncIterator):
            raise UsageError("this model's rounds cannot be awaited: iterate without async, in a thread")
        round_ = await self._rounds.__anext__()
        if self._closed():
            raise StopAsyncIteration
        return self._chunk(round_)

    def _chunk(self, round_: Round) -> Chunk:
        before, pieces = len(self._text.tokens), []
        for index, token in enumerate(round_.tokens):
            text = self._text.push(token)
            self._stop_reason = self._reason(token)
            if self._stop_reason is not None:
                text += self._text.finish()
            pieces.append(TokenPiece(text, drafted=index < round_.accepted))
            if self._parts is not None:
                self._parts.push(text, token)
            if self._stop_reason is not None:
                break
        kept = self._text.tokens[before:]
        text = "".join(piece.text for piece in pieces)
        self._pieces.append(text)
        self.statistics.count(round_, len(kept))
        chunk = Chunk(text, kept, round_, pieces)
        if round_.prompt_logprobs is not None:
            self._prompt_logprobs = round_.prompt_logprobs
        if chunk.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += chunk.logprobs
        return chunk

    def _reason(self, token: int) -> StopReason | None:
        if token in self._eos:
            return "eos"
        if self._text.stopped:
            return "stop"
        return self._at_limit if len(self._text.tokens) >= self._max_new_tokens else None

    def ready(self) -> bool:
        """Whether the next chunk or the end can be had without waiting for other requests.

        False where this one shares passes with others and waits for its turn; a pass has been run meanwhile.
        """
        return self._stop_reason is not None or self._rounds.ready()

    def in_hand(self) -> bool:
        """Whether the next chunk or the end can be had without a pass; always, where it shares none with others."""
        return self._stop_reason is not None or self._rounds.in_hand()

    @property
    def shares_passes(self) -> bool:
        """Whether others' passes are its own, so that what is in hand costs none."""
        return not isinstance(self._rounds, OwnRounds)

    def pause(self) -> None:
        """Give the memory and the place in passes to others until `resume`; the text stays the same."""
        self._rounds.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._rounds.resume()

    def interrupt(self) -> str:
        """End here, as Ctrl-C does; returns the text that was held back."""
        if self._stop_reason is not None:
            return ""
        self._stop_reason = "interrupted"
        self._rounds.close()
        self._pieces.append(self._text.finish())
        if self._parts is not None:
            self._parts.push(self._pieces[-1])
        return self._pieces[-1]

    def close(self) -> None:
        """End here, as `interrupt` does; after the end, nothing. Also at the end of `with`."""
        self.interrupt()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def result(self) -> Result:
        """The result; before the end, that of the tokens so far."""
        counts, parts = self.statistics, self._parts
        if parts is not None and self._stop_reason is not None:
            parts.finish()
        return Result(
            text="".join(self._pieces),
            tokens=list(self._text.tokens),
            prompt_tokens=counts.prompt_tokens,
            new_tokens=counts.new_tokens,
            ttft_s=counts.ttft_s,
            decode_s=counts.decode_s,
            tokens_per_s=counts.tokens_per_s,
            speedup=counts.speedup if self._assisted else None,
            assisted=self._assisted,
            stop_reason=self._stop_reason or "interrupted",
            draft=DraftResult.of(counts) if self._assisted else DraftResult(),
            times=Times.of(counts, self._loading),
            seed=self._seed,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            cached_tokens=counts.cached_tokens,
            stop_text=self._text.stop_text,
            reasoning=None if parts is None else parts.thought,
            answer=None if parts is None else parts.answer,
            **asdict(self._identity),
        )

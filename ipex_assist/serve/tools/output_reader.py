"""What an output says: thoughts, text of the answer and calls, in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ipex_assist.serve.tools.call_parser import CallParser
from ipex_assist.serve.tools.parsed_events import CallDelta, ParsedEvent, Thought, call_id, merged
from ipex_assist.tokenization.thinking import Piece, ThoughtReader


@dataclass(frozen=True)
class OutputForm:
    """How outputs of a prompt are read. thoughts, parser: make the readers of one output; None where a model has no
    thoughts, or nothing can be called."""

    thoughts: Callable[[], ThoughtReader] | None = None
    parser: Callable[[], CallParser] | None = None

    def reader(self) -> OutputReader | None:
        """The reader of one output; None where all of it is text."""
        if self.thoughts is None and self.parser is None:
            return None
        return OutputReader(self.thoughts and self.thoughts(), self.parser and self.parser())


class OutputReader:
    """Reads one output: its thoughts first, and then calls in what is left, so that no call in a thought is one."""

    def __init__(self, thoughts: ThoughtReader | None, parser: CallParser | None) -> None:
        self.thoughts, self.parser = thoughts, parser
        self._calls = 0  # of a format that names whom a message is for

    @property
    def calls(self) -> int:
        """How many were started."""
        return self._calls + (0 if self.parser is None else self.parser.calls)

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens thoughts had."""
        return 0 if self.thoughts is None else self.thoughts.tokens

    def push(self, text: str, token: int | None = None) -> list[ParsedEvent]:
        """What is certain with the next piece of text; token: with which it came, as backend.TokenDelta has it."""
        if self.thoughts is None:
            assert self.parser is not None
            return self.parser.push(text, token)
        return merged(event for piece in self.thoughts.push(text, token) for event in self._events(piece))

    def finish(self) -> list[ParsedEvent]:
        """What is left at the end of the text."""
        pieces = [] if self.thoughts is None else self.thoughts.finish()
        events = [event for piece in pieces for event in self._events(piece)]
        return merged([*events, *(self.parser.finish() if self.parser is not None else ())])

    def _events(self, piece: Piece) -> Iterator[ParsedEvent]:
        kind, text = piece
        if kind == "thought":
            yield Thought(text)
        elif kind == "call":
            self._calls += 1
            yield CallDelta(self._calls - 1, call_id(), text)
        elif kind == "arguments":
            yield CallDelta(self._calls - 1, arguments=text)
        else:
            assert self.thoughts is not None
            yield from self.parser.feed(text) if self.parser is not None else [self.thoughts.words.shown(text)]

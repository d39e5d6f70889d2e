"""A model in this process, as a conversation's partner."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from types import FrameType

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.chat_partner import Message, Span
from ipex_assist.commands.shared.output import statistics_line
from ipex_assist.env.runner import INTERRUPT_EXIT
from ipex_assist.generation.result import Result
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.thinking import ThoughtAndAnswer, conversation_reader


class LoadedModel:
    """Answers with a loaded model; what earlier turns had in common with this one is not read again."""

    def __init__(self, model: TextModel, options: GenerationOptions) -> None:
        self.name = short_name(model.identity.target)
        self._model, self.options = model, options
        self._result: Result | None = None
        self.thought = ""

    def change(self, name: str, options: GenerationOptions) -> None:
        """Answer by these options from now on."""
        self.options = options

    def answer(self, messages: list[Message]) -> Generator[list[Span], None, None]:
        """The answer, a list a pass.

        A Ctrl-C takes effect between two passes: in the midst of one it would leave the model's memory as it happens to
        be, and the next answer needs it.
        """
        self._result, self.thought = None, ""
        prompt = self._model.see(messages)
        reader = conversation_reader(self._model.tokenizer, prompt.tokens)
        parts = None if reader is None else ThoughtAndAnswer(reader)
        generation = self._model.stream(prompt, self.options)
        with noted_interrupt() as interrupted:
            try:
                while not interrupted():
                    if not generation.ready():
                        continue
                    chunk = next(generation, None)
                    if chunk is None:
                        break
                    spans = [
                        (piece.text if parts is None else parts.push(piece.text, token), piece.drafted)
                        for piece, token in zip(chunk.pieces, chunk.tokens, strict=True)
                    ]
                    yield [span for span in spans if span[0]]
            finally:
                rest = generation.interrupt()
                self._result = generation.result()
                if parts is not None:
                    rest = parts.push(rest) + parts.finish()
                    self.thought = parts.thought
            if rest:
                yield [(rest, False)]
            if interrupted():
                raise KeyboardInterrupt

    def summary(self) -> str:
        """The line of statistics that `ipex-assist` has for a text, and what to type where it was cut."""
        if self._result is None:
            return ""
        line = statistics_line(self._result)
        if self._result.stop_reason == "length":
            line += f"; ended at --max-new-tokens {self.options.max_new_tokens}"
        return line


@contextlib.contextmanager
def noted_interrupt() -> Iterator[Callable[[], bool]]:
    """Only note the first Ctrl-C meanwhile, for whoever asks; a second one ends the program."""
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise SystemExit(INTERRUPT_EXIT)
        noted = True

    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread() and before is not signal.SIG_IGN
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)

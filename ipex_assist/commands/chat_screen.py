"""What a conversation looks like in a terminal, and in a pipe. Draws with rich."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ipex_assist.commands.chat_partner import Span
from ipex_assist.env.cache import cache_folder

DRAFTED_STYLE = "green"
PROMPT, GOES_ON = "> ", ". "
MOST_LINES = 1000  # that are kept for the next conversation
# What a terminal would obey instead of showing: all control characters but the line's end and the tab.
_CONTROLS = {code: 0xFFFD for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """The text with a mark in place of each character that a terminal would obey (a model may write any)."""
    return text.translate(_CONTROLS)


def _keep_lines(file: Path) -> None:
    """Let lines be edited and called back, those of earlier conversations, too; nobody else may read them."""
    try:
        import readline
    except ImportError:
        return
    readline.set_history_length(MOST_LINES)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o600)
        readline.read_history_file(file)
        atexit.register(_write_lines, file)


def _write_lines(file: Path) -> None:
    import readline

    with contextlib.suppress(OSError):
        readline.write_history_file(file)


class Screen:
    """A terminal where both ends are one; else lines in, answers on standard output, all else on standard error."""

    def __init__(self) -> None:
        self.terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._about = self._out if self.terminal else Console(
            stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True
        )  # fmt: skip
        self._coloured = self._out.is_terminal and not os.environ.get("NO_COLOR")
        if self.terminal:
            _keep_lines(cache_folder("chat") / "history")

    def greet(self, name: str) -> None:
        """Say who answers."""
        if self.terminal:
            self.tell(f"{name} (/help lists what can be typed, Ctrl-D ends)")

    def ask(self) -> str | None:
        """The next message, of several lines where they end in a backslash; None at the end of the input."""
        lines: list[str] = []
        while True:
            line = self._line(GOES_ON if lines else PROMPT)
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _line(self, prompt: str) -> str | None:
        if not self.terminal:
            line = "" if sys.stdin is None else sys.stdin.readline()
            return line.removesuffix("\n").removesuffix("\r") if line else None
        try:
            return input(prompt)
        except EOFError:
            self._out.print()
            return None

    @contextlib.contextmanager
    def answer(self) -> Iterator[Callable[[Sequence[Span]], None]]:
        """Yields what writes spans of an answer; until the first one a terminal says that they are awaited."""
        waiting = self._out.status("", spinner="dots", refresh_per_second=5) if self.terminal else None
        open_line = False

        def write(spans: Sequence[Span]) -> None:
            nonlocal open_line
            if waiting is not None:
                waiting.stop()
            for text, drafted in spans:
                if text:
                    self._write(text, drafted)
                    open_line = not text.endswith("\n")

        if waiting is not None:
            waiting.start()
        try:
            yield write
        finally:
            if waiting is not None:
                waiting.stop()
            if open_line:
                self._out.out("", highlight=False)

    def _write(self, text: str, drafted: bool) -> None:
        if not self._out.is_terminal:  # as it is: rich leaves some characters out
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        style = DRAFTED_STYLE if drafted and self._coloured else None
        self._out.out(harmless(text), style=style, end="", highlight=False)

    def tell(self, text: str) -> None:
        """Something about the conversation, and not of it."""
        if text:
            self._about.out(harmless(text), style="dim" if self._coloured else None, highlight=False)

    def error(self, text: str) -> None:
        """What went wrong with a message."""
        self._about.out(harmless(f"ipex-assist: {text}"), style="red" if self._coloured else None, highlight=False)

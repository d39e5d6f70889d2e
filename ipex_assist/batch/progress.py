"""How far a batch is, on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from contextlib import suppress

from tqdm import tqdm

LINE_SECONDS = 60.0
LATELY_SECONDS = 60.0  # over which the latest speed is taken


def _has_width() -> bool:
    """Whether the terminal says how wide it is; some of containers and recorders have no columns at all."""
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(sys.stderr.fileno()).columns > 0
    return True


class Progress:
    """Counts prompts and new tokens. A terminal that has gone away (OSError) is no reason to stop the work."""

    def __init__(self, total: int, done_before: int, *, quiet: bool = False) -> None:
        """quiet: messages only."""
        self.done = self.failed = self.tokens = 0
        self._total, self._before = total, done_before
        self._started = self._last_line = time.monotonic()
        self._ended: float | None = None
        self._lately: deque[tuple[float, int]] = deque()  # when prompts were over, and their new tokens
        self._shown: set[str] = set()
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            initial=done_before,
            unit=" prompts",
            file=sys.stderr,
            dynamic_ncols=_has_width(),
            ncols=None if _has_width() else 80,
            leave=False,
            disable=quiet or not terminal,
        )
        self._prints, self._loading = not quiet and not terminal, ""

    def begin(self) -> None:
        """The first instance is ready: speed is counted from here."""
        self._started = self._last_line = time.monotonic()
        self._bar.unpause()

    def count(self, new_tokens: int | None) -> None:
        """Count a prompt that is over: with its number of new tokens, or None if it failed."""
        self.done += 1
        if new_tokens is None:
            self.failed += 1
        else:
            self.tokens += new_tokens
            self._lately.append((time.monotonic(), new_tokens))
        with suppress(OSError, ValueError):
            self._describe()
            self._bar.update()
        if self._prints and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self.say(f"{self._before + self.done} of {self._total} prompts, {self._rates()}")

    def show_loading(self, text: str) -> None:
        """Show on the bar what instances do that are not ready; nothing where `text` is empty."""
        if text != self._loading:
            self._loading = text
            with suppress(OSError, ValueError):
                self._describe()
                self._bar.refresh()

    def say_phase(self, name: str) -> None:
        """Print, where there is no bar, what instances do for some time."""
        if self._prints:
            self.say_once(name)

    def _describe(self) -> None:
        """Set the bar's texts. Before the first prompt is done there are no speeds, and no bar to see."""
        rates = self._rates().partition(", ")[2] if self.done else ""
        loading = self._loading.partition(",")[0] if self.done else self._loading
        self._bar.set_postfix_str(", ".join(text for text in (rates, loading) if text), refresh=False)
        self._bar.bar_format = None if self.done else "{n_fmt}/{total_fmt}{postfix}"

    def say(self, line: str) -> None:
        """Print a message above the bar."""
        with suppress(OSError, ValueError):
            if sys.stderr is not None:
                tqdm.write(f"ipex-assist: {line}", file=sys.stderr)
                sys.stderr.flush()

    def say_once(self, line: str) -> None:
        """Print a message that was not printed before: instances are alike, and so are their messages."""
        if line not in self._shown:
            if len(self._shown) < 1000:
                self._shown.add(line)
            self.say(line)

    def _seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    def _rates(self) -> str:
        """The speeds since the start; where that is long ago, the latest tokens a second, too."""
        seconds = max(self._seconds(), 1e-9)
        rates = f"{self.done / seconds:.2f} prompts/s, {self.tokens / seconds:.1f} tokens/s"
        if seconds <= LATELY_SECONDS:
            return rates
        return f"{rates}, {self._latest():.1f} over the last {LATELY_SECONDS:g} s"

    def _latest(self) -> float:
        """New tokens a second of the prompts that were over within the last LATELY_SECONDS."""
        since = (self._ended or time.monotonic()) - LATELY_SECONDS
        while self._lately and self._lately[0][0] < since:
            self._lately.popleft()
        return sum(tokens for _, tokens in self._lately) / LATELY_SECONDS

    def close(self) -> None:
        """End the bar; the time counts up to here."""
        self._ended = time.monotonic()
        with suppress(OSError, ValueError):
            self._bar.close()

    def summary(self) -> str:
        """Return the line that ends a run: prompts, seconds, speeds, failures."""
        good = self.done - self.failed
        done = f"{good} prompt{'s' * (good != 1)} done"
        return f"{done} in {self._seconds():.1f} s ({self._rates()}), {self.failed} failed"

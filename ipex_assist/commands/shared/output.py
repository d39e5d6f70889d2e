"""What a user sees: the text, the closing statistics as a line or in full, and the JSON object."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipex_assist.generation.result import Result, TokenPiece


# Select Graphic Rendition: drafted and accepted text is green, the target's own is bold.
DRAFTED_STYLE, OWN_STYLE, PLAIN_STYLE = "\033[32m", "\033[1m", "\033[0m"


class TextPrinter:
    """Writes the text to standard output as it comes; remembers whether a line is open.

    show_accepted: text that was drafted and accepted in one style, the target's own in another.
    """

    def __init__(self, enabled: bool, show_accepted: bool = False) -> None:
        self.enabled, self.show_accepted = enabled, show_accepted
        self._open = False

    def write_pieces(self, pieces: Sequence[TokenPiece]) -> None:
        """The text of a round, in its styles where they are on. A line's end is never inside a style."""
        if not self.show_accepted:
            self.write("".join(piece.text for piece in pieces))
            return
        styled = "".join(
            _styled(text, DRAFTED_STYLE if drafted else OWN_STYLE)
            for drafted, group in itertools.groupby(pieces, key=lambda piece: piece.drafted)
            if (text := "".join(piece.text for piece in group))
        )
        self.write(styled)

    def write(self, text: str) -> None:
        """Raises BrokenPipeError where the reader has gone."""
        if self.enabled and text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def close(self) -> None:
        """End an open line."""
        if self._open:
            self.write("\n")


def _styled(text: str, style: str) -> str:
    """Put each line into its style by itself: pagers end a style at the end of a line."""
    return "\n".join(f"{style}{line}{PLAIN_STYLE}" if line else "" for line in text.split("\n"))


def statistics_line(result: Result) -> str:
    """The statistics in one line of a terminal; the rest is in `statistics_text` and in JSON."""
    seconds = None if result.ttft_s is None else result.ttft_s + result.decode_s
    draft = result.draft
    line = speed_line(result.new_tokens, seconds, result.tokens_per_s, result.speedup, draft.acceptance_rate)
    if not result.assisted:
        return f"{line}, not assisted"
    return f"{line}, nothing was drafted" if draft.drafted == 0 else line


def speed_line(
    tokens: int | None,
    seconds: float | None,
    tokens_per_s: float | None,
    speedup: float | None,
    acceptance_rate: float | None,
) -> str:
    """New tokens, seconds from the request to the last one, speed after the first, how many times plain decoding's
    speed that is, and the accepted share of drafted tokens; without what is None."""
    took = "" if seconds is None else f" in {seconds:.{1 if seconds >= 10 else 2}f} s"
    parts = [] if tokens is None else [f"{tokens} new tokens{took}"]
    if tokens_per_s is not None:
        factor = "" if speedup is None else f" ({speedup:.2f}x plain)"
        parts.append(f"{tokens_per_s:.2f} tokens/s{factor}")
    if acceptance_rate is not None:
        parts.append(f"{acceptance_rate:.0%} accepted")
    return ", ".join(parts)


def statistics_text(result: Result) -> str:
    """Return all statistics, one a line; the first two paragraphs as llama.cpp's example `speculative` prints them.

    The second paragraph and the shares of time are of assisted runs. n_draft is the longest draft of a round. At the
    end each model has its times, as llama.cpp has them: TargetTimes and AssistantTimes say what they are.
    """
    lines = []
    if result.ttft_s is not None:
        lines.append(_speed_line("encoded", result.prompt_tokens, result.ttft_s))
    if result.tokens_per_s is not None:
        lines.append(_speed_line("decoded", result.new_tokens - 1, result.decode_s))
    draft, times = result.draft, result.times
    if result.assisted:
        rate = "-" if draft.acceptance_rate is None else f"{draft.acceptance_rate:.3%}"
        counts = {
            "n_draft": draft.longest,
            "n_predict": result.new_tokens,
            "n_drafted": draft.drafted,
            "n_accept": draft.accepted,
            "accept": rate,
        }
        lines += ["", *(f"{name:9} = {value}" for name, value in counts.items()), ""]
        per_pass = "" if draft.tokens_per_pass is None else f", {draft.tokens_per_pass:.2f} tokens per target pass"
        lines.append(f"rounds    = {draft.rounds}{per_pass}")
        rounds = ", ".join(f"{accepted}: {n}" for accepted, n in enumerate(draft.accepted_histogram or []) if n)
        lines.append(f"histogram = {rounds or '-'} (accepted tokens: rounds)")
        if positions := by_position(draft.drafted_by_position, draft.accepted_by_position):
            lines.append(f"positions = {positions} (of drafts that long, accepted)")
        if draft.by_source:
            counts_of = [(name, each.drafted, each.accepted) for name, each in draft.by_source.items()]
            lines.append(f"sources   = {by_source(counts_of)} (drafted tokens, accepted)")
        if result.draft_head is not None:
            step = (
                ""
                if times.assistant.token_s is None
                else f", {times.assistant.token_s * 1000:.2f} ms per drafted token"
            )
            drafted_in = (result.assistant_precision or "").partition("+")[0]  # a small model's follows
            lines.append(f"head      = {result.draft_head} in {drafted_in}{step}")
    parts = {"draft": times.draft_s, "verify" if result.assisted else "target": times.verify_s, "other": times.other_s}
    for name, seconds in parts.items():
        if seconds is not None and (name != "draft" or result.assisted):
            share = f" ({seconds / result.decode_s:.1%})" if result.decode_s else ""
            lines.append(f"{name:9} = {seconds * 1000:.1f} ms{share}")
    if times.read_gb_per_s is not None:
        machine = times.machine_gb_per_s
        share = (
            f", {times.read_gb_per_s / machine:.0%} of the {machine:.1f} GB/s that these cores read" if machine else ""
        )
        lines.append(f"read      = {times.read_gb_per_s:.1f} GB/s by the target's passes{share}")
    return "\n".join([*lines, *_model_lines(result)])


def by_position(drafted: Sequence[int] | None, accepted: Sequence[int] | None) -> str:
    """The accepted share of first, second, … drafted tokens."""
    pairs = zip(drafted or (), accepted or (), strict=True)
    return ", ".join(f"{position}: {right / of:.0%}" for position, (of, right) in enumerate(pairs, 1))


def by_source(counts: Sequence[tuple[str, int, int]]) -> str:
    """What each source drafted, and the accepted share of it. counts: name, drafted and accepted tokens."""
    return ", ".join(f"{name}: {drafted}, {accepted / drafted:.0%}" for name, drafted, accepted in counts if drafted)


def _model_lines(result: Result) -> list[str]:
    """What each model did and how long that took; nothing about what was not measured."""
    target, assistant, total_s = result.times.target, result.times.assistant, result.times.total_s
    reading = "" if assistant.load_s is None else ", reading included"  # a copy from the text reads nothing
    drafted = [
        _time_line("load", assistant.load_s),
        _time_line("first draft", assistant.first_s, assistant.first_tokens, reading, speed=False),
        _time_line("later drafts", assistant.later_s, assistant.later_tokens),
    ]
    passes = "" if target.passes == target.tokens else f" of {target.passes} passes"
    verified = [
        _time_line("load", target.load_s),
        _time_line("prompt eval", target.prompt_s, result.prompt_tokens),
        _time_line("eval", target.eval_s, target.tokens, passes),
        _time_line("sample", target.choose_s, (target.tokens or 0) + 1),
    ]
    lines = []
    for name, found in (("assistant", drafted), ("target", verified)):
        if any(found):
            lines += ["", f"{name}:", *(line for line in found if line)]
    return [*lines, "", f"total     = {total_s * 1000:.1f} ms"] if lines and total_s is not None else lines


def _time_line(
    name: str, seconds: float | None, tokens: int | None = None, more: str = "", *, speed: bool = True
) -> str:
    if seconds is None:
        return ""
    line = f"{name + ' time':>17} = {seconds * 1000:10.2f} ms"
    if not tokens:
        return line
    line += f" / {tokens:5} tokens{more}"
    if not speed or seconds <= 0:
        return line
    return f"{line} ({seconds * 1000 / tokens:.2f} ms per token, {tokens / seconds:.2f} tokens per second)"


def _speed_line(what: str, tokens: int, seconds: float) -> str:
    speed = f"{tokens / seconds:8.3f}" if seconds > 0 else "-"
    return f"{what} {tokens:4} tokens in {seconds:8.3f} seconds, speed: {speed} t/s"


def json_line(result: Result, environment: dict[str, Any]) -> str:
    """Return the result as one JSON object on one line with every key of Result, null where it does not apply."""
    return json.dumps({**result.as_dict(), "environment": environment})

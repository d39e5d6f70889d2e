"""What one line of a prompts file may ask for: its fields, their ranges, and what a wrong one is told."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

from ipex_assist.speculative.schedule import SCHEDULES

Check = Callable[[Any], str | None]
ROLES_NEED = "messages must be a list of objects with the texts role and content"


class LineError(ValueError):
    """A line that cannot be run; the message says why, without the line's number."""


def _number(lowest: float, highest: float, *, whole: bool = False) -> Check:
    kind = "a whole number" if whole else "a number"

    def check(value: Any) -> str | None:
        right = isinstance(value, int) if whole else isinstance(value, (int, float))
        if isinstance(value, bool) or not right or not math.isfinite(value) or not lowest <= value <= highest:
            return f"must be {kind} between {lowest:g} and {highest:g}"
        return None

    return check


def _switch(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _schedule(value: Any) -> str | None:
    return None if value in SCHEDULES else f"must be one of {', '.join(SCHEDULES)}"


def _stops(value: Any) -> str | None:
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and all(isinstance(text, str) and text for text in texts):
        return None
    return "must be a text or a list of texts, none of them empty"


# By the names of `TextModel.stream`, with the ranges of the flags of the same names.
OPTIONS: dict[str, Check] = {
    "max_new_tokens": _number(1, 10_000_000, whole=True),
    "stop": _stops,
    "num_assistant_tokens": _number(0, 64, whole=True),
    "num_assistant_tokens_schedule": _schedule,
    "assisted": _switch,
    "do_sample": _switch,
    "temperature": _number(1e-3, 100.0),
    "top_p": _number(1e-6, 1.0),
    "top_k": _number(0, 10_000_000, whole=True),
    "repetition_penalty": _number(1e-3, 100.0),
    "seed": _number(0, 2**63 - 1, whole=True),
}
FIELDS = ("id", "prompt", "messages", "chat", *OPTIONS)


def check_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The options among `fields`; null is as good as absent.

    Raises:
        LineError: the first value that is of the wrong kind or out of range.
    """
    options = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    for name, value in options.items():
        if (wrong := OPTIONS[name](value)) is not None:
            raise LineError(f"{name} {value!r}: {wrong}")
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    return options


def check_messages(value: Any) -> list[dict[str, Any]]:
    """A conversation as chat templates take it; the objects may have more fields than role and content.

    Raises:
        LineError: it is none.
    """
    if not isinstance(value, list) or not value:
        raise LineError(ROLES_NEED)
    for message in value:
        if not isinstance(message, dict) or any(not isinstance(message.get(name), str) for name in ("role", "content")):
            raise LineError(ROLES_NEED)
    return value


def suggestion(name: str) -> str:
    """Return what somebody who wrote `name` may have meant, as the end of a message; empty where nothing is near."""
    close = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""

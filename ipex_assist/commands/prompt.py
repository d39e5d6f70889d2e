"""Where the prompt comes from: the flags, a file, standard input, or, for the embedded model, built in."""

from __future__ import annotations

import logging
import select
import sys
from pathlib import Path

from ipex_assist.env.errors import UsageError
from ipex_assist.tokenization.tokenizer import check_text

log = logging.getLogger("ipex_assist")

DEMO_PROMPT = "What is the capital of France? Name two of its sights, and why people like them."


def read_prompt(given: str | None, file: str | None, chat: bool, *, demo: bool) -> tuple[str, bool]:
    """The prompt, and whether it goes through the chat template.

    given, file: --prompt and --prompt-file. demo: no model was named, so that the embedded one answers.
    Raises UsageError where there is no prompt, or none that can be read.
    """
    if given is not None:
        check_text(given)
        return given, chat
    try:
        if file is not None:
            text = Path(file).read_text(encoding="utf-8")
        elif demo and not _input_waits():
            return DEMO_PROMPT, True
        elif sys.stdin is None or sys.stdin.isatty():
            text = ""
        else:
            text = sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the prompt: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt is not UTF-8 text: {error}") from error
    if not text.strip():
        if demo and file is None:
            return DEMO_PROMPT, True
        raise UsageError("the prompt is empty: give -p TEXT, --prompt-file FILE, or text on standard input")
    return text, chat


def _input_waits() -> bool:
    """Whether standard input has something to say: without flags, nobody shall have to close it first."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    if select.select([sys.stdin], [], [], 0.5)[0]:
        return True
    log.warning("nothing came from standard input in 0.5 s: taking the built-in prompt (-p TEXT gives another)")
    return False

"""Where the prompt comes from: the flags, a file, standard input, or, for the embedded model, built in."""

from __future__ import annotations

import io
import logging
import select
import sys
from pathlib import Path

from ipex_assist.commands.shared.prompt_words import NO_PROMPT, STDIN
from ipex_assist.env.errors import UsageError
from ipex_assist.tokenization.tokenizer import check_text

log = logging.getLogger("ipex_assist")

DEMO_PROMPT = "What is the capital of France? Name two of its sights, and why people like them."
PATIENCE_S = 0.5  # after which somebody who waits for standard input is told so


def read_prompt(given: str | None, file: str | None, *, piped: bool, demo: bool) -> str:
    """The prompt.

    given, file: --prompt and --prompt-file. With either of them standard input is left alone, which may be the list
    that a shell's loop reads its prompts from; `piped`, a lone dash, appends what is there after an empty line, as a
    document follows its instruction. Without them standard input is the prompt, which on a terminal is typed. One final
    newline of a file or of standard input is not part of the text. demo: no model was named, so that the embedded one
    answers; its own prompt is taken where there is none.
    Raises UsageError where there is no prompt, or none that can be read.
    """
    if given is None and file is None:
        demo = demo and not piped
        if demo and not _input_waits():
            return DEMO_PROMPT
        text = _read_input()
        if not text.strip() and demo:
            return DEMO_PROMPT
    else:
        text = given if given is not None else _read_file(str(file))
        document = _read_input() if piped and not (file is not None and _is_stdin(file)) else ""
        if text.strip() and document.strip():
            text = f"{text}\n\n{document}"
    check_text(text)
    if not text.strip():
        raise UsageError(NO_PROMPT)
    return text


def _is_stdin(file: str) -> bool:
    return file in (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def _read_file(file: str) -> str:
    if file == STDIN:
        return _read_input()
    try:
        return _text(Path(file).read_bytes(), file)
    except FileNotFoundError:
        raise UsageError(f"--prompt-file {file}: there is no such file") from None
    except OSError as error:
        raise UsageError(f"--prompt-file {file} cannot be read: {error.strerror}") from error


def _read_input() -> str:
    """Standard input to its end; nothing where it is closed."""
    number = _input_number()
    if number is None:
        return ""
    if sys.stdin.isatty():
        print("ipex-assist: type the text, and end it with Ctrl-D on a line of its own", file=sys.stderr)
    elif not select.select([number], [], [], PATIENCE_S)[0]:
        log.warning("waiting for standard input, which is open: its end is the prompt's")
    try:
        return _text(sys.stdin.buffer.read(), "standard input")
    except OSError as error:
        raise UsageError(f"standard input cannot be read: {error.strerror}") from error


def _text(content: bytes, origin: str) -> str:
    """Return the text without one newline at its end, which editors and `echo` put there. origin: for messages."""
    try:
        return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt is not UTF-8 text: {origin} has byte 0x{content[error.start]:02x} at position "
            f"{error.start + 1:,}. A text in another encoding: iconv -f ENCODING -t UTF-8 converts it"
        ) from error


def _input_number() -> int | None:
    """The descriptor of standard input; None where there is none."""
    try:
        return None if sys.stdin is None or sys.stdin.closed else sys.stdin.fileno()
    except (OSError, io.UnsupportedOperation):
        return None


def _input_waits() -> bool:
    """Whether standard input has something to say: without flags, nobody shall have to close it first."""
    number = _input_number()
    if number is None or sys.stdin.isatty():
        return False
    if select.select([number], [], [], PATIENCE_S)[0]:
        return True
    log.warning(
        "nothing came from standard input in %g s: taking the built-in prompt (-p TEXT gives another)", PATIENCE_S
    )
    return False

"""A prompt among the words of the command line, and what somebody meant who typed no prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_assist.commands.shared.arguments import ANSWER_TOKENS, generation_options, parse
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack


@pytest.mark.parametrize(
    ("words", "prompt", "piped"),
    [
        (["Why is the sky blue?"], "Why is the sky blue?", False),
        (["Hello"], "Hello", False),
        (["-m", "M", "Why is it?", "--json"], "Why is it?", False),
        (["Why is it?", "-m", "M", "-"], "Why is it?", True),
        (["-m", "M", "-p", "sum up:", "-"], "sum up:", True),
        (["-p", "serve"], "serve", False),
        (["-m", "M", "-"], None, True),
        (["- a list of things"], "- a list of things", False),
        (["-m", "M", "--", "--raw"], "--raw", False),
        (["-m", "M"], None, False),
    ],
)
def test_a_bare_prompt(words: list[str], prompt: str | None, piped: bool) -> None:
    """Before, between and after the options."""
    args = parse(words)
    assert (args.prompt, args.piped) == (prompt, piped)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serv", "-m", "M"], "there is no command serv (did you mean serve?)"),
        (["benchmark"], "(did you mean bench?)"),
        (["Chat", "-m", "M"], "(did you mean chat?)"),
        (["-m", "M", "serve"], "serve is a command, which comes first: ipex-assist serve"),
        (["tell", "me", "more"], "3 prompts are given, 'tell' and 'me' the first: put"),
        (["-p", "one", "two"], "PROMPT and --prompt are both given"),
        (["one", "--prompt-file", "two"], "PROMPT and --prompt-file are both given"),
        (["facebook/opt-13b"], "looks like a model: give -m facebook/opt-13b"),
        (["model.gguf"], "looks like a model: give -m model.gguf"),
        (["-m", "M", "prompt.txt"], "is a file: --prompt-file prompt.txt"),
        (["", "-"], "the prompt is empty"),
    ],
)
def test_what_is_no_prompt(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt command, a forgotten flag or forgotten quotes are no text to continue."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.gguf", "prompt.txt"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert said in str(caught.value)


def test_an_answer_has_more_room_than_a_continuation() -> None:
    """Who asks for a number gets it in both."""
    usual, given = parse(["-p", "x"]), parse(["-p", "x", "--max-new-tokens", "7"])
    assert [generation_options(usual, chat=chat).max_new_tokens for chat in (True, False)] == [ANSWER_TOKENS, 128]
    assert [generation_options(given, chat=chat).max_new_tokens for chat in (True, False)] == [7, 7]


def test_a_chat_or_a_continuation() -> None:
    """The last of the flags says it, and neither leaves it to the model."""
    asked = {(): None, ("--chat",): True, ("--raw",): False, ("--no-chat",): False, ("--chat", "--raw"): False}
    assert {flags: parse(["-p", "x", *flags]).chat for flags in asked} == asked

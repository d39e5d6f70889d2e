"""Splits what a model thinks off its answer: text between <think> and </think> at the beginning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ipex_assist.serve.answers.choice_texts import TextDelta
from ipex_assist.serve.tools.call_parser import Marker

OPEN, CLOSE = "<think>", "</think>"


class ThinkingSplitter:
    """Reads a text as it comes; the result does not depend on how it is cut into deltas."""

    def __init__(self, began: bool) -> None:
        """began: whether the prompt ends inside a thought already."""
        self._state: Literal["before", "thinking", "after", "answer"] = "thinking" if began else "before"
        self._marker = Marker(CLOSE if began else OPEN)
        self._space = ""  # before an opening tag, or after a closing one

    def take(self, text_delta: TextDelta) -> tuple[str, TextDelta]:
        """The thoughts of newly released text, and the rest of it."""
        if self._state == "answer":
            return "", text_delta
        shown = sum(len(each.text) for each in text_delta.token_deltas)
        thoughts, rest = "", []
        for each in text_delta.token_deltas:
            thought, text = self._feed(each.text)
            thoughts += thought
            rest.append(replace(each, text=text))
        thought, held = self._feed(text_delta.text[shown:])
        text = "".join(each.text for each in rest) + held
        return thoughts + thought, replace(text_delta, text=text, token_deltas=rest)

    def finish(self) -> tuple[str, str]:
        """What was held back at the end: of a thought, and of the answer."""
        held = self._marker.rest()
        return (held, "") if self._state == "thinking" else ("", self._space + held if self._state == "before" else "")

    def _feed(self, text: str) -> tuple[str, str]:
        thoughts, answer = "", ""
        steps: dict[str, Callable[[str], tuple[str, str]]] = {
            "before": self._before,
            "thinking": self._thinking,
            "after": self._after,
            "answer": lambda character: ("", character),
        }
        for character in text:
            thought, rest = steps[self._state](character)
            thoughts, answer = thoughts + thought, answer + rest
        return thoughts, answer

    def _before(self, character: str) -> tuple[str, str]:
        free, opened = self._marker.feed(character)
        self._space += free
        if opened:
            self._state, self._marker, self._space = "thinking", Marker(CLOSE), ""
        elif self._space.strip():
            text, self._space, self._state = self._space + self._marker.rest(), "", "answer"
            return "", text
        return "", ""

    def _thinking(self, character: str) -> tuple[str, str]:
        free, closed = self._marker.feed(character)
        if closed:
            self._state = "after"
        return free, ""

    def _after(self, character: str) -> tuple[str, str]:
        if character.isspace():
            return "", ""
        self._state = "answer"
        return "", character


def thinks(template: str) -> bool:
    """Whether a chat template is of a model that thinks between these tags."""
    return CLOSE in template or OPEN in template

"""Answers of /v1/responses that are kept in memory, so that others can follow them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ipex_assist.serve.answers.writer import compact
from ipex_assist.serve.errors import ApiError

MOST_KEPT = 1024  # answers; the longest unused go first
MOST_CHARACTERS = 64 << 20  # of these and their conversations


@dataclass(frozen=True)
class StoredResponse:
    """An answer with the turns of its conversation, its own as the last."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]

    @cached_property
    def size(self) -> int:
        """Characters of the answer and of all turns."""
        return len(compact(self.response)) + len(compact(self.messages))


class ResponseStore:
    """Answers by their ids, in memory, at most so many of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size = 0

    def keep(self, kept: StoredResponse) -> None:
        """Take one in, and let go of those that nobody has asked for the longest."""
        self._kept[kept.response["id"]] = kept
        self._size += kept.size
        while self._kept and (len(self._kept) > MOST_KEPT or self._size > MOST_CHARACTERS):
            _, gone = self._kept.popitem(last=False)
            self._size -= gone.size

    def find(self, name: str, param: str | None = None) -> StoredResponse:
        """The answer of this id; 404 where it is not kept, or not any more."""
        if name not in self._kept:
            raise ApiError(
                404,
                f"no answer {name[:100]!r} is kept: only the latest are, in memory, unless asked with store=false",
                param=param,
                code="previous_response_not_found" if param else None,
            )
        self._kept.move_to_end(name)
        return self._kept[name]

    def forget(self, name: str) -> None:
        """Let go of one; 404 where there is none."""
        self._size -= self.find(name).size
        del self._kept[name]

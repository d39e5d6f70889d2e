"""In-memory store of /v1/responses, for previous_response_id."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ipex_assist.serve.answers.writer import compact
from ipex_assist.serve.errors import ApiError

MOST_KEPT = 1024  # responses; the least recently used are evicted
MOST_CHARACTERS = 64 << 20  # of JSON, of these and their conversations


@dataclass(frozen=True)
class StoredResponse:
    """A response with the messages of its conversation, its own last."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]

    @cached_property
    def size(self) -> int:
        """JSON characters of the response and all messages."""
        return len(compact(self.response)) + len(compact(self.messages))


class ResponseStore:
    """Responses by id, in memory, with a size limit."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size = 0

    def keep(self, kept: StoredResponse) -> None:
        """Add a response, evicting the least recently used ones."""
        self._kept[kept.response["id"]] = kept
        self._size += kept.size
        while self._kept and (len(self._kept) > MOST_KEPT or self._size > MOST_CHARACTERS):
            _, gone = self._kept.popitem(last=False)
            self._size -= gone.size

    def find(self, name: str, param: str | None = None) -> StoredResponse:
        """Return the response with this id. Raises 404 if it is not stored."""
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
        """Delete a response. Raises 404 if it is not stored."""
        self._size -= self.find(name).size
        del self._kept[name]

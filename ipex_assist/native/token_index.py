"""An index of tokens in the native core, and drafts from several of them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.library import last_error, library

SEPARATOR = -1  # between texts of an index: no match goes over it


class TokenIndex:
    """Tokens, and where each n-gram of them occurred. Freed with the object.

    One thread at a time may append; nobody may draft meanwhile.
    """

    def __init__(self, most: int = 0) -> None:
        """most: tokens kept, the latest; 0: all of them. Raises IpexAssistError where the core was not built."""
        self._library = library()
        self.handle = self._library.ia_index_new(most)
        self._check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.ia_index_delete(self.handle)

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and chains."""
        return int(self._library.ia_index_bytes(self.handle))

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end."""
        given = tokens if isinstance(tokens, array) else array("i", tokens)
        address, count = given.buffer_info()
        self._check(self._library.ia_index_append(self.handle, address, count))

    def _check(self, status: int) -> None:
        if status < 0:
            raise IpexAssistError(f"the native core failed: {last_error()}")


class CopiedDrafts:
    """Drafts from several indexes for the text of the first one."""

    def __init__(self, indexes: Sequence[TokenIndex], longest: int) -> None:
        self._library, self._indexes = library(), indexes  # referred to by address
        self._handles = (ctypes.c_void_p * len(indexes))(*(index.handle for index in indexes))
        self._tokens, self._confidence = (ctypes.c_int32 * longest)(), (ctypes.c_float * longest)()

    def draft(self) -> tuple[list[int], list[float]]:
        """Return the tokens drafted, and the confidence in each."""
        count = self._library.ia_index_draft(
            self._handles, len(self._handles), len(self._tokens), self._tokens, self._confidence
        )
        if count < 0:
            raise IpexAssistError(f"the native core failed: {last_error()}")
        return self._tokens[:count], self._confidence[:count]

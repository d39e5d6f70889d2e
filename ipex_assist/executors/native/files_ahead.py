"""Files whose parts are read one after the other, of which disks begin to read the following parts meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from ipex_assist.env.errors import IpexAssistError

AHEAD = 64 << 20  # bytes that are asked for behind the part that is read
_STEP = 1 << 20  # bytes of a request: of more, Linux drops what is over a disk's largest transfer or its read_ahead_kb


class FilePart(Protocol):
    """Bytes [offset, offset + nbytes) of a file."""

    @property
    def path(self) -> Path: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class FilesAhead:
    """Open files, which are closed at the end of `with`. `begin` is called before each of the parts, in their order."""

    def __init__(self, parts: Iterable[FilePart]) -> None:
        self._files: dict[Path, int] = {}
        self._requests = self._cut(parts)
        self._asked = 0  # bytes from the first part on that is not read yet

    def __enter__(self) -> FilesAhead:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def begin(self, part: FilePart) -> int:
        """The open file of the next part. Raises IpexAssistError for a file that is gone, or shorter than the part."""
        while self._asked < part.nbytes + AHEAD and (request := next(self._requests, None)) is not None:
            path, offset, nbytes = request
            os.posix_fadvise(self.file(path), offset, nbytes, os.POSIX_FADV_WILLNEED)
            self._asked += nbytes
        self._asked -= part.nbytes
        file, end = self.file(part.path), part.offset + part.nbytes
        if (size := os.fstat(file).st_size) < end:
            raise IpexAssistError(
                f"{part.path}: the file ended at byte {size:,} while it was read; expected at least {end:,} bytes. Was "
                "it replaced meanwhile? Try again."
            )
        return file

    def file(self, path: Path) -> int:
        """An open file. Raises IpexAssistError where it is gone."""
        if path not in self._files:
            try:
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise IpexAssistError(
                    f"{path} cannot be read: {error.strerror}. Was it replaced meanwhile? Try again"
                ) from None
        return self._files[path]

    @staticmethod
    def _cut(parts: Iterable[FilePart]) -> Iterator[tuple[Path, int, int]]:
        for part in parts:
            for first in range(0, part.nbytes, _STEP):
                yield part.path, part.offset + first, min(_STEP, part.nbytes - first)

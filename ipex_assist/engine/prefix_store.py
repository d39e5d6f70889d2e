"""Files of prefixes: the bits of KV blocks and of states, so that another process need not read them again.

    DIR/KEY/NAME.block         256 tokens, and their keys and values in every layer
    DIR/KEY/PARENT.NAME.end    the tokens after the last full block: their block, and the state after them, if any

KEY stands for all that bits depend on besides tokens: weights, precisions, the core and its instruction set. NAME is a
hash of a block's tokens and of all before it, PARENT that of the block before. Each file has a checksum over all of it
and is renamed to its name when it is whole, so that any number of servers may use one folder, and die at any moment.
Files are their owner's alone: who could write them could change every answer. No torch here.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TypeAlias

from ipex_assist.env.errors import UsageError
from ipex_assist.env.hints import machine_name
from ipex_assist.native.rows import BLOCK

Bytes: TypeAlias = "bytearray | memoryview"  # writable, as the core takes them
log = logging.getLogger("ipex_assist")

ROOT = "0" * 32  # in place of the name of a block before the first
LEAST_END = 32  # tokens after the last full block of an attention model that are worth a file
_DIGEST = 32
_LONGEST_HEADER = 1 << 20
_DEAD_AFTER = 600.0  # seconds after which a half-written file is nobody's any more


def check_folder(folder: str) -> Path:
    """The folder, made where there is none. Raises UsageError where others could write to it, or it is no folder."""
    path = Path(os.path.expanduser(folder))
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
    except OSError as error:
        raise UsageError(f"--prefix-store {folder} cannot be used: {error.strerror}") from None
    if state.st_uid != os.geteuid():
        raise UsageError(
            f"--prefix-store {folder} belongs to another user (uid {state.st_uid}), who could change answers by it: "
            "name a folder of your own"
        )
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(
            f"--prefix-store {folder} can be written by others (mode {stat.S_IMODE(state.st_mode):o}), who could "
            f"change answers by it: type chmod go-w {folder}"
        )
    return path


def chain(tokens: Sequence[int], size: int = BLOCK) -> list[str]:
    """The names of the full blocks of `tokens`."""
    names, parent = [], ROOT
    for start in range(0, len(tokens) - size + 1, size):
        parent = name_of(parent, tokens[start : start + size])
        names.append(parent)
    return names


def name_of(parent: str, tokens: Sequence[int]) -> str:
    """The name of a block, or of an end, after the block `parent`."""
    return hashlib.sha256(bytes.fromhex(parent) + array.array("i", tokens).tobytes()).hexdigest()[: len(ROOT)]


@dataclass(frozen=True)
class StoredEnd:
    """The file of what follows `parent`. tokens: how they begin; state: whether it has one."""

    parent: str
    name: str
    tokens: tuple[int, ...]
    state: bool

    @property
    def file(self) -> str:
        """Its name in the folder of its key."""
        return f"{self.parent}.{self.name}.end"


@dataclass(frozen=True)
class StoredPrefix:
    """What the store has of a prompt: the names of full blocks, and an end. length: tokens that it serves."""

    blocks: list[str]
    end: StoredEnd | None
    length: int


@dataclass(frozen=True)
class Content:
    """A file's content. state: bytes of a state, and how many tokens it is after; None without one."""

    tokens: list[int]
    block: Bytes
    state: Bytes | None = None
    settled: int = 0


@dataclass
class _Index:
    """Names of the files of a key, as of the folder's time of change."""

    changed: int = -1
    blocks: set[str] = field(default_factory=set)
    ends: dict[str, dict[str, StoredEnd | None]] = field(default_factory=dict)  # by parent and name; None: not read


class PrefixStore:
    """The files of one key, and the limit of all keys' files. Reading and writing may be in different threads."""

    def __init__(self, folder: Path, key: str, limit: int) -> None:
        """limit: bytes of all files in `folder`. Raises UsageError as `check_folder` does."""
        self._root, self._limit, self.key = folder, limit, key
        self._folder = folder / key
        others = [each for each in folder.iterdir() if each.is_dir() and each.name != key] if folder.is_dir() else []
        if others and not self._folder.is_dir():
            log.warning(
                "the prefixes kept in %s are of other weights, precisions or versions: they are not used", folder
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._index = _Index()

    def has(self, file: str) -> bool:
        """Whether there is a file of this name."""
        return (self._folder / file).exists()

    def find(self, tokens: Sequence[int], *, state: bool) -> StoredPrefix | None:
        """The longest prefix of `tokens` that is stored. state: only one with the state after its last token serves."""
        index = self._read_index()
        names = [ROOT]
        for name in chain(tokens):
            if name not in index.blocks:
                break
            names.append(name)
        best: StoredPrefix | None = None
        for count, parent in enumerate(names):
            start = count * BLOCK
            if not state and count == len(names) - 1 and start:
                best = StoredPrefix(names[1 : count + 1], None, start)
            for end in self._ends(index, parent):
                length = _served(end, tokens[start : start + BLOCK], state=state)
                if length is not None and (best is None or start + length > best.length):
                    best = StoredPrefix(names[1 : count + 1], end, start + length)
        return best

    def _ends(self, index: _Index, parent: str) -> Iterator[StoredEnd]:
        known = index.ends.get(parent, {})
        for name, end in list(known.items()):
            if end is None:
                end = self._read_end(parent, name)
                if end is None:
                    del known[name]
                    continue
                known[name] = end
            yield end

    def _read_end(self, parent: str, name: str) -> StoredEnd | None:
        """What an end's header says; its checksum is compared when it is used."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with _opened(self._folder / f"{parent}.{name}.end") as file:
                file.seek(_DIGEST)
                header = json.loads(file.read(_header_size(file.read(4))))
            return StoredEnd(parent, name, tuple(map(int, header["tokens"])), header["state"] > 0)
        return None

    def _read_index(self) -> _Index:
        try:
            changed = self._folder.stat().st_mtime_ns
            if changed == self._index.changed:
                return self._index
            names = os.listdir(self._folder)
        except OSError:
            return _Index()
        fresh = _Index(changed)
        for name in names:
            first, _, rest = name.partition(".")
            if rest == "block":
                fresh.blocks.add(first)
            elif rest.endswith(".end") and rest.count(".") == 1:
                end = rest.removesuffix(".end")
                fresh.ends.setdefault(first, {})[end] = self._index.ends.get(first, {}).get(end)
        self._index = fresh
        return fresh

    def read(self, file: str) -> Content | None:
        """A file's content; None where it is gone, or, with a warning and its end, where it is damaged."""
        return self._read_into([bytearray()], file)

    def read_all(self, files: Sequence[str]) -> Iterator[Content | None]:
        """`read` of each file, with the next one in another thread; a content is valid until the next is asked for.

        Buffers are used again, as memory that is fresh each time takes longer than the files.
        """
        if not files:
            return
        with ThreadPoolExecutor(1, thread_name_prefix="prefix store") as thread:
            buffers = [bytearray()], [bytearray()]
            ahead = thread.submit(self._read_into, buffers[0], files[0])
            for place in range(len(files)):
                content = ahead.result()
                if place + 1 < len(files):
                    ahead = thread.submit(self._read_into, buffers[(place + 1) % 2], files[place + 1])
                yield content

    def _read_into(self, buffer: list[bytearray], file: str) -> Content | None:
        """`read` into the one buffer of a list, which is replaced where it is too small."""
        path = self._folder / file
        try:
            with _opened(path) as opened:
                size = os.fstat(opened.fileno()).st_size
                if len(buffer[0]) < size:
                    buffer[0] = bytearray(size)
                data = memoryview(buffer[0])[:size]
                if opened.readinto(data) != size:
                    raise ValueError("it is cut off")
            return self._parse(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the stored prefix %s is not used, and deleted: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _parse(self, view: memoryview) -> Content:
        if hashlib.sha256(view[_DIGEST:]).digest() != bytes(view[:_DIGEST]):
            raise ValueError("its checksum is wrong")
        start = _DIGEST + 4 + _header_size(bytes(view[_DIGEST : _DIGEST + 4]))
        header = json.loads(bytes(view[_DIGEST + 4 : start]))
        if header["key"] != self.key or len(view) != start + header["block"] + header["state"]:
            raise ValueError("it is of another model, or of another size")
        cut = start + header["block"]
        state = view[cut:] if header["state"] else None
        return Content(header["tokens"], view[start:cut], state, header["settled"])

    def note_use(self, files: Sequence[str]) -> None:
        """Files were used now; those that others need are the newest, so that they go last."""
        now = time.time_ns()
        for place, file in enumerate(files):
            with contextlib.suppress(OSError):
                os.utime(self._folder / file, ns=(now - place * 1000, now - place * 1000))

    def write(self, file: str, content: Content) -> bool:
        """Write a file, unless there is one; False, with a message, where that is not possible."""
        path = self._folder / file
        header = json.dumps(
            {
                "key": self.key,
                "tokens": list(content.tokens),
                "block": len(content.block),
                "state": len(content.state or b""),
                "settled": content.settled,
            }
        ).encode()
        rest = [len(header).to_bytes(4, "little"), header, content.block, content.state or b""]
        size = _DIGEST + sum(map(len, rest))
        temporary = self._folder / f".{file}.{machine_name()}.{os.getpid()}"
        try:
            if path.exists() or not self._make_room(size):
                return path.exists()
            digest = hashlib.sha256()
            for part in rest:
                digest.update(part)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(digest.digest())
                opened.writelines(rest)
            os.replace(temporary, path)  # not synced: the checksum finds what a crash of the machine leaves incomplete
        except OSError as error:
            log.warning("no prefix is kept in %s: %s", self._folder, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return False
        return True

    def _make_room(self, size: int) -> bool:
        """Have `size` bytes free below the limit: the files used longest ago go. False where that is not enough."""
        if size > self._limit:
            return False
        with _locked(self._root / ".lock"):
            found = sorted(_files(self._root))
            total = sum(bytes_ for _, bytes_, _ in found) + size
            for _, bytes_, path in found:
                if total <= self._limit:
                    return True
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    total -= bytes_
            return total <= self._limit


def _files(root: Path) -> Iterator[tuple[int, int, Path]]:
    """(time of the last use in ns, bytes, path) of every key's files; half-written ones of the dead are deleted."""
    for folder in root.iterdir():
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                state = path.lstat()
                if path.name.startswith(".") and time.time() - state.st_mtime > _DEAD_AFTER:
                    path.unlink(missing_ok=True)
                elif stat.S_ISREG(state.st_mode):
                    yield state.st_mtime_ns, state.st_size, path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the limit is then a little less exact
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """An unbuffered file of this user. Raises ValueError for another's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with FileIO(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid() or not stat.S_ISREG(state.st_mode):
            raise ValueError(f"it belongs to another user (uid {state.st_uid})")
        yield file


def _header_size(data: bytes) -> int:
    size = int.from_bytes(data, "little")
    if len(data) != 4 or size > _LONGEST_HEADER:
        raise ValueError("it has no header of ours")
    return size


def _served(end: StoredEnd, rest: Sequence[int], *, state: bool) -> int | None:
    """How many of the tokens `rest` an end serves; None where it does not: a state serves all of its own or none."""
    if state:
        return len(end.tokens) if end.state and tuple(rest[: len(end.tokens)]) == end.tokens else None
    common = next((i for i, (one, other) in enumerate(zip(end.tokens, rest, strict=False)) if one != other), None)
    return min(len(end.tokens), len(rest)) if common is None else common

"""Prefix caching (prefix_cache.py, state_prefixes.py) with a store of files beside it. No torch here.

What a second request has found is written, by a thread of its own, from blocks that nobody writes to. A prompt that
the store knows more of than memory gets the blocks from there, and goes on as if an earlier request had read them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Hashable, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ipex_assist.engine.prefix_cache import CachedPrefix, Prefixes
from ipex_assist.engine.prefix_store import LEAST_END, ROOT, Bytes, Content, PrefixStore, StoredPrefix, chain, name_of
from ipex_assist.executors.blocks import BlockPool, NoBlocksError
from ipex_assist.executors.recurrent_states import RecurrentState, StatePool

log = logging.getLogger("ipex_assist")

LEAST_TOKENS = 64  # fewer are read in no more time than files take
RETRY_SECONDS = 1.0  # before what was read last is read again
MOST_WAITING = 16  # prefixes that wait to be written; more are written when they are found again


class PrefixMemory(Protocol):
    """The memory of a model's blocks and states, by their bytes."""

    def key(self) -> str:
        """A hash of all that their bits depend on besides tokens."""
        ...

    def read_block(self, block: int) -> bytearray:
        """A block's bytes; in any thread."""
        ...

    def write_block(self, block: int, content: Bytes) -> None:
        """Fill a block; between passes. Raises IpexAssistError for another number of bytes."""
        ...

    def read_state(self, slot: int) -> bytearray:
        """A state's bytes; in any thread."""
        ...

    def write_state(self, slot: int, content: Bytes) -> None:
        """Fill a state; between passes. Raises IpexAssistError for another number of bytes."""
        ...


@runtime_checkable
class HasPrefixMemory(Protocol):
    """A model whose blocks and states can be read and written."""

    def prefix_memory(self) -> PrefixMemory:
        """Their memory."""
        ...


@dataclass(frozen=True)
class _Job:
    """A prefix to be written. blocks: each with a reference of the job's."""

    tokens: Sequence[int]
    blocks: list[int]
    state: RecurrentState | None


class StoredPrefixes:
    """Prefixes over `inner`, with a store. All but `close` is called between passes."""

    def __init__(
        self,
        inner: Prefixes,
        store: PrefixStore,
        memory: PrefixMemory,
        blocks: BlockPool,
        states: StatePool | None,
    ) -> None:
        self._inner, self._store, self._memory = inner, store, memory
        self._blocks, self._states = blocks, states
        self._tried, self._tried_at = "", 0.0  # what was read last, and when
        self._written: set[str] = set()  # files that exist or will in a moment
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._write_all, name="prefix store", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._inner) if isinstance(self._inner, Sized) else 0

    def wants(self, tokens: Sequence[int], adapter: Hashable = None) -> bool:
        """See Prefixes."""
        return self._inner.wants(tokens, adapter)

    def keep(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        state: RecurrentState | None = None,
        adapter: Hashable = None,
    ) -> None:
        """See Prefixes."""
        self._inner.keep(tokens, blocks, state, adapter)

    def evict(self) -> bool:
        """See Prefixes."""
        return self._inner.evict()

    def discard(self, block: int) -> None:
        """See Prefixes."""
        self._inner.discard(block)

    def find(self, tokens: Sequence[int], adapter: Hashable = None) -> CachedPrefix:
        """The longest prefix of `tokens`, in memory by now; what memory had already is going to be written.

        Of an adapter, what memory has: the files are those of the model without one.
        """
        found = self._inner.find(tokens, adapter)
        if adapter is not None:
            return found
        if len(tokens) - found.length >= LEAST_TOKENS:
            stored = self._store.find(tokens, state=self._states is not None)
            more = 0 if stored is None else stored.length - found.length
            if (
                stored is not None
                and more >= LEAST_TOKENS
                and self._is_due(stored)
                and self._read(tokens, stored, found)
            ):
                return self._inner.find(tokens)
        if found.length >= LEAST_TOKENS:
            self._note(tokens[: found.length], found)
        return found

    # Reading.

    def _is_due(self, stored: StoredPrefix) -> bool:
        """Whether to read it now: a waiting request asks before every pass, and there may be no memory for it yet."""
        name, now = stored.end.name if stored.end is not None else stored.blocks[-1], time.monotonic()
        if name == self._tried and now < self._tried_at + RETRY_SECONDS:
            return False
        self._tried, self._tried_at = name, now
        return True

    def _read(self, tokens: Sequence[int], stored: StoredPrefix, found: CachedPrefix) -> bool:
        """Give the cache what is stored, beside the blocks that it has. False where there is no memory, or no file."""
        size, taken = self._blocks.size, list[int]()
        shared = found.blocks[: found.length // size]
        for block in shared:
            self._blocks.share(block)
        try:
            files = [f"{name}.block" for name in stored.blocks]
            wanted = [tokens[start : start + size] for start in range(0, len(files) * size, size)]
            if stored.end is not None:
                files.append(stored.end.file)
                wanted.append(stored.end.tokens)
            state = None
            contents = self._store.read_all(files[len(shared) :])
            for file, content, own in zip(files[len(shared) :], contents, wanted[len(shared) :], strict=True):
                if content is None or list(content.tokens) != list(own):
                    self._written.discard(file)
                    return False
                if own:
                    taken.append(self._filled(content.block))
                if content.state is not None:
                    state = self._filled_state(content, stored.length)
            self._inner.keep(tokens[: stored.length], [*shared[: len(stored.blocks)], *taken], state)
            self._store.note_use(files)
            return True
        except NoBlocksError:
            return False
        finally:
            self._blocks.release_many([*shared, *taken])

    def _filled(self, content: Bytes) -> int:
        """A block with this content; prefixes go for it. Raises NoBlocksError."""
        while self._blocks.free < 1 and self._inner.evict():
            pass
        block = self._blocks.take()
        try:
            self._memory.write_block(block, content)
        except BaseException:
            self._blocks.release(block)
            raise
        return block

    def _filled_state(self, content: Content, length: int) -> RecurrentState:
        assert self._states is not None
        assert content.state is not None
        while self._states.free < 1 and self._inner.evict():
            pass
        state = RecurrentState(self._states)
        self._memory.write_state(state.slot, content.state)
        state.settled, state.confirmed = content.settled, length
        return state

    # Writing.

    def _note(self, tokens: Sequence[int], found: CachedPrefix) -> None:
        """Have a prefix written that a second request has found, unless its files are there."""
        files = self._files(tokens, found.state)
        if not files or self._written.issuperset(files) or self._jobs.qsize() >= MOST_WAITING:
            return
        blocks = list(found.blocks)
        for block in blocks:
            self._blocks.share(block)
        self._written.update(files)
        self._idle.clear()
        self._jobs.put(_Job(list(tokens), blocks, found.state))

    def _files(self, tokens: Sequence[int], state: RecurrentState | None) -> list[str]:
        """The files of a prefix: its full blocks, and its end where that is worth one."""
        names, size = chain(tokens), self._blocks.size
        rest = tokens[len(names) * size :]
        files = [f"{name}.block" for name in names]
        if state is not None or len(rest) >= LEAST_END:
            parent = names[-1] if names else ROOT
            files.append(f"{parent}.{name_of(parent, rest)}.end")
        return files

    def _write_all(self) -> None:
        """Write what `_note` gives, until `close`; runs in a thread of its own."""
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except Exception as error:
                log.warning("a prefix is not kept: %s", error)
            finally:
                self._blocks.release_many(job.blocks)
                if self._jobs.empty():
                    self._idle.set()

    def _write(self, job: _Job) -> None:
        size, written = self._blocks.size, []
        for index, file in enumerate(self._files(job.tokens, job.state)):
            part = job.tokens[index * size : (index + 1) * size]
            written.append(file)
            if self._store.has(file):
                continue
            block = self._memory.read_block(job.blocks[index]) if part else bytearray()
            content = Content(list(part), block)
            if file.endswith(".end") and job.state is not None:
                content = Content(list(part), block, self._memory.read_state(job.state.slot), job.state.settled)
            if not self._store.write(file, content):
                self._written.difference_update(self._files(job.tokens, job.state))
                return
        self._store.note_use(written)

    def flush(self, seconds: float) -> bool:
        """Wait until all that was noted is written, but not longer; whether it is."""
        return self._idle.wait(seconds)

    def close(self, seconds: float) -> None:
        """Write what was noted, and end the thread, within `seconds`."""
        deadline = time.monotonic() + seconds
        self.flush(seconds)
        self._jobs.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))

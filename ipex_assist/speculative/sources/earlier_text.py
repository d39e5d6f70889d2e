"""Text that drafts may copy beside their own: a corpus that all requests share, and earlier answers to one caller."""

from __future__ import annotations

import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.env.errors import UsageError
from ipex_assist.native.token_index import SEPARATOR
from ipex_assist.speculative.sources.text_index import TextIndex, text_index

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")

BYTES_A_TOKEN = 28  # of an index, at most
MOST_TOKENS = 1 << 20  # of the answers to one caller, whatever memory there is
CHUNK = 1 << 20  # characters of a corpus that are tokenized at a time


@dataclass(frozen=True)
class Caller:
    """Whose text it is: who asked, and by which adapter it was written; None is nobody, and the model without one."""

    share: str | None = None
    adapter: str | None = None


NOBODY = Caller()


@dataclass(frozen=True)
class EarlierText:
    """Indexes that a request may draft from beside its own text. lock: held meanwhile, since others may add to them."""

    indexes: Sequence[TextIndex] = ()
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)


class EarlierAnswers:
    """Answers that were given, apart by caller: none of them is ever drafted for another.

    `most` bytes bound all of them together: the callers that asked the longest ago are forgotten, and of one caller
    the oldest answers.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._answers: OrderedDict[Caller, TextIndex] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all answers."""
        with self._lock:
            return sum(index.nbytes for index in self._answers.values())

    def of(self, caller: Caller) -> EarlierText:
        """Return the answers to a caller, to which those that come are added."""
        with self._lock:
            return EarlierText([self._index(caller)], self._lock)

    def add(self, caller: Caller, answer: Sequence[int]) -> None:
        """Add an answer, whole or broken off."""
        if not answer:
            return
        with self._lock:
            index = self._index(caller)
            index.append([*answer, SEPARATOR])
            used = sum(each.nbytes for each in self._answers.values())
            while used > self._most and len(self._answers) > 1:
                used -= self._answers.popitem(last=False)[1].nbytes

    def _index(self, caller: Caller) -> TextIndex:
        index = self._answers.pop(caller, None) or text_index(min(MOST_TOKENS, max(1, self._most // BYTES_A_TOKEN)))
        self._answers[caller] = index  # the last to be forgotten
        return index


def read_corpus(file: str, tokenizer: PreTrainedTokenizerBase) -> TextIndex:
    """Return a text file's tokens, indexed. Raises UsageError for a file that cannot be read as text, or has none."""
    tokens = array("i")
    try:
        with Path(file).expanduser().open(encoding="utf-8") as lines:
            while chunk := lines.readlines(CHUNK):  # whole lines
                tokens.extend(tokenizer("".join(chunk), add_special_tokens=False, verbose=False)["input_ids"])
    except UnicodeDecodeError as error:
        raise UsageError(f"--draft-corpus {file}: must be text in UTF-8, and is not at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"--draft-corpus {file}: cannot be read ({error.strerror})") from error
    if not tokens:
        raise UsageError(f"--draft-corpus {file}: is empty; give a file of text such as answers are likely to repeat")
    index = text_index()
    index.append(tokens)
    log.info("draft corpus %s: %d tokens, %.0f MB", file, len(tokens), index.nbytes / 1e6)
    return index

"""What images are to a text model: rows of a prompt that are no tokens', and where they rotate. Never imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.rope import Floats
from ipex_assist.models.spec import DecoderSpec

Positions: TypeAlias = NDArray[np.int64]  # (rows, 3): time, height and width
AXES = 3


@dataclass(frozen=True, eq=False)
class ImageRows:
    """The rows that an image is, from position `first` of a prompt on, in the place of its placeholder tokens.

    rows: (count, (1 + layers) · hidden_size): what enters the first layer, and what is added before each of the next
    `layers` ones (DeepStack). axes: (count, 3), how far each row is from where the image begins, on the axes of rotary
    positions (M-RoPE: Wang et al. 2024, arXiv:2409.12191); None: its rows are one after the other, as tokens are.
    digest: a hash of all that the rows depend on.
    """

    first: int
    rows: Floats
    digest: bytes
    axes: NDArray[np.int32] | None = None

    @property
    def end(self) -> int:
        """The position after its last row."""
        return self.first + len(self.rows)

    @cached_property
    def advance(self) -> int:
        """How much further than its beginning the token after it rotates."""
        return len(self.rows) if self.axes is None else int(self.axes.max()) + 1

    @cached_property
    def keys(self) -> list[int]:
        """What stands for each row where prefixes are compared: 31 bits of the hash, below all tokens."""
        drawn = hashlib.shake_256(self.digest).digest(4 * len(self.rows))
        return [int(each) for each in np.frombuffer(drawn, np.int32) | np.int32(-(1 << 31))]


class PromptImages:
    """The images of a prompt, by their positions. whole: whether rows of an image see each other."""

    def __init__(self, images: Sequence[ImageRows], whole: bool = False) -> None:
        """Raises IpexAssistError for images that are not one after the other."""
        self.images, self.whole = tuple(images), whole
        self._shifts = [0]  # of tokens before the first image, before the second, …: how much further they rotate
        end = 0
        for each in self.images:
            if each.first < end:
                raise IpexAssistError(f"an image at position {each.first}, and another one up to {end}")
            end = each.end
            self._shifts.append(self._shifts[-1] + each.advance - len(each.rows))

    def within(self, start: int, end: int) -> list[ImageRows]:
        """Those that have rows at the positions start … end - 1."""
        return [each for each in self.images if each.first < end and each.end > start]

    def shift(self, position: int) -> int:
        """How much further than its position a token rotates; at most 0."""
        return self._shifts[sum(each.end <= position for each in self.images)]

    def positions(self, start: int, count: int) -> Positions:
        """Where the rows from position `start` on rotate."""
        found = np.repeat(np.arange(start, start + count, dtype=np.int64)[:, None], AXES, 1)
        for shift, each in zip(self._shifts, self.images, strict=False):
            found[max(0, each.end - start) :] += each.advance - len(each.rows)
            first, end = max(start, each.first), min(start + count, each.end)
            if first < end and each.axes is not None:
                found[first - start : end - start] = each.first + shift
                found[first - start : end - start] += each.axes[first - each.first : end - each.first]
        return found

    def whole_rows(self, start: int, count: int) -> int:
        """How many rows from `start` on a pass may read that would read `count`: it ends in no image that is whole."""
        end = start + count
        for each in self.within(start, end) if self.whole else ():
            if each.end > end:
                end = each.first if each.first > start else each.end
        return end - start

    def last_seen(self, start: int, count: int) -> NDArray[np.int32]:
        """The last position that each of `count` rows from `start` on sees: of an image that is whole, its last one.

        Raises IpexAssistError where that is not among them.
        """
        found = np.arange(start, start + count, dtype=np.int32)
        for each in self.within(start, start + count) if self.whole else ():
            if each.end > start + count:
                raise IpexAssistError(f"a pass ends at {start + count}, within an image up to position {each.end}")
            found[max(0, each.first - start) : each.end - start] = each.end - 1
        return found

    def keys(self, tokens: Sequence[int]) -> list[int]:
        """Tokens from the prompt's first one on, as prefixes are compared: images by what they are."""
        found = list(tokens)
        for each in self.images:
            found[each.first : each.end] = each.keys[: max(0, len(tokens) - each.first)]
        return found


def check_images(spec: DecoderSpec, images: PromptImages, pass_rows: int = 0) -> None:
    """Raise IpexAssistError where a model cannot take these rows, or rotate them.

    pass_rows: that a pass has room for, where rows of an image can see each other in one; else 0.
    """
    if spec.head is not None or spec.projected_embedding or spec.learned_positions or spec.embedding_norm:
        raise IpexAssistError(f"{spec.model_type} takes no images: more than a row enters its first layer")
    if any(rope.by_length for rope in spec.ropes):
        raise IpexAssistError(f"{spec.model_type} takes no images: it rotates rows by the length of their prompt")
    if images.whole != (spec.whole_images is not None):
        raise IpexAssistError(f"images of {spec.model_type}, and rows that do not see what its images' rows see")
    if images.whole and not pass_rows:
        raise IpexAssistError(f"images of {spec.model_type} need the native executor (--executor native)")
    most = max((len(each.rows) for each in images.images), default=0)
    if images.whole and most > pass_rows:
        raise IpexAssistError(
            f"an image of {most} rows, which are read in one pass, and a pass has room for {pass_rows}: give the model "
            "more memory"
        )
    width = (1 + spec.embedding_layers) * spec.hidden_size
    for each in images.images:
        if each.rows.ndim != 2 or each.rows.shape[1] != width:
            raise IpexAssistError(f"rows of an image {each.rows.shape}: each has {width} numbers")
        if each.rows.dtype != np.float32 or not each.rows.flags.c_contiguous:
            raise IpexAssistError("rows of an image that are not contiguous float32")
        if each.axes is not None and each.axes.shape != (len(each.rows), AXES):
            raise IpexAssistError(f"positions {each.axes.shape} of {len(each.rows)} rows of an image")

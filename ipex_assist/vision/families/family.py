"""What a page of this folder says of a family: which modules of transformers see, and how a prompt has its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# What an image is in a prompt: texts, or the ids of tokens, and how many of its rows follow each.
Layout: TypeAlias = "tuple[tuple[str | int, int], ...]"
ALL_ROWS: Layout = (("", -1),)


@dataclass(frozen=True)
class VisionPart:
    """One of a model's modules that see. kind: its class; "": what transformers has for its config.

    names: of it in checkpoints. of: the parts of config.json that it is made of; none: the whole.
    """

    kind: str = ""
    names: tuple[str, ...] = ()
    of: tuple[str, ...] = ("vision_config",)


@dataclass(frozen=True)
class Family:
    """model: a class of transformers' module of this name, whose `get_image_features` makes rows with `parts` alone.

    given: what that takes of the image processor's output. options: of the image processor, by transformers' config.
    projector: the part that its last hidden states pass through where it leaves that to others. on_axes: whether rows
    rotate on three axes (M-RoPE). layout: of an image, by transformers' config, the image processor's output and the
    number of rows. tokens: keys of config.json, of which one has the id of the token that stands for each row.
    place: what stands for an image in a prompt, where that is another token. fed: the key of text_config that has the
    id that enters with rows, where that is another one. factor: the key of text_config that has a factor of what enters
    the first layer, rows among it. fields: of the model, by transformers' config, which its parts do not make.
    """

    module: str
    model: str
    parts: Mapping[str, VisionPart]
    given: tuple[str, ...] = ("pixel_values", "image_grid_thw")
    options: Callable[[Any], Mapping[str, Any]] = field(default=lambda config: {})
    projector: str | None = None
    on_axes: bool = False
    layout: Callable[[Any, Any, int], Layout] = field(default=lambda config, given, rows: ALL_ROWS)
    tokens: tuple[str, ...] = ("image_token_id", "image_token_index")
    place: str | None = None
    fed: str | None = None
    factor: str | None = None
    fields: Callable[[Any], Mapping[str, Any]] = field(default=lambda config: {})

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Of the names of all tensors that see, as checkpoints have them."""
        names = [each for name, part in self.parts.items() for each in (name, *part.names)]
        return tuple(f"{before}{each}." for each in names for before in ("model.", ""))

    def row_token(self, config: Mapping[str, Any]) -> int | None:
        """The token that each row of an image stands for; None where a config names none."""
        return next((config[key] for key in self.tokens if type(config.get(key)) is int), None)

    def fed_token(self, config: Mapping[str, Any]) -> int | None:
        """The token that enters the text model with a row, where the row does not take its whole place."""
        if self.fed is None:
            return None
        text = config.get("text_config")
        found = text.get(self.fed) if isinstance(text, Mapping) else None
        return found if type(found) is int else 0


def tiles(
    rows: int, down: int, across: int, start: str, tile: Callable[[int, int], str], whole: str, end: str
) -> Layout:
    """Tiles of an image line by line, and then the whole of it once more, smaller: of as many rows each.

    start: before every one; tile: the name of one; whole: that of the last; end: what follows it. Lines end with a
    newline each. Of an image that was not cut the whole is all.
    """
    count = down * across + 1
    each = rows // count
    made: list[tuple[str | int, int]] = []
    for y in range(down):
        for x in range(across):
            made.append(("\n" * (y > 0 and x == 0) + start + tile(y, x), each))
    made.append(("\n\n" * (down > 0) + start + whole, each))
    return *made, (end, 0)

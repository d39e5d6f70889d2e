"""Draws a recorded terminal as an SVG that plays by CSS alone, so that it also does so as a picture of a page.

pyte is the terminal; backgrounds are not drawn. Each content of a row is one group of elements, shown from its first
moment to its last: a page without animations, or a reader who wants none, sees the last screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char
from terminal_cast import Cast

FRAME = 0.05  # seconds: what comes within them is shown together
HOLD = 3.0  # how long the last screen stays
CELL, LINE = 9.0, 20.0  # of a character, in pixels
FONT_SIZE = 15
MARGIN, BAR = 16.0, 32.0
FOREGROUND, BACKGROUND, FRAME_COLOUR = "#d7dae0", "#16191f", "#262b34"
COLOURS = {
    "black": "#5c6370", "red": "#e06c75", "green": "#98c379", "brown": "#e5c07b",
    "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff",
}  # fmt: skip
STYLE = """\
text{{font:{size}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;\
fill:{foreground};white-space:pre}}
.s,.e{{animation:{seconds:.2f}s step-end infinite}}
.s{{visibility:hidden}}
@media (prefers-reduced-motion:reduce){{.s,.e{{animation:none}}}}
"""


@dataclass(frozen=True)
class TextRun:
    """Characters of a row that look alike: the first one's column, how many cells they take, and their colour."""

    column: int
    cells: int
    text: str
    colour: str
    bold: bool


@dataclass(frozen=True)
class RowContent:
    """What a row shows, and the column of the cursor where that is in it."""

    runs: tuple[TextRun, ...]
    cursor: int | None


@dataclass(frozen=True)
class ShownRow:
    """A content of a row from one moment to another; `last` until the end."""

    row: int
    content: RowContent
    begin: float
    end: float
    last: bool


def duration(cast: Cast) -> float:
    """Seconds after which the picture begins again."""
    return cast.output[-1][0] + HOLD


def contents(cast: Cast) -> Iterator[tuple[float, list[RowContent]]]:
    """The whole screen at each moment at which it may have changed: (seconds, its rows)."""
    screen = pyte.Screen(cast.columns, cast.rows)
    stream = pyte.Stream(screen)
    last = round(cast.output[-1][0] / FRAME)
    for frame, events in groupby(cast.output, lambda event: round(event[0] / FRAME)):
        for _, text in events:
            stream.feed(text)
        yield frame * FRAME, [_row(screen, row, frame < last) for row in range(cast.rows)]


def _row(screen: pyte.Screen, row: int, cursor: bool) -> RowContent:
    cells = screen.buffer[row]
    runs = []
    for (colour, bold), group in groupby(range(screen.columns), lambda column: _look(cells[column])):
        columns = list(group)
        while columns and cells[columns[0]].data == " ":
            del columns[0]
        while columns and cells[columns[-1]].data == " ":
            del columns[-1]
        if columns:
            text = "".join(cells[column].data for column in columns)
            runs.append(TextRun(columns[0], len(columns), text, colour, bold))
    here = cursor and screen.cursor.y == row and not screen.cursor.hidden
    return RowContent(tuple(runs), min(screen.cursor.x, screen.columns - 1) if here else None)


def _look(cell: Char) -> tuple[str, bool]:
    """A cell's colour, one of the sixteen by name or any by its RGB, and whether it is bold."""
    name = cell.fg.removeprefix("bright")
    if name == "default":
        return FOREGROUND, cell.bold
    return COLOURS.get(name, f"#{name}"), cell.bold


def timeline(cast: Cast) -> list[ShownRow]:
    """All contents of all rows that are not empty, with their times."""
    nothing = RowContent((), None)
    current = [(nothing, 0.0)] * cast.rows
    shown = []
    for moment, rows in contents(cast):
        for row, content in enumerate(rows):
            before, begin = current[row]
            if content == before:
                continue
            if before != nothing:
                shown.append(ShownRow(row, before, begin, moment, False))
            current[row] = content, moment
    end = duration(cast)
    shown += [ShownRow(row, content, at, end, True) for row, (content, at) in enumerate(current) if content != nothing]
    return sorted(shown, key=lambda each: (each.begin, each.row))


def draw(cast: Cast) -> str:
    """The picture's file. The same cast gives the same bytes."""
    shown = timeline(cast)
    seconds = duration(cast)
    width = cast.columns * CELL + 2 * MARGIN
    height = BAR + (1 + max(each.row for each in shown)) * LINE + 1.5 * MARGIN
    names: dict[tuple[float, float], str] = {}
    keyframes, groups = [], []
    for each in shown:
        interval = each.begin, each.end
        if interval not in names:
            names[interval] = f"a{len(names)}"
            keyframes.append(_keyframes(names[interval], each, seconds))
        kind = "e" if each.last else "s"
        groups.append(f'<g class="{kind}" style="animation-name:{names[interval]}">{_elements(each)}</g>')
    style = STYLE.format(size=FONT_SIZE, foreground=FOREGROUND, seconds=seconds)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img">',
            f"<title>{escape(cast.command)}</title>",
            "<style>",
            style + "\n".join(keyframes),
            "</style>",
            *_window(width, height),
            *groups,
            "</svg>\n",
        ]
    )


def _keyframes(name: str, shown: ShownRow, seconds: float) -> str:
    """Keyframes of what is hidden by itself, or of the last screen's, which is visible by itself."""
    begin, end = (f"{100 * moment / seconds:.2f}%" for moment in (shown.begin, shown.end))
    if shown.last:
        return f"@keyframes {name}{{0%{{visibility:hidden}}{begin}{{visibility:visible}}}}"
    return f"@keyframes {name}{{{begin}{{visibility:visible}}{end}{{visibility:hidden}}}}"


def _window(width: float, height: float) -> list[str]:
    """The terminal's frame."""
    bar = f'<path d="M0 {BAR:g}V10A10 10 0 0 1 10 0H{width - 10:g}A10 10 0 0 1 {width:g} 10V{BAR:g}z" '
    dots = enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
    return [
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="{BACKGROUND}"/>',
        f'{bar}fill="{FRAME_COLOUR}"/>',
        *(f'<circle cx="{20 + 20 * n}" cy="{BAR / 2:g}" r="6" fill="{colour}"/>' for n, colour in dots),
    ]


def _elements(shown: ShownRow) -> str:
    """The text and the cursor of a row. A text has the length of its cells in whatever font there is."""
    top = BAR + MARGIN / 2 + shown.row * LINE
    parts = []
    for run in shown.content.runs:
        colour = "" if run.colour == FOREGROUND else f' style="fill:{run.colour}"'
        weight = ' font-weight="bold"' if run.bold else ""
        place = f'x="{MARGIN + run.column * CELL:g}" y="{top + 0.75 * LINE:g}" textLength="{run.cells * CELL:g}"'
        parts.append(f"<text {place}{colour}{weight}>{escape(run.text)}</text>")
    if shown.content.cursor is not None:
        left = MARGIN + shown.content.cursor * CELL
        parts.append(f'<rect x="{left:g}" y="{top + 1:g}" width="{CELL:g}" height="{LINE - 2:g}" fill="#8b93a3"/>')
    return "".join(parts)

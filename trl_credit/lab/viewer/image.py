"""A group of responses as an image, each token coloured by its effective credit: for trackers that show no HTML."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from rich.cells import cell_len

from ...observe.schema import Shard
from ...support.texts import plain
from .excerpt import ranked_groups
from .palette import LEVELS, LIGHT
from .terminal import level_of, robust_maximum


RESPONSES = 4  # of the group: its best and its worst
COLUMNS = 110  # characters of a line
LINES = 24  # of a response; a longer one loses its middle
_DPI, _CELL, _LINE = 110, 8, 20  # pixels of an inch, of a character's width, of a line's height
_FONT, _SIZE = "DejaVu Sans Mono", _CELL * 72 / _DPI / 0.602  # comes with matplotlib; its width is 0.602 of its size
_MARGIN = 1.5  # characters, and lines
_GREY = "#6b7280"


class _Piece(NamedTuple):
    """A token, or its part on one line; `token` is `None` for a remark of ours."""

    line: int
    column: int
    text: str
    token: int | None


def credit_image(shard: Shard) -> np.ndarray:
    """Draws the group of a shard whose rewards differ most: its best and its worst responses.

    Args:
        shard (`Shard`):
            At least one response.

    Returns:
        `np.ndarray` of shape (height, width, 3): RGB from 0 to 255, 904 pixels wide and some 2,300 high at most.

    Raises:
        ValueError: the shard has no response.
    """
    if not shard.responses:
        raise ValueError("there is nothing to draw: the shard has no response")
    group, largest = ranked_groups([shard])[0], robust_maximum(shard)
    shown = sorted(group[:RESPONSES], key=lambda response: response["index"])
    blocks = [_cut(list(_pieces(response["tokens"]))) for response in shown]
    prompt = _chopped(_drawable(" ".join(str(shown[0].get("prompt") or "").split())))
    prompt = prompt if len(prompt) <= 2 else [prompt[0], prompt[1][:-2] + " …"]
    tops = list(accumulate((_height(pieces) + 2 for pieces in blocks), initial=len(prompt) + 2))
    drawing = _Drawing()
    head = f"{shard.header['algorithm']}, step {shard.header['step']}, group {shown[0]['group']}"
    drawing.write(0, 0, _drawable(f"{head}: {len(shown)} of {len(group)} responses"), weight="bold")
    for line, text in enumerate(prompt, start=1):
        drawing.write(0, line, text, color=_GREY)
    for top, response, pieces in zip(tops, shown, blocks, strict=False):
        drawing.write(0, top, _heading(response), weight="bold")
        _draw(drawing, top + 1, pieces, response, largest)
    _legend(drawing, tops[-1], largest)
    return drawing.pixels()


class _Drawing:
    """Text on a grid of characters. Few artists are fast: neighbours of one style are one text."""

    def __init__(self) -> None:
        self.texts: list[tuple[int, int, str, dict[str, Any]]] = []
        self.boxes: list[tuple[int, int, int, str]] = []
        self.double: list[tuple[int, int, int]] = []
        self.dotted: list[tuple[int, int, int]] = []

    def write(self, x: int, y: int, text: str, **style: Any) -> None:
        """Writes a text at a column and a line."""
        if self.texts and self.texts[-1][1::2] == (y, style) and self.texts[-1][0] + len(self.texts[-1][2]) == x:
            x, _, before, _ = self.texts.pop()
            text = before + text
        self.texts.append((x, y, text, style))

    def token(self, x: int, y: int, text: str, *, level: int = 0, assigned: bool = True) -> None:
        """Writes a token on the colour of its level."""
        place = (x, y, len(text))
        if level:
            colours = LIGHT["positive" if level > 0 else "negative"]
            self.boxes.append((*place, colours[min(abs(level), LEVELS) - 1]))
        if abs(level) > LEVELS:
            self.double.append(place)
        if not assigned:
            self.dotted.append(place)
        self.write(x, y, text)

    def pixels(self) -> np.ndarray:
        """RGB of shape (height, width, 3), as large as the texts."""
        columns = max(x + len(text) for x, _, text, _ in self.texts)
        lines = max(y + 1 for _, y, *_ in self.texts)
        width, height = columns + 2 * _MARGIN, lines + 2 * _MARGIN
        # not pyplot, whose state is global and may need a display
        figure = Figure(figsize=(width * _CELL / _DPI, height * _LINE / _DPI), dpi=_DPI)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-_MARGIN, columns + _MARGIN), ylim=(lines + _MARGIN, -_MARGIN))
        axes.set_axis_off()
        corners = [[(x, y), (x + n, y), (x + n, y + 1), (x, y + 1)] for x, y, n, _ in self.boxes]
        colours = [colour for *_, colour in self.boxes]
        axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors=LIGHT["page"], linewidths=0.6))
        for places, heights, style in (
            (self.double, (0.84, 0.95), {"linewidth": 0.6}),
            (self.dotted, (0.9,), {"linewidth": 1, "linestyle": ":"}),
        ):
            segments = [[(x, y + at), (x + n, y + at)] for x, y, n in places for at in heights]
            axes.add_collection(LineCollection(segments, colors=LIGHT["text"], **style))
        for x, y, text, style in self.texts:
            style = {"color": LIGHT["text"], "verticalalignment": "baseline", "parse_math": False, **style}
            axes.text(x, y + 0.72, text, family=_FONT, fontsize=_SIZE, **style)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def _drawable(text: str) -> str:
    """A text of characters that are one cell wide each: without control characters, tabs, and what the font lacks."""
    text = plain(text).replace("\t", "    ")
    return "".join(char if char == "\n" or ord(char) in _characters() else "□" * cell_len(char) for char in text)


def _pieces(tokens: Sequence[str]) -> Iterator[_Piece]:
    """Tokens in lines of `COLUMNS` characters. A token that fits on a line is not broken."""
    line = column = 0
    for i, token in enumerate(tokens):
        for j, part in enumerate(_drawable(token).split("\n")):
            if j:
                yield _Piece(line, column, "↵", i)
                line, column = line + 1, 0
            for text in _chopped(part):
                if column + len(text) > COLUMNS:
                    line, column = line + 1, 0
                yield _Piece(line, column, text, i)
                column += len(text)


def _chopped(text: str) -> list[str]:
    return [text[start : start + COLUMNS] for start in range(0, len(text), COLUMNS)]


def _height(pieces: list[_Piece]) -> int:
    return pieces[-1].line + 1 if pieces else 0


def _cut(pieces: list[_Piece]) -> list[_Piece]:
    """At most `LINES` lines: the first and the last, and how much is left out between them."""
    lines, half = _height(pieces), LINES // 2
    if lines <= LINES:
        return pieces
    first, last = [piece for piece in pieces if piece.line < half - 1], lines - half
    left_out = len({piece.token for piece in pieces if half - 1 <= piece.line < last})
    remark = _Piece(half - 1, 0, f"… {left_out:,} tokens …", None)
    return [*first, remark, *(p._replace(line=p.line - last + half) for p in pieces if p.line >= last)]


def _draw(drawing: _Drawing, top: int, pieces: list[_Piece], response: dict[str, Any], largest: float) -> None:
    length = len(response["tokens"])
    in_loss, assigned = (response.get(name) or [1] * length for name in ("loss_mask", "policy_mask"))
    levels = [level_of(credit, largest) for credit in response.get("credit") or [None] * length]
    for line, column, text, i in pieces:
        if i is None or not in_loss[i]:
            drawing.write(column, top + line, text, style="italic", color=_GREY)
        else:
            drawing.token(column, top + line, text, level=levels[i], assigned=bool(assigned[i]))


def _heading(response: dict[str, Any]) -> str:
    reward, credit, length = response.get("reward"), response.get("credit"), len(response["tokens"])
    parts = [
        f"response {response['index']}",
        f"reward {'–' if reward is None else format(reward, '.3g')}",
        f"{length:,} token{'s' * (length != 1)}{', cut off' * bool(response.get('truncated'))}",
        "credit not known" if credit is None else f"Σ credit {sum(x for x in credit if x is not None):+.3g}",
    ]
    return "   ".join(parts)


def _legend(drawing: _Drawing, y: int, largest: float) -> None:
    x = 0
    for text, level in (
        (f"credit, in units of A: −{largest:.3g} ", 0),
        *(("  ", -level) for level in range(LEVELS, 0, -1)),
        (" 0 ", 0),
        *(("  ", level) for level in range(1, LEVELS + 1)),
        (f" +{largest:.3g}", 0),
    ):
        drawing.token(x, y, text, level=level)
        x += len(text)
    drawing.token(0, y + 1, "beyond", level=LEVELS + 1)
    drawing.token(8, y + 1, "not assigned", assigned=False)
    drawing.write(22, y + 1, "not in the loss", style="italic", color=_GREY)

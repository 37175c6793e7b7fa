"""Which panels a growth figure has, and which lines each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hessianlens.lab.analysis.series import SeriesKey
from hessianlens.lab.plots.style import BLUE, GREEN, MUTED, ORANGE, PURPLE, RED
from hessianlens.lab.results import Result

_LAYERS = ((BLUE, "-o"), (RED, "-s"), (GREEN, "-^"), (PURPLE, "-D"), (ORANGE, "-v"))
"""Colour and marker of each layer, input first; deeper models begin again."""

_PARTS = {"outer": "outer product", "functional": "functional", "full": "full"}

_ACROSS = 3
"""Panels a row where every depth has one."""


@dataclass(frozen=True)
class Line:
    """One series of a panel: name in the legend, colour, marker, width."""

    key: SeriesKey
    name: str
    colour: str
    marker: str = "-"
    width: float = 1.5


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `first` of its row carries the label of the vertical axis."""

    title: str
    lines: tuple[Line, ...]
    first: bool


def layout(result: Result, keys: Iterable[SeriesKey]) -> list[list[Panel]]:
    """Panels in rows.

    A single layer: query and value with a line for each part, a row for each sigma grid. A stack: a row for each depth,
    a line for each layer. A linear MLP: a panel for each depth.
    """
    present = list(keys)
    depths, grids = (list(dict.fromkeys(getattr(key, name) for key in present)) for name in ("depth", "grid"))
    if result.config["model"] == "linear_mlp":
        every = [_stack_panel(present, 0, depth, "mlp", "full", _depth(depth), False) for depth in depths]
        rows = [every[k : k + _ACROSS] for k in range(0, len(every), _ACROSS)]
        return [[Panel(p.title, p.lines, k == 0) for k, p in enumerate(row)] for row in rows]
    if depths == [1] and result.config["attention"] != "linear":
        tops = result.config["sigma_high"]
        ends = {grid: f", σ up to {tops[grid]:g}" if len(grids) > 1 else "" for grid in grids}
        return [[_parts_panel(grid, block, end) for block in ("query", "value")] for grid, end in ends.items()]
    # With linear attention the functional part of all but the last layers is the full block at small sigma.
    second = "full" if result.config["attention"] == "linear" else "functional"
    wanted = [(block, part) for block in ("query", "value") for part in ("outer", second)]
    return [
        [
            _stack_panel(present, 0, depth, block, part, f"{_depth(depth)}: {block}, {_PARTS[part]}", k == 0)
            for k, (block, part) in enumerate(wanted)
        ]
        for depth in depths
    ]


def _depth(depth: int) -> str:
    return f"{depth} layer{'s' if depth > 1 else ''}"


def _parts_panel(grid: int, block: str, end: str) -> Panel:
    # Full lies below and is wide, since another part often coincides with it.
    styles = {"full": (MUTED, "-", 4.0), "outer": (BLUE, "-o", 1.5), "functional": (ORANGE, "-s", 1.5)}
    lines = [
        Line(SeriesKey(grid, 1, 0, block, part), _PARTS[part], colour, marker, width)
        for part, (colour, marker, width) in styles.items()
    ]
    return Panel(f"{block.capitalize()} block{end}", tuple(lines), block == "query")


def _stack_panel(keys: list[SeriesKey], grid: int, depth: int, block: str, part: str, title: str, first: bool) -> Panel:
    own = [key for key in keys if (key.grid, key.depth, key.block, key.part) == (grid, depth, block, part)]
    lines = [Line(key, f"layer {key.layer + 1}", *_LAYERS[key.layer % len(_LAYERS)]) for key in own]
    return Panel(title, tuple(lines), first)

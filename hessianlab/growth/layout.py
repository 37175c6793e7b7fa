"""Which panels a growth figure has, and which lines each of them.

A figure chooses one of the arrangements below. Each arranges whatever series the result has, so that a setting that
changes the model (another depth, no attention) is drawn too.
"""

from __future__ import annotations

from dataclasses import dataclass

from hessianlab.growth.series import SeriesKey, growth_series
from hessianlab.plots.style import INK, MUTED, OBJECTS, PURPLE, SKY, THICK
from hessianlab.results import Result
from hessianlens.parts import LAYER_PARTS

_LAYERS = ((INK, "-o"), (PURPLE, "-s"), (SKY, "-^"), (MUTED, "-D"), (INK, "--v"))
"""Colour and marker of each layer, input first; deeper models begin again."""

_PART_LINES = {"full": ("-", THICK), "outer": ("-o", 1.5), "functional": ("--s", 1.5)}
"""Marker and width of each part, in the colour of the block. Full lies below and is wide, since another part often
coincides with it."""

_PARTS = {"outer": "outer product", "functional": "functional", "full": "full"}

_ACROSS = 3
"""Panels a row where every depth has one."""


@dataclass(frozen=True)
class SeriesStyle:
    """One series of a panel: name in the legend, colour, marker, width."""

    key: SeriesKey
    name: str
    colour: str
    marker: str = "-"
    width: float = 1.5


@dataclass(frozen=True)
class GrowthPanel:
    """One pair of axes."""

    title: str
    lines: tuple[SeriesStyle, ...]


Rows = list[list[GrowthPanel]]
"""Panels side by side, row by row."""


def blocks_of(result: Result) -> list[str]:
    """The blocks that were measured, in the order of the cells."""
    return list(dict.fromkeys(key.block for key in growth_series(result)))


def parts_of_blocks(result: Result) -> Rows:
    """A panel for each block with a line for each part; a row for each grid of sigma, and for each layer of a stack."""
    keys = list(growth_series(result))
    grids = len({key.grid for key in keys})
    rows = []
    for grid, depth, layer in dict.fromkeys((key.grid, key.depth, key.layer) for key in keys):
        end = f", σ up to {result.config['sigma_high'][grid]:g}" if grids > 1 else ""
        where = f", layer {layer + 1} of {depth}" if depth > 1 else ""
        row = []
        for block in blocks_of(result):
            own = {key.part: key for key in keys if key[:4] == (grid, depth, layer, block)}
            colour = OBJECTS.get(block, INK)
            lines = [
                SeriesStyle(own[part], _PARTS[part], colour, *style)
                for part, style in _PART_LINES.items()
                if part in own
            ]
            row.append(GrowthPanel(f"{_block(block)}{where}{end}", tuple(lines)))
        rows.append(row)
    return rows


def layers_by_depth(result: Result, block: str) -> Rows:
    """Of one block: a row for each depth, the parts side by side, a line for each layer."""
    keys = [key for key in growth_series(result) if key.block == block]
    rows = []
    for grid, depth in dict.fromkeys((key.grid, key.depth) for key in keys):
        own = [key for key in keys if (key.grid, key.depth) == (grid, depth)]
        present = [part for part in LAYER_PARTS if any(key.part == part for key in own)]
        rows.append(
            [
                _layers([key for key in own if key.part == part], f"{_depth(depth)}: {block}, {_PARTS[part]}")
                for part in present
            ]
        )
    return rows


def unfolded_first(blocks: list[str]) -> dict[str, str]:
    """What a page says in place of each block's picture: nothing for the first, which is shown at once."""
    return {block: f"The same for the {block} blocks" if number else "" for number, block in enumerate(blocks)}


def panel_a_depth(result: Result) -> Rows:
    """A panel for each depth (and block and part, where there are several) with a line for each layer."""
    groups: dict[tuple[int, int, str, str], list[SeriesKey]] = {}
    for key in growth_series(result):
        groups.setdefault((key.grid, key.depth, key.block, key.part), []).append(key)
    several = len({group[2:] for group in groups}) > 1
    every = [
        _layers(own, f"{_depth(depth)}: {block}, {_PARTS[part]}" if several else _depth(depth))
        for (_, depth, block, part), own in groups.items()
    ]
    return [every[k : k + _ACROSS] for k in range(0, len(every), _ACROSS)]


def _layers(keys: list[SeriesKey], title: str) -> GrowthPanel:
    lines = [SeriesStyle(key, f"layer {key.layer + 1}", *_LAYERS[key.layer % len(_LAYERS)]) for key in keys]
    return GrowthPanel(title, tuple(lines))


def _depth(depth: int) -> str:
    return f"{depth} layer{'s' if depth > 1 else ''}"


def _block(block: str) -> str:
    return "Own block" if block == "mlp" else f"{block.capitalize()} block"

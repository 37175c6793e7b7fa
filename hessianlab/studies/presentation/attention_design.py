"""What attention's design does to the Hessian: a table, contrasts between choices, and a ranking."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import choices, geometric_mean, numbers, select
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import log_axis, panel
from hessianlab.results import Chart, Panel, Result, Scalar, Series
from hessianlab.studies.attention_design import FACTORS, STUDY_DESIGN, DesignConfig
from hessianlab.studies.presentation.drawing import draw_chart, look_of
from hessianlab.studies.presentation.findings import StudyFindings, as_factor
from hessianlab.studies.presentation.paired import Interval, interval, record, weighted
from hessianlab.wording import short
from hessianlens.sizes import number_of

Design: TypeAlias = Mapping[str, Scalar]

COLUMNS = {
    "spread": "largest / smallest block",
    "negative_share": "negative share",
    "rank_share": "rank / size",
    "entropy": "entropy",
    "moment1": "|M1|",
    "moment2": "tr M2",
}
"""Numbers of a combination, and their headings."""

POWERS = {"q": ("q", "qk"), "v": ("v",)}
"""Blocks whose powers are reported, by the ends of their names."""

_LOGARITHMIC = ("spread", "moment1", "moment2")


def designs(result: Result) -> list[Design]:
    """The combinations, those with the most alike blocks first."""
    seen: dict[tuple[Scalar, ...], Design] = {}
    for cell in result.cells:
        key = tuple(cell.parameters[name] for name in FACTORS)
        seen.setdefault(key, dict(zip(FACTORS, key, strict=True)))
    return sorted(seen.values(), key=lambda design: _middle(result, design, "spread"))


def values(result: Result, design: Design, quantity: str) -> np.ndarray:
    """A number of a combination, draw by draw."""
    return numbers(select(result, **{"stage": "design", **design}), quantity)


def powers(result: Result, design: Design, block: str, part: str, where: str = "small") -> np.ndarray:
    """Powers of a block's growth with the embeddings, draw by draw."""
    rows = select(result, **{"stage": "growth", "part": part, "range": where, **design})
    ends = tuple(f".{end}" for end in POWERS[block])
    return numbers([row for row in rows if str(row["block"]).endswith(ends)], "exponent")


def _middle(result: Result, design: Design, quantity: str) -> float:
    found = values(result, design, quantity)
    return geometric_mean(found) if len(found) else float("inf")


def named(design: Design) -> str:
    """A combination as text."""
    first = f"{design['activation']}, {design['norm']}, {design['qk']}"
    return f"{first}, t {float(str(design['temperature'])):g}, {number_of(int(str(design['heads'])), 'head')}"


def table(result: Result) -> list[dict[str, str]]:
    """A line per combination, ranked: mean over draws, and half the range of them behind a ±."""
    lines = []
    for rank, design in enumerate(designs(result), 1):
        line = {"": str(rank), **{name: str(value) for name, value in design.items()}}
        for quantity, heading in COLUMNS.items():
            line[heading] = _cell(values(result, design, quantity))
        for block, part in (("q", "ggn"), ("q", "functional"), ("v", "ggn")):
            line[f"power {block} {part}"] = _cell(powers(result, design, block, part))
        lines.append(line)
    return lines


def _cell(found: np.ndarray) -> str:
    if not len(found):
        return "–"
    return f"{short(float(found.mean()))} ± {short(float(found.max() - found.min()) / 2)}"


def by_draw(result: Result, factor: str, level: str, quantity: str) -> dict[int, float]:
    """For every draw of the weights, the mean over all combinations with this choice; of the spread its logarithm."""
    rows = [row for row in select(result, stage="design") if str(row[factor]) == level and row[quantity] is not None]
    found = {}
    for seed in sorted({int(row["seed"]) for row in rows}):
        mine = numbers([row for row in rows if row["seed"] == seed], quantity)
        found[seed] = float((np.log(mine) if quantity == "spread" else mine).mean())
    return found


def _varied(result: Result) -> dict[str, list[str]]:
    """Choices that were made in more than one way."""
    found = {factor: choices(result, factor) for factor in FACTORS}
    return {factor: levels for factor, levels in found.items() if len(levels) > 1}


def level_intervals(result: Result) -> dict[str, Interval]:
    """Logarithm of the spread, and share of negative curvature, by choice; over draws of the weights."""
    return {
        f"{text}, {factor} {level}": interval(list(by_draw(result, factor, level, quantity).values()))
        for factor, levels in _varied(result).items()
        for level in levels
        for quantity, text in (("spread", "log block spread"), ("negative_share", "negative share"))
    }


def contrasts(result: Result) -> dict[str, Interval]:
    """Logarithm of the spread with a choice minus that with the first one, paired over draws."""
    found = {}
    for factor, (first, *others) in _varied(result).items():
        for level in others:
            pair = {name: by_draw(result, factor, name, "spread") for name in (level, first)}
            name = f"log block spread, {factor} {level} minus {factor} {first}"
            found[name] = interval(weighted(pair, {level: 1.0, first: -1.0}))
    return found


def sentences(result: Result) -> list[str]:
    """The ends of the ranking, and what each choice makes of the spread of blocks."""
    ranked = designs(result)
    first, last = ranked[0], ranked[-1]
    sentences = [
        f"Of {len(ranked)} combinations, attention's blocks are most alike with {named(first)} (largest over smallest "
        f"root mean square eigenvalue {_spread(result, first)}, geometric mean and 95 % interval over "
        f"{result.config['repeats']} draws) and most different in scale with {named(last)} ({_spread(result, last)})."
    ]
    levels = level_intervals(result)
    for factor, names in _varied(result).items():
        factors = [f"{level} {as_factor(levels[f'log block spread, {factor} {level}'])}" for level in names]
        signs = [f"{level} {_percent(levels[f'negative share, {factor} {level}'])}" for level in names]
        sentences.append(
            f"By {factor}, over all other choices: largest over smallest block {', '.join(factors)}; negative share of "
            f"curvature {', '.join(signs)}."
        )
    return sentences


def _spread(result: Result, design: Design) -> str:
    return as_factor(interval([math.log(value) for value in values(result, design, "spread")]))


def _percent(found: Interval) -> str:
    return f"{100 * found.mean:.0f} [{100 * found.low:.0f}, {100 * found.high:.0f}] %"


def multiples(result: Result) -> Chart:
    """A panel per quantity: activations along, a series per norm."""
    names = choices(result, "activation")

    def of_norm(norm: str, quantity: str) -> Series:
        found = [numbers(select(result, stage="design", activation=name, norm=norm), quantity) for name in names]
        kept = [(x, np.median(v), v.min(), v.max()) for x, v in enumerate(found) if len(v)]
        columns = [tuple(float(one[k]) for one in kept) for k in range(4)]
        return Series(f"norm: {norm}", *columns)

    def panel(quantity: str, heading: str) -> Panel:
        shown = tuple(of_norm(norm, quantity) for norm in choices(result, "norm"))
        # weights that are no distribution have a covariance of any sign
        positive = all(end > 0 for one in shown for end in one.low)
        return Panel(heading, shown, quantity in _LOGARITHMIC and positive)

    return Chart(
        "Attention's blocks at initialisation by activation and norm: marks are medians, bars reach over draws of the "
        "weights and over all other choices.",
        "",
        "",
        tuple(panel(quantity, heading) for quantity, heading in COLUMNS.items()),
        columns=3,
        names=tuple(names),
    )


def in_numbers(result: Result, _known: object = None) -> dict[str, Any]:
    """What is recorded."""
    protocol = STUDY_DESIGN.statement(DesignConfig(**result.config))
    levels, differences = level_intervals(result), contrasts(result)
    return record(result, levels, differences, sentences(result), multiples(result), protocol=protocol)


FINDINGS = StudyFindings(sentences, in_numbers, multiples, table)


_SHOWN = 40
"""Combinations in the ranking, from both ends."""


def draw_ranking(result: Result) -> Figure:
    """The ratio of the largest to the smallest block, by combination."""
    ranked = designs(result)
    norms = multiples(result).legend
    shown = ranked if len(ranked) <= _SHOWN else ranked[: _SHOWN // 2] + ranked[-_SHOWN // 2 :]
    with panel(6.4, 1.2 + 0.2 * len(shown)) as (figure, axes):
        for y, design in enumerate(shown):
            found = values(result, design, "spread")
            if len(found):
                colour = look_of(norms.index(f"norm: {design['norm']}"))[0]
                axes.plot([found.min(), found.max()], [y, y], color=colour, linewidth=1.6)
                axes.plot([np.exp(np.log(found).mean())], [y], "o", color=colour, markersize=5)
        log_axis(axes, "x")
        axes.set_yticks(range(len(shown)), [named(design) for design in shown], fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("largest over smallest block (root mean square eigenvalues)")
    return figure


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The small multiples and the ranking."""
    chart = multiples(result)
    left_out = max(0, len(designs(result)) - _SHOWN)
    middle = f" {left_out} combinations in the middle are left out." if left_out else ""
    return [
        ResultPicture("multiples", draw_chart(chart, width=3.7, height=3.2), chart.caption),
        ResultPicture(
            "ranking",
            draw_ranking(result),
            "Combinations ranked by how much attention's blocks differ in scale; colours are norms as above, marks "
            f"geometric means over draws, bars reach from the smallest to the largest draw.{middle}",
        ),
    ]


PRESENTATIONS = {
    "study_design": Presentation(FINDINGS, draw_all),
}

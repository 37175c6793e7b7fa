"""Every combination in a table, ranked; and what each choice changes on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hessianlens.lab.experiments.common.means import geometric_mean
from hessianlens.lab.results import Findings, Result
from hessianlens.lab.results.table import choices, numbers, select, short
from hessianlens.lab.studies.design.measure import FACTORS
from hessianlens.lab.wording import count

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
"""Blocks whose powers are told, by the ends of their names."""


@dataclass(frozen=True)
class DesignFindings(Findings):
    """Sentences, and the table of all combinations."""

    table: Callable[[Result], list[dict[str, str]]]


def designs(result: Result) -> list[dict[str, object]]:
    """The combinations, those with the most alike blocks first."""
    seen: dict[tuple[object, ...], dict[str, object]] = {}
    for cell in result.cells:
        key = tuple(cell.parameters[name] for name in FACTORS)
        seen.setdefault(key, dict(zip(FACTORS, key, strict=True)))
    return sorted(seen.values(), key=lambda design: _middle(result, design, "spread"))


def values(result: Result, design: dict[str, object], quantity: str) -> np.ndarray:
    """A number of a combination, draw by draw."""
    return numbers(select(result, stage="design", **design), quantity)  # type: ignore[arg-type]


def powers(result: Result, design: dict[str, object], block: str, part: str, where: str = "small") -> np.ndarray:
    """Powers of a block's growth with the embeddings, draw by draw."""
    rows = select(result, stage="growth", part=part, range=where, **design)  # type: ignore[arg-type]
    ends = tuple(f".{end}" for end in POWERS[block])
    return numbers([row for row in rows if str(row["block"]).endswith(ends)], "exponent")


def _middle(result: Result, design: dict[str, object], quantity: str) -> float:
    found = values(result, design, quantity)
    return geometric_mean(found) if len(found) else float("inf")


def named(design: dict[str, object]) -> str:
    """A combination in words."""
    first = f"{design['activation']}, {design['norm']}, {design['qk']}"
    return f"{first}, t {design['temperature']:g}, {count(int(str(design['heads'])), 'head')}"


def table(result: Result) -> list[dict[str, str]]:
    """A line a combination, ranked: mean over draws, and half the range of them behind a ±."""
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


def tell(result: Result) -> list[str]:
    """The ends of the ranking, and the factor that each choice makes on average."""
    ranked = designs(result)
    first, last = ranked[0], ranked[-1]
    sentences = [
        f"Of {len(ranked)} combinations, attention's blocks are most alike with {named(first)} (largest over smallest "
        f"root mean square eigenvalue {short(_middle(result, first, 'spread'))}, geometric mean over "
        f"{result.config['repeats']} draws) and most unlike with {named(last)} "
        f"({short(_middle(result, last, 'spread'))})."
    ]
    for factor in FACTORS:
        levels = choices(result, factor)
        if len(levels) < 2:
            continue
        told = []
        for level in levels:
            found = [row for row in select(result, stage="design") if str(row[factor]) == level]
            ratios, signs = numbers(found, "spread"), numbers(found, "negative_share")
            if len(ratios):
                told.append(f"{level} {short(geometric_mean(ratios))} ({100 * float(signs.mean()):.0f} %)")
        sentences.append(
            f"By {factor}, over all other choices: largest over smallest block (and share of negative curvature) "
            f"{', '.join(told)}."
        )
    return sentences


FINDINGS = DesignFindings(tell, table)

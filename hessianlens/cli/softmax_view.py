"""How a row of scores is shown in the terminal: bars, and tables of what is known of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from hessianlens.attention.row_profile import Precision, RowFacts

_WIDTH = 24
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = _WIDTH) -> str:
    """A bar of a share from 0 to 1, to an eighth of a character; beyond that it is full, and below 0 empty.

    >>> bar(0.5, 4), bar(0.28, 4), bar(-1.0, 4)
    ('██', '█▏', '')
    """
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def print_row(
    scores: Sequence[float],
    hidden: Collection[int],
    temperature: float,
    facts: Sequence[RowFacts],
    formats: Sequence[Precision],
) -> None:
    """The bars of every activation, what is known of each, and the limits of number formats."""
    console = Console()
    console.print(_bars(scores, hidden, facts))
    console.print(_summary(facts, len(scores) - len(hidden)))
    for one in facts:
        if one.remark:
            console.print(f"{one.activation}: {escape(one.remark)}", highlight=False)
    text = "" if temperature == 1 else f" of the scores over {temperature:g}"
    console.print(
        f"\nSoftmax{text} by its definition, exp(t) / sum exp(t), and with the largest score taken off first:"
    )
    console.print(_limits(formats))


def _bars(scores: Sequence[float], hidden: Collection[int], facts: Sequence[RowFacts]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", justify="right", style="dim")
    table.add_column("score", justify="right")
    for one in facts:
        table.add_column(one.activation, justify="right")
        table.add_column("", min_width=_WIDTH if len(facts) < 3 else 12, no_wrap=True, style="cyan")
    top = max(1.0, *(weight for one in facts for weight in one.weights))
    for place, score in enumerate(scores):
        cells = [str(place), f"{score:g}"]
        for one in facts:
            weight = one.weights[place]
            shown = "hidden" if place in hidden else f"{weight:.4f}"
            cells += [shown, bar(weight / top, _WIDTH if len(facts) < 3 else 12)]
        table.add_row(*cells)
    return table


def _summary(facts: Sequence[RowFacts], seen: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "sum", "entropy", "perplexity", "gradient norm"):
        table.add_column(heading, justify="left" if not heading else "right")
    for one in facts:
        entropy = "–" if one.entropy is None else f"{one.entropy:.4f} of {math.log(max(seen, 1)):.4f}"
        spread = "–" if one.entropy is None else f"{math.exp(one.entropy):.2f} of {seen}"
        table.add_row(one.activation, f"{one.total:.4g}", entropy, spread, f"{one.gradient_norm:.4g}")
    return table


def _limits(formats: Sequence[Precision]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = (
        "format",
        "exp overflows from",
        "weight is 0 below the largest by",
        "definition",
        "shifted",
        "breaks at",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for one in formats:
        factor = "never" if one.factor is None else f"scores × {one.factor:.3g}"
        naive = "overflows" if one.naive is None else _weights(one.naive)
        table.add_row(one.dtype, f"{one.exp_limit:.2f}", f"{one.gap:.1f}", naive, _weights(one.shifted), factor)
    return table


def _weights(weights: Sequence[float]) -> str:
    shown = [f"{weight:.3g}" for weight in weights[:4]]
    return " ".join(shown + (["…"] if len(weights) > 4 else [])) or "–"

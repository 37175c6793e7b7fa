"""Value over query against the scale of the embeddings, one line per activation: the picture that opens the report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import choices, geometric_mean, log_log_slope, numbers, select
from hessianlab.plots.picture import Presentation, captioned
from hessianlab.plots.style import KINDS, MUTED, NONE, OFFSET, ZERO, log_axis, panels
from hessianlab.results import Findings, Result
from hessianlab.wording import MINUS, activation_in_words, several, short


@dataclass(frozen=True, eq=False)
class RatioCurve:
    """Value over query of one activation.

    Attributes:
        activation: Its name in code.
        kind: `OFFSET`, `ZERO` or `NONE`, from the measured weight at zero scores.
        sigma: Standard deviations of the embeddings, ascending.
        drawn: The ratio of the norms, a line a draw.
        start: Place of the initialisation in `sigma`.
    """

    activation: str
    kind: str
    sigma: np.ndarray
    drawn: np.ndarray
    start: int

    @property
    def mean(self) -> np.ndarray:
        """Geometric means over draws."""
        return np.array([geometric_mean(column) for column in self.drawn.T])

    @property
    def at_initialisation(self) -> float:
        """The ratio at initialisation."""
        return float(self.mean[self.start])

    @property
    def power(self) -> float | None:
        """The power of sigma below the initialisation; None if the ratio vanishes."""
        return log_log_slope(self.sigma[: self.start], self.mean[: self.start]) if self.start > 1 else None

    @property
    def crossing(self) -> float | None:
        """The scale from which on the query block is the larger one; None if it is not at the largest scale.

        On the line between the measured scales, both axes logarithmic, as it is drawn.
        """
        larger = np.flatnonzero(self.mean >= 1)
        if not len(larger):
            return float(self.sigma[0])
        last = larger[-1]
        if last + 1 == len(self.sigma):
            return None
        (x, y), (x_next, y_next) = np.log([(self.sigma[k], self.mean[k]) for k in (last, last + 1)])
        return float(np.exp(x + (x_next - x) * y / (y - y_next)))


def ratio_curves(result: Result) -> dict[str, RatioCurve]:
    """By activation, the largest ratio at initialisation first."""
    found = [_curve(result, name) for name in choices(result, "activation")]
    return {curve.activation: curve for curve in sorted(found, key=lambda curve: -curve.at_initialisation)}


def _curve(result: Result, activation: str) -> RatioCurve:
    rows = {block: select(result, activation=activation, block=block) for block in ("value", "query")}
    sigma = np.unique(numbers(rows["value"], "sigma"))
    norms = {block: numbers(own, "norm").reshape(-1, len(sigma)) for block, own in rows.items()}
    start, at_zero = int(np.abs(np.unique(numbers(rows["value"], "factor")) - 1).argmin()), rows["value"][0]["at_zero"]
    kind = NONE if at_zero is None else OFFSET if at_zero != 0 else ZERO
    return RatioCurve(activation, kind, sigma, norms["value"] / norms["query"], start)


def scale_sentences(result: Result) -> list[str]:
    """The ratio at initialisation, its growth below, and where it turns round."""
    curves = list(ratio_curves(result).values())
    start = curves[0].sigma[curves[0].start]
    at = several([f"{short(one.at_initialisation)} with {activation_in_words(one.activation)}" for one in curves])
    sentences = [
        f"At initialisation (σ = {start:.2g}) the norm of the value block over that of the query block is {at} "
        f"(geometric means over {len(curves[0].drawn)} draws)."
    ]
    powers = [(one, one.power) for one in curves if one.power is not None]
    if powers:
        listed = several([f"{_power(power)} with {activation_in_words(one.activation)}" for one, power in powers])
        sentences.append(f"Below that the ratio goes as σ to the power {listed}.")
    turned = [(one, one.crossing) for one in curves if one.kind == OFFSET and one.crossing is not None]
    if turned:
        listed = several([f"σ = {at:.2g} with {activation_in_words(one.activation)}" for one, at in turned])
        sentences.append(f"For large embeddings it turns round: the query block is the larger one from {listed} on.")
    return sentences


def _power(power: float) -> str:
    return f"{power:.1f}".replace("-0.0", "0.0").replace("-", MINUS)


def draw_scales(result: Result) -> Figure:
    """The curves in one panel with their names beside them; a dotted line marks the initialisation."""
    curves = ratio_curves(result)
    with panels(1, width=5.0, height=4.2) as (figure, (axes,)):
        draw_ratio_curves(axes, curves)
        axes.set_title("Value block over query block")
    return figure


def draw_ratio_curves(axes: Axes, curves: Mapping[str, RatioCurve], write: Callable[[float], str] = short) -> None:
    """Curves and bands over the draws; beside the mark at initialisation the name and the ratio, as `write` has it."""
    for axis in "xy":
        log_axis(axes, axis)
    for one in curves.values():
        colour, marker = KINDS[one.kind]
        style = "-" if one.kind == OFFSET else (0, (4, 1.5))
        axes.fill_between(one.sigma, one.drawn.min(0), one.drawn.max(0), color=colour, alpha=0.12, linewidth=0)
        axes.plot(one.sigma, one.mean, color=colour, linestyle=style, linewidth=2.2)
        axes.plot(one.sigma[one.start], one.at_initialisation, marker, color=colour, markersize=7)
    _name_curves(axes, list(curves.values()), write)
    first = next(iter(curves.values()))
    start = float(first.sigma[first.start])
    axes.axvline(start, color=MUTED, linestyle=(0, (1, 2)), linewidth=1.2, zorder=0)
    axes.axhline(1, color=MUTED, linewidth=1, zorder=0)
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
    axes.annotate("at initialisation", (start, 1), (5, -2), color=MUTED, **place)
    axes.set_xlabel("scale of the embeddings σ")
    axes.set_ylabel("‖value block‖ / ‖query block‖")


def _name_curves(axes: Axes, curves: Sequence[RatioCurve], write: Callable[[float], str]) -> None:
    """Every name with its ratio at initialisation beside the mark there, on the side that other curves leave free."""
    free = ((9, 3, "left", "bottom"), (-8, -4, "right", "top"), (-8, 6, "right", "bottom"), (-8, -6, "right", "top"))
    for one, (right, up, across, along) in zip(curves, itertools.cycle(free), strict=False):
        axes.annotate(
            f"{activation_in_words(one.activation)} {write(one.at_initialisation)}×",
            (one.sigma[one.start], one.at_initialisation),
            (right, up),
            textcoords="offset points",
            ha=across,
            va=along,
            color=KINDS[one.kind][0],
            weight="bold",
        )


CAPTION = (
    "The same networks with the embeddings multiplied: how many times larger the norm of the value block is than that "
    "of the query block, on logarithmic axes. Lines are geometric means over draws of the weights, bands reach from "
    "the smallest to the largest draw. Solid: activations that give weight to a score of zero, a(0) ≠ 0; dashed: those "
    "with a(0) = 0. The dotted line marks the scale at which all weights are initialised."
)

PRESENTATIONS = {
    "activation_scales": Presentation(Findings(scale_sentences), captioned({"ratios": (draw_scales, CAPTION)})),
}

"""The same quantity in two figures of a page: both values, and what is different about the two runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hessianlab.experiments.statistics import geometric_mean
from hessianlab.figures.presentation.activations import ratios
from hessianlab.figures.presentation.growth import depth_exponents
from hessianlab.figures.presentation.query_key import negative_share
from hessianlab.growth.exponents import exponent_fits
from hessianlab.report.figures import reader_name
from hessianlab.results import Result
from hessianlab.results.table import block_ratios, choices, numbers, select, short
from hessianlab.wording import percent, several

Reading = Callable[[Result], str]


@dataclass(frozen=True)
class Quantity:
    """What several experiments measure, and how each one's value is read."""

    name: str
    readings: Mapping[str, Reading]


def _median(**wanted: str) -> Reading:
    return lambda result: short(geometric_mean(block_ratios(result, **wanted)))


def _shares(two: Reading, one: Reading) -> Reading:
    return lambda result: f"{two(result)} with two matrices and {one(result)} with one"


def _parameterised(kind: str) -> Reading:
    return lambda result: percent(float(numbers(select(result, parameters=kind, part="full"), "negative_share").mean()))


def _spectral(matrices: str) -> Reading:
    return lambda result: percent(negative_share(result, "softmax", matrices, "full"))


def _chain(result: Result) -> str:
    fits = [f for f in exponent_fits(result) if f.series.last and (f.series.block, f.series.part) == ("query", "outer")]
    found = {fit.series.depth: fit.measured for fit in reversed(fits) if fit.measured is not None}
    return several([f"{found[depth]:.1f}" for depth in sorted(found)])


def _stacked(result: Result) -> str:
    own = [one.slope.measured for one in depth_exponents(result) if one.family == "linear attention"]
    return several([f"{power:.1f}" for power in own if power is not None])


def _offset(result: Result) -> str:
    return short(ratios(result, choices(result, "place")[0])["softmax"])


QUANTITIES = (
    Quantity(
        "Value over query block with softmax, median entry",
        {"fig1": _median(kind="blocks"), "fig4": _median(attention="softmax")},
    ),
    Quantity(
        "Value over query block with softmax, root mean square entry",
        {
            "fig1": lambda result: short(geometric_mean(block_ratios(result, "rms", kind="blocks"))),
            "activation_offset": _offset,
        },
    ),
    Quantity(
        "Negative share of the spectrum with softmax",
        {
            "parameterisations": _shares(_parameterised("dual"), _parameterised("single")),
            "query_key_spectra": _shares(_spectral("two"), _spectral("one")),
        },
    ),
    Quantity("Powers of chained linear attention", {"fig7": _chain, "depth_growth": _stacked}),
)

_TOLD = ("d_model", "d_k", "d_ks", "length", "sequences", "batches", "repeats")
"""Settings that move such numbers, in this order."""


def notes(results: Mapping[str, Result]) -> dict[str, tuple[str, ...]]:
    """By experiment: its quantities that another experiment of the run has, too, with a reason for the difference."""
    found: dict[str, list[str]] = {}
    for quantity in QUANTITIES:
        present = [name for name in quantity.readings if name in results]
        values = {name: quantity.readings[name](results[name]) for name in present}
        for name in present:
            for other in present:
                if other != name and values[other] != values[name]:
                    why = _apart(results[name], results[other])
                    found.setdefault(name, []).append(
                        f"{quantity.name}: {values[name]} here, {values[other]} in {reader_name(other)}, which {why}."
                    )
    return {name: tuple(told) for name, told in found.items()}


def _apart(here: Result, there: Result) -> str:
    """What another run has that this one has not."""
    own, other = here.config, there.config
    changed = [name for name in _TOLD if name in other and own.get(name) != other[name]]
    if not changed:
        return "has other draws"
    settings = [f"{name.replace('_', ' ')} {_value(other[name])}{_instead(own, name)}" for name in changed]
    return f"has {several(settings)}, and draws of its own"


def _instead(config: Mapping[str, object], name: str) -> str:
    return f" instead of {_value(config[name])}" if name in config else ""


def _value(value: object) -> str:
    return several([str(part) for part in value]) if isinstance(value, tuple | list) else str(value)

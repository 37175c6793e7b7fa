"""Figures on the page: names, pictures, sentences, settings and commands; and the same quantity in other figures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from hessianlab.experiments.registry import STUDIES, STUDY, registered, registry_of
from hessianlab.experiments.statistics import block_ratios, choices, geometric_mean, numbers, select
from hessianlab.figures.presentation.activation_scales import ratio_curves
from hessianlab.figures.presentation.activations import ratios
from hessianlab.figures.presentation.growth import depth_exponents
from hessianlab.figures.presentation.query_key import negative_share
from hessianlab.growth.comparison import agreement_in_words
from hessianlab.growth.exponents import exponent_fits
from hessianlab.growth.reference import Reference
from hessianlab.plots.picture import ResultPicture
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.presentations import findings_of, growth_of, pictures_of
from hessianlab.report.references import code_address, linked_source
from hessianlab.results import Provenance, Result
from hessianlab.wording import duration, percent, several, short

_NUMBERED = r"(fig|table)(\d+\w?)"


def reader_name(experiment: str) -> str:
    """What a sentence calls it: the number of a figure of the paper, else the title above it.

    >>> reader_name("fig3a"), reader_name("rank_fraction")[:12]
    ('Figure 3a', '“Rank of the')
    """
    return short_name(experiment) if re.fullmatch(_NUMBERED, experiment) else f"“{registered(experiment).title}”"


def short_name(experiment: str) -> str:
    """What a reader calls it.

    >>> short_name("fig3a"), short_name("table1"), short_name("moment_strata")
    ('Figure 3a', 'Table 1', 'Moment strata')
    """
    numbered = re.fullmatch(_NUMBERED, experiment)
    if numbered:
        return f"{'Figure' if numbered[1] == 'fig' else 'Table'} {numbered[2]}"
    return experiment.replace("_", " ").capitalize()


def command(result: Result) -> str:
    """The command that computes this result.

    A changed configuration is written as the changes to the preset that needs the fewest.
    """
    experiment = registered(result.experiment)
    changes = {name: _changes(dataclasses.asdict(config), result.config) for name, config in experiment.presets.items()}
    preset = result.preset if result.preset in changes else min(changes, key=lambda name: len(changes[name]))
    options = "".join(f" --set {name}={value}" for name, value in changes[preset].items())
    name = result.experiment
    called = f"study {name.removeprefix(STUDY)}" if name in STUDIES else f"reproduce {name}"
    return f"hessianlens {called} --preset {preset}{options}"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], inside: str = "") -> dict[str, str]:
    """Fields with another value; one that this version does not know cannot be set and is left out."""
    found: dict[str, str] = {}
    for name, value in after.items():
        if name not in before:
            continue
        if isinstance(value, Mapping):
            found |= _changes(before[name], value, f"{inside}{name}.")
        elif value != before[name]:
            found[inside + name] = _text(value)
    return found


def settings(result: Result) -> dict[str, str]:
    """Every field of the configuration as text."""
    return {name.replace("_", " "): _text(value) for name, value in result.config.items()}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_text(part)}" for name, part in value.items())
    if isinstance(value, tuple | list):
        nested = any(isinstance(part, tuple | list) for part in value)
        return ("; " if nested else ",").join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class Readings:
    """Remembers which explanations a page has given, and at which figure."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def place(self, reading: str, figure: str) -> str | None:
        """Where it was said already; None if it is to be said here, at this figure.

        >>> readings = Readings()
        >>> readings.place("Lines: means.", "fig3a"), readings.place("Lines: means.", "fig5")
        (None, 'fig3a')
        """
        said = self._places.get(reading)
        self._places.setdefault(reading, figure)
        return said


@dataclass(frozen=True)
class Frame:
    """One position of a slider: its panels, and what it shows."""

    svgs: tuple[Markup, ...]
    label: str


@dataclass(frozen=True)
class PagePicture:
    """Panels and the words below them; with frames, one of them at a time.

    Attributes:
        svgs: The panels of all pictures that share the caption.
        caption: Below them.
        reading: How to read them, said once on a page.
        frames: Empty, or at least two.
        folded: What is said in its place until it is asked for; empty if it is shown at once.
    """

    svgs: tuple[Markup, ...]
    caption: str
    reading: str = ""
    frames: tuple[Frame, ...] = ()
    folded: str = ""


@dataclass(frozen=True)
class PageFigure:
    """What the page says about one experiment."""

    name: str
    label: str
    title: str
    source: Markup
    question: str
    findings: tuple[str, ...]
    elsewhere: tuple[str, ...]
    pictures: tuple[PagePicture, ...]
    published: tuple[Mapping[str, str], ...]
    published_summary: str
    command: str
    code: tuple[tuple[str, str], ...]
    settings: Mapping[str, str]
    cells: int
    seconds: str
    provenance: Provenance


def page_figure(result: Result, reference: Reference | None = None, elsewhere: Sequence[str] = ()) -> PageFigure:
    """All about one result.

    Args:
        result: Of an experiment.
        reference: Holds published numbers to compare growth curves with.
        elsewhere: What other figures of the page have for the same quantities.
    """
    experiment = registered(result.experiment)
    growth = growth_of(result)
    compared = growth.compared(result, reference) if growth else []
    found = tuple(findings_of(result).sentences(result))
    return PageFigure(
        name=experiment.name,
        label=short_name(experiment.name),
        title=experiment.title,
        source=linked_source(experiment.source),
        question=experiment.question,
        findings=found,
        elsewhere=tuple(elsewhere),
        pictures=tuple(page_pictures(pictures_of(result, reference), experiment.name, experiment.title, found[:1])),
        published=tuple(series.in_words() for series in compared),
        published_summary=agreement_in_words(compared),
        command=command(result),
        code=tuple(_code(experiment.name)),
        settings=settings(result),
        cells=len(result.cells),
        seconds=duration(result.seconds),
        provenance=result.provenance,
    )


def page_pictures(
    pictures: Sequence[ResultPicture], name: str, title: str, findings: Sequence[str] = ()
) -> list[PagePicture]:
    """Pictures in their order: frames become one, and so do neighbours with the same caption.

    Args:
        pictures: Used up.
        name: Unique on the page.
        title: Read out in place of the drawings, with what tells one of several from the others.
        findings: Read out behind it.
    """
    said = {}
    for picture in pictures:
        which = f", {picture.frame or picture.name.replace('-', ' ')}" if len(pictures) > 1 else ""
        said[id(picture)] = ". ".join((f"{title}{which}", *findings))
    shown: list[PagePicture] = []
    for (framed, caption, reading, folded), group in groupby(
        pictures, lambda p: (bool(p.frame), p.caption, p.reading, p.folded)
    ):
        own = list(group)
        drawn = [_panels(picture, name, said[id(picture)]) for picture in own]
        if framed and len(own) > 1:
            frames = tuple(Frame(svgs, picture.frame) for svgs, picture in zip(drawn, own, strict=True))
            shown.append(PagePicture((), caption, reading, frames, folded))
        else:
            shown.append(PagePicture(tuple(svg for svgs in drawn for svg in svgs), caption, reading, (), folded))
    return shown


def _code(name: str) -> Iterator[tuple[str, str]]:
    """The files of an experiment, with their addresses."""
    registry = registry_of(name)
    if registry is None:
        return
    for module in (registry.measuring(name), registry.presenting(name)):
        file = f"{module.replace('.', '/')}.py"
        yield file, code_address(file)


def _panels(picture: ResultPicture, name: str, words: str) -> tuple[Markup, ...]:
    return tuple(Markup(svg) for svg in panel_svgs(picture.figure, f"{name}-{picture.name}", str(escape(words))))


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
            "activation_scales": lambda result: short(ratio_curves(result)["softmax"].at_initialisation),
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
    return {name: tuple(text) for name, text in found.items()}


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

"""One experiment on the page: what was asked, what was found, its panels, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from hessianlab.experiments.registry import registered, registry_of
from hessianlab.growth.comparison import agreement_in_words
from hessianlab.growth.reference import Reference
from hessianlab.plots.picture import Picture
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.presentations import findings_of, growth_of, pictures_of
from hessianlab.report.documents import linked_source
from hessianlab.report.names import short_name
from hessianlab.report.repeating import command, settings
from hessianlab.report.source_code import code_address
from hessianlab.results import Provenance, Result
from hessianlab.wording import duration


@dataclass(frozen=True)
class Frame:
    """One position of a slider: its panels, and what it shows."""

    svgs: tuple[Markup, ...]
    label: str


@dataclass(frozen=True)
class ShownPicture:
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
class ShownFigure:
    """What the page says about one experiment."""

    name: str
    label: str
    title: str
    source: Markup
    question: str
    findings: tuple[str, ...]
    elsewhere: tuple[str, ...]
    pictures: tuple[ShownPicture, ...]
    published: tuple[Mapping[str, str], ...]
    published_summary: str
    command: str
    code: tuple[tuple[str, str], ...]
    settings: Mapping[str, str]
    cells: int
    seconds: str
    provenance: Provenance


def shown_figure(result: Result, reference: Reference | None = None, elsewhere: Sequence[str] = ()) -> ShownFigure:
    """All about one result.

    Args:
        result: Of an experiment.
        reference: Holds published numbers to compare growth curves with.
        elsewhere: What other figures of the page have for the same quantities.
    """
    experiment = registered(result.experiment)
    growth = growth_of(result)
    compared = growth.compared(result, reference) if growth else []
    return ShownFigure(
        name=experiment.name,
        label=short_name(experiment.name),
        title=experiment.title,
        source=linked_source(experiment.source),
        question=experiment.question,
        findings=tuple(findings_of(result).sentences(result)),
        elsewhere=tuple(elsewhere),
        pictures=tuple(shown_pictures(pictures_of(result, reference), experiment.name, experiment.title)),
        published=tuple(series.in_words() for series in compared),
        published_summary=agreement_in_words(compared),
        command=command(result),
        code=tuple(_code(experiment.name)),
        settings=settings(result),
        cells=len(result.cells),
        seconds=duration(result.seconds),
        provenance=result.provenance,
    )


def shown_pictures(pictures: Sequence[Picture], name: str, title: str) -> list[ShownPicture]:
    """Pictures in their order: frames become one, and so do neighbours with the same caption.

    Args:
        pictures: Used up.
        name: Unique on the page.
        title: Read out in place of the drawings.
    """
    shown: list[ShownPicture] = []
    for (framed, caption, reading, folded), group in groupby(
        pictures, lambda p: (bool(p.frame), p.caption, p.reading, p.folded)
    ):
        own = list(group)
        drawn = [_panels(picture, name, title) for picture in own]
        if framed and len(own) > 1:
            frames = tuple(Frame(svgs, picture.frame) for svgs, picture in zip(drawn, own, strict=True))
            shown.append(ShownPicture((), caption, reading, frames, folded))
        else:
            shown.append(ShownPicture(tuple(svg for svgs in drawn for svg in svgs), caption, reading, (), folded))
    return shown


def _code(name: str) -> Iterator[tuple[str, str]]:
    """The files of an experiment, with their addresses."""
    registry = registry_of(name)
    if registry is None:
        return
    for module in (registry.measuring(name), registry.presenting(name)):
        file = f"{module.replace('.', '/')}.py"
        yield file, code_address(file)


def _panels(picture: Picture, name: str, title: str) -> tuple[Markup, ...]:
    words = str(escape(f"{title}: {picture.name}"))
    return tuple(Markup(svg) for svg in panel_svgs(picture.figure, f"{name}-{picture.name}", words))

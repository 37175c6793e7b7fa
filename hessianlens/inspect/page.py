"""The page of a model: what was measured, what has changed, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hessianlens.display import CodeBlock, Document, Dots, Figure, Part, Section, SideBySide, Table, short
from hessianlens.errors import first_names
from hessianlens.inspect import page_sections as sections
from hessianlens.inspect.comparison import Change, Comparison
from hessianlens.inspect.diagnostics import Diagnostics
from hessianlens.inspect.measurement import BlockMeasurements
from hessianlens.inspect.table import CurvatureTable, times
from hessianlens.problems import Problem, batch_size, layer_of
from hessianlens.sizes import number_of
from hessianlens.spectra.inertia_shares import RELATIVE_ZERO, WIDE, Inertia, in_percent, inertia_of

_WIDE = 0.5
"""Relative half-width of an interval that a reader is warned of."""


def model_page(
    subject: Subject, measured: BlockMeasurements, diagnostics: Diagnostics, before: Baseline | None = None
) -> Document:
    """Everything that is known, what matters first; what has changed, if there is something to compare with."""
    table = diagnostics.table
    parts = [
        _what(subject, measured),
        *([] if before is None else [change_section(before, measured, subject.model, subject.loss)]),
        sections.norms(table),
        sections.against(diagnostics),
        sections.spectra(diagnostics),
        *sections.pairs(diagnostics),
        *sections.differences(diagnostics),
        *sections.attention(diagnostics.attention, diagnostics.maps, table),
        _limits(subject, measured, diagnostics),
        Section("How to reproduce", [CodeBlock(subject.repeat)]),
    ]
    lead = f"{subject.model}, measured on {subject.data}."
    if before is None:
        return Document("Curvature of a model", lead, _short(subject, diagnostics), parts)
    summary = before.measured.compare(measured).summary
    short = [("What has changed", summary), *_short(subject, diagnostics)]
    return Document("Curvature of a model, before and after", lead, short, parts)


def _short(subject: Subject, diagnostics: Diagnostics) -> list[tuple[str, str]]:
    found = [(block.name, f"{block.why[0].upper()}{block.why[1:]}") for block in diagnostics.notable]
    densities = diagnostics.block_spectra.densities
    signs = {name: inertia_of(density, relative=RELATIVE_ZERO) for name, density in densities.items()}
    if signs:
        found.append(("Negative curvature", _negative(signs)))
    return [*found, ("What to do", subject.advice)]


def _negative(signs: Mapping[str, Inertia]) -> str:
    """Of the block with the most negative curvature for certain, what its intervals say."""
    name, worst = max(signs.items(), key=lambda item: item[1].mass.interval()[0])
    text = f"{in_percent(worst.mass)} of the curvature of {name} is negative"
    if not worst.negative.width > WIDE:
        text += f", in {in_percent(worst.negative)} of its eigenvalues"
    most = sum(other.mass.interval()[1] > worst.mass.interval()[0] for other in signs.values()) == 1
    return f"{text}{', the most among the blocks looked at' if most and len(signs) > 1 else ''}."


def _what(subject: Subject, measured: BlockMeasurements) -> Section:
    facts = [
        ["Model", subject.model],
        ["Data", subject.data],
        ["Loss", subject.loss],
        ["How", subject.how],
        ["Done", measured.summary],
        *(["Note", note] for note in subject.notes),
    ]
    return Section("Measurement", [Table(["", ""], facts)])


def _limits(subject: Subject, measured: BlockMeasurements, diagnostics: Diagnostics) -> Section:
    """Limitations."""
    norms = [(name, norm) for (name, _), norm in measured.norms.items() if norm.value]
    wide = list(dict.fromkeys(name for name, norm in norms if norm.relative_width() > _WIDE))
    few = list(dict.fromkeys(name for name, norm in norms if norm.few))
    warnings: list[str] = [f"From {warning}." for warning in subject.warnings]
    warnings += [f"Intervals wider than ±{_WIDE:.0%}: {first_names(wide)}."] if wide else []
    warnings += [f"From fewer than ten probes: {first_names(few)}."] if few else []
    if measured.dtype.itemsize < 8:
        warnings.append("Measured in float32: norms below about 1e-5 of the largest may be rounding.")
    loose = [name for name, ends in diagnostics.block_spectra.ends.items() if not ends.converged]
    warnings += [f"Eigenvalues known only roughly: {first_names(loose)}."] if loose else []
    warnings += [f"Flat up to rounding: {first_names(diagnostics.table.flat)}."] if diagnostics.table.flat else []
    left = [f"Norms: {first_names(measured.left_out)}."] if measured.left_out else []
    left += list(diagnostics.left_out)
    text = warnings or ["Nothing limits what these numbers say but their intervals."]
    parts: list[Part] = [
        *text,
        *([Table(["left out"], [[line] for line in left])] if left else ["Nothing was left out."]),
    ]
    return Section("Limitations", parts)


@dataclass(frozen=True)
class Subject:
    """Measurement on what.

    Attributes:
        model: The model, as text.
        data: The data.
        loss: The loss and its value.
        how: Probes, seed and precision.
        notes: What was decided on the way.
        warnings: What limits what the numbers say.
        repeat: A program or a command that gives the same numbers.
        advice: What to do, as text.
    """

    model: str
    data: str
    loss: str
    how: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    repeat: str
    advice: str


def subject_of(problem: Problem, how: str, repeat: str, advice: str) -> Subject:
    """The subject of a measurement in Python."""
    parameters = sum(tensor.numel() for tensor in problem.params.values())
    named = type(problem.source).__name__ if problem.source is not None else "a model"
    return Subject(
        model=f"{named}: {number_of(parameters, 'parameter', ',')} in {number_of(len(problem.blocks), 'block')}",
        data=_described(problem),
        loss=f"{float(problem.total_loss().detach()):.6g} ({problem.reduction or 'as given'})",
        how=how,
        notes=tuple(problem.notes),
        warnings=(),
        repeat=repeat,
        advice=advice,
    )


def _described(problem: Problem) -> str:
    """How much data there is, in all processes."""
    counts = problem.ranks.all_gather("data", lambda: (sum(map(batch_size, problem.data)), len(problem.data)))
    sequences, batches = (sum(count[k] for count in counts) for k in (0, 1))
    return f"{number_of(sequences, 'sequence')} in {number_of(batches, 'batch', plural='batches')}"


_SPLIT = 14
"""Blocks of one picture; more are drawn layer by layer."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a page is compared with.

    Attributes:
        measured: The measurement before.
        model: Its model, as text.
        loss: The loss then, as text.
    """

    measured: BlockMeasurements
    model: str
    loss: str


def change_section(before: Baseline, after: BlockMeasurements, model: str, loss: str) -> Section:
    """Both models side by side."""
    found = before.measured.compare(after)
    facts = [
        ["Model", before.model, model],
        ["Loss", before.loss, loss],
        ["Matrices", _scaling(before.measured.table), _scaling(after.table)],
        *_attention(before.measured, after),
    ]
    text = (
        "Norms of both, one line per block, with intervals of 95 %. Where both come from the same probes, what "
        "these have in common cancels in the difference, whose interval is then narrower than those of the two norms."
    )
    parts: list[Part] = [
        Table(["", "before", "after"], facts),
        f"{found.summary} {text}",
        SideBySide([Figure(picture, title=title) for title, picture in _pictures(found)]),
        Table(
            ["block", "before", "after", "factor", "difference", "95 % interval", ""],
            [_cells(change) for change in found.of_first_part()],
            folded="In numbers",
        ),
    ]
    if found.only:
        parts.append(f"In one of both only: {first_names(found.only, 3)}.")
    return Section("Before and after", parts)


def _scaling(table: CurvatureTable) -> str:
    """How far apart the matrices are."""
    sizes = [row.rms for row in table.rows if len(row.shape) > 1 and row.name not in table.flat]
    if len(sizes) < 2:
        return "fewer than two"
    return f"{times(max(sizes) / min(sizes))} times from the flattest to the sharpest (rms eigenvalues)"


def _attention(before: BlockMeasurements, after: BlockMeasurements) -> Iterator[list[str]]:
    shares = [{name: means.share for name, means in found.attention.layers.items()} for found in (before, after)]
    if all(shares):
        lowest = [min(found, key=lambda name: found[name]) for found in shares]
        yield [
            "Narrowest attention",
            *(f"{n}: {f[n]:.0%} of the entropy of equal weights" for n, f in zip(lowest, shares, strict=True)),
        ]


def _pictures(found: Comparison) -> Iterator[tuple[str, Dots]]:
    changes = found.of_first_part()
    groups: dict[str, list[Change]] = {}
    for change in changes:
        layer = (layer_of(change.block) or "outside the layers") if len(changes) > _SPLIT else ""
        groups.setdefault(layer, []).append(change)
    for title, members in groups.items():
        picture = Comparison(members, ())._picture(asked=True)
        assert isinstance(picture, Dots)
        yield title, picture


def _cells(change: Change) -> list[str]:
    ends = f"[{short(change.low)}, {short(change.high)}]"
    numbers = [str(change.before.dot()), str(change.after.dot()), short(change.factor), short(change.difference)]
    return [change.block, *numbers, ends, "" if change.sure else "may be none"]

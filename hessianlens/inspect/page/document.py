"""The page of a model, put together."""

from __future__ import annotations

from collections.abc import Mapping

from hessianlens.display import CodeBlock, Document, Part, Section, Table
from hessianlens.inspect.closer.look import Closer
from hessianlens.inspect.measured import Measured
from hessianlens.inspect.page import sections
from hessianlens.inspect.page.change import Before, changed, rates
from hessianlens.inspect.page.subject import Subject
from hessianlens.spectra.signs import RELATIVE_ZERO, WIDE, Inertia, in_percent, inertia_of

_WIDE = 0.5
"""Relative half-width of an interval that a reader is warned of."""


def model_page(subject: Subject, measured: Measured, closer: Closer, before: Before | None = None) -> Document:
    """Everything that is known, what matters first; what has changed, if there is something to compare with."""
    table = closer.table
    parts = [
        _what(subject, measured),
        *([] if before is None else [changed(before, measured, subject.model, subject.loss)]),
        sections.norms(table),
        sections.against(closer),
        sections.spectra(closer),
        *sections.pairs(closer),
        *sections.differences(closer),
        *rates(measured, before),
        *sections.attention(closer.attention, table),
        _limits(subject, measured, closer),
        Section("How to repeat it", [CodeBlock(subject.repeat)]),
    ]
    lead = f"{subject.model}, measured on {subject.data}."
    if before is None:
        return Document("Curvature of a model", lead, _short(subject, closer), parts)
    summary = before.measured.compare(measured).summary
    short = [("What has changed", summary), *_short(subject, closer)]
    return Document("Curvature of a model, before and after", lead, short, parts)


def _short(subject: Subject, closer: Closer) -> list[tuple[str, str]]:
    found = [(matter.name, f"{matter.why[0].upper()}{matter.why[1:]}") for matter in closer.matters]
    densities = closer.bending.densities
    signs = {name: inertia_of(density, relative=RELATIVE_ZERO) for name, density in densities.items()}
    if signs:
        found.append(("Negative curvature", _negative(signs)))
    return [*found, ("What to do", subject.advice)]


def _negative(signs: Mapping[str, Inertia]) -> str:
    """Of the block with the most negative curvature for certain, what its intervals say."""
    name, worst = max(signs.items(), key=lambda item: item[1].mass.interval()[0])
    told = f"{in_percent(worst.mass)} of the curvature of {name} is negative"
    if not worst.negative.width > WIDE:
        told += f", in {in_percent(worst.negative)} of its eigenvalues"
    most = sum(other.mass.interval()[1] > worst.mass.interval()[0] for other in signs.values()) == 1
    return f"{told}{', the most among the blocks looked at' if most and len(signs) > 1 else ''}."


def _what(subject: Subject, measured: Measured) -> Section:
    facts = [
        ["Model", subject.model],
        ["Data", subject.data],
        ["Loss", subject.loss],
        ["How", subject.how],
        ["Done", measured.summary],
        *(["Note", note] for note in subject.notes),
    ]
    return Section("What was measured", [Table(["", ""], facts)])


def _limits(subject: Subject, measured: Measured, closer: Closer) -> Section:
    """Warnings, and what was left out."""
    norms = [(name, norm) for (name, _), norm in measured.norms.items() if norm.value]
    wide = list(dict.fromkeys(name for name, norm in norms if norm.relative_width() > _WIDE))
    few = list(dict.fromkeys(name for name, norm in norms if norm.few))
    warnings: list[str] = [f"From {warning}." for warning in subject.warnings]
    warnings += [f"Intervals wider than ±{_WIDE:.0%}: {_some(wide)}."] if wide else []
    warnings += [f"From fewer than ten probes: {_some(few)}."] if few else []
    if measured.dtype.itemsize < 8:
        warnings.append("Measured in float32: norms below about 1e-5 of the largest may be rounding.")
    loose = [name for name, ends in closer.bending.ends.items() if not ends.converged]
    warnings += [f"Eigenvalues known only roughly: {_some(loose)}."] if loose else []
    warnings += [f"Flat up to rounding: {_some(list(closer.table.flat))}."] if closer.table.flat else []
    left = [f"Norms: {_some(list(measured.left_out))}."] if measured.left_out else []
    left += list(closer.left_out)
    told = warnings or ["Nothing limits what these numbers say but their intervals."]
    parts: list[Part] = [
        *told,
        *([Table(["left out"], [[line] for line in left])] if left else ["Nothing was left out."]),
    ]
    return Section("Warnings, and what was left out", parts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")

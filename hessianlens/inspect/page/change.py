"""Before and after: what became of the blocks, and learning rates that the curvature speaks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hessianlens.display import Dots, Figure, Part, Section, Side, Table, short
from hessianlens.errors import InputError
from hessianlens.inspect.comparing import Change, Comparison
from hessianlens.inspect.measured import Measured
from hessianlens.inspect.table import CurvatureTable, listed, times
from hessianlens.problems import layer_of

_SPLIT = 14
"""Blocks of one picture; more are drawn layer by layer."""


@dataclass(frozen=True, eq=False)
class Before:
    """What a page is compared with.

    Attributes:
        measured: The measurement before.
        model: Its model, in words.
        loss: The loss then, in words.
    """

    measured: Measured
    model: str
    loss: str


def changed(before: Before, after: Measured, model: str, loss: str) -> Section:
    """Both models side by side."""
    found = before.measured.compare(after)
    facts = [
        ["Model", before.model, model],
        ["Loss", before.loss, loss],
        ["Matrices", _scaling(before.measured.table), _scaling(after.table)],
        *_attention(before.measured, after),
    ]
    told = (
        "Norms of both, a line a block, with intervals of 95 %. Where both come from the same random vectors, what "
        "these have in common cancels in the difference, whose interval is then narrower than those of the two norms."
    )
    parts: list[Part] = [
        Table(["", "before", "after"], facts),
        f"{found.summary} {told}",
        Side([Figure(picture, title=title) for title, picture in _pictures(found)]),
        Table(
            ["block", "before", "after", "factor", "difference", "95 % interval", ""],
            [_cells(change) for change in found.of_first_part()],
            folded="In numbers",
        ),
    ]
    if found.only:
        parts.append(f"In one of both only: {listed(found.only)}.")
    return Section("Before and after", parts)


def _scaling(table: CurvatureTable) -> str:
    """How far apart the matrices are."""
    sizes = [row.rms for row in table.rows if len(row.shape) > 1 and row.name not in table.flat]
    if len(sizes) < 2:
        return "fewer than two"
    return f"{times(max(sizes) / min(sizes))} times from the flattest to the sharpest (rms eigenvalues)"


def _attention(before: Measured, after: Measured) -> Iterator[list[str]]:
    shares = [{name: spread.share for name, spread in found.attention.items()} for found in (before, after)]
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


def rates(measured: Measured, before: Before | None) -> Iterator[Section]:
    """Learning-rate groups that the curvature speaks for; nothing where there is no model to make them for."""
    try:
        groups = measured.groups(1.0)
        former = {} if before is None else _rates(before.measured)
    except InputError:
        return
    told = (
        "Factors of a base learning rate, (median / rms eigenvalue) ** 0.5 in powers of two, for measured.param_groups "
        "or inspect --groups: what is sharp gets a smaller rate. They come from this batch at these weights: a place "
        "to begin tuning from, for methods such as SGD that do not rescale by themselves. Compare a run with them "
        "against one without."
    )
    columns = ["rate", "kind", "parameters", "why", *(["before"] if former else [])]
    rows = []
    for group in groups:
        several = len(group.parameters) > 1
        names = f"{len(group.parameters)}: {listed(group.parameters)}" if several else group.parameters[0]
        then = [_then(former, group.parameters)] if former else []
        rows.append([f"{group.lr:g}x", group.kind, names, group.why, *then])
    yield Section("Learning rates that the curvature speaks for", [told, Table(columns, rows)])


def _rates(measured: Measured) -> dict[str, float]:
    return {name: group.lr for group in measured.groups(1.0) for name in group.parameters}


def _then(former: dict[str, float], names: Sequence[str]) -> str:
    found = sorted({former[name] for name in names if name in former})
    if not found:
        return ""
    return f"{found[0]:g}x" if len(found) == 1 else f"{found[0]:g}x to {found[-1]:g}x"

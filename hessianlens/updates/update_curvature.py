"""What an update does to the loss: slope and curvature by pairs of groups, and the loss along it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

from hessianlens.display import (
    Cells,
    DisplayableRows,
    Document,
    Dot,
    Dots,
    Figure,
    Grid,
    Picture,
    Section,
    Table,
    short,
)
from hessianlens.display.chart import Axis, ChartModel, Key, Markers, Polyline
from hessianlens.errors import check_number, expect
from hessianlens.parts import PARTS, part_name
from hessianlens.sizes import number_of

_POINTS = 60
"""Points of a drawn curve."""
_DRAWN = 24
"""Groups that a picture holds; of more those that move the loss most."""
_PAIRS = 10
"""Pairs that the page lists."""


@dataclass(frozen=True)
class LossAlongUpdate(Picture):
    """The loss at multiples of an update, with its linear and its quadratic model.

    Attributes:
        losses: Pairs of t and the loss there, in order of t, zero among them.
        slope: First derivative at zero.
        curvature: Second derivative at zero; None if it is not known.
    """

    losses: Sequence[tuple[float, float]]
    slope: float
    curvature: float | None

    def chart(self) -> ChartModel:
        """Markers for the loss, lines for the models."""
        at_zero = dict(self.losses)[0.0]
        low, high = min(t for t, _ in self.losses), max(t for t, _ in self.losses)
        ts = [low + (high - low) * k / (_POINTS - 1) for k in range(_POINTS)]
        linear = [at_zero + t * self.slope for t in ts]
        second = self.curvature
        quadratic = [] if second is None else [at_zero + t * self.slope + t * t / 2 * second for t in ts]
        finite = [loss for _, loss in self.losses if math.isfinite(loss)]
        y = Axis.around([*finite, *linear, *quadratic], "loss", 180, grid=True)
        x = Axis(low, high, label="multiple t of the update")
        lines = [Polyline(ts, linear, "muted", 1.4, "5 4")]
        lines += [Polyline(ts, quadratic, "orange")] if quadratic else []
        titles = [f"t = {short(t)}: {short(loss, 6)}" for t, loss in self.losses]
        dots = Markers([t for t, _ in self.losses], [y.clamp(v) for _, v in self.losses], "blue", 4.0, titles=titles)
        legend = [Key("loss", "blue"), Key("first order", "muted", "dashes")]
        return ChartModel(
            x, y, [*lines, dots], [*legend, Key("second order", "orange", "line")] if quadratic else legend
        )


@dataclass(frozen=True, eq=False, repr=False)
class UpdateCurvature(DisplayableRows):
    """Slope ``g' d`` and curvature ``d' H d`` of an update d, by groups a, b of weights.

    Attributes:
        groups: Names, in the order of the model.
        slopes: ``g' d_a``, the first-order change of the loss by group.
        lengths: ``|d_a|``.
        matrices: By part, ``d_a' H d_b`` over pairs of groups, symmetric.
        losses: Pairs of t and the loss at ``w + t d``, in order of t, t = 0 among them.
        notes: What was decided on the way, one sentence each.
    """

    groups: tuple[str, ...]
    slopes: tuple[float, ...]
    lengths: tuple[float, ...]
    matrices: dict[str, Float[Tensor, "a b"]]
    losses: tuple[tuple[float, float], ...]
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are known, in one order."""
        return tuple(part for part in PARTS if part in self.matrices)

    @property
    def slope(self) -> float:
        """``g' d``: the change of the loss to first order."""
        return math.fsum(self.slopes)

    @property
    def length(self) -> float:
        """``|d|``."""
        return math.hypot(*self.lengths)

    def pairs(self, part: str = "full") -> Float[Tensor, "a b"]:
        """``d_a' H d_b``, or the same with the Gauss-Newton or the functional part."""
        name = part_name(part)
        expect(name in self.matrices, f"part: got {part!r}, expected one that was asked for: {', '.join(self.parts)}.")
        return self.matrices[name]

    def curvature(self, part: str = "full") -> float:
        """``d' H d``, the sum over all pairs."""
        return float(self.pairs(part).sum())

    def sharpness(self, part: str = "full") -> float:
        """``d' H d / |d|^2``: the curvature along the update's direction, whatever its length."""
        return self.curvature(part) / self.length**2

    def between_groups(self, part: str = "full") -> float:
        """Share of the curvature that comes from pairs of different groups; above 1 where they cancel the others."""
        matrix = self.pairs(part)
        total = float(matrix.sum())
        return math.nan if total == 0 else 1 - float(matrix.diagonal().sum()) / total

    def predicted_change(self, t: float = 1.0, order: int = 2) -> float:
        """``t g' d + t^2 / 2 d' H d``, or its first term alone.

        Args:
            t: Multiple of the update.
            order: 1 or 2.
        """
        expect(order in (1, 2), f"order: got {order!r}, expected 1 or 2.")
        t = check_number("t", t)
        return t * self.slope + (t * t / 2 * self.curvature() if order == 2 else 0.0)

    @property
    def best_multiple(self) -> float:
        """Where the quadratic model is smallest along the update, ``-g' d / d' H d``; infinite if it falls for ever.

        Zero where the update goes uphill and the model curves up.
        """
        curvature = self.curvature()
        if curvature > 0:
            return max(0.0, -self.slope / curvature)
        return math.inf if self.slope < 0 or curvature < 0 else 0.0

    @cached_property
    def changes(self) -> dict[float, float]:
        """The true change of the loss at each multiple t."""
        start = dict(self.losses)[0.0]
        return {t: loss - start for t, loss in self.losses if t != 0.0}

    # --- to be looked at ---------------------------------------------------------------------------------------------

    def _records(self) -> list[dict[str, Any]]:
        return [self._record(k) for k in range(len(self.groups))]

    def _record(self, k: int) -> dict[str, Any]:
        found: dict[str, Any] = {"group": self.groups[k], "length": self.lengths[k], "slope": self.slopes[k]}
        for part in self.parts:
            row = self.matrices[part][k]
            suffix = "" if part == "full" else f"_{part}"
            found |= {f"own{suffix}": float(row[k]), f"with_others{suffix}": float(row.sum() - row[k])}
        if "full" in self.matrices:
            found["second_order_change"] = self.slopes[k] + float(self.matrices["full"][k].sum()) / 2
        return found

    def __repr__(self) -> str:
        return "\n".join([self._heading(), *(f"  {name}: {text}" for name, text in self._short())])

    def _heading(self) -> str:
        return f"UpdateCurvature of {number_of(len(self.groups), 'group')}, |d| = {short(self.length)}"

    def _short(self) -> list[tuple[str, str]]:
        """The findings, each with a heading."""
        found = [("first order", f"changes the loss by {short(self.slope)}")]
        least = min(range(len(self.groups)), key=lambda k: self.slopes[k])
        if self.slopes[least] < 0:
            found.append(("most descent", f"{self.groups[least]} changes it by {short(self.slopes[least])} of that"))
        if "full" in self.matrices:
            both = short(self.predicted_change())
            found.append(("second order", f"changes it by {both}; the curvature is {short(self.curvature())}"))
        if 1.0 in self.changes:
            found.append(("true change", short(self.changes[1.0], 4)))
        if "full" in self.matrices:
            multiple = self.best_multiple
            best = (
                "the quadratic model is unbounded below"
                if math.isinf(multiple)
                else f"the quadratic model is lowest at {short(multiple)} times this update"
            )
            found.append(("step size", best))
            found.append(
                (
                    "between groups",
                    f"{short(100 * self.between_groups())} % of the curvature comes from pairs of groups",
                )
            )
            worst = max(range(len(self.groups)), key=lambda k: float(self.matrices["full"][k].sum()))
            raises = float(self.matrices["full"][worst].sum()) / 2
            found.append(("most curvature", f"{self.groups[worst]} raises the loss by {short(raises)} at second order"))
        return found

    def _cells(self) -> Cells:
        columns = [
            "group",
            "|d|",
            "first order",
            *(f"{part}, {what}" for part in self.parts for what in ("own", "others")),
        ]
        cells = []
        for k, name in enumerate(self.groups):
            numbers = [self.lengths[k], self.slopes[k]]
            for part in self.parts:
                row = self.matrices[part][k]
                numbers += [float(row[k]) / 2, float(row.sum() - row[k]) / 2]
            cells.append([name, *map(short, numbers)])
        return columns, cells

    def _picture(self, asked: bool) -> Picture:
        """The change of the loss by group, at first and at second order."""
        series = {"first order": [Dot.of(self.slopes[k]) for k in self._drawn]}
        for part, name in (("full", "second order"), ("ggn", "Gauss-Newton part"), ("functional", "functional part")):
            if part in self.matrices:
                rows = self.matrices[part].sum(1) / 2
                series[name] = [Dot.of(float(rows[k])) for k in self._drawn]
        names = tuple(self.groups[k] for k in self._drawn)
        return Dots(names, cast("dict[str, Sequence[Dot | None]]", series), "change of the loss", log=False)

    @cached_property
    def _drawn(self) -> list[int]:
        """Groups of the pictures, in the order of the model."""
        part = self.parts[0]
        size = [abs(s) + float(row.abs().sum()) for s, row in zip(self.slopes, self.matrices[part], strict=True)]
        return sorted(sorted(range(len(size)), key=lambda k: -size[k])[:_DRAWN])

    def pair_picture(self, part: str = "full") -> Grid:
        """``d_a' H d_b / 2`` as a heat map, red where a pair lowers the loss.

        Args:
            part: "full", "ggn" or "functional".
        """
        matrix = self.pairs(part)[self._drawn][:, self._drawn] / 2
        names = tuple(self.groups[k] for k in self._drawn)
        label = f"d_a' H d_b / 2 by pair, {part_name(part)}; red lowers the loss"
        return Grid(names, names, matrix.tolist(), label, signed=True)

    def loss_picture(self) -> LossAlongUpdate:
        """The loss along the update beside its models."""
        second = self.curvature() if "full" in self.matrices else None
        return LossAlongUpdate(self.losses, self.slope, second)

    def document(self, title: str = "An update") -> Document:
        """Findings, the loss along the update, groups and pairs."""
        sections = [
            Section(
                "Loss along the update",
                [
                    "The true loss at multiples of the update, beside its first-order and its second-order model at "
                    "the weights before the step. Where dots leave the curve, higher orders matter.",
                    Figure(self.loss_picture()),
                ],
            ),
            Section(
                "Groups of weights",
                [
                    "First order is the slope times the step. Second order is half of the curvature of a group with "
                    "itself and with all others, so that rows add up to the whole.",
                    Figure(self._picture(asked=True)),
                    Table(*self._cells(), folded="Numbers"),
                ],
            ),
            Section("Pairs of groups", [*(Figure(self.pair_picture(part)) for part in self.parts), self._largest()]),
        ]
        if self.notes:
            sections.append(Section("Notes", list(self.notes)))
        size = f"{number_of(len(self.groups), 'group')}; |d| = {short(self.length)}"
        lead = f"What one update of the weights does to the loss, by {size}."
        return Document(title, lead, self._short(), sections)

    def _largest(self) -> Table:
        matrix = self.pairs(self.parts[0])
        pairs = [(i, j) for i in range(len(self.groups)) for j in range(i)]
        pairs.sort(key=lambda pair: -abs(float(matrix[pair])))
        cells = [[self.groups[j], self.groups[i], short(float(matrix[i, j]))] for i, j in pairs[:_PAIRS]]
        caption = f"Pairs of different groups with the largest coupling, {self.parts[0]}; each counts twice in the sum."
        return Table(["group", "group", "d_a' H d_b"], cells, caption)

    def page(self, path: str | os.PathLike[str], title: str = "An update") -> Path:
        """Write a self-contained page.

        Args:
            path: The file.
            title: Its heading.
        """
        return self.document(title).write(path)

"""The curvature table of a model: a row per block, and their scales against each other."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hessianlens.errors import check_that
from hessianlens.files import spreadsheet_text
from hessianlens.problems import Block
from hessianlens.spectra import Estimate


@dataclass(frozen=True)
class Row:
    """One block.

    Attributes:
        name: Its name.
        shape: Its shape.
        norms: Frobenius norms by part.
        note: What a reader should know about it.
    """

    name: str
    shape: tuple[int, ...]
    norms: Mapping[str, Estimate]
    note: str = ""

    @classmethod
    def of(cls, block: Block, norms: Mapping[str, Estimate]) -> Row:
        """The row of a block."""
        return cls(block.name, block.shape, norms, block.note)

    @property
    def parameters(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def norm(self) -> float:
        """Of the Hessian if it was measured, else of the first part that was."""
        return self.norms["full" if "full" in self.norms else next(iter(self.norms))].value

    @property
    def rms(self) -> float:
        """``|H| / sqrt(parameters)``: the root mean square eigenvalue, a size that does not grow with the block."""
        return self.norm / math.sqrt(self.parameters)

    @property
    def ratio(self) -> float | None:
        """``|functional| / |outer|``; None where one was not measured or the outer part is zero."""
        if not {"ggn", "functional"} <= set(self.norms) or self.norms["ggn"].value == 0:
            return None
        return self.norms["functional"].value / self.norms["ggn"].value


@dataclass(frozen=True)
class CurvatureTable:
    """Rows with their scales.

    Attributes:
        rows: A row per block, in the order of the model.
        expected: How many there would be had the work not been interrupted.
        eps: Rounding unit of the numbers.

    >>> rows = [Row(n, (4, 4), {"full": Estimate.exactly(v)}) for n, v in (("q", 0.1), ("v", 4.0), ("o", 8.0))]
    >>> table = CurvatureTable(tuple(rows), 3)
    >>> [round(scale, 3) for scale in table.scales.values()]
    [0.025, 1.0, 2.0]
    """

    rows: tuple[Row, ...]
    expected: int
    eps: float = 2.0**-52

    @property
    def complete(self) -> bool:
        """Whether every block was measured."""
        return len(self.rows) == self.expected

    @property
    def flat(self) -> tuple[str, ...]:
        """Blocks whose curvature is zero up to rounding, such as key biases in front of a softmax."""
        largest = max((row.norm for row in self.rows), default=0.0)
        return tuple(row.name for row in self.rows if row.norm <= 10 * self.eps * largest)

    def ratio(self, row: Row) -> float | None:
        """``|functional| / |outer|`` of a block that is not flat: between two roundings it would say nothing."""
        check_that(isinstance(row, Row), "row", row, "a row of this table")
        return None if row.name in self.flat else row.ratio

    @property
    def scales(self) -> dict[str, float]:
        """Root mean square eigenvalue of each block over that of the median block; flat blocks are left out."""
        curved = [row for row in self.rows if row.name not in self.flat]
        middle = median(row.rms for row in curved) if curved else 1.0
        return {row.name: row.rms / middle for row in curved}

    def to_list(self) -> list[dict[str, Any]]:
        """Rows as plain numbers and texts."""
        scales = self.scales
        return [
            {
                "block": row.name,
                "shape": list(row.shape),
                "parameters": row.parameters,
                "norms": {part: _plain(estimate) for part, estimate in row.norms.items()},
                "functional_over_outer": self.ratio(row),
                "rms_eigenvalue": row.rms,
                "scale": scales.get(row.name),
                "note": row.note,
            }
            for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """Rows as plain numbers and texts, one level deep: a column of a file or of a frame each."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"block": row.name, "parameters": row.parameters}
        for part, norm in row.norms.items():
            low, high = norm.interval()
            found[part] = norm.value
            found |= {f"{part}_stderr": norm.stderr, f"{part}_low": low, f"{part}_high": high}
            found[f"{part}_method"] = norm.method
        scale = self.scales.get(row.name)
        return {**found, "functional_over_outer": self.ratio(row), "rms_eigenvalue": row.rms, "scale": scale}

    def to_csv(self) -> str:
        """A line per block, a column per number."""
        parts = list(dict.fromkeys(part for row in self.rows for part in row.norms))
        ends = ("", "_stderr", "_low", "_high", "_method")
        head = ["block", "parameters", *(f"{part}{end}" for part in parts for end in ends)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*head, "functional_over_outer", "rms_eigenvalue", "scale"])
        for record in self.records():
            writer.writerow([spreadsheet_text(value) for value in record.values()])
        return text.getvalue()


def _plain(estimate: Estimate) -> dict[str, Any]:
    low, high = estimate.interval()
    return {
        "value": estimate.value,
        "stderr": estimate.stderr,
        "low": low,
        "high": high,
        "method": estimate.method,
        "probes": estimate.probes,
    }


def times(factor: float) -> str:
    """A factor to three digits, without an exponent where it is large."""
    return f"{factor:.3g}" if factor < 1000 else f"{float(f'{factor:.3g}'):,.0f}"

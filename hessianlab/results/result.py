"""All finished cells of one experiment, with its configuration and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessianlab.results.measurement import Measurement, Parameters, Scalar
from hessianlab.results.provenance import Provenance


@dataclass(frozen=True, eq=False)
class FinishedCell:
    """One cell: what was asked, what was measured, and the processor time that took, whatever else the machine did."""

    parameters: Parameters
    measurement: Measurement
    seconds: float


@dataclass(frozen=True, eq=False)
class Result:
    """What an experiment found.

    Attributes:
        experiment: Name in the registry, e.g. "fig3a".
        preset: The preset the configuration started from: "quick", "paper"; "custom" after an override.
        config: Every field of the configuration.
        cells: In the order of the experiment's plan, whatever order they were computed in.
        provenance: Where the numbers come from.
    """

    experiment: str
    preset: str
    config: Mapping[str, Any]
    cells: tuple[FinishedCell, ...]
    provenance: Provenance

    def rows(self) -> list[dict[str, Scalar]]:
        """Every row of every cell with the parameters of its cell in front."""
        return [{**cell.parameters, **row} for cell in self.cells for row in cell.measurement.rows]

    @property
    def seconds(self) -> float:
        """Processor time of all cells."""
        return sum(cell.seconds for cell in self.cells)

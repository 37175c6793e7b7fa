"""What one cell of an experiment measures: rows of a table, and arrays where a row is too small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Scalar: TypeAlias = str | int | float | bool | None
Parameters: TypeAlias = Mapping[str, Scalar]
"""Everything that decides the numbers of a cell, as JSON scalars; nothing else may."""

Row: TypeAlias = Mapping[str, Scalar]


@dataclass(frozen=True, eq=False)
class Measurement:
    """The numbers of one cell.

    Attributes:
        rows: Lines of a table, e.g. ``{"block": "layer0.attn.q", "part": "full", "value": 0.3, "stderr": 0.0}``.
        arrays: Larger things by name, e.g. a heat map or eigenvalues.
    """

    rows: tuple[Row, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

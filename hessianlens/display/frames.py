"""Rows as a data frame, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hessianlens.errors import needs_extra

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A column a key, in the order in which keys first appear; what a row does not have is missing.

    >>> data_frame([{"block": "q", "norm": 1.5}, {"block": "v", "norm": 2.0}])["norm"].tolist()
    [1.5, 2.0]
    """
    with needs_extra("frames", "to_frame()"):
        import pandas as pd
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pd.DataFrame.from_records([dict(row) for row in rows], columns=columns)

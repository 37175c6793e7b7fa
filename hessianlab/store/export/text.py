"""CSV and JSON as text; floats with all of their digits."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from hessianlab.results import Scalar
from hessianlab.store.export.description import columns
from hessianlens.files import spreadsheet_text


def csv_text(rows: list[dict[str, Scalar]]) -> str:
    """A header and a line a row; None is an empty field, and no text is one that a spreadsheet would run."""
    buffer = io.StringIO()
    names = columns(rows)
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(spreadsheet_text, names))
    writer.writerows([spreadsheet_text(row.get(name)) for name in names] for row in rows)
    return buffer.getvalue()


def json_text(value: Any) -> str:
    """Strict JSON: what it has no numbers for becomes "NaN", "Infinity" or "-Infinity".

    >>> print(json_text({"low": float("-inf"), "value": 0.1}))
    {
      "low": "-Infinity",
      "value": 0.1
    }
    """
    return json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value

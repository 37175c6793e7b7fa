"""Parquet through pyarrow."""

from __future__ import annotations

import io
import json
from typing import Any

from hessianlab.results import Scalar
from hessianlab.store.export.description import columns
from hessianlens.errors import InputError

METADATA = b"hessianlens"
"""The key of the description, as JSON, in the metadata of the schema."""


def parquet_bytes(rows: list[dict[str, Scalar]], description: str) -> bytes:
    """A table with one column a name; a column that mixes kinds of values becomes text."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        message = "format: got 'parquet', but pyarrow is not installed; pip install 'hessianlens[parquet]'."
        raise InputError(message) from error
    named = {name: _column(pyarrow, [row.get(name) for row in rows]) for name in columns(rows)}
    filled = pyarrow.table(named).replace_schema_metadata({METADATA: description.encode()})
    buffer = io.BytesIO()
    parquet.write_table(filled, buffer)
    return buffer.getvalue()


def _column(pyarrow: Any, values: list[Scalar]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and kinds != {int, float}:
        values = [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
    return pyarrow.array(values)

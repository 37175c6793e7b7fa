"""Export of a run as CSV, Parquet or JSON, with a description of its origin; arrays in an npz file beside it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

from hessianlab.results import Result, Scalar
from hessianlab.store.encoding import npz_bytes
from hessianlab.store.runs import Run, cell_provenances, load_run
from hessianlab.store.store import Store
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.files import spreadsheet_text, write_whole

CELL = "cell_number"
"""The column that says which cell a row belongs to, and the first part of the name of that cell's arrays."""


def describe(store: Store, run: Run, result: Result) -> dict[str, Any]:
    """Everything but the numbers themselves; `provenance` of a cell is an index into `provenances`."""
    places = cell_provenances(store, run)
    distinct = list({repr(place): place for place in places}.values())
    numbers = {repr(place): number for number, place in enumerate(distinct)}
    return {
        "experiment": run.experiment,
        "preset": run.preset,
        "config": dict(run.config),
        "started": run.started,
        "finished": run.finished,
        "code": dataclasses.asdict(run.code),
        "provenance": dataclasses.asdict(run.provenance),
        "provenances": [dataclasses.asdict(place) for place in distinct],
        "cells": [
            {
                CELL: number,
                "parameters": dict(cell.parameters),
                "seconds": cell.seconds,
                "provenance": numbers[repr(place)],
            }
            for number, (cell, place) in enumerate(zip(result.cells, places, strict=True))
        ],
    }


def table(result: Result) -> list[dict[str, Scalar]]:
    """Every row with the number and the parameters of its cell in front."""
    return [
        {CELL: number, **cell.parameters, **row}
        for number, cell in enumerate(result.cells)
        for row in cell.measurement.rows
    ]


def columns(rows: list[dict[str, Scalar]]) -> list[str]:
    """Every name that occurs, in the order of first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_text(rows: list[dict[str, Scalar]]) -> str:
    """A header and a line per row; None is an empty field, and no text is one that a spreadsheet would run."""
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


FORMATS = ("csv", "parquet", "json")


def export_run(store: Store, run: Run, form: str, folder: Path) -> list[Path]:
    """Write one complete run; returns the files, each either whole or as it was before.

    Args:
        store: Where the run is.
        run: One of `list_runs(store, complete=True)`.
        form: "csv" writes ``NAME.csv`` and ``NAME.provenance.json``; "parquet" and "json" write one file each that
            holds the provenance too. Arrays go to ``NAME.npz``, as ``cell_number/name``.
        folder: Made if it does not exist.
    """
    check_choice("format", form, FORMATS)
    _check_name(store, run.experiment)
    result = load_run(store, run)
    description = describe(store, run, result)
    files: dict[str, bytes] = {}
    if form == "csv":
        files["csv"] = csv_text(table(result)).encode()
        files["provenance.json"] = json_text(description).encode()
    elif form == "parquet":
        files["parquet"] = parquet_bytes(table(result), json_text(description))
    else:
        files["json"] = json_text({**description, "rows": table(result)}).encode()
    if any(cell.measurement.arrays for cell in result.cells):
        files["npz"] = _npz(result)
    return [_write(folder, f"{run.experiment}.{ending}", content) for ending, content in files.items()]


def _check_name(store: Store, name: str) -> None:
    """The name of an experiment is part of the name of a file, and never of a path."""
    plain = name not in ("", ".", "..") and not any(sign in name for sign in "/\\:\0")
    expect(
        plain,
        f"store: {store.path} has a run of {name!r}, which is no name for a file; nothing of it is exported. Expected "
        "a store that hessianlens wrote; name the experiments to export.",
    )


def _npz(result: Result) -> bytes:
    named = {
        f"{number}/{name}": array
        for number, cell in enumerate(result.cells)
        for name, array in cell.measurement.arrays.items()
    }
    return npz_bytes(named)


def _write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise InputError(f"out: {path} cannot be written ({error}); name another directory with --out.") from error
    return path

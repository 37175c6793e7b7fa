"""One complete run into files of one format."""

from __future__ import annotations

from pathlib import Path

from hessianlab.results import Result
from hessianlab.store.encoding import npz_bytes
from hessianlab.store.export.description import describe, table
from hessianlab.store.export.parquet import parquet_bytes
from hessianlab.store.export.text import csv_text, json_text
from hessianlab.store.runs import Run, load_run
from hessianlab.store.store import Store
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.files import write_whole

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

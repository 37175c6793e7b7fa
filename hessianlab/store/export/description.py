"""What a reader of an exported file must know: configuration, code, and where each cell was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

from hessianlab.results import Result, Scalar
from hessianlab.store.runs import Run, cell_provenances
from hessianlab.store.store import Store

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

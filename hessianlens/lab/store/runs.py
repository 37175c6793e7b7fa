"""Runs: which cells made up an experiment, in which configuration, when and where."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hessianlens.lab.results import Parameters, Provenance, Result
from hessianlens.lab.store.code import Code
from hessianlens.lab.store.keys import canonical_json, cell_key
from hessianlens.lab.store.store import Store, now


@dataclass(frozen=True)
class Run:
    """One run of one experiment.

    Attributes:
        finished: None while cells are missing.
        failures: Messages of the cells that could not be measured.
    """

    id: int
    experiment: str
    preset: str
    config: Mapping[str, Any]
    code: Code
    provenance: Provenance
    started: str
    finished: str | None
    failures: tuple[str, ...]


def start_run(store: Store, experiment: str, preset: str, config: Any, code: Code, provenance: Provenance) -> int:
    """Note that a run begins; returns its number."""
    with store.transaction():
        store.query(
            "INSERT INTO runs (experiment, preset, config, code, provenance, started) VALUES (?, ?, ?, ?, ?, ?)",
            (
                experiment,
                preset,
                canonical_json(dataclasses.asdict(config)),
                store.code_id(code),
                store.provenance_id(provenance),
                now(),
            ),
        )
        return int(store.query("SELECT last_insert_rowid()")[0][0])


def finish_run(store: Store, run: int, experiment: str, cells: Sequence[Parameters], code: Code) -> None:
    """Note that a run is complete: all of its cells, in the order of the plan, are in the store."""
    with store.transaction():
        for position, parameters in enumerate(cells):
            store.query(
                "INSERT INTO run_cells (run, position, cell) SELECT ?, ?, id FROM cells WHERE key = ?",
                (run, position, cell_key(experiment, parameters, code)),
            )
        store.query("UPDATE runs SET finished = ? WHERE id = ?", (now(), run))


def fail_cell(store: Store, run: int, parameters: Parameters, message: str) -> None:
    """Note that a cell could not be measured; the next run tries it again."""
    with store.transaction():
        values = (run, canonical_json(dict(parameters)), message, now())
        store.query("INSERT INTO failures (run, parameters, message, failed) VALUES (?, ?, ?, ?)", values)


def list_runs(store: Store, complete: bool = False) -> list[Run]:
    """All runs, the oldest first.

    Args:
        store: Where they are.
        complete: Only those with all of their cells.
    """
    found = store.query(
        "SELECT runs.id, experiment, preset, config, digest, libraries, content, started, finished FROM runs "
        "JOIN codes ON codes.id = code JOIN provenances ON provenances.id = provenance "
        f"{'WHERE finished IS NOT NULL' if complete else ''} ORDER BY runs.id"
    )
    return [_run(store, row) for row in found]


def last_complete_runs(store: Store) -> dict[str, Run]:
    """The newest complete run of each experiment, by the experiment's name; whatever code has measured it."""
    return {run.experiment: run for run in list_runs(store, complete=True)}


def get_run(store: Store, number: int) -> Run:
    """The run with this number."""
    return next(run for run in list_runs(store) if run.id == number)


def load_run(store: Store, run: Run) -> Result:
    """The result of a complete run, from the store alone."""
    ids = [number for (number,) in store.query("SELECT cell FROM run_cells WHERE run = ? ORDER BY position", (run.id,))]
    cells = tuple(store.cells(ids, run.experiment))
    return Result(run.experiment, run.preset, run.config, cells, run.provenance)


def cell_provenances(store: Store, run: Run) -> list[Provenance]:
    """Where each cell of a complete run was measured: an earlier run, or another machine, may have done it."""
    found = store.query(
        "SELECT content FROM run_cells JOIN cells ON cells.id = cell JOIN provenances ON provenances.id = provenance "
        "WHERE run = ? ORDER BY position",
        (run.id,),
    )
    return [_provenance(content) for (content,) in found]


def _run(store: Store, row: tuple[Any, ...]) -> Run:
    number, experiment, preset, config, digest, libraries, content, started, finished = row
    failures = tuple(
        message for (message,) in store.query("SELECT message FROM failures WHERE run = ? ORDER BY rowid", (number,))
    )
    code, provenance = Code(digest, libraries), _provenance(content)
    return Run(number, experiment, preset, _tuples(json.loads(config)), code, provenance, started, finished, failures)


def _provenance(content: str) -> Provenance:
    """What was written by an earlier version may lack a field, which is then None, or have one more."""
    written = json.loads(content)
    known: dict[str, Any] = {field.name: written.get(field.name) for field in dataclasses.fields(Provenance)}
    return Provenance(**known)


def _tuples(value: Any) -> Any:
    """Lists as tuples, which is what the fields of a configuration hold; JSON has only lists."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

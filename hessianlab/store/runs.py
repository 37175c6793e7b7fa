"""Runs: what was asked, which cells belong to one, results of complete ones; and cells that other code measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Parameters, Provenance, Result
from hessianlab.store.checksums import (
    add_to_seal,
    checksum,
    read_cells,
    read_failures,
    read_runs,
    seal_anew,
    write_checksum,
)
from hessianlab.store.code import Code, code_of
from hessianlab.store.encoding import canonical_json, cell_key
from hessianlab.store.store import Store, now


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
        fields = (experiment, preset, canonical_json(dataclasses.asdict(config)))
        ids = store.code_id(code), store.provenance_id(provenance)
        columns = "experiment, preset, config, code, provenance, started, checksum"
        store.query(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, '0')", (*fields, *ids, now()))
        number = int(store.query("SELECT last_insert_rowid()")[0][0])
        add_to_seal(store, "runs", write_checksum(store, number))
        return number


def finish_run(store: Store, run: int, experiment: str, cells: Sequence[Parameters], code: Code) -> None:
    """Note that a run is complete: all of its cells, in the order of the plan, are in the store."""
    with store.transaction():
        ((before,),) = store.query("SELECT checksum FROM runs WHERE id = ?", (run,))
        for position, parameters in enumerate(cells):
            store.query(
                "INSERT INTO run_cells (run, position, cell) SELECT ?, ?, id FROM cells WHERE key = ?",
                (run, position, cell_key(experiment, parameters, code)),
            )
        store.query("UPDATE runs SET finished = ? WHERE id = ?", (now(), run))
        add_to_seal(store, "runs", write_checksum(store, run), removed=before)


def fail_cell(store: Store, run: int, parameters: Parameters, message: str) -> None:
    """Note that a cell could not be measured; the next run tries it again."""
    with store.transaction():
        fields = (run, canonical_json(dict(parameters)), message, now())
        written = checksum(*fields)
        columns = "run, parameters, message, failed, checksum"
        store.query(f"INSERT INTO failures ({columns}) VALUES (?, ?, ?, ?, ?)", (*fields, written))
        add_to_seal(store, "failures", written)


def list_runs(store: Store, complete: bool = False) -> list[Run]:
    """All runs, the oldest first.

    Args:
        store: Where they are.
        complete: Only those with all of their cells.
    """
    found = read_runs(store, f"{'WHERE finished IS NOT NULL' if complete else ''} ORDER BY runs.id")
    return [_run(store, row) for row in found]


def last_complete_runs(store: Store) -> dict[str, Run]:
    """The newest complete run of each experiment, by the experiment's name; whatever code has measured it."""
    return {run.experiment: run for run in list_runs(store, complete=True)}


def get_run(store: Store, number: int) -> Run:
    """The run with this number."""
    (found,) = read_runs(store, "WHERE runs.id = ?", (number,))
    return _run(store, found)


def load_run(store: Store, run: Run) -> Result:
    """The result of a complete run, from the store alone."""
    with store.reading():
        cells = tuple(store.cells(_keys(store, run)))
    return Result(run.experiment, run.preset, run.config, cells, run.provenance)


def cell_provenances(store: Store, run: Run) -> list[Provenance]:
    """Where each cell of a complete run was measured: an earlier run, or another machine, may have done it."""
    with store.reading():
        found = [read_cells(store, "WHERE key = ?", (key,))[0] for key in _keys(store, run)]
    return [_provenance(content) for _, _, _, _, _, _, content, *_ in found]


def _keys(store: Store, run: Run) -> list[str]:
    """Of its cells, in the order of its plan."""
    (found,) = read_runs(store, "WHERE runs.id = ?", (run.id,))
    return [key for _, key in found[-2]]


def _run(store: Store, row: tuple[Any, ...]) -> Run:
    number, experiment, preset, config, digest, libraries, content, started, finished, *_ = row
    failures = tuple(message for _, _, message, *_ in read_failures(store, "WHERE run = ? ORDER BY rowid", (number,)))
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


def results(store: Store, experiment: Experiment[Any], config: Any, preset: str = "custom") -> Result | None:
    """The result of a configuration if the code as it is now has measured all of its cells, else None."""
    code = code_of(experiment.measure)
    cells = [store.get(experiment.name, parameters, code) for parameters in experiment.cells(config)]
    finished = [cell for cell in cells if cell is not None]
    return experiment.result(config, finished, preset) if len(finished) == len(cells) else None


@dataclass(frozen=True)
class Leftover:
    """Cells of other code.

    Attributes:
        commit: The repository's, where they were measured; None if that is not known.
    """

    cells: int
    code: Code
    commit: str | None

    def __str__(self) -> str:
        commit = f", commit {self.commit}" if self.commit else ""
        return f"{self.cells} cells of other code ({self.code}{commit}) are in the store and are not used"


def leftovers(store: Store, codes: Mapping[str, Code]) -> list[Leftover]:
    """What other code has measured of these experiments, the newest last.

    Args:
        store: Where to look.
        codes: Experiments, each with the code whose cells are used.
    """
    found: dict[tuple[Code, str | None], int] = {}
    for experiment, code in codes.items():
        for digest, libraries, content, count in store.query(
            "SELECT digest, libraries, content, count(*) FROM cells JOIN codes ON codes.id = code "
            "JOIN provenances ON provenances.id = provenance WHERE experiment = ? GROUP BY code, provenance "
            "ORDER BY code, provenance",
            (experiment,),
        ):
            other = Code(digest, libraries)
            if other != code:
                place = (other, json.loads(content)["commit"])
                found[place] = found.get(place, 0) + count
    return [Leftover(count, code, commit) for (code, commit), count in found.items()]


def prune(store: Store, codes: Mapping[str, Code]) -> int:
    """Delete every cell and run of these experiments that other code has made; returns the number of cells."""
    deleted = 0
    with store.transaction():
        for experiment, code in codes.items():
            values = (experiment, store.code_id(code))
            store.query("DELETE FROM runs WHERE experiment = ? AND code != ?", values)
            store.query("DELETE FROM cells WHERE experiment = ? AND code != ?", values)
            deleted += int(store.query("SELECT changes()")[0][0])
        used = "SELECT {0} FROM cells UNION SELECT {0} FROM runs"
        store.query(f"DELETE FROM codes WHERE id NOT IN ({used.format('code')})")
        store.query(f"DELETE FROM provenances WHERE id NOT IN ({used.format('provenance')})")
        seal_anew(store)
    store.query("VACUUM")
    return deleted

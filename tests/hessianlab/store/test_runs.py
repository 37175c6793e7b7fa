"""Runs are found again from the store alone."""

from pathlib import Path

import pytest

from hessianlab.store import (
    Store,
    cell_provenances,
    fail_cell,
    finish_run,
    last_complete_runs,
    list_runs,
    load_run,
    open_store,
    prune,
    results,
    start_run,
)
from tests.hessianlab.runner.toys import SPECTRUM, ToyConfig
from tests.hessianlab.store.cells import CODE, OTHER, PROVENANCE, cell


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "cells.sqlite") as store:
        yield store


def finished(store: Store, numbers: list[int], preset: str = "quick", code=CODE) -> int:
    run = start_run(store, "toy", preset, ToyConfig(repeats=len(numbers)), code, PROVENANCE)
    for number in numbers:
        store.put("toy", cell(number), code, PROVENANCE)
    finish_run(store, run, "toy", [{"number": number} for number in numbers], code)
    return run


def test_a_run_is_loaded_in_the_order_of_its_plan(store: Store) -> None:
    finished(store, [3, 1, 2])
    run = last_complete_runs(store)["toy"]
    result = load_run(store, run)
    assert [c.parameters["number"] for c in result.cells] == [3, 1, 2]
    assert (result.experiment, result.preset, result.provenance) == ("toy", "quick", PROVENANCE)
    assert result.config == {"sizes": (40, 80), "repeats": 3, "seed": 0, "seconds": 0.0, "folder": "", "bad": -1}
    assert [c.measurement.arrays["map"][0, 0] for c in result.cells] == [3, 1, 2]
    assert cell_provenances(store, run) == [PROVENANCE] * 3


def test_the_last_complete_run_counts(store: Store) -> None:
    finished(store, [1], preset="quick")
    finished(store, [1, 2], preset="paper")
    unfinished = start_run(store, "toy", "custom", ToyConfig(), CODE, PROVENANCE)
    fail_cell(store, unfinished, {"number": 9}, "ValueError: no")
    assert last_complete_runs(store)["toy"].preset == "paper"
    assert [(run.preset, run.finished is None, run.failures) for run in list_runs(store)] == [
        ("quick", False, ()),
        ("paper", False, ()),
        ("custom", True, ("ValueError: no",)),
    ]


def test_pruning_takes_runs_with_their_cells(store: Store) -> None:
    finished(store, [1, 2], code=OTHER)
    fail_cell(store, 1, {"number": 9}, "no")
    kept = finished(store, [1])
    assert prune(store, {"toy": CODE}) == 2
    assert [run.id for run in list_runs(store)] == [kept]
    assert store.query("SELECT count(*) FROM failures") == [(0,)]
    assert len(load_run(store, list_runs(store)[0]).cells) == 1


def test_results_are_complete_or_none(store: Store) -> None:
    from hessianlab.store import code_of

    config = ToyConfig(sizes=(4,), repeats=2)
    first, second = (SPECTRUM.finish(parameters) for parameters in SPECTRUM.cells(config))
    code = code_of(SPECTRUM.measure)
    store.put("spectrum", second, code, PROVENANCE)
    assert results(store, SPECTRUM, config) is None
    store.put("spectrum", first, code, PROVENANCE)
    found = results(store, SPECTRUM, config, "quick")
    assert found is not None and [c.parameters["repeat"] for c in found.cells] == [0, 1] and found.preset == "quick"

"""A run measures what the store lacks, keeps it at once, and gives the same numbers however it is run."""

import pickle
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.results import Result
from hessianlab.runner import CellsFailed, Plan, Progress, run
from hessianlab.runner.workers import measure_cell, order
from hessianlab.store import Code, Store, last_complete_runs, list_runs, load_run, open_store
from hessianlens.errors import InputError
from tests.hessianlab.runner.toys import DIES, DIES_ONCE, NONSENSE, RAISES, SPECTRUM, ToyConfig, busiest

CONFIG = ToyConfig(sizes=(60, 20), repeats=3)


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "cells.sqlite") as store:
        yield store


def fingerprint(result: Result) -> list:
    """Every bit of every number, in the order of the plan."""
    return [
        (
            dict(cell.parameters),
            pickle.dumps(cell.measurement.rows),
            {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in cell.measurement.arrays.items()},
        )
        for cell in result.cells
    ]


def test_cells_come_in_the_order_of_the_plan_and_as_the_experiment_measures_them(store: Store) -> None:
    (result,) = run([Plan(SPECTRUM, CONFIG, "quick")], store)
    direct = SPECTRUM.run(CONFIG)
    assert fingerprint(result) == fingerprint(direct)
    assert result.config == direct.config and result.preset == "quick"


@pytest.mark.long
def test_one_process_and_two_give_the_same_bits_and_the_same_failures(store: Store, tmp_path: Path) -> None:
    plans = [Plan(SPECTRUM, CONFIG), Plan(RAISES, ToyConfig(sizes=(20,), repeats=3, bad=1))]
    with open_store(tmp_path / "two.sqlite") as other, pytest.raises(CellsFailed) as two:
        run(plans, other, jobs=2)
    with pytest.raises(CellsFailed) as one:
        run(plans, store, jobs=1)
    assert one.value.failures == two.value.failures
    ((serial,), (parallel,)) = one.value.results, two.value.results
    assert fingerprint(serial) == fingerprint(parallel)


def test_a_cell_runs_on_one_thread_whatever_its_process_uses(store: Store) -> None:
    with threadpool_limits(limits=2):
        (result,) = run([Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=1))], store)
        assert busiest() == 2
    assert [row["value"] for row in result.rows() if row["what"] == "threads"] == [1]


def test_what_is_stored_is_not_measured_again(store: Store) -> None:
    run([Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=2))], store)
    states: list[tuple[int, int, int]] = []

    def note(progress: Progress) -> None:
        (tally,) = progress.tallies
        states.append((tally.stored, tally.new, tally.to_do))

    run([Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=4))], store, on_progress=note)
    assert states == [(2, 0, 2), (2, 1, 1), (2, 2, 0)]
    states.clear()
    run([Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=4))], store, on_progress=note)
    assert states == [(4, 0, 0)]


def test_a_cell_of_two_plans_is_measured_once(store: Store) -> None:
    last: list[Progress] = []
    small, large = ToyConfig(sizes=(20,), repeats=2), ToyConfig(sizes=(20,), repeats=3)
    results = run([Plan(SPECTRUM, small), Plan(SPECTRUM, large)], store, on_progress=last.append)
    assert [len(result.cells) for result in results] == [2, 3]
    assert store.query("SELECT count(*) FROM cells") == [(3,)]
    assert [tally.new for tally in last[-1].tallies] == [2, 3]


def test_a_finished_run_is_read_from_the_store_alone(store: Store) -> None:
    (result,) = run([Plan(SPECTRUM, CONFIG, "quick")], store)
    with open_store(store.path, readonly=True) as reader:
        again = load_run(reader, last_complete_runs(reader)["spectrum"])
    assert fingerprint(again) == fingerprint(result)
    assert (again.config, again.preset, again.provenance) == (result.config, result.preset, result.provenance)


def test_a_cell_that_raises_is_told_and_the_others_go_on(store: Store) -> None:
    plans = [Plan(RAISES, ToyConfig(sizes=(20,), repeats=3, bad=1)), Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=1))]
    with pytest.raises(CellsFailed, match=r"1 cell failed, the first: raises \(size=20, repeat=1") as caught:
        run(plans, store)
    (failure,) = caught.value.failures
    assert failure.message.startswith("ZeroDivisionError: this one is bad (") and "toys.py:" in failure.message
    assert [result.experiment for result in caught.value.results] == ["spectrum"]
    assert store.query("SELECT experiment, count(*) FROM cells GROUP BY experiment") == [("raises", 2), ("spectrum", 1)]
    bad, good = list_runs(store)
    assert bad.finished is None and bad.failures == (failure.message,) and good.finished is not None


def test_a_failed_cell_is_tried_again(store: Store) -> None:
    plan = Plan(RAISES, ToyConfig(sizes=(20,), repeats=2, bad=1))
    for _ in range(2):
        with pytest.raises(CellsFailed) as caught:
            run([plan], store)
        assert len(caught.value.failures) == 1


def test_rows_that_cannot_be_stored_are_a_failure_of_their_cell(store: Store) -> None:
    with pytest.raises(CellsFailed, match=r"nonsense: got int64 for 'value'"):
        run([Plan(NONSENSE, ToyConfig(sizes=(20,), repeats=1))], store)


@pytest.mark.long
def test_killed_processes_cost_time_and_a_cell_that_always_ends_its_own_is_found_out(
    store: Store, tmp_path: Path
) -> None:
    once = ToyConfig(sizes=(20,), repeats=4, bad=2, folder=str(tmp_path))
    with pytest.raises(CellsFailed) as caught:
        run([Plan(DIES, ToyConfig(sizes=(20,), repeats=4, bad=1)), Plan(DIES_ONCE, once)], store, jobs=2)
    (failure,) = caught.value.failures
    assert failure.experiment == "dies" and failure.parameters["repeat"] == 1 and "was killed" in failure.message
    assert store.query("SELECT experiment, count(*) FROM cells GROUP BY 1") == [("dies", 3), ("dies_once", 4)]
    (result,) = caught.value.results
    assert (tmp_path / "20-2").exists()  # it was killed
    assert fingerprint(result) == fingerprint(DIES_ONCE.run(once))


def test_a_worker_with_other_code_stops_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlab.runner.workers.code_of", lambda measure: Code("0" * 64, "torch 1"))
    with pytest.raises(InputError, match=r"a worker has other code \(digest 000000000000, torch 1\) than"):
        run([Plan(SPECTRUM, CONFIG)], store)
    assert store.query("SELECT count(*) FROM cells") == [(0,)]


def test_cells_of_other_code_are_told_and_not_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(SPECTRUM, ToyConfig(sizes=(20,), repeats=2))
    old = Code("0" * 64, "torch 1")
    with monkeypatch.context() as patched:
        patched.setattr("hessianlab.runner.plan.code_of", lambda measure: old)
        patched.setattr("hessianlab.runner.workers.code_of", lambda measure: old)
        run([Plan(SPECTRUM, plan.config)], store)
    last: list[Progress] = []
    run([plan], store, on_progress=last.append)
    assert last[-1].tallies[0].new == 2
    (note,) = last[-1].notes
    assert note.startswith("2 cells of other code (digest 000000000000, torch 1")
    assert note.endswith("are in the store and are not used")


def test_the_time_of_a_cell_is_that_of_the_processor() -> None:
    """A cell that waits, as one does on a busy machine, has taken no time."""
    (parameters,) = SPECTRUM.cells(ToyConfig(sizes=(4,), repeats=1, seconds=0.5))
    assert 0 < SPECTRUM.finish(parameters).seconds < 0.3


def test_a_registered_experiment_travels_as_its_name() -> None:
    registered = EXPERIMENTS["rank_fraction"]
    parameters = registered.cells(registered.presets["quick"])[0]
    plan = Plan(registered, registered.presets["quick"])
    sent = order("key", registered, parameters, plan.code)
    assert sent[1] == "rank_fraction"
    answer = measure_cell(sent)
    assert answer.cell is not None and answer.cell.measurement.rows == registered.finish(parameters).measurement.rows
    assert order("key", SPECTRUM, {}, plan.code)[1] is SPECTRUM


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, r"jobs: got 0"),
        ({"backend": "mpi"}, r"backend: got 'mpi'"),
        ({"address": "tcp://127.0.0.1:1"}, r"address: got .*only dask has one"),
        ({"backend": "dask"}, r"address: got none, expected that of the dask scheduler"),
    ],
)
def test_bad_arguments(store: Store, arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run([Plan(SPECTRUM, CONFIG)], store, **arguments)

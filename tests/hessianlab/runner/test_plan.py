"""Which cells run first, and how long the rest will take."""

from pathlib import Path

import pytest

from hessianlab.results import FinishedCell, Measurement, collect
from hessianlab.runner import Plan, forecast, start_progress, tasks_to_do
from hessianlab.store import Code, open_store
from tests.hessianlab.runner.toys import RAISES, SPECTRUM, ToyConfig

OLD = Code("0" * 64, "torch 1")


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "cells.sqlite") as store:
        yield store


def seen(store, plan: Plan, seconds: list[float]) -> None:
    """Other code has measured the first cells, in so many seconds."""
    for parameters, taken in zip(plan.cells, seconds, strict=False):
        store.put(plan.experiment.name, FinishedCell(parameters, Measurement(), taken), OLD, collect())


def test_unknown_cells_first_and_in_turn_then_the_longest(store) -> None:
    timed, unknown = Plan(SPECTRUM, ToyConfig(sizes=(9,), repeats=4)), Plan(RAISES, ToyConfig(sizes=(9,), repeats=2))
    seen(store, timed, [1.0, 3.0, 2.0])
    order = [(t.plan.experiment.name, t.parameters["repeat"], t.seconds) for t in tasks_to_do([timed, unknown], store)]
    assert order == [
        ("spectrum", 3, None),
        ("raises", 0, None),
        ("raises", 1, None),
        ("spectrum", 1, 3.0),
        ("spectrum", 2, 2.0),
        ("spectrum", 0, 1.0),
    ]


def test_time_left_uses_earlier_runs_and_then_this_one(store) -> None:
    plan = Plan(SPECTRUM, ToyConfig(sizes=(9,), repeats=4))
    seen(store, plan, [1.0, 3.0])
    progress = start_progress([plan], tasks_to_do([plan], store))
    assert progress.seconds_left is None  # two cells nobody knows
    (tally,) = progress.tallies
    tally.count("new", 5.0, None)
    assert progress.seconds_left == 1 + 3 + 5
    progress.workers = 2
    tally.count("new", 4.0, 3.0)
    assert progress.seconds_left == (1 + 4.5) / 2
    tally.count("failed", 0.0, 1.0)
    tally.count("new", 6.0, None)
    assert progress.seconds_left == 0 and tally.to_do == 0
    assert (tally.new, tally.failed, tally.seconds, progress.kept) == (3, 1, 15.0, 3)


def test_forecast_of_a_whole_plan(store) -> None:
    plan = Plan(SPECTRUM, ToyConfig(sizes=(9,), repeats=4))
    assert forecast(plan, store) is None and forecast(plan, None) is None
    seen(store, plan, [1.0, 3.0])
    assert forecast(plan, store) == 8.0


def test_without_a_store_everything_is_to_do() -> None:
    plan = Plan(SPECTRUM, ToyConfig())
    assert len(tasks_to_do([plan], None)) == len(plan.cells)

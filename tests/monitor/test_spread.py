"""Measurements that are spread over steps: what they may take in any stretch of a run, and what they see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hessianlens as hl
from hessianlens.monitor import Monitor, Record
from hessianlens.monitor.measurement import Measurer, WorkPiece
from hessianlens.monitor.ongoing import GRADIENTS_PER_PIECE

STEP, OVERHEAD = 4.0, 0.1
"""Gradients of the probe batch that a step of training takes, and what may be spent on measurements."""


class Counted:
    """A run whose clock counts gradients of the probe batch: by pieces of measurements and steps of training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, overhead: float | None = OVERHEAD, **options: Any) -> None:
        self.now = 0.0
        self.task = hl.tasks.Addition(digits=1)
        self.model = hl.models.Transformer(layers=1, d_model=4, d_mlp=4, dtype=torch.float64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.problem = hl.problem(self.model, self.task.batch(3, seed=0), self.task.cross_entropy)
        options = {"steps": 2, "probes": 2, "optimizer": self.optimizer, **options}
        self._meter(monkeypatch)
        self.monitor = Monitor(self.problem, overhead=overhead, **options)
        self.monitor.pace.clock = lambda: self.now
        self.spent: list[float] = []
        self.records: list[Record] = []

    def _meter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pieces of work take what they are expected to, in the trials before the run as well as in measurements."""
        from hessianlens.monitor import measurement, ongoing

        go_on = ongoing.Ongoing._go_on

        def rehearsed(*given: Any) -> Iterator[tuple[WorkPiece, float]]:
            for piece, _ in measurement.rehearse(*given):
                yield piece, GRADIENTS_PER_PIECE[piece.work]

        def counted(own: ongoing.Ongoing) -> None:
            piece = own._piece
            go_on(own)
            self.now += 0.0 if piece is None else GRADIENTS_PER_PIECE[piece.work] * piece.vectors

        monkeypatch.setattr("hessianlens.monitor.live_measurements.rehearse", rehearsed)
        monkeypatch.setattr(ongoing.Ongoing, "_go_on", counted)

    def train(self, steps: int) -> Counted:
        for _ in range(steps):
            batch = self.task.batch(4, seed=len(self.spent))
            self.optimizer.zero_grad()
            self.task.cross_entropy(self.model(batch["tokens"]), batch).backward()
            self.optimizer.step()
            self.now += STEP
            record = self.monitor.step()
            self.spent.append(self.monitor.pace.spent)
            self.records += [] if record is None else [record]
        return self


@pytest.fixture
def probe_by_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for a large model: one vector at a time."""
    from hessianlens.monitor import measurement

    monkeypatch.setattr(measurement, "TOGETHER_ENTRIES", 0)
    yield


def most_in(spent: list[float], window: int) -> float:
    """The most that was spent in so many steps in a row."""
    return max(later - earlier for earlier, later in zip([0.0, *spent], spent[window - 1 :], strict=False))


@pytest.mark.usefixtures("probe_by_probe")
def test_a_short_run_has_a_first_a_middle_and_a_last_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted(monkeypatch, probes=4, steps=6).train(300)
    steps = [record.step for record in run.records]
    assert steps[0] <= 20 and any(100 <= step <= 200 for step in steps) and steps[-1] >= 200
    assert all({"top", "sharpness", "gradient", "entropy"} <= set(r.flat()) | {"entropy"} for r in run.records)
    # Shares of eigenvalues take more than these steps pay for, and the record says so.
    assert "negative" not in run.records[0].flat()
    assert run.records[0].notes[0].startswith("to stay within overhead=0.1: without") and "negative" in str(
        run.records[0].notes[0]
    )


@pytest.mark.usefixtures("probe_by_probe")
@pytest.mark.parametrize("window", [1, 20, 100])
def test_no_window_of_a_run_takes_more_than_its_share_and_one_piece(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Counted(monkeypatch).train(400)
    assert len(run.records) >= 3
    assert most_in(run.spent, window) <= OVERHEAD * STEP * window + max(GRADIENTS_PER_PIECE.values()) + 1e-9


@pytest.mark.usefixtures("probe_by_probe")
def test_a_longer_run_measures_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted(monkeypatch, every=20).train(400)
    assert "negative" not in run.records[0].flat()
    last = run.records[-1]
    assert {"top", "trace", "norm", "sharpness"} <= set(last.flat())
    assert {"negative", "negative_mass"} <= set(last.numbers["model"]) and not last.notes


@pytest.mark.usefixtures("probe_by_probe")
@pytest.mark.parametrize("quantities", [("top", "trace", "norm", "negative", "gradient", "edge"), ("trace", "norm")])
def test_all_of_a_measurement_sees_the_weights_of_one_step(
    quantities: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over steps it gives what it gives at once, bit by bit, though the weights have moved on."""
    spread = Counted(monkeypatch, quantities=quantities, every=1000, overhead=0.5)
    while not spread.records:
        spread.train(1)
    record = spread.records[0]
    assert record.until is not None and record.until > record.step + 2
    at_once = Counted(monkeypatch, quantities=quantities, overhead=None, every=1000)
    at_once.monitor.pace.begin(0)
    at_once.train(record.step)
    whole = at_once.monitor.measure(record.step).numbers["model"]
    assert {"trace", "norm"} <= record.numbers["model"].keys() and not record.notes
    assert all(whole[name] == reading for name, reading in record.numbers["model"].items())


def test_a_measurement_that_the_run_ends_is_kept_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted(monkeypatch)
    assert run.monitor.finish() is None
    run.train(12)
    assert not run.records and "measurement of step 4" in repr(run.monitor)
    record = run.monitor.finish()
    assert record is not None and record.step == 4 and record.until == 12 and "gradient" in record.flat()
    assert "the run ended before these were measured: top" in record.notes[-1]
    assert [one.step for one in run.monitor.history] == [4] and run.monitor.finish() is None


def test_a_run_taken_back_gives_up_what_is_underway(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted(monkeypatch).train(12)
    run.monitor.step(2)
    assert run.monitor.finish() is None


def test_set_up_is_done_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Counted(monkeypatch).monitor
    assert made.setup_seconds > 0 and made.pace.spent == 0 and made.products == 0
    assert Counted(monkeypatch, overhead=None).monitor.setup_seconds == 0


def test_an_interruption_ends_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted(monkeypatch).train(12)
    monkeypatch.setattr(Measurer, "curvature", None)
    monkeypatch.setattr("hessianlens.monitor.ongoing.Ongoing.work", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.train(50)
    assert run.monitor.finish() is None


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt

"""Pacing, storing, searching: the pieces of a monitor one by one."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import pytest
import torch

import hessianlens as hl
from hessianlens.errors import InputError
from hessianlens.monitor import History, Monitor, Reading, Record
from hessianlens.monitor.edge_of_stability import StabilityEdge
from hessianlens.monitor.pace import Pace
from hessianlens.monitor.page import document
from hessianlens.monitor.records import RecordFile
from hessianlens.spectra import RitzPairs, density, leading_eigenpair


@pytest.mark.parametrize("cost", [0.01, 0.5, 7.0])
@pytest.mark.parametrize("overhead", [0.05, 0.1, 0.5])
def test_pieces_stay_within_their_share(cost: float, overhead: float) -> None:
    now = 0.0
    pace, done = Pace(overhead=overhead, clock=lambda: now), []
    for step in range(1, 1001):
        now += 1.0
        pace.tick(step)
        while pace.affords(cost):
            with pace.spending():
                now += cost
            done.append(step)
        assert pace.spent <= overhead * pace.trained + 1e-9
    assert done[0] == 1 + math.ceil(round(cost / overhead, 9))  # time counts from the first step on
    # It is not timid either: what it may spend it spends, but for what does not add up.
    whole = math.floor(overhead * 999 / cost)
    assert len(done) >= min(whole - 1, 900) and pace.earns_in(10) == pytest.approx(10 * overhead)


def test_any_window_pays_for_itself() -> None:
    """Costs that vary and steps of two lengths; and a rest in between, of which nothing may be saved up."""
    now, ends = 0.0, [(0.0, 0.0)]
    pace = Pace(overhead=0.1, clock=lambda: now)
    for step in range(1, 2000):
        now += 1.0 if step % 100 < 50 else 0.1
        pace.tick(step)
        if not 700 < step < 1200 and pace.affords(1.0):
            with pace.spending():
                now += (1.0, 3.0, 0.5)[step % 3]
        ends.append((pace.trained, pace.spent))
    assert pace.spent > 0.05 * pace.trained
    for k, (trained, spent) in enumerate(ends):
        for later, more in ends[k + 1 :]:  # one piece, at what it took
            assert more - spent <= 0.1 * (later - trained) + 3.0 + 1e-9


def test_a_run_that_goes_back_is_measured_at_once() -> None:
    pace = Pace(every=100, overhead=None, clock=lambda: 0.0)
    pace.begin(500)
    assert not pace.due(550) and pace.due(20)


def test_a_file_cut_at_any_byte_keeps_every_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = RecordFile(path)
    records = [Record(s, {"model": {"top": Reading(1.0 / s, 0.0, math.inf)}}, {"lr": 0.1}) for s in (1, 2, 3)]
    ends = []
    for record in records:
        file.add(record)
        ends.append(path.stat().st_size)
    content = path.read_bytes()
    for cut in range(ends[0], len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut + 1 for end in ends)  # the last byte of a line is the end of the line
        assert [record.step for record in file.read()] == [1, 2, 3][:whole]
        file.add(Record(9, {}))
        assert [record.step for record in file.read()] == [*[1, 2, 3][:whole], 9]
    path.write_bytes(content.replace(b'"step":2', b'"step":7'))
    assert [record.step for record in file.read()] == [1, 3]  # a line that was changed is no record


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="not a file of a watched run"):
        RecordFile(tmp_path / "notes.txt").read()
    with pytest.raises(InputError, match="cannot be written"):
        RecordFile(tmp_path / "nowhere" / "run.jsonl")
    with pytest.raises(InputError, match="no such file"):
        History.read(tmp_path / "none.jsonl")


@pytest.mark.expensive
@pytest.mark.parametrize("basis", [None, 4])
@pytest.mark.parametrize("kind", ["indefinite", "negative", "outlier"])
def test_the_leading_eigenpair_is_that_of_the_dense_matrix(kind: str, basis: int | None) -> None:
    A = torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A = A + A.T
    if kind == "negative":
        A = -A @ A.T
    elif kind == "outlier":
        A[0, 0] += 100
    expected = torch.linalg.eigvalsh(A)[-1]
    tol = 1e-3 if kind == "negative" else 1e-8  # of an eigenvalue that is a thousandth of the others
    found = leading_eigenpair(A, rtol=tol, most=2000, basis=basis)
    assert found.converged and abs(found.value - expected) < 1e-6 * A.norm()
    torch.testing.assert_close(A @ found.vector, found.value * found.vector, rtol=0, atol=2e-6 * float(A.norm()))
    assert not leading_eigenpair(A, rtol=1e-12, most=3).converged
    assert leading_eigenpair(A, found.vector, rtol=100 * tol).products <= 2


class Diagonal:
    """A large matrix of which only the diagonal is not zero."""

    SELF_ADJOINT = True

    def __init__(self, *ends: float, n: int = 50_000) -> None:
        self.shape, self.dtype, self.device = (n, n), torch.float32, torch.device("cpu")
        self.entries = torch.zeros(n)
        self.entries[: len(ends)] = torch.tensor(ends)

    def __matmul__(self, X: torch.Tensor) -> torch.Tensor:
        return self.entries[:, None] * X


@pytest.mark.parametrize("seed", range(3))
def test_a_direction_without_curvature_is_not_taken_for_the_largest(seed: int) -> None:
    """In a large space a random direction has nearly none, and beside a large negative eigenvalue little is left."""
    found = leading_eigenpair(Diagonal(-240.0, 100.0, 60.0), seed=seed)
    assert found.converged and found.value == pytest.approx(100, rel=0.05)


def test_what_lanczos_has_met_need_not_be_searched_again() -> None:
    op = Diagonal(80.0, 50.0, 30.0, -20.0)
    known = RitzPairs()
    density(op, probes=4, steps=6, check_symmetry=False, keep=known)
    torch.testing.assert_close(known.products, known.vectors * op.entries, rtol=1e-4, atol=1e-3)
    found = leading_eigenpair(op, known=known)
    assert found.converged and found.products == 0 and found.value == pytest.approx(80, rel=1e-3)
    # One that has overtaken is met by them, though the search begins at the eigenvector that was followed.
    followed = torch.zeros(op.shape[0])
    followed[1] = 1
    assert leading_eigenpair(op, followed).value == pytest.approx(50)
    assert leading_eigenpair(op, followed, known=known).value == pytest.approx(80, rel=1e-3)
    sharper = leading_eigenpair(op, followed, rtol=1e-5, known=known, basis=4)
    assert sharper.converged and sharper.products < leading_eigenpair(op, rtol=1e-5).products


def test_pairs_as_the_optimiser_sees_them() -> None:
    A = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A, x = A + A.T, torch.arange(1.0, 10.0, dtype=torch.float64)
    edge = StabilityEdge(2.0, torch.linspace(0.5, 2, 9), torch.linspace(0.1, 0.3, 9), 1.0)
    known = RitzPairs()
    known.add(x, A @ x)
    edge.see_pairs(known)
    (vector, product) = next(iter(known))
    torch.testing.assert_close(edge.seen(A) @ vector[:, None], product[:, None])


def test_small_and_bad_input() -> None:
    assert leading_eigenpair(torch.tensor([[-3.0]])).value == -3
    assert leading_eigenpair(torch.zeros(5, 5)).converged
    with pytest.raises(InputError, match="start: got a vector of zeros"):
        leading_eigenpair(torch.eye(3), torch.zeros(3))
    with pytest.raises(InputError, match=r"start: got shape \(2,\)"):
        leading_eigenpair(torch.eye(3), torch.ones(2))


def watched(**options: object) -> tuple[Monitor, torch.nn.Module]:
    model = hl.models.Transformer(d_model=2, d_mlp=2, dtype=torch.float64)
    task = hl.tasks.Addition(digits=1)
    problem = hl.problem(model, [task.batch(3, seed=0), task.batch(2, seed=1)], task.cross_entropy)
    return Monitor(problem, "layer0.attn.[qv]", every=1, overhead=None, **options), model  # type: ignore[arg-type]


def test_numbers_are_those_of_the_dense_hessian() -> None:
    monitor, model = watched(rtol=1e-6, probes=20, steps=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = monitor.measure(3, optimizer=optimizer, loss=torch.tensor(2.5))
    problem = monitor.problem
    for name, pattern in (("model", "*"), ("layer0.attn.q", "layer0.attn.q"), ("layer0.attn.v", "layer0.attn.v")):
        H = hl.hessian(problem, pattern, method="hvp").to_dense()
        values, readings = torch.linalg.eigvalsh(H), record.numbers[name]
        assert readings["top"].value == pytest.approx(float(values[-1]), rel=1e-4)
        rounding = 1e-9 * float(H.norm())
        off = abs(readings["trace"].value - float(values.sum()))  # an interval is four standard errors wide
        assert off <= readings["trace"].high - readings["trace"].low + rounding
        assert readings["norm"].low - rounding <= float(H.norm()) <= readings["norm"].high + rounding
        mass = float(values.clamp(max=0).sum() / -values.abs().sum())
        assert readings["negative_mass"].low - 0.01 <= mass <= readings["negative_mass"].high + 0.01
        small = 1e-3 * float(values.abs().max())
        counts = {"negative": values < -small, "zero": values.abs() <= small, "positive": values > small}
        for quantity, count in counts.items():
            share, reading = float(count.double().mean()), readings[quantity]
            assert reading.low - 1e-6 <= share <= reading.high + 1e-6 and 0 <= reading.low <= reading.high <= 1
        weight = torch.cat([b.take(problem.params[b.parameter]).flatten() for b in problem.select(pattern)])
        assert readings["weight"].value == pytest.approx(float(weight.norm()))
    leaves = {name: problem.params[name].clone().requires_grad_() for name, _ in model.named_parameters()}
    gradient = torch.autograd.grad(problem.total_loss(leaves), list(leaves.values()))
    length = float(torch.cat([slope.flatten() for slope in gradient]).norm())
    assert record.numbers["model"]["gradient"].value == pytest.approx(length)
    assert record.numbers["model"]["edge"].value == 20 and record.given == {"lr": 0.1, "loss": 2.5}
    assert record.numbers["model"]["sharpness"] == record.numbers["model"]["top"]
    assert 0 < record.numbers["layer0.attn"]["entropy_share"].value <= 1


def test_the_weights_are_those_of_the_moment() -> None:
    monitor, model = watched(quantities=("weight",))
    before = monitor.measure(1).numbers["model"]["weight"].value
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert monitor.measure(2).numbers["model"]["weight"].value == pytest.approx(2 * before)


def test_a_run_that_goes_wrong_is_not_ended_by_being_watched() -> None:
    monitor, model = watched(quantities="top", whole=False)
    monitor.step()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.warns(RuntimeWarning, match="step 2 was not measured"):
        record = monitor.step()
    assert record is not None and record.notes[0].startswith("not measured")
    fresh, broken = watched(quantities="top", whole=False)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    with pytest.raises(InputError):
        fresh.step()


class FakeRun:
    """What Weights & Biases would be given."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)


@pytest.mark.parametrize("old_names", [False, True])
def test_logs(tmp_path: Path, old_names: bool, recwarn: pytest.WarningsRecorder) -> None:
    told: list[int] = []
    run = FakeRun()
    places = {
        "store": tmp_path / "run.jsonl",
        "csv": tmp_path / "run.csv",
        "tensorboard": tmp_path / "board",
        "wandb": run,
        "sinks": [lambda one, history: told.append(len(history))],
    }
    if not old_names:
        places["sinks"] = [lambda record, history: told.append(len(history))]
    log = [*list(places.values())[:-1], *places["sinks"]]
    options: dict[str, object] = {"quantities": ("top", "gradient"), **(places if old_names else {"log": log})}
    if old_names:
        warnings.simplefilter("always", DeprecationWarning)
    monitor, _ = watched(**options)
    monitor.step(5)
    monitor.step(6)
    again, _ = watched(**options)
    assert [record.step for record in again.history] == [5, 6] == [r.step for r in History.read(tmp_path / "run.jsonl")]
    again.step(6)
    assert told == [1, 2, 2]
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert len(lines) == 3 and "layer0.attn.q/top" in lines[0].split(",")
    assert (
        run.logged[0]["hessianlens/step"] == 5 and run.logged[0]["hessianlens/top"] == monitor.history[0].flat()["top"]
    )
    assert any(name.startswith("events") for name in os.listdir(tmp_path / "board"))
    said = {str(warning.message) for warning in recwarn if "Monitor:" in str(warning.message)}
    assert said == ({f"Monitor: {name}= is now log=" for name in places} if old_names else set())
    frame = monitor.to_frame().set_index("step")
    assert frame.loc[5, "layer0.attn.v/gradient"] > 0


class _Tracker:
    """Functions that take numbers and a step, as trackers of experiments have them."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append((metrics, step))


def test_a_function_is_given_numbers_and_the_step() -> None:
    tracker = _Tracker()
    monitor, _ = watched(log=tracker.log_metrics, quantities=("top", "gradient"))
    monitor.step(5, loss=2.0)
    numbers, step = tracker.calls[0]
    assert step == 5 and all(isinstance(value, float) for value in numbers.values())
    assert numbers == {f"hessianlens/{name}": value for name, value in monitor.history[0].flat().items()}
    assert numbers["hessianlens/loss"] == 2.0


def test_a_run_of_wandb_keeps_its_own_step() -> None:
    run = FakeRun()
    FakeRun.__module__ = "wandb.sdk.wandb_run"
    try:
        monitor, _ = watched(log=run.log, quantities=("gradient",))
        monitor.step(5)
    finally:
        FakeRun.__module__ = __name__
    assert run.logged[0]["hessianlens/step"] == 5


def test_a_monitor_is_attached_to_trainers_only() -> None:
    monitor, _ = watched(quantities=("gradient",))
    with pytest.raises(hl.errors.InputError, match=r"trainer: got Linear, expected a Trainer .* call monitor.step"):
        monitor.attach(torch.nn.Linear(2, 2))


def test_a_run_that_goes_on_counts_its_time_on(tmp_path: Path) -> None:
    now = [0.0]

    def go(*steps: int) -> Monitor:
        monitor, _ = watched(log=tmp_path / "run.jsonl", quantities="weight")
        monitor.pace.clock = lambda: now[0]
        for step in steps:
            now[0] += 10.0
            monitor.step(step)
        return monitor

    assert [record.trained for record in go(1, 2, 3).history] == [0, 10, 20]
    # From the checkpoint of step 2; its clock begins at its first step.
    assert [record.trained for record in go(3, 4).history] == [0, 10, 10, 20]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantities": ("hessian",)}, "quantities: got 'hessian'"),
        ({"probes": 1}, "probes: got 1"),
        ({"rtol": 0.0}, "rtol: got 0"),
        ({"log": 3}, "log: got 3"),
        ({"log": [object()]}, "log: got"),
        ({"data": 3}, "data: got some beside a Problem"),
    ],
)
def test_bad_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        watched(**options)


def test_old_options() -> None:
    with pytest.warns(DeprecationWarning, match="warm= is now the attribute warm_start"):
        monitor, _ = watched(warm=False)
    assert not monitor.warm_start
    with pytest.warns(DeprecationWarning, match="tol= is now rtol="), pytest.raises(InputError, match="rtol: got 0"):
        watched(tol=0.0)
    with pytest.warns(DeprecationWarning), pytest.raises(InputError, match="tensorboard: got 3"):
        watched(tensorboard=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'stores'"):
        watched(stores="run.jsonl")


def test_bad_targets() -> None:
    with pytest.raises(InputError, match="problem: got 3"):
        Monitor(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="data: got none"):
        Monitor(torch.nn.Linear(2, 2))
    monitor, _ = watched()
    with pytest.raises(InputError, match="loss: got 'high'"):
        monitor.step(loss="high")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="expected one of what was measured"):
        monitor.history["top"]


def test_long_vectors_in_single_precision_are_added_up_without_loss() -> None:
    """Two known vectors that are nearly alike: what tells them apart is less than what single precision loses."""
    n = 4_000_000
    size = torch.linspace(0, 50, n)
    size[0] = 100.0

    class Diagonal:
        shape, dtype, device, SELF_ADJOINT = (n, n), torch.float32, torch.device("cpu"), True

        def __matmul__(self, X: torch.Tensor) -> torch.Tensor:
            return size[:, None] * X

    noise = torch.randn(2, n, generator=torch.Generator().manual_seed(0)) / n**0.5
    first = noise[0].clone()
    first[0] = 0.05
    known = RitzPairs()
    for vector in (first, first + 0.02 * noise[1]):
        known.add(vector, size * vector)
    found = leading_eigenpair(Diagonal(), known=known, rtol=0.01, basis=6)
    assert found.converged and abs(found.value - 100) < 0.1


def test_a_page_leaves_out_shares_that_are_not_known() -> None:
    """Few steps of Lanczos leave most of a share open: no curve, no column, and the page says so."""

    def page(width: float) -> tuple[str, dict[str, float]]:
        numbers = {"top": Reading.of(2.0), "negative": Reading(0.31234, 0.3, 0.3 + width)}
        history = History([Record(step, {"model": numbers}) for step in (1, 2)])
        return document(history, "run").html(), history[-1].flat()

    known, vague = page(0.1), page(0.6)
    assert (
        "share of negative eigenvalues" in known[0] and "Not drawn" not in known[0] and known[1]["negative"] == 0.31234
    )
    assert "Not drawn: share of negative eigenvalues" in vague[0] and "0.312" not in vague[0]
    assert vague[1] == {"top": 2.0, "negative_low": 0.3, "negative_high": 0.3 + 0.6}

"""Every competitor computes the same thing; the harness measures what it says. Nothing here depends on a time."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.func import hessian

from benchmarks import (
    accuracy,
    attention,
    block_norms,
    counting,
    hutchinson,
    layer_trace,
    memory,
    peak,
    sketched_norms,
    summary,
)
from benchmarks.__main__ import main
from benchmarks.dense_hessian import check, flat_loss
from benchmarks.harness import Competitor, Options, disturbance, first_calls, interleave, measure, spread, summarise
from benchmarks.problem import EMBEDDINGS, NAMES, Problem, Size
from benchmarks.registry import BENCHMARKS, RUNNERS
from benchmarks.results import OURS, PEER, Memory, Result, Spread, Timing
from benchmarks.tables import rendered
from benchmarks.wording import verdict
from hessianlens.operators import Factor
from hessianlens.operators.term import contract

ROOT = Path(__file__).resolve().parents[2]
TRACES = [b.name for b in layer_trace.BENCHMARKS]
PEERS = [
    (name, c.name)
    for name, b in BENCHMARKS.items()
    for c in b.competitors
    if c.role == PEER and name not in (*TRACES, "attention_product_long")  # in gradients, not in products
]
ESTIMATORS = (
    hutchinson.kept_graph,
    hutchinson.kept_graph_batched,
    hutchinson.fresh_graph,
    hutchinson.forward_over_reverse,
    hutchinson.forward_over_reverse_batched,
    hutchinson.nine_blocks_kept,
    hutchinson.nine_blocks_fresh,
)


def dense_blocks(problem: Problem) -> list[list[Tensor]]:
    """The Hessian by autograd, in blocks."""
    loss, theta = flat_loss(problem)
    sizes = [w.numel() for w in problem.weights]
    return [list(row.split(sizes, 1)) for row in hessian(loss)(theta).split(sizes)]


def fake_result() -> Result:
    timings = (
        Timing("ours", OURS, Spread(1.0, 0.9, 1.1), Spread(1, 1, 1), 2.0),
        Timing("slow", PEER, Spread(6.0, 5.0, 7.0), Spread(6, 5, 7), 6.5),
        Timing("fast", PEER, Spread(3.0, 2.0, 4.0), Spread(3, 2, 4), 3.5),
    )
    return Result("x", "a title", {"L": 4}, 5, "slow", 7, timings, {"ours": Memory(1, 2, 3)}, {"a": [1, 2]}, ("note",))


@pytest.mark.parametrize(("benchmark", "name"), PEERS, ids=[f"{b}: {c}" for b, c in PEERS])
def test_every_peer_computes_what_the_library_computes(benchmark, name):
    suite = BENCHMARKS[benchmark]
    problem = suite.make(suite.tiny)
    ours = next(c for c in suite.competitors if c.role == OURS).prepare(problem)()
    theirs = suite.competitor(name).prepare(problem)()
    if suite.check in (check, attention.check):
        rounding = 1e-10 if ours.dtype == torch.float64 else 1e-5  # of the largest entry
        assert (theirs - ours).abs().max() <= rounding * ours.abs().max()
    elif name == "hessianlens, exact":  # beside a sketch, of which it is no copy
        norms = torch.stack([torch.stack([block.norm() for block in row]) for row in dense_blocks(problem)])
        assert torch.allclose(theirs, norms, rtol=1e-10)
    else:  # the same probes by way of the dense Hessian
        sketched = suite.check is sketched_norms.check
        probes = hutchinson.draw(problem, sketched_norms.PROBES) if sketched else _probes(problem)
        products = [
            [[(block @ v.reshape(-1)).square().sum() for v in vs] for block, vs in zip(row, probes, strict=True)]
            for row in dense_blocks(problem)
        ]
        assert torch.allclose(theirs, torch.tensor(products, dtype=torch.float64).mean(-1).sqrt(), rtol=1e-10)


@pytest.mark.parametrize("name", TRACES)
def test_traces_and_their_probes_are_those_of_the_dense_hessian(name):
    suite = BENCHMARKS[name]
    problem = suite.make(suite.tiny)
    outputs = {c.name: c.prepare(problem)() for c in suite.competitors}
    dense = torch.cat([torch.cat(list(row), 1) for row in dense_blocks(problem)])
    exact, gradient, probes = outputs.values()
    assert torch.allclose(
        exact, dense.diagonal() if name == "layer_diagonal" else dense.trace(), rtol=1e-10, atol=1e-13
    )
    assert [g.shape for g in gradient] == [w.shape for w in problem.weights]
    signs = torch.cat([v.flatten(1) for v in hutchinson.draw(problem, layer_trace.PROBES)], 1)
    assert torch.allclose(probes, ((signs @ dense) * signs).sum(1), rtol=1e-10, atol=1e-13)
    suite.check(outputs)
    with pytest.raises(AssertionError, match="standard errors"):
        suite.check({**outputs, "hessianlens": exact + 10 * probes.std()})


def _probes(problem: Problem) -> hutchinson.Probes:
    return hutchinson.draw(problem, block_norms.PROBES)


@pytest.mark.parametrize("name", ["block_norms", "block_norms_few_tokens"])
def test_exact_norms_are_those_of_the_dense_hessian(name):
    problem = Problem(BENCHMARKS[name].tiny)
    found = BENCHMARKS[name].competitors[0].prepare(problem)()
    expected = torch.stack([torch.stack([block.norm() for block in row]) for row in dense_blocks(problem)])
    assert torch.allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("method", ESTIMATORS, ids=lambda f: f.__name__)
def test_estimators_are_exact_on_average_over_all_signs(method):
    problem = Problem(Size(batch=1, length=3, width=2, read=2))
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)), dtype=torch.float64).view(-1, 2, 2)
    found = hutchinson.norms(method(problem, [signs] * 3))
    exact = problem.hessian().full.norms()
    assert torch.allclose(found, torch.stack([torch.stack([exact[r, c] for c in NAMES]) for r in NAMES]), rtol=1e-10)


def test_tokens_like_embeddings_are_nearly_alike_and_of_the_same_size():
    size = Size(batch=4, length=32, width=16)
    normal, alike = (Problem(s).X.flatten(0, 1) for s in (size, replace(size, tokens=EMBEDDINGS)))
    assert float(alike.square().mean()) == pytest.approx(1.0)
    shares = [torch.linalg.svdvals(X).square() / X.square().sum() for X in (normal, alike)]
    assert shares[0][0] < 0.15 < 0.4 < shares[1][0]
    words = alike.view(4, 32, 16)[:, 0].unique(dim=0)  # at one position nothing but the word differs
    assert len(Problem(replace(size, batch=200, tokens=EMBEDDINGS)).X[:, 0].unique(dim=0)) == 12 >= len(words)


def test_probes_needed_follow_from_the_variance():
    squares = torch.tensor([0.5, 1.5], dtype=torch.float64).expand(9, 2).T.reshape(2, 3, 3)  # variance 1/2, mean 1
    needed = accuracy._probes_needed(squares, wanted=0.01)
    assert needed["QQ"] == pytest.approx(0.5 * 0.5**2 / 0.01**2)
    assert needed["QK"] == pytest.approx(needed["QQ"] / 2)  # two estimates of one norm
    assert set(needed) == {"QQ", "QK", "QV", "KK", "KV", "VV"}


def test_accuracy_compares_with_the_exact_norms():
    problem = Problem(BENCHMARKS["block_norms"].tiny)
    exact = BENCHMARKS["block_norms"].competitors[0].prepare(problem)()
    found = accuracy.measure_accuracy(problem, exact, probes=20, groups=3)
    assert 0 < found.median_error <= found.worst_error < 0.6
    assert found.error_with(4 * max(found.probes_needed.values())) == pytest.approx(found.wanted / 2)


def test_disagreement_stops_a_benchmark():
    with pytest.raises(AssertionError, match="other differs"):
        check({"ours": (ones := torch.ones(2, 2, dtype=torch.float64)), "other": ones + 1e-9})
    with pytest.raises(AssertionError, match="different norms"):
        block_norms.check({"exact": torch.ones(3, 3), "a": torch.ones(3, 3), "b": 1.1 * torch.ones(3, 3)})


@pytest.mark.long
def test_rounds_are_interleaved_and_shuffled():
    called: list[str] = []
    runs = {name: (lambda name=name: called.append(name)) for name in "abcd"}
    seconds = interleave(runs, rounds=8)
    rounds = [tuple(called[k : k + 4]) for k in range(0, len(called), 4)]
    assert len(rounds) == 8
    assert all(set(r) == set("abcd") for r in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(s) for name, s in seconds.items()} == dict.fromkeys("abcd", 8)


def test_warm_up_calls_twice_and_returns_the_first_output():
    counter = itertools.count()
    outputs, seconds = first_calls({"a": lambda: next(counter)})
    assert outputs == {"a": 0}
    assert next(counter) == 2
    assert seconds["a"] >= 0


def test_ratios_are_formed_within_rounds():
    competitors = [Competitor("ours", lambda p: lambda: None, OURS), Competitor("peer", lambda p: lambda: None)]
    wall = {"ours": [3.0], "peer": [1.0, 2.0, 9.0]}
    ours, peer = summarise(competitors, {"ours": [1, 10, 100], "peer": [2, 30, 400]}, {"ours": 0.0, "peer": 0.0}, wall)
    assert (ours.wall, peer.wall) == (3.0, 2.0)
    assert ours.ratio == Spread(1, 1, 1)
    assert peer.ratio == Spread(3, 2.5, 3.5)
    assert spread([4.0]) == Spread(4.0, 4.0, 4.0)
    assert not disturbance([peer])
    assert disturbance([Timing("x", PEER, peer.seconds, Spread(3, 1, 4), 0.0)])


def test_results_round_trip(tmp_path):
    result = fake_result()
    assert Result.from_json(result.to_json()) == result
    assert Result.from_json(result.save(tmp_path).read_text()) == result
    assert result.fastest_peer.name == "fast"


def test_the_summary_shows_what_is_stored(tmp_path):
    made = {"date": "today", "commit": None, "cpu": "c", "threads": 2, "omp_wait_policy": "default"}
    made |= {"load_average": [0.0], "libraries": {"torch": "2"}}
    replace(fake_result(), provenance=made).save(tmp_path)
    text = summary.save(["x", "not run yet"], tmp_path).read_text()
    assert "| slow | 6.5 s | 6 s |  | 6.0x (5.0x to 7.0x) | met |  |" in text
    assert "- note" in text


def test_targets_are_reported_plainly():
    result = fake_result()
    assert verdict(result, result.timing("slow")).endswith(", met.")
    assert verdict(result, result.timing("fast")).endswith(", NOT met.")


@pytest.mark.long
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_whole_benchmark_runs_at_a_tiny_size(name):
    tiny = replace(BENCHMARKS[name], size=BENCHMARKS[name].tiny, rounds=2)
    steps: list[str] = []
    given = {c: Memory(10, 20, 30) for c in tiny.memory}
    before = torch.get_num_threads()
    result = measure(tiny, Options(threads=1), steps.append, given)
    torch.set_num_threads(before)
    assert len(steps) + len(given) == RUNNERS[name].steps(Options()) - BENCHMARKS[name].rounds + 2
    assert result.provenance["threads"] == 1
    assert Result.from_json(result.to_json()).timings == result.timings
    console = Console(width=120)
    with console.capture() as shown:
        console.print(rendered(result))
    assert all(note.split()[0] in shown.get() for note in result.notes)


def test_memory_of_attention_is_told_with_its_goal():
    found = {"hessianlens": Memory(0, 0, 10), "PyTorch, plain kernel": Memory(0, 0, 70)}
    assert attention.memory_note(found) == [
        "At the peak it takes 7 times less memory than with PyTorch, plain kernel; goal 8, NOT met."
    ]
    assert attention.memory_note({}) == []
    with pytest.raises(AssertionError, match="differs from a by"):
        attention.check({"a": torch.ones(2), "b": torch.ones(2) * 1.1})


def test_counted_operations():
    x = torch.randn(5, 7)
    assert counting.count(lambda: x @ x.T).beside == 2 * 5 * 7 * 5
    found = counting.count(lambda: contract([Factor("x", "na", x), Factor("x", "nb", x)], "ab"))
    assert (found.plans, found.beside) == (2 * 7 * 5 * 7, 0)
    assert found.matmul == 2 * 7 * 5 * 7
    assert counting.calls(lambda: x + x + x) == 2


def test_only_what_was_computed_is_counted():
    x, meta = torch.randn(5, 7), torch.randn(500, 500, device="meta")
    assert counting.operations(lambda: (x @ x.T, meta @ meta)) == 2 * 5 * 7 * 5
    q = torch.randn(1, 2, 64, 16)
    fused = torch.nn.functional.scaled_dot_product_attention
    assert counting.operations(lambda: fused(q, q, q)) is None


def test_the_share_of_the_peak_is_that_of_operations_per_second():
    result = replace(fake_result(), peak=4e9)
    ours, slow, fast = (replace(t, operations=n) for t, n in zip(result.timings, (1e9, None, 9e9), strict=True))
    assert (result.of_peak(ours), result.of_peak(slow), result.of_peak(fast)) == (0.25, None, 0.75)
    assert [summary.of_peak(result, t) for t in (ours, slow, replace(ours, operations=4e6))] == ["25%", "", "0.1%"]
    assert replace(fake_result(), timings=(ours,)).of_peak(ours) is None
    again = Result.from_json(replace(result, timings=(ours, slow)).to_json())
    assert (again.peak, again.timings) == (4e9, (ours, slow))


def test_the_large_matrix_product_is_counted_as_its_rate_says():
    run = peak.matrix_product(torch.float32)
    assert counting.operations(run) == peak.operations_per_second(1.0)


def test_peak_meter_sees_what_was_freed():
    meter = memory.PeakMeter()
    filled = torch.ones(4 * 2**20, dtype=torch.float64)
    del filled
    assert 30 * 2**20 < meter.growth() < 60 * 2**20


@pytest.mark.long
def test_memory_is_measured_in_a_process_of_its_own():
    found = memory.measure_apart(BENCHMARKS["dense_hessian"], "hessianlens", threads=1, tiny=True)
    assert 0 <= found.run < 50 * 2**20


@pytest.mark.long
def test_list_names_every_benchmark():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(RUNNERS)


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["no_such_benchmark"])
    assert "there are dense_hessian" in capsys.readouterr().err

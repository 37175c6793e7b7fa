"""Norms refined step by step: every block covered first, then the widest interval, and an end when time is up."""

from __future__ import annotations

import math
from typing import Any

import pytest

import hessianlens as hl
from hessianlens.network import norm_run
from hessianlens.network.base.progress import Deadline
from hessianlens.network.norm_run import NormRun
from hessianlens.parts import PARTS
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.network.watches import Counting, Interrupting

PATTERNS = ["embed", "layer*", "unembed*"]


def problem() -> Problem:
    """Most blocks have more entries than the first pass takes basis vectors for, some have not."""
    return networks.toy_problem(3, layers=2, d_model=6, d_mlp=9)


class Clock(Counting):
    """A clock that every product moves by a second; `Deadline` reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[str, float] | None = None) -> None:
        super().__init__()
        self.now, self.costs, self.latest = 0.0, costs or {}, ""
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def step(self, title: str) -> None:
        super().step(title)
        self.latest = title.split()[0]

    def products(self, count: float) -> None:
        super().products(count)
        self.now += count * self.costs.get(self.latest, 1.0)


def run_of(made: Problem, watch: Counting, patterns: Any = PATTERNS) -> NormRun:
    run = NormRun(made, made.select(patterns), PARTS, watch=watch, method="probes")
    run.solve()
    return run


def test_a_fixed_number_of_probes_is_what_block_norms_gives() -> None:
    made = problem()
    run = run_of(made, Counting())
    run.sample(3)
    assert run.found == dict(hl.block_norms(made, PATTERNS, probes=3, method="probes"))
    assert run.left_out == () and run.products == sum(min(3, block.numel) for block in run.blocks)


def test_the_first_pass_covers_every_block_before_any_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    run = run_of(made, Clock(monkeypatch))
    first = sum(block.numel if block.numel <= 20 else 1 for block in run.blocks)
    run.refine(Deadline(first), rtol=0.01)
    assert run.left_out == () and run.products == first
    for block in run.blocks:
        for norm in run.estimates(block).values():
            low, high = norm.interval()
            assert norm.exact == (block.numel <= 20) and low <= norm.value <= high
            assert norm.exact or math.isfinite(norm.relative_width())


def test_nothing_is_begun_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (1, 5, 40, 200):
        run = run_of(problem(), Clock(monkeypatch))
        run.refine(Deadline(seconds), rtol=1e-9)
        assert run.products <= seconds
        assert run.watch.now <= seconds + 1  # the first product of all is begun without knowing how long it takes


def test_what_was_not_reached_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(problem(), Clock(monkeypatch))
    run.refine(Deadline(3), rtol=0.01)
    assert set(run.left_out) == {b.name for b in run.blocks} - {name for name, _ in run.found}
    assert len(run.left_out) > 0


@pytest.mark.long
def test_more_probes_go_to_the_widest_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(problem(), Clock(monkeypatch))
    run.refine(Deadline(2000), rtol=0.2)
    widths = {block.name: run.width(block) for block in run.blocks}
    assert max(widths.values()) <= 0.2
    drawn = {run.drawn(block) for block in run.blocks if not run.estimates(block)["full"].exact}
    assert len(drawn) > 1  # not the same number everywhere


def test_probes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(problem(), Clock(monkeypatch))
    run.refine(Deadline(10**6), rtol=1e-9, probes=5)
    assert {run.drawn(block) for block in run.blocks if block.numel > 20} == {5}


@pytest.mark.long
def test_enough_time_makes_everything_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem()
    run = run_of(made, Clock(monkeypatch), ["layer0.attn.[qv]", "layer1.mlp.in"])
    run.refine(Deadline(10**6), rtol=1e-12)
    for (name, part), norm in run.found.items():
        assert norm.exact
        op = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](made, name, method="hvp")
        assert norm.value == pytest.approx(hl.frobenius(op, probes=op.shape[0]).value, rel=1e-9)


def test_an_interruption_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(problem(), Interrupting(after=4), ["embed", "layer0.attn.?"])
    with pytest.raises(KeyboardInterrupt):
        run.refine(Deadline(60), rtol=0.01)
    assert run.products == 4 and len(run.found) > 0 and len(run.left_out) > 0


def test_closed_forms_come_first() -> None:
    made, watch = problem(), Counting()
    run = NormRun(made, made.select("layer1.*"), PARTS, watch=watch)
    run.solve()
    assert [title for title in watch.titles if title.endswith("exactly")]
    assert {name for name, _ in run.found} == {b.name for b in run.blocks} - {b.name for b in run.sampled}
    assert all(norm.exact for norm in run.found.values()) and run.products == 0


def test_estimates_are_made_once_for_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls, real = run_of(problem(), Counting()), [], norm_run.norm_from_lengths
    monkeypatch.setattr(norm_run, "norm_from_lengths", lambda *a, **k: calls.append(1) or real(*a, **k))
    run.sample(3)
    assert run.found == run.found
    assert len(calls) == len(PARTS) * len(run.blocks)

"""`measure`: an answer within a time budget, and what was left out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

import hessianlens as hl
from hessianlens.cli import app
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.network.watches import Interrupting


def problem() -> Problem:
    return networks.toy_problem(3, layers=2)


@pytest.mark.long
def test_every_block_is_measured_to_the_tolerance_where_time_allows() -> None:
    measured = hl.measure(problem(), budget="10m", rtol=0.1, progress=False)
    assert measured.left_out == () and not measured.interrupted and measured.budget == 600
    assert measured.seconds < 600
    assert all(norm.exact or norm.relative_width() <= 0.1 for norm in measured.norms.values())
    assert measured.table.complete and "left out" not in measured.summary
    assert measured.summary in str(measured)


@pytest.mark.long
def test_probes_instead_of_a_budget() -> None:
    made = problem()
    measured = hl.measure(made, "layer0.mlp.*", budget=None, probes=4, progress=False)
    assert dict(measured.norms) == dict(hl.block_norms(made, "layer0.mlp.*", probes=4))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_a_result(number: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    measured = hl.measure(problem(), ["embed", "layer0.mlp.*"], method="probes", progress=Interrupting(3, number))
    assert measured.interrupted and measured.products == 3 and len(measured.left_out) > 0
    assert "interrupted" in measured.summary and f"left out: {measured.left_out[0]}" in measured.summary
    assert signal.getsignal(signal.SIGTERM) is before


BAD: dict[str, dict[str, Any]] = {
    "budget: got 'soon', expected a number of seconds or a time": {"budget": "soon"},
    "budget: got -1": {"budget": -1},
    "budget: got None, expected a time, or a number of probes": {"budget": None},
    "probes: got 0, expected a whole number of at least 1": {"probes": 0},
    "rtol: got 0, expected": {"rtol": 0},
    "method: got 'magic', expected one of": {"method": "magic"},
    "parts: got 'hessian', expected one of": {"parts": ("hessian",)},
    "blocks: nothing matches 'nosuch'": {"blocks": "nosuch"},
    "max_memory: one sequence at a time needs": {"max_memory": "1 kB"},
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input(said: str) -> None:
    with pytest.raises(hl.InputError, match=said):
        hl.measure(problem(), progress=False, **BAD[said])


@pytest.mark.long
def test_the_command_ends_within_its_budget_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that every product moves by a second: far too little time for all blocks."""
    now, draw = [1000.0], GraphSource.draw

    def slow(self: GraphSource, requests: Sequence[Request]) -> Iterator[Any]:
        for drawn in draw(self, requests):
            now[0] += 1.0
            yield drawn

    monkeypatch.setattr(GraphSource, "draw", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    model = "toy:layers=3,d_model=4,d_mlp=8,digits=1"
    options = ["--budget", "20s", "--sequences", "2", "--method", "probes", "--json"]
    done = CliRunner().invoke(app, ["inspect", model, *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["budget"] == 20 and 10 <= found["seconds"] <= 20
    assert found["left_out"] and found["complete"] is False
    measured = {block["block"] for block in found["blocks"]}
    assert len(measured) > 1 and not measured & set(found["left_out"])


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_end_prints_what_it_has(number: int) -> None:
    model = "config:gpt2?n_layer=4&n_embd=64&n_head=4&vocab_size=200"
    options = ["--budget", "10m", "--rtol", "1e-9", "--sequences", "2", "--length", "16", "--json"]
    command = [sys.executable, "-m", "tests.inspect.signalled_child", model, *options]
    done = subprocess.run(command, input=str(int(number)), capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    found = json.loads(done.stdout)
    assert found["complete"] is False and len(found["blocks"]) > 0
    assert "interrupted;" in done.stderr and "Traceback" not in done.stderr


def test_time_is_counted_by_kind_of_work() -> None:
    model, task = hl.models.Transformer(layers=2, d_model=8, d_mlp=8), hl.tasks.Addition(digits=1)
    problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    times = hl.measure(problem, "layer0.*", budget=None, probes=8, method="probes", progress=False).work
    kinds = times.by_kind()
    assert kinds["hvps"] > 0 and kinds["recording"] > 0 and kinds["checks"] > 0 and kinds["forecast"] > 0
    assert kinds["closed_forms"] == 0 and times.total == pytest.approx(sum(kinds.values()))
    assert 0 < times.measuring < times.total and "hvps" in str(times)
    exact = hl.measure(problem, "layer1.attn.*", budget=None, probes=8, progress=False).work
    assert exact.closed_forms > 0

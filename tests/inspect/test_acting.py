"""What can be done with a measurement: advice with its numbers, groups for optimisers, comparisons, rounding."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hessianlens as hl
from hessianlens.cli import app
from hessianlens.errors import InputError
from hessianlens.inspect.advice import attention_statements, table_statements
from hessianlens.inspect.learning_rates import write_groups
from hessianlens.inspect.measurement import BlockMeasurements
from hessianlens.inspect.table import CurvatureTable, Row
from hessianlens.network.head_health import LayerAttentionMeans, attention_health
from hessianlens.problems import Problem
from hessianlens.spectra import Estimate


def row(name: str, norm: float, shape: tuple[int, ...] = (4, 4)) -> Row:
    return Row(name, shape, {"full": Estimate.exactly(norm)})


def said(*rows: Row, eps: float = 2.0**-52) -> dict[str, tuple[float, tuple[str, ...]]]:
    return {s.kind: (s.value, s.blocks) for s in table_statements(CurvatureTable(rows, len(rows), eps))}


def test_matrices_are_compared_with_matrices() -> None:
    """A gain far sharper than every matrix is no reason to call matrices badly scaled."""
    found = said(row("q", 1), row("k", 2), row("v", 3), row("gain", 4000, (4,)))
    assert found["scale"] == (3, ("v", "q"))
    assert found["vectors"] == (pytest.approx(4000 / 2 / (2 / 4)), ("gain",))
    assert found["dominated"][1] == ("gain",) and found["dominated"][0] > 0.99


def test_noise_floor_is_that_of_the_precision() -> None:
    rows = (row("a", 1.0), row("b", 1.0), row("small", 5e-6))
    assert "noise" not in said(*rows)
    value, blocks = said(*rows, eps=2.0**-23)["noise"]
    assert blocks == ("small",) and value == pytest.approx(2.0**-23 / 5e-6)


def test_attention_statements_carry_their_numbers() -> None:
    found = {
        s.kind: s
        for s in attention_statements(
            {"layer0": LayerAttentionMeans(2, 1, 0.8, 0), "layer1": LayerAttentionMeans(0.05, 0, 0.02, 0.9)}
        )
    }
    assert found["entropy"].value == 0.02 and "layer1 keeps 2 %" in found["entropy"].text
    assert found["saturated"].value == 0.9 and "90 % of the rows of layer1" in found["saturated"].text
    assert attention_statements({"layer0": LayerAttentionMeans(2, 1, 0.8, 0)}) == []


def toy(scale: float = 1.0, heads: int = 1) -> tuple[nn.Module, Problem]:
    task = hl.tasks.Addition(digits=1)
    model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, heads=heads, dtype=torch.float64)
    with torch.no_grad():
        model.blocks[0].attention.W_Q.mul_(scale)
        model.blocks[0].attention.W_K.mul_(scale)
    return model, hl.problem(model, task.batch(4, seed=0), task.cross_entropy)


def test_saturated_attention_is_seen() -> None:
    spread, sharp = (attention_health(toy(scale)[1]).layers["layer0"] for scale in (0.01, 300.0))
    assert spread.share == pytest.approx(1, abs=1e-3) and spread.saturated == 0
    assert sharp.share < 0.1 and sharp.saturated > 0.8


def measured(problem: Problem, probes: int = 12, **more: object) -> BlockMeasurements:
    return hl.measure(problem, probes=probes, budget=None, progress=False, method="probes", **more)  # type: ignore[arg-type]


class Tied(nn.Module):
    """One table at both ends, a frozen gain, a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5)
        self.out.weight = self.embed.weight
        self.norm.weight.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(tokens)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_groups_hold_every_parameter_once(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied().double()
    data = (torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 4]))
    found = measured(hl.problem(model, data, "cross_entropy"), 3)
    groups = found.param_groups(0.01)
    held = [parameter for group in groups for parameter in group["params"]]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(map(id, held)) == sorted(map(id, trained))
    assert all(0.01 / 10 <= group["lr"] <= 0.1 for group in groups)
    optimizer = kind(groups, lr=1.0)
    nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    optimizer.step()
    write_groups(found.groups(0.01), tmp_path / "groups.json")
    again = hl.inspect.load_param_groups(tmp_path / "groups.json", model)
    assert [[id(p) for p in g["params"]] for g in again] == [[id(p) for p in g["params"]] for g in groups]
    assert [g["lr"] for g in again] == [g["lr"] for g in groups]
    with pytest.raises(InputError, match="no parameter"):
        hl.inspect.load_param_groups(tmp_path / "groups.json", nn.Linear(2, 2))
    bigger = Tied()
    bigger.more = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"'more.weight'\] is trained but in no group"):
        hl.inspect.load_param_groups(tmp_path / "groups.json", bigger)


def test_the_sharper_a_parameter_the_smaller_its_rate() -> None:
    _, problem = toy()
    found = measured(problem, 3)
    for power in (0.5, 1.0):
        rates = {
            name: g.lr for g in found.groups(1.0, power=power, limit=1e6) for name in g.parameters if g.kind == "matrix"
        }
        rms = {problem.blocks[r.name].parameter: r.rms for r in found.table.rows if len(r.shape) > 1}
        ordered = sorted(rates, key=lambda name: rms[name])
        assert all(rates[a] >= rates[b] for a, b in pairwise(ordered))
        spread = (max(rms.values()) / min(rms.values())) ** power
        assert rates[ordered[0]] / rates[ordered[-1]] == pytest.approx(spread, rel=1)


@pytest.mark.long
def test_differences_are_paired_and_cover() -> None:
    model, problem = toy()
    name, exact = "layer0.mlp.in", []
    one = measured(problem, seed=3, blocks="layer0.mlp.*")
    exact.append(hl.hessian(problem, name).frobenius_norm().item())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    task = hl.tasks.Addition(digits=1)
    other = measured(hl.problem(model, task.batch(4, seed=0), task.cross_entropy), seed=3, blocks="layer0.mlp.*")
    exact.append(hl.hessian(other.problem, name).frobenius_norm().item())
    found = one.compare(other)
    change = found[name, "full"]
    assert change.paired and change.low <= exact[1] - exact[0] <= change.high
    apart = one.compare(measured(other.problem, seed=4, blocks=name))[name, "full"]
    assert not apart.paired and change.high - change.low < (apart.high - apart.low) / 3
    assert "changed beyond their intervals" in found.summary and len(found.rows()) == len(found)
    with pytest.raises(InputError, match="without a block in common"):
        one.compare(measured(hl.problem(nn.Linear(2, 2), torch.ones(3, 2), lambda out, _: out.square().mean())))


def test_rounding_costs_what_random_rounding_does() -> None:
    _, problem = toy()
    cost = measured(problem, 2).quantisation(bits=3, blocks="layer0.mlp.in")["layer0.mlp.in"]
    H = hl.hessian(problem, "layer0.mlp.in").to_dense()
    weights = problem.blocks["layer0.mlp.in"].take(problem.params[problem.blocks["layer0.mlp.in"].parameter])
    assert cost.step == pytest.approx(float(weights.max() - weights.min()) / 7)
    errors = (torch.rand(20000, len(H), generator=torch.Generator().manual_seed(0), dtype=H.dtype) - 0.5) * cost.step
    rises = (errors @ H * errors).sum(1) / 2
    low, high = cost.interval()
    slack = 4 * float(rises.std()) / 20000**0.5
    assert low - slack <= float(rises.mean()) <= high + slack


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "groups.json"
    common = ["--blocks", "layer0.attn.?", "--sequences", "2", "--probes", "4"]
    asked = [
        "inspect",
        "toy:d_model=4",
        *common,
        "--out",
        f"groups:{file}",
        "--also",
        "groups=0.5,quantise=4",
        "--json",
    ]
    result = runner.invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["rounding"]["blocks"]) == {f"layer0.attn.{m}" for m in "qkvo"} and found["rounding"]["bits"] == 4
    assert {"kind", "value", "blocks", "text"} == set(found["statements"][0])
    model = hl.models.Transformer(d_model=4, vocab=12, context=18)
    assert sum(len(group["params"]) for group in hl.inspect.load_param_groups(file, model)) == len(
        list(model.parameters())
    )
    models = ["toy:d_model=4", "toy:d_model=4,temperature=3"]
    shown = runner.invoke(app, ["compare", *models, *common])
    assert shown.exit_code == 0 and "95 % interval" in shown.output
    old = runner.invoke(app, ["inspect", *models, "--compare", *common])
    assert old.stdout == shown.stdout and "inspect A B --compare is now compare A B" in old.stderr
    for bad in (["inspect", "toy", "toy"], ["inspect", "toy", "--compare"], ["compare", "toy"]):
        refused = runner.invoke(app, bad)
        assert refused.exit_code == 2 and ("Missing argument" in refused.output or "unexpected" in refused.output)

"""The curvature of an update against dense autograd, finite differences and the sum of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import Repeated
from hessianlens.parts import PARTS
from hessianlens.problems import Problem
from tests.oracles.autograd import dense_parts

DOUBLE = torch.float64


def transformer(**options: Any) -> tuple[nn.Module, Problem]:
    model = hl.models.Transformer(heads=2, d_model=4, d_mlp=4, vocab=12, dtype=DOUBLE, **{"layers": 2, **options})
    task = hl.tasks.Addition(digits=1)
    return model, hl.problem(model, [task.batch(2, seed=seed) for seed in (0, 1)], task.cross_entropy)


def perceptron() -> tuple[nn.Module, Problem]:
    """With a frozen map, and blocks under the parameters' own names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[2].requires_grad_(False)
    X, Y = torch.randn(2, 5, 3, dtype=DOUBLE)
    return model, hl.problem(model, (X, Y[:, :2]), "square")


MODELS = {
    "transformer": lambda: transformer(layers=1),
    "pre-norm": lambda: transformer(norm="pre", layers=1),
    "perceptron": perceptron,
}


def random_update(problem: Problem, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = dict.fromkeys(block.parameter for block in problem.blocks.values())
    return {n: 0.1 * torch.randn(problem.params[n].shape, generator=generator, dtype=DOUBLE) for n in names}


def dense_terms(problem: Problem, update: dict[str, Tensor]) -> dict[str, float]:
    """``d' P d`` of every part by dense autograd, and ``g' d``."""
    weights = {name: problem.params[name] for name in update}
    d = torch.cat([tensor.flatten() for tensor in update.values()])
    found = dict.fromkeys(("slope", *PARTS), 0.0)
    for batch in problem.data:
        with problem.scope():

            def output(w: Any, b: Any = batch) -> Tensor:
                return problem.forward({**problem.params, **w}, b)

            dense = dense_parts(output, lambda F, b=batch: problem.loss(F, b), weights)
            leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
            g = torch.autograd.grad(problem.loss(output(leaves), batch), list(leaves.values()))
        for part, matrix in (("full", dense.full), ("ggn", dense.outer), ("functional", dense.functional)):
            found[part] += float(d @ matrix @ d)
        found["slope"] += float(torch.cat([x.flatten() for x in g]) @ d)
    return found


@pytest.mark.every_case
@pytest.mark.parametrize("kind", MODELS)
def test_sums_are_those_of_dense_autograd(kind: str) -> None:
    _, problem = MODELS[kind]()
    update = random_update(problem)
    expected = dense_terms(problem, update)
    for by in ("block", "layer", "head"):
        found = hl.directional(problem, update, by=by)
        assert found.slope == pytest.approx(expected["slope"], rel=1e-10)
        for part in PARTS:
            assert found.curvature(part) == pytest.approx(expected[part], rel=1e-9, abs=1e-12)
            assert torch.equal(found.pairs(part), found.pairs(part).T)


@pytest.mark.parametrize("part", PARTS)
def test_pairs_are_those_of_the_operators(part: str) -> None:
    _, problem = transformer()
    update = random_update(problem)
    found = hl.directional(problem, update, parts=(part,))
    blocks = problem.blocks
    call = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part]
    for a, b in (("layer0.attn.q", "layer1.mlp.in"), ("layer1.attn.v", "layer1.attn.v"), ("embed", "layer0.attn.k")):
        d = [blocks[name].take(update[blocks[name].parameter]).flatten() for name in (a, b)]
        term = float(d[0] @ (call(problem, a, b) @ d[1]))
        i, j = found.groups.index(a), found.groups.index(b)
        assert float(found.pairs(part)[i, j]) == pytest.approx(term, rel=1e-9, abs=1e-13)


def test_groupings_add_up_to_each_other() -> None:
    _, problem = transformer()
    update = random_update(problem)
    blocks, layers, heads = (hl.directional(problem, update, by=by) for by in ("block", "layer", "head"))
    rows = [k for k, name in enumerate(blocks.groups) if name.startswith("layer1.")]
    k = layers.groups.index("layer1")
    assert float(blocks.pairs()[rows][:, rows].sum()) == pytest.approx(float(layers.pairs()[k, k]), rel=1e-10)
    of_head = [heads.groups.index(f"layer1.attn.q.head{head}") for head in (0, 1)]
    q = blocks.groups.index("layer1.attn.q")
    assert float(heads.pairs()[of_head][:, of_head].sum()) == pytest.approx(float(blocks.pairs()[q, q]), rel=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_derivatives_are_those_of_the_loss_along_the_update(kind: str) -> None:
    _, problem = MODELS[kind]()
    update = random_update(problem)
    h = 1e-4
    found = hl.directional(problem, update, parts=("full",), along=(-h, h))
    losses = dict(found.losses)
    assert (losses[h] - losses[-h]) / (2 * h) == pytest.approx(found.slope, rel=1e-6)
    assert (losses[h] - 2 * losses[0.0] + losses[-h]) / h**2 == pytest.approx(found.curvature(), rel=1e-4, abs=1e-6)
    assert found.predicted_change(h) == pytest.approx(losses[h] - losses[0.0], rel=1e-4)


def test_what_lies_in_no_block_is_another_group() -> None:
    _, problem = transformer()
    update = random_update(problem)
    fewer = {name: block for name, block in problem.blocks.items() if name not in ("layer0.attn.q", "layer1.mlp.in")}
    found, whole = hl.directional(replace(problem, blocks=fewer), update), hl.directional(problem, update)
    assert found.groups[-1] == "other" and "layer0.attn.q" not in found.groups
    assert found.curvature() == pytest.approx(whole.curvature(), rel=1e-10)
    assert found.slope == pytest.approx(whole.slope, rel=1e-10)


def test_two_sets_of_weights_are_an_update_at_the_first() -> None:
    model, problem = transformer()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    update = random_update(problem)
    after = {name: before[name] + update[name] for name in before}
    one, other = hl.directional(problem, (before, after)), hl.directional(problem, update)
    assert torch.allclose(one.pairs(), other.pairs(), rtol=1e-9)
    moved = hl.directional(problem, (after, before))
    assert dict(moved.losses)[1.0] == pytest.approx(dict(one.losses)[0.0], rel=1e-12)


def test_a_function_of_the_gradient_is_an_update() -> None:
    _, problem = transformer()
    found = hl.directional(problem, lambda g: {name: -0.1 * x.sign() for name, x in g.items()})
    assert found.slope < 0
    steepest = hl.directional(problem, lambda g: {name: -0.1 * x for name, x in g.items()})
    assert steepest.slope == pytest.approx(-10 * steepest.length**2, rel=1e-9)


def test_the_best_multiple_is_the_minimum_of_the_quadratic() -> None:
    _, problem = transformer()
    found = hl.directional(problem, lambda g: {name: -0.01 * x for name, x in g.items()})
    t = found.best_multiple
    assert 0 < t < 1e4
    values = [found.predicted_change(t * factor) for factor in (0.99, 1.0, 1.01)]
    assert values[1] < min(values[0], values[2])


def test_shares_between_groups() -> None:
    _, problem = transformer()
    update = random_update(problem)
    found = hl.directional(problem, update, by="layer")
    diagonal = float(found.pairs().diagonal().sum())
    assert found.between_groups() == pytest.approx(1 - diagonal / found.curvature())


BAD: dict[str, tuple[Callable[[Problem], Any], str]] = {
    "unknown": (lambda p: {"embed.weihgt": torch.ones(1)}, "no parameter"),
    "shape": (lambda p: {next(iter(p.blocks.values())).parameter: torch.ones(1)}, "shape"),
    "zero": (lambda p: {n: torch.zeros_like(t) for n, t in random_update(p).items()}, "zero everywhere"),
    "not finite": (lambda p: {n: t * torch.nan for n, t in random_update(p).items()}, "not finite"),
    "a number": (lambda p: 0.1, "expected tensors by name"),
    "too few": (lambda p: [torch.ones(1)], "one per parameter"),
    "no weights": (lambda p: ({}, {}), "expected all"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_updates_are_named(kind: str) -> None:
    _, problem = transformer()
    make, words = BAD[kind]
    with pytest.raises(hl.InputError, match=words):
        hl.directional(problem, make(problem))


def test_stale_weights_are_refused() -> None:
    model, problem = transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        for p in model.parameters():
            p.data = p.data + 1
    with pytest.raises(hl.InputError, match="make it anew"):
        hl.directional(problem, optimizer)


def test_it_can_be_looked_at(tmp_path: Path) -> None:
    _, problem = transformer()
    found = hl.directional(problem, random_update(problem))
    rows = found.rows()
    assert [row["group"] for row in rows] == list(found.groups)
    assert sum(row["own"] + row["with_others"] for row in rows) == pytest.approx(found.curvature())
    text = found.page(tmp_path / "update.html").read_text()
    assert "Loss along the update" in text and "second order" in text and "script" not in text
    assert "<table" in found._repr_html_() and found.plot().get_xlabel() == "change of the loss"
    assert (
        found.pair_picture("ggn").svg() and found.loss_picture().svg().count("<circle") == len(found.losses) + 1
    )  # the legend


@pytest.mark.parametrize("by", ["block", "head"])
def test_parts_and_pairs_add_up_to_one_hvp_with_the_whole_update(by: str) -> None:
    _, problem = transformer()
    update = random_update(problem)
    found = hl.directional(problem, update, by=by)
    names = list(update)
    for part in PARTS:
        total = 0.0
        for batch in problem.data:
            at = Repeated(problem, batch, names)
            product = {"full": at.hessian, "ggn": at.gauss_newton, "functional": at.functional}[part](update, names)
            total += sum(float((product[name] * update[name]).sum()) for name in names)
        assert found.curvature(part) == pytest.approx(total, rel=1e-10)
    split = found.pairs("ggn") + found.pairs("functional")
    assert torch.allclose(found.pairs("full"), split, rtol=1e-10, atol=1e-14)
    assert found.sharpness() == pytest.approx(found.curvature() / sum(float(d.square().sum()) for d in update.values()))


def test_a_step_of_shampoo_is_a_function_of_the_gradient() -> None:
    """``L^(-1/4) G R^(-1/4)`` after one step from zero; vectors are scaled by their length."""

    def root(A: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(A + 1e-8 * torch.eye(len(A), dtype=A.dtype))
        return (vectors * values.clamp(min=1e-12) ** -0.25) @ vectors.T

    def shampoo(gradient: Any) -> dict[str, Tensor]:
        steps = {
            name: root(G @ G.T) @ G @ root(G.T @ G) if G.ndim == 2 else G / G.norm() for name, G in gradient.items()
        }
        return {name: -0.01 * step for name, step in steps.items()}

    _, problem = transformer()
    found = hl.directional(problem, shampoo, by="layer", parts=("full",))
    assert found.slope < 0 and found.changes[0.25] < 0

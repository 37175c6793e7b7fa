"""The edge of sign descent, Lion and Muon: their threshold on a quadratic, by exhaustive search, and in runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.monitor.edge_of_stability import NormEdge, stability_edge
from hessianlens.problems import Block
from hessianlens.spectra.geometry import dual_norm, sharpness
from tests.updates.test_optimizers import Lion

DOUBLE = torch.float64


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params: Iterator[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad.sign())


class Muon(torch.optim.Optimizer):
    """Without momentum, by singular value decompositions."""

    def __init__(self, params: Iterator[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                U, _, Vh = torch.linalg.svd(p.grad, full_matrices=False)
                p.sub_(group["lr"] * U @ Vh)


class Bowl(nn.Module):
    """``vec(W)' H vec(W) / 2``."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=DOUBLE))

    def forward(self, H: Tensor) -> Tensor:
        return self.W.flatten() @ H @ self.W.flatten() / 2


def blocks(model: nn.Module) -> list[Block]:
    return [Block.of(name, name, p) for name, p in model.named_parameters()]


def positive(n: int, seed: int) -> Tensor:
    A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    return A @ A.T / n


@pytest.mark.parametrize(("make", "geometry"), [(SignDescent, "max"), (Muon, "spectral")])
def test_steps_on_a_quadratic_come_to_bounce_at_the_threshold(make: Any, geometry: str) -> None:
    """Wherever they bounce between two points, lr S' = 2 |g|* for the curvature S' of that step, and S' <= S."""
    model, H = Bowl(3, 2), positive(6, 1)
    optimizer = make(model.parameters(), lr=0.01)
    shares = []
    S = sharpness(H, geometry, shapes=[(3, 2)], starts=16, most=400).value
    for step in range(600):
        optimizer.zero_grad()
        model(H).backward()
        edge = stability_edge(optimizer, model, blocks(model))
        assert isinstance(edge, NormEdge) and edge.geometry == geometry
        if step >= 500:
            assert model.W.grad is not None
            shares.append(S / edge.limit({"W": model.W.grad}))
        optimizer.step()
    # Other cycles have smaller curvature, hence smaller gradients: never below the line once it bounces.
    assert 0.95 < median(shares) < 3


def test_a_single_step_raises_a_quadratic_only_above_the_threshold() -> None:
    H = positive(6, 3)
    S = sharpness(H, "spectral", shapes=[(3, 2)], starts=16, most=400).value
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for vector in x:
        g = (H @ vector).reshape(3, 2)
        lr = 0.999 * 2 * dual_norm(g, "spectral") / S
        U, _, Vh = torch.linalg.svd(g, full_matrices=False)
        after = vector - lr * (U @ Vh).flatten()
        assert float(after @ H @ after) <= float(vector @ H @ vector) + 1e-12


def small() -> tuple[nn.Module, hl.problems.Problem]:
    task = hl.tasks.Addition(digits=1)
    model = hl.models.Transformer(layers=1, d_model=4, d_mlp=4, vocab=12, context=task.context, dtype=DOUBLE)
    return model, hl.problem(model, task.batch(8, seed=0), task.cross_entropy)


def test_of_an_attention_block_against_every_sign_vector() -> None:
    torch.manual_seed(0)
    layer = hl.SelfAttention.random(d_model=3, d_k=3, seed=1, dtype=DOUBLE)
    X, Y = torch.randn(2, 5, 3, dtype=DOUBLE)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=9)), dtype=DOUBLE)
    for name in ("Q", "V"):
        dense = H.full[name, name].to_dense()
        truth = float(((signs @ dense) * signs).sum(1).max())
        assert sharpness(H.full[name, name], "max", starts=24).value == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("kind", ["sign", "lion", "muon"])
def test_a_monitor_records_sharpness_and_edge_of_the_whole_and_of_blocks(kind: str) -> None:
    model, problem = small()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    make = {
        "sign": lambda: SignDescent(model.parameters(), lr=1e-3),
        "lion": lambda: Lion(model.parameters(), lr=1e-3),
        "muon": lambda: torch.optim.Muon(matrices, lr=1e-3),
    }
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    optimizer = make[kind]()
    monitor = hl.Monitor(problem, ["layer0.attn.v"], optimizer=optimizer, overhead=None, quantities=("edge",))
    record = monitor.measure(1)
    assert not record.notes
    gradient = torch.autograd.grad(problem.total_loss(dict(model.named_parameters())), list(model.parameters()))
    trained = {
        name: g
        for (name, p), g in zip(model.named_parameters(), gradient, strict=True)
        if kind != "muon" or p.ndim == 2
    }
    geometry = "spectral" if kind == "muon" else "max"
    factor = {n: max(1, g.shape[0] / g.shape[1]) ** 0.5 if kind == "muon" else 1.0 for n, g in trained.items()}
    limit = 2 * sum(factor[n] * dual_norm(g, geometry) for n, g in trained.items()) / 1e-3
    assert record.numbers["model"]["edge"].value == pytest.approx(limit, rel=1e-9)
    for owner in ("model", "layer0.attn.v"):
        assert record.numbers[owner]["sharpness"].value > 0 < record.numbers[owner]["edge"].value
    dense = hl.hessian(problem, "layer0.attn.v").to_dense()
    shape = [tuple(problem.blocks["layer0.attn.v"].shape)]
    best = sharpness(dense, geometry, shapes=shape, starts=16, most=300).value
    assert 0.5 * best < record.numbers["layer0.attn.v"]["sharpness"].value <= best * (1 + 1e-6)


def test_training_hovers_at_the_line_of_sign_descent() -> None:
    model, problem = small()
    optimizer = SignDescent(model.parameters(), lr=0.01)
    monitor = hl.Monitor(problem, optimizer=optimizer, overhead=None, every=10, quantities=("edge",))
    for _ in range(200):
        optimizer.zero_grad()
        problem.total_loss(dict(model.named_parameters())).backward()
        optimizer.step()
        monitor.step()
    shares = [
        r.numbers["model"]["sharpness"].value / r.numbers["model"]["edge"].value
        for r in monitor.history
        if r.step > 100
    ]
    assert 0.8 < median(shares) < 1.5


def test_where_there_is_none_it_is_said() -> None:
    model, _ = small()
    whole = blocks(model)
    muon = Muon(iter([p for p in model.parameters() if p.ndim == 2]), lr=0.1)
    vector = next(block for block in whole if len(block.shape) == 1)
    assert isinstance(found := stability_edge(muon, model, [vector]), Refusal) and "not trained by" in found.reason
    matrix = next(block for block in whole if len(block.shape) == 2)
    part = matrix.part("half", 1, 0, 1)
    assert isinstance(found := stability_edge(muon, model, [part]), Refusal) and "whole matrices" in found.reason
    zero = SignDescent(model.parameters(), lr=0.0)
    assert isinstance(found := stability_edge(zero, model, whole), Refusal) and "is zero" in found.reason

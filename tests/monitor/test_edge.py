"""The edge of stability against the optimisers themselves: just below it steps shrink, just above they grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessianlens.errors import Refusal
from hessianlens.monitor.checkpoints import saved_edge
from hessianlens.monitor.edge_of_stability import StabilityEdge, stability_edge
from hessianlens.problems import Block

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMISERS: dict[str, Make] = {
    "plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8),
    "damped": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, dampening=0.5),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True),
    "decayed": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=2.0),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 1 - 1e-12)),
    "adam, coupled decay": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 1 - 1e-12), weight_decay=3.0),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 1 - 1e-12), weight_decay=2.0),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 1 - 1e-12), amsgrad=True, weight_decay=0.0),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=1 - 1e-12, momentum=0.6),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=1 - 1e-12, centered=True),
}


class Bowl(nn.Module):
    """``x^T H x / 2`` in two parameters, near the minimum: second moments stay what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(1e-9 * torch.ones(2, dtype=torch.float64))
        self.b = nn.Parameter(1e-9 * torch.ones(1, dtype=torch.float64))

    def forward(self, H: Tensor) -> Tensor:
        x = torch.cat([self.a, self.b])
        return x @ H @ x / 2


def blocks(model: nn.Module) -> list[Block]:
    return [Block.of(name, name, p) for name, p in model.named_parameters()]


def settle(optimizer: torch.optim.Optimizer) -> None:
    """Second moments that stay what they are, at a late step: then there is a preconditioner to speak of."""
    for k, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        state = optimizer.state[p]
        moments = torch.linspace(0.3, 0.9, p.numel(), dtype=p.dtype) * (k + 1)
        if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
            late = 1e12  # b2^t is far from one and zero there: the correction of bias takes part
            correction = 1 - optimizer.param_groups[0]["betas"][1] ** late
            state.update(step=torch.tensor(late, dtype=torch.float64), exp_avg=torch.zeros_like(p))
            state.update(exp_avg_sq=moments * correction)
            if optimizer.param_groups[0]["amsgrad"]:
                state.update(max_exp_avg_sq=2 * moments * correction)
        elif isinstance(optimizer, torch.optim.RMSprop):
            state.update(step=torch.tensor(1.0), square_avg=moments, momentum_buffer=torch.zeros_like(p))
            if optimizer.param_groups[0]["centered"]:
                state.update(grad_avg=torch.full_like(p, 0.2))


def sharpness(edge: StabilityEdge, H: Tensor) -> float:
    return float(torch.linalg.eigvalsh(edge.seen(H) @ torch.eye(len(H), dtype=H.dtype))[-1])


def curved(edge: StabilityEdge, share: float) -> Tensor:
    """A Hessian, not diagonal, whose sharpness is a share of the limit."""
    Q = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    H = Q @ torch.diag(torch.tensor([1.0, 0.4, 0.1], dtype=torch.float64)) @ Q.T
    low, high = 0.0, 1e6
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sharpness(edge, middle * H) < share * edge.limit else (low, middle)
    return low * H


def growth(make: Callable[[Any], torch.optim.Optimizer], share: float) -> float:
    model = Bowl()
    optimizer = make(model.parameters())
    settle(optimizer)
    edge = stability_edge(optimizer, model, blocks(model))
    assert isinstance(edge, StabilityEdge)
    H, sizes = curved(edge, share), []
    for _ in range(60):
        optimizer.zero_grad()
        model(H).backward()
        optimizer.step()
        sizes.append(float(torch.cat([model.a, model.b]).detach().norm()))
    return max(sizes[-10:]) / max(sizes[20:30])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_shrink_below_the_edge_and_grow_above(name: str) -> None:
    assert growth(OPTIMISERS[name], 0.95) < 0.5
    assert growth(OPTIMISERS[name], 1.05) > 2


def test_groups_with_learning_rates_of_their_own() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        a, b = parameters
        return torch.optim.SGD([{"params": [a], "lr": 0.02}, {"params": [b], "lr": 0.1}], momentum=0.5)

    assert growth(make, 0.95) < 0.5
    assert growth(make, 1.05) > 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: torch.optim.Adam(p), "has not seen a gradient"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS is not known"),
        (lambda p: torch.optim.SGD(list(p)[:1], lr=0.1), "not by this SGD"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "is zero"),
        (
            lambda p: torch.optim.SGD(
                [{"params": [x], "momentum": m} for x, m in zip(p, (0.0, 0.9), strict=True)], lr=1.0
            ),
            "momentum of their own",
        ),
    ],
)
def test_where_there_is_no_edge_it_is_said_why(make: Make, words: str) -> None:
    model = Bowl()
    found = stability_edge(make(model.parameters()), model, blocks(model))
    assert isinstance(found, Refusal) and words in found.reason


def same(one: StabilityEdge | Refusal, other: StabilityEdge | Refusal) -> bool:
    assert isinstance(one, StabilityEdge) and isinstance(other, StabilityEdge)
    pairs = ((one.scale, other.scale), (one.decay, other.decay))
    return one.limit == other.limit and all(torch.equal(a, b) if a is not None else b is None for a, b in pairs)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_edge_of_a_saved_optimiser_is_that_of_the_optimiser(name: str, tmp_path: Path) -> None:
    model = Bowl()
    optimizer = OPTIMISERS[name](model.parameters())
    settle(optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert same(saved_edge(tmp_path, Bowl(), blocks(model), None), stability_edge(optimizer, model, blocks(model)))


class Normed(nn.Module):
    """Two matrices of one shape around what has no weight decay."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gain, self.last = nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3)


def test_groups_in_the_order_of_the_trainer(tmp_path: Path) -> None:
    model = Normed()
    named = dict(model.named_parameters())
    decayed = [p for name, p in named.items() if p.ndim > 1]
    groups = [{"params": decayed}, {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)
    for k, parameter in enumerate(named.values()):
        parameter.grad = torch.full_like(parameter, k + 1.0)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert same(saved_edge(tmp_path, Normed(), blocks(model), None), stability_edge(optimizer, model, blocks(model)))


def test_where_a_checkpoint_has_no_optimiser_it_is_said(tmp_path: Path) -> None:
    model = Bowl()
    assert "--lr draws" in str(saved_edge(tmp_path, model, blocks(model), None))
    plain = saved_edge(tmp_path, model, blocks(model), 0.5)
    assert isinstance(plain, StabilityEdge) and plain.limit == 4 and plain.scale is None
    (tmp_path / "optimizer.pt").write_bytes(b"no file of torch")
    assert "cannot be read" in str(saved_edge(tmp_path, model, blocks(model), None))
    for other in (Normed().parameters(), [{"params": [p], "lr": 0.1 + p.numel()} for p in model.parameters()]):
        # Of another model; and groups without a state, which could be in any order.
        torch.save(torch.optim.SGD(other, lr=0.1).state_dict(), tmp_path / "optimizer.pt")
        assert "not those of this model" in str(saved_edge(tmp_path, model, blocks(model), None))
    torch.save(torch.optim.Adagrad(model.parameters()).state_dict(), tmp_path / "optimizer.pt")
    assert "is none of AdamW, Adam, SGD, RMSprop" in str(saved_edge(tmp_path, model, blocks(model), None))

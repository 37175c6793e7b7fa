"""A watched run is the run: bit by bit the same weights, states and random numbers; and what is recorded is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hessianlens.monitor import Monitor


class Noisy(nn.Module):
    """Everything that a careless observer would change: dropout, batch statistics, hooks, fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.2)
        self.frozen = nn.Linear(8, 8)
        self.out = nn.Linear(8, 3)
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(self.frozen(self.dropout(x)).mean(1))
        return self.out(torch.tanh(x))


def probe() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 7, (6, 5), generator=generator), torch.randint(0, 3, (6,), generator=generator)


Observer = Callable[[nn.Module, torch.optim.Optimizer], Callable[[Tensor], object]]


def watching(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], object]:
    monitor = Monitor(
        model, "out.weight", data=probe(), loss="cross_entropy", optimizer=optimizer, every=1, overhead=None
    )

    def observe(loss: Tensor) -> None:
        record = monitor.step(loss=loss)
        assert record is not None and not record.notes and record.numbers["model"].keys() >= {"top", "sharpness"}

    return observe


def unobserved(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], object]:
    return lambda loss: None


def train(observer: Observer, kind: str, steps: int = 4) -> Iterator[dict[str, Any]]:
    """Everything that a training run can be seen by, step by step."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = Noisy()
    handle = model.out.register_forward_hook(lambda *_: None)
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=0.01)
        if kind == "adamw"
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    observe = observer(model, optimizer)
    for step in range(steps):
        tokens, targets = torch.randint(0, 7, (6, 5)), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        if step == 2:
            model.norm.eval()  # a mode of its own
        observe(loss)
        yield {
            "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
            "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
            "versions": [p._version for p in model.parameters()],
            "modes": [module.training for module in model.modules()],
            "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
            "attributes": [sorted(m.__dict__) for m in model.modules()],
            "optimizer": [
                {k: v.clone() if isinstance(v, Tensor) else v for k, v in optimizer.state[p].items()}
                for p in model.parameters()
                if p in optimizer.state
            ],
            "requires": [p.requires_grad for p in model.parameters()],
            "random": (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()),
            "modes of torch": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled()),
        }
    handle.remove()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def differences(observer: Observer, kind: str) -> set[str]:
    both = zip(list(train(unobserved, kind)), list(train(observer, kind)), strict=True)
    return {what for one, other in both for what in one if not same(one[what], other[what])}


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_watched_run_is_the_run_bit_by_bit(kind: str) -> None:
    assert differences(watching, kind) == set()


def runs_it(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], object]:
    return lambda loss: model(probe()[0])


def differentiates(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], object]:
    return lambda loss: model.eval()(probe()[0]).sum().backward()


@pytest.mark.parametrize(
    ("careless", "seen"), [(runs_it, {"state", "random"}), (differentiates, {"gradients", "modes"})]
)
def test_the_comparison_sees_a_careless_observer(careless: Observer, seen: set[str]) -> None:
    assert differences(careless, "sgd") >= seen

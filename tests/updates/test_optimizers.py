"""The update that an optimiser is about to make is the one that it makes, and asking for it changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import hessianlens as hl


class Lion(torch.optim.Optimizer):
    """Sign of interpolated momentum (Chen and others, 2023)."""

    def __init__(self, params: Iterator[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    m = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.add_((0.9 * m + 0.1 * p.grad).sign(), alpha=-group["lr"])
                    m.lerp_(p.grad, 0.01)


Make = Callable[[Iterator[Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Lion": Lion,
}


def trained(make: Make, matrices_only: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after three steps, with the gradients of the fourth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    optimizer = make(p for p in model.parameters() if p.ndim == 2 or not matrices_only)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3, dtype=torch.float64)).square().sum().backward()
        if step < 3:
            optimizer.step()
    return model, optimizer


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.every_case
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_step_that_follows_is_the_update(kind: str) -> None:
    model, optimizer = trained(OPTIMIZERS[kind])
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    update = hl.optimizer_update(optimizer, model)
    again = hl.optimizer_update(optimizer, model)
    unchanged = weights(model)
    assert all(torch.equal(unchanged[n], before[n]) and torch.equal(update[n], again[n]) for n in before)
    assert str(optimizer.state_dict()) == str(state)
    optimizer.step()
    for name, after in weights(model).items():
        assert torch.allclose(update[name], after - before[name], rtol=1e-12, atol=1e-15)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon() -> None:
    model, optimizer = trained(lambda p: torch.optim.Muon(p, lr=0.01), matrices_only=True)
    before = weights(model)
    update = hl.optimizer_update(optimizer, model)
    assert set(update) == {"0.weight", "2.weight"}
    optimizer.step()
    after = weights(model)
    assert all(torch.equal(update[name], after[name] - before[name]) for name in update)


def test_hooks_and_schedulers_hear_nothing() -> None:
    model, optimizer = trained(OPTIMIZERS["Adam"])
    schedule = StepLR(optimizer, 1)
    heard: list[int] = []
    optimizer.register_step_post_hook(lambda *_: heard.append(1))
    optimizer.register_step_pre_hook(lambda *_: heard.append(1))
    hl.optimizer_update(optimizer, model)
    assert heard == [] and getattr(optimizer, "_opt_called", False) is False
    assert schedule.get_last_lr() == [0.01]


def test_random_optimisers_leave_the_generator_alone() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.data += torch.randn_like(p)

    model, optimizer = trained(lambda p: Noisy(p, lr=0.1))
    state = torch.get_rng_state()
    update = hl.optimizer_update(optimizer, model)
    assert torch.equal(torch.get_rng_state(), state) and float(update["0.weight"].norm()) > 0


def test_what_cannot_be_had_is_named() -> None:
    model, optimizer = trained(OPTIMIZERS["SGD"])
    with pytest.raises(hl.InputError, match="none of the parameters"):
        hl.optimizer_update(optimizer, nn.Linear(2, 2))
    optimizer.zero_grad()
    with pytest.raises(hl.InputError, match="no parameter has a gradient"):
        hl.optimizer_update(optimizer, model)
    with pytest.raises(hl.InputError, match="more than gradients"):
        trained_model, lbfgs = trained(OPTIMIZERS["SGD"])[0], None
        lbfgs = torch.optim.LBFGS(trained_model.parameters())
        hl.optimizer_update(lbfgs, trained_model)
    with pytest.raises(hl.InputError, match=r"optimiser of torch\.optim"):
        hl.optimizer_update(3, model)


def test_given_gradients_take_the_place_of_those_held() -> None:
    model, optimizer = trained(OPTIMIZERS["SGD"])
    gradients = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    assert all(
        torch.equal(d, torch.full_like(d, -0.1)) or torch.allclose(d, torch.full_like(d, -0.1))
        for d in hl.optimizer_update(optimizer, model, gradients).values()
    )

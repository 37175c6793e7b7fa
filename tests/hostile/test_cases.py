"""Modules that users write, each with one thing that is easily overlooked: no answer that is called exact is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from tests.hostile.cases import CASES, D
from tests.hostile.habits import HABITS
from tests.hostile.questions import Examiner
from tests.hostile.specimen import Batch, Specimen, randn, with_random_weights

ALWAYS = ("checkpointed_layer", "learned_slope_of_distances", "two_words_predicted_by_one_head")
"""Habits that are looked at in the short tier too: each was answered wrongly or not at all once."""


def _expect_nothing_wrong(made: Callable[[], Specimen]) -> None:
    found = Examiner(made()).everything()
    assert not found.wrong, f"{len(found.wrong)} of {found.asked} answers are wrong:\n{found}"


@pytest.mark.every_case
@pytest.mark.parametrize("name", [*CASES, *ALWAYS])
def test_no_answer_is_wrong(name: str) -> None:
    _expect_nothing_wrong({**CASES, **HABITS}[name])


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in HABITS if name not in ALWAYS])
def test_no_answer_about_what_people_write_is_wrong(name: str) -> None:
    _expect_nothing_wrong(HABITS[name])


def test_a_loss_that_reads_what_the_model_left_behind_is_refused() -> None:
    """A load-balancing loss kept as an attribute has curvature that outputs and batch do not tell of."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.first, self.last = nn.Linear(D, 2), nn.Linear(D, D), nn.Linear(D, 2)

        def forward(self, x: Tensor) -> Tensor:
            share = self.router(x).softmax(-1)
            self.balance = share.mean((0, 1)).square().sum()
            return self.last(share[..., :1] * torch.tanh(self.first(x)) + share[..., 1:] * x)

    model = with_random_weights(Routed())

    def loss(out: Tensor, batch: Batch) -> Tensor:
        return (out - batch[1]).square().mean() + 0.01 * model.balance

    with pytest.raises(hl.InputError, match=r"loss: the given function changes by .* for the same outputs after a run"):
        hl.problem(model, [(randn(2, 4, D, seed=7), randn(2, 4, 2, seed=8))], loss)


def test_a_loss_that_draws_is_refused() -> None:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        return (out + 0.1 * torch.randn_like(out) - batch[1]).square().mean()

    with pytest.raises(hl.InputError, match=r"loss: the given function gives .* for the same outputs; expected"):
        hl.problem(nn.Linear(D, 2).double(), [(randn(4, D), randn(4, 2))], loss)


def test_inner_derivatives_by_parameters_that_nobody_follows_are_refused_with_the_reason() -> None:
    class Inner(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                inner = torch.tanh(super().forward(x)).square().mean()
                (slope,) = torch.autograd.grad(inner, self.weight, create_graph=True)
            return x @ (self.weight - slope).T

    with pytest.raises(hl.InputError, match=r"Inner takes a derivative with respect to its own parameters by autograd"):
        hl.problem(Inner(D, 2).double(), [(randn(4, D), randn(4, 2))], "square")

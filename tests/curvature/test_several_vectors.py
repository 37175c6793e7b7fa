"""Several vectors through one graph at once: the same numbers, always of the same width, and never unchecked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import Linearisation, Repeated, repeated, thresholds
from hessianlens.problems import Problem
from tests.curvature.registry import CASES, dense_of
from tests.hostile.ways import Squared
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS
from tests.variants import DOUBLE, randn


def _passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors went through each pass of a graph from now on; none stands for one by itself."""
    seen: list[int] = []
    for kind in ("hessian", "gauss_newton", "functional", "split"):
        product = getattr(Linearisation, kind)

        def watched(
            self: Linearisation, tangents: Any, names: Any, several: bool = False, product: Callable = product
        ) -> Any:
            seen.append(len(next(iter(tangents.values()))) if several else 0)
            return product(self, tangents, names, several)

        monkeypatch.setattr(Linearisation, kind, watched)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_they_give_the_columns_of_the_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, blocks = CASES[name].problem(), list(CASES[name].blocks)
    for part, make in (("full", hl.hessian), ("ggn", hl.ggn), ("functional", hl.functional)):
        op = make(problem, blocks, method="hvp")
        V = randn(op.shape[1], 5, seed=0)
        assert_same(op @ V, getattr(dense_of(name), PARTS[part]) @ V, part, 1e-10)


@pytest.mark.parametrize("parts", [("full",), ("full", "ggn", "functional")])
def test_sampled_norms_are_those_of_single_products(parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    problem, blocks = CASES["toy"].problem(), list(CASES["toy"].blocks)
    problem = replace(problem, data=list(problem.data)[:1])
    seen = _passes(monkeypatch)
    together = hl.block_norms(problem, blocks, parts, probes=7, method="probes")
    assert max(seen) == 7
    monkeypatch.setattr(thresholds, "VECTORS_MULTIPLY_ADDS", 0.0)
    seen.clear()
    single = hl.block_norms(replace(problem), blocks, parts, probes=7, method="probes")
    assert set(seen) == {0}
    for key, norm in single.items():
        assert norm.value == pytest.approx(together[key].value, rel=1e-12, abs=1e-15)


def test_how_many_is_counted_and_so_are_the_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, blocks = CASES["toy"].problem(verify=False), list(CASES["toy"].blocks)
    found = [hl.frobenius(hl.hessian(replace(problem), blocks, method="hvp"), probes=9).value for _ in range(2)]
    assert found[0] == found[1]
    seen = _passes(monkeypatch)
    op = hl.hessian(replace(problem), blocks, method="hvp")
    op @ randn(op.shape[1], 20, seed=1)
    own = [count for count in seen if count]
    assert own == [16, 4] * len(problem.data)
    assert seen.count(0) == 1  # the first vector of the first graph is also multiplied by itself


class Doubled(Squared):
    """A square whose backward asks for numbers, which several at once do not have."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * cotangents[0] * (1 if float(cotangents[0].detach().sum()) < 1e300 else 2)


def _problem(function: type[torch.autograd.Function]) -> Problem:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(function.apply(self.first(x)))

    torch.manual_seed(0)
    return hl.problem(Net().to(DOUBLE), (randn(4, 3), randn(4, 2)), "square", verify=False)


@pytest.mark.parametrize("wrong", [False, True], ids=["refuses", "is wrong"])
def test_what_cannot_be_vectorised_goes_one_by_one(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(Squared if wrong else Doubled)
    if wrong:
        several = repeated._Request.of_several
        monkeypatch.setattr(
            repeated._Request,
            "of_several",
            lambda *asked: tuple({name: 1.01 * v for name, v in part.items()} for part in several(*asked)),
        )
    op = hl.hessian(problem, "first.weight", method="hvp")
    found = op @ torch.eye(9, dtype=DOUBLE)
    at = Linearisation(problem, problem.data[0], ["first.weight"])
    columns = [at.hessian({"first.weight": e.reshape(3, 3)}, ["first.weight"]) for e in torch.eye(9, dtype=DOUBLE)]
    assert_same(found, torch.stack([c["first.weight"].flatten() for c in columns], 1), "one by one", 1e-14)
    (reason,) = problem.cached(repeated.GraphTests, repeated.GraphTests).values()
    assert ("other derivatives" if wrong else "cannot be vectorised") in reason
    assert Repeated(problem, problem.data[0], ["first.weight"]).vectors_at_once(9) == 1

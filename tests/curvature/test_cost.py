"""What the first product says that further ones cost: by a clock that counts passes over the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature import linearisation, operators
from tests.curvature import networks
from tests.variants import randn


class Passes:
    """Counts the passes over a model, forward and backward, and gives their number for the time."""

    def __init__(self, model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        model.register_forward_pre_hook(lambda *_: self._add())
        grad = torch.autograd.grad

        def counted(*args: object, **named: object) -> tuple[Tensor, ...]:
            self._add()
            found: tuple[Tensor, ...] = grad(*args, **named)  # type: ignore[arg-type]
            return found

        monkeypatch.setattr(torch.autograd, "grad", counted)
        for module in (linearisation, operators):
            monkeypatch.setattr(module, "perf_counter", lambda: float(self.count))

    def _add(self) -> None:
        self.count += 1


@pytest.mark.parametrize(
    ("ask", "first", "further"), [(hl.hessian, "3 s", "1 s"), (hl.ggn, "6 s", "3 s"), (hl.functional, "4 s", "1 s")]
)
@pytest.mark.parametrize("method", ["hvp", "auto"])
def test_the_first_product_says_what_the_next_one_takes(
    ask, first: str, further: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = networks.toy()
    problem = hl.problem(model, networks.pairs(2)[0], "cross_entropy")
    passes, op = Passes(model, monkeypatch), ask(problem, "layer0.attn.q", method=method)
    assert "the first" not in op.cost
    planned = passes.count
    op @ randn(16)
    assert f"the first took {first} with its checks, further ones {further}" in op.cost
    assert str(passes.count - planned) == first.removesuffix(" s")
    before = passes.count
    op @ randn(16)
    assert passes.count - before == int(further.removesuffix(" s"))
    assert "took" not in repr(op)


def test_where_graphs_are_not_kept_every_product_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = networks.toy()
    problem = hl.problem(model, networks.pairs(2, 1), "cross_entropy")
    passes, op = Passes(model, monkeypatch), hl.hessian(problem, "layer0.attn.q", method="hvp")
    op @ randn(16)
    assert passes.count == 6 and "the first took 6 s with its checks, further ones 6 s" in op.cost

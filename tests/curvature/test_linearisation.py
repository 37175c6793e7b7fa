"""The pieces of curvature of one batch: gradient, Jacobian products and loss curvature."""

from __future__ import annotations

import torch
from torch.func import functional_call

import hessianlens as hl
from hessianlens.curvature import Linearisation
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.oracles.comparison import assert_same
from tests.variants import randn

NAMES = ["blocks.0.attention.W_Q", "W_U"]


def _linearised(loss: str = "cross_entropy"):
    model, batch = networks.toy(), pairs(2)[0]
    problem = hl.problem(model, batch, loss)
    return problem, Linearisation(problem, batch, NAMES), model.eval(), batch


def test_the_gradient_is_that_of_the_loss() -> None:
    problem, at, model, (inputs, targets) = _linearised()
    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(loss, [dict(model.named_parameters())[n] for n in NAMES])
    for name, gradient in zip(NAMES, expected, strict=True):
        assert_same(at.gradient(NAMES)[name], gradient, name)
    assert_same(problem.total_loss(), loss.detach(), "loss")


def test_jacobian_products_are_transposes_of_each_other() -> None:
    """``<u, J v> = <J^T u, v>``, with ``J v`` by forward-mode differentiation."""
    _, at, model, (inputs, _) = _linearised()
    weights = {n: p.detach() for n, p in model.named_parameters()}
    tangents = {n: randn(*weights[n].shape, seed=k) for k, n in enumerate(NAMES)}

    def outputs(chosen):
        return functional_call(model, {**weights, **chosen}, (inputs,))

    value, jvp = torch.func.jvp(outputs, ({n: weights[n] for n in NAMES},), (tangents,))
    assert_same(at.outputs.detach(), value, "outputs")
    u = randn(*value.shape, seed=5)
    vjp = at.transposed([u], NAMES)
    assert_same(sum((vjp[n] * tangents[n]).sum() for n in NAMES), (u * jvp).sum(), "<J^T u, v>")


def test_loss_curvature_is_the_hessian_at_the_outputs() -> None:
    """``diag(p) - p p^T`` of every token with a target, over their number; zero where the target is ignored."""
    _, at, _, (_, targets) = _linearised()
    p = at.outputs.detach().softmax(-1)
    u = randn(*p.shape, seed=6)
    seen = (targets != -100)[..., None]
    expected = seen * p * (u - (p * u).sum(-1, keepdim=True)) / seen.sum()
    assert_same(at.loss_curvature([u])[0], expected, "C u")


def test_gradients_are_remembered_by_their_columns() -> None:
    """One graph serves several sets of columns: every product is that of a graph of its own."""
    problem, at, _, batch = _linearised()
    for columns in (NAMES[:1], NAMES[1:], NAMES, NAMES[::-1], NAMES[:1]):
        tangents = {name: randn(*problem.params[name].shape, seed=k) for k, name in enumerate(columns)}
        found = at.hessian(tangents, NAMES)
        expected = Linearisation(problem, batch, NAMES).hessian(tangents, NAMES)
        for name in NAMES:
            assert_same(found[name], expected[name], f"{name}, columns {columns}")


def test_a_parameter_without_influence_has_zero_products() -> None:
    """Positions behind the sequences are never looked at."""
    problem, _, _, batch = _linearised()
    at = Linearisation(problem, batch, ["position_embedding"])
    unused = slice(batch[0].shape[1], None)
    tangent = torch.zeros_like(problem.params["position_embedding"])
    tangent[unused] = 1
    products = (
        at.hessian({"position_embedding": tangent}, ["position_embedding"]),
        *at.split({"position_embedding": tangent}, ["position_embedding"]),
    )
    assert not any(product["position_embedding"].any() for product in products)

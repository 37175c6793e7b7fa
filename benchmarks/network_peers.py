"""How other libraries multiply with a block of a network's Hessian."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, dict[str, Tensor]], Tensor]


class _AnswerLoss(nn.Module):
    """Cross-entropy in the form curvlinops wants it: a module of outputs and targets with a reduction."""

    reduction = "mean"

    def __init__(self, loss: Loss | None) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        if self.loss is not None:
            return self.loss(outputs, {"tokens": tokens})
        return nn.functional.cross_entropy(outputs[:, 11:17].flatten(0, 1), tokens[:, 12:18].flatten())


def curvlinops_operator(
    kind: str, model: nn.Module, batch: dict[str, Tensor], attention: nn.Module, weight: str, loss: Loss | None = None
):
    """curvlinops' Hessian or Gauss-Newton operator of one weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import curvlinops

        make = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}[kind]
        data = [(batch["tokens"], batch["tokens"])]
        return make(model, _AnswerLoss(loss), [getattr(attention, weight)], data, check_deterministic=False)


def kept_graph_product(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, attention: nn.Module, vectors: list[Tensor]
) -> list[Tensor]:
    """The gradient graph of the block, built once, then one backward pass a vector."""
    (gradient,) = torch.autograd.grad(loss(model(batch["tokens"]), batch), attention.W_Q, create_graph=True)
    return [torch.autograd.grad(gradient, attention.W_Q, v, retain_graph=True)[0].flatten() for v in vectors]


def pyhessian_product(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, attention: nn.Module, vectors: list[Tensor]
) -> Callable[[], list[Tensor]] | None:
    """PyHessian on a model in which only the block requires gradients; None if it is not installed."""
    try:
        from pyhessian import hessian
        from pyhessian.utils import hessian_vector_product
    except ImportError:
        return None

    def run() -> list[Tensor]:
        kept = {p: p.requires_grad for p in model.parameters()}
        model.requires_grad_(False)
        attention.W_Q.requires_grad_(True)
        try:
            data = (batch["tokens"], batch["tokens"])
            made = hessian(model, lambda out, tokens: loss(out, {"tokens": tokens}), data=data, cuda=False)
            return [hessian_vector_product(made.gradsH, made.params, [v])[0].flatten() for v in vectors]
        finally:
            for p, flag in kept.items():
                p.requires_grad_(flag)
                p.grad = None

    return run


def eigenthings_product(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, attention: nn.Module, vectors: list[Tensor]
) -> Callable[[], list[Tensor]] | None:
    """hessian-eigenthings' operator of the block; None if it is not installed."""
    try:
        from hessian_eigenthings import HessianOperator
    except ImportError:
        return None

    def loss_fn(network: nn.Module, data: dict[str, Tensor]) -> Tensor:
        return loss(network(data["tokens"]), data)

    operator = HessianOperator(model, [batch], loss_fn, param_filter=lambda _, p: p is attention.W_Q)
    return lambda: [operator.matvec(v.flatten()) for v in vectors]

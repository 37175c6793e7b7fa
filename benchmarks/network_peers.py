"""How other libraries multiply with a block of a network's Hessian."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import grad

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


@contextmanager
def only(model: nn.Module, weights: Sequence[Tensor]) -> Iterator[None]:
    """A scope in which nothing but some weights asks for gradients: graphs are smaller then, and faster."""
    kept = {p: p.requires_grad for p in model.parameters()}
    model.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for p, flag in kept.items():
            p.requires_grad_(flag)
            p.grad = None


def gradient(model: nn.Module, batch: dict[str, Tensor], loss: Loss, weight: Tensor) -> Tensor:
    """The gradient of one weight, the unit of costs."""
    with only(model, [weight]):
        return grad(loss(model(batch["tokens"]), batch), weight)[0]


def kept_graph_product(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, attention: nn.Module, vectors: list[Tensor]
) -> list[Tensor]:
    """The gradient graph of the block, built once with everything else frozen, then one backward pass a vector."""
    weight = attention.W_Q
    with only(model, [weight]):
        (slope,) = grad(loss(model(batch["tokens"]), batch), weight, create_graph=True)
        return [grad(slope, weight, v, retain_graph=True)[0].flatten() for v in vectors]


def shared_probes(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, weights: Sequence[Tensor], probes: Sequence[Tensor]
) -> Tensor:
    """Estimated norms of H, G and H - G, ``[block, part]``, all from the same products on one graph.

    One backward pass through ``J^T u`` gives ``(H - G) v`` and ``J v``, another one ``G v = J^T C J v``.

    Args:
        model: Of tokens.
        batch: With "tokens".
        loss: Of outputs and batch.
        weights: The blocks.
        probes: Vectors of every block, along the first axis.
    """
    with only(model, weights):
        outputs = model(batch["tokens"])
        point = outputs.detach().requires_grad_()
        (slope,) = grad(loss(point, batch), point, create_graph=True)
        u = slope.detach().requires_grad_()
        vjp = grad(outputs, list(weights), u, create_graph=True)
        norms = []
        for weight, own, vectors in zip(weights, vjp, probes, strict=True):
            squares = torch.zeros(3, dtype=torch.float64)
            for v in vectors:
                # what a linear layer lacks is a functional part, and nothing else can be unused here
                rest, tangent = grad(own, [weight, u], v, retain_graph=True, materialize_grads=True)
                (curved,) = grad(slope, point, tangent, retain_graph=True)
                (outer,) = grad(outputs, weight, curved, retain_graph=True)
                squares += torch.stack([part.double().square().sum() for part in (outer + rest, outer, rest)])
            norms.append((squares / len(vectors)).sqrt())
    return torch.stack(norms)


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
        with only(model, [attention.W_Q]):
            data = (batch["tokens"], batch["tokens"])
            made = hessian(model, lambda out, tokens: loss(out, {"tokens": tokens}), data=data, cuda=False)
            return [hessian_vector_product(made.gradsH, made.params, [v])[0].flatten() for v in vectors]

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

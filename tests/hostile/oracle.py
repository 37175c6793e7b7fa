"""The dense Hessian and Gauss-Newton matrix of a specimen by plain autograd: nothing of hessianlens is used here.

The loss is written down as a user would, with the model's own parameters as leaves: total loss, gradient, and a second
backward pass for every entry of the gradient. The Gauss-Newton matrix is ``J^T C J``, with the Jacobian J of the
outputs and the Hessian C of the loss at the outputs both formed entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tests.hostile.specimen import Batch, Loss, Specimen

ROUNDING = 1e-12
"""Share of the norm of the whole matrix that rounding may leave in a block."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Dense matrices of all parameters, in `named_parameters` order, each row-major.

    Attributes:
        places: First row and shape of every parameter.
        full: The Hessian.
        ggn: The Gauss-Newton matrix.
        uses: By parameter, the operations of the autograd graph that take it, seen through views.
    """

    places: dict[str, tuple[int, torch.Size]]
    full: Tensor
    ggn: Tensor
    uses: dict[str, int]

    @property
    def functional(self) -> Tensor:
        """The rest."""
        return self.full - self.ggn

    @property
    def floor(self) -> float:
        """What rounding may leave where a block is zero."""
        return ROUNDING * max(1.0, float(self.full.norm()), float(self.ggn.norm()))

    def block(self, part: str, row: tuple[str, Tensor], column: tuple[str, Tensor]) -> Tensor:
        """One block; rows and columns are a parameter each and the places of the block's entries in it."""
        rows, columns = (self.places[name][0] + entries for name, entries in (row, column))
        return getattr(self, part)[rows][:, columns]


def truth(specimen: Specimen) -> Truth:
    """The matrices of a specimen, its model in evaluation mode and with attention that can be differentiated twice."""
    model, params = specimen.model, dict(specimen.model.named_parameters())
    model.eval()
    leaves, size = list(params.values()), sum(p.numel() for p in params.values())
    full, ggn = leaves[0].new_zeros(size, size), leaves[0].new_zeros(size, size)
    uses = dict.fromkeys(params, 0)
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        for batch in specimen.data:
            outputs = model(batch[0])
            outputs = outputs[0] if isinstance(outputs, tuple) else outputs
            value = share(specimen.loss, outputs, batch, specimen.data)
            full += second_derivatives(value, leaves)
            point = outputs.detach().requires_grad_()
            C = second_derivatives(share(specimen.loss, point, batch, specimen.data), [point])
            J = jacobian(outputs.reshape(-1), leaves)
            ggn += J.T @ C @ J
            for name, number in uses_of(params, value).items():
                uses[name] = max(uses[name], number)
    lopsided = float((full - full.T).norm())
    assert lopsided <= 1e-10 * max(1.0, float(full.norm())), f"autograd's own second derivative is wrong by {lopsided}"
    places, start = {}, 0
    for name, parameter in params.items():
        places[name] = (start, parameter.shape)
        start += parameter.numel()
    return Truth(places, full, ggn, uses)


def share(loss: Loss, outputs: Tensor, batch: Batch, data: Sequence[Batch]) -> Tensor:
    """A batch's share of the mean over all data."""
    if callable(loss):
        return loss(outputs, batch) * (len(batch[0]) / sum(len(x) for x, _ in data))
    total = sum(y.numel() for _, y in data)
    if loss == "square":
        return (outputs - batch[1]).square().sum() / total
    assert loss == "cross_entropy"
    return nnf.cross_entropy(outputs.flatten(0, -2), batch[1].flatten(), reduction="sum") / total


def second_derivatives(value: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """The dense Hessian of a scalar."""
    if not value.requires_grad:
        size = sum(leaf.numel() for leaf in leaves)
        return value.new_zeros(size, size)
    slopes = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
    return jacobian(torch.cat([slope.reshape(-1) for slope in slopes]), leaves)


def jacobian(values: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """Derivatives of a vector, ``[entry, parameter]``, in one pass where every step allows that, else one by one."""
    size = sum(leaf.numel() for leaf in leaves)
    if not values.requires_grad:
        return values.new_zeros(len(values), size)
    options = {"retain_graph": True, "allow_unused": True}
    eye = torch.eye(len(values), dtype=values.dtype)
    try:
        rows = torch.autograd.grad(values, leaves, eye, is_grads_batched=True, **options)
    except RuntimeError:
        each = [torch.autograd.grad(values, leaves, one, **options) for one in eye]
        rows = tuple(None if found[0] is None else torch.stack(found) for found in zip(*each, strict=True))
    found = [
        values.new_zeros(len(values), leaf.numel()) if row is None else row.reshape(len(values), -1)
        for row, leaf in zip(rows, leaves, strict=True)
    ]
    return torch.cat(found, 1)


_VIEWS = (
    "T",
    "Transpose",
    "Permute",
    "View",
    "UnsafeView",
    "Reshape",
    "Expand",
    "Unsqueeze",
    "Squeeze",
    "Alias",
    "Clone",
)


def uses_of(params: dict[str, nn.Parameter], value: Tensor) -> dict[str, int]:
    """How many steps of a graph take each parameter, seen through views of it; slices count as steps."""
    views = {f"{name}Backward{number}" for name in _VIEWS for number in range(3)}
    nodes: dict[Any, None] = {}  # kept: a node that nobody holds is wrapped anew, with another identity
    takers: dict[Any, list[Any]] = {}
    todo: list[Any] = [value.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in nodes:
            continue
        nodes[node] = None
        for parent, _ in node.next_functions:
            takers.setdefault(parent, []).append(node)
            todo.append(parent)

    def steps(node: Any) -> int:
        return sum(steps(taker) if taker.name() in views else 1 for taker in takers.get(node, ()))

    by_identity = {id(node.variable): node for node in nodes if hasattr(node, "variable")}
    return {name: steps(by_identity[id(p)]) if id(p) in by_identity else 0 for name, p in params.items()}


class _LookedUp(TorchFunctionMode):
    """Turns what embeddings give for ids into leaves, in the order of the lookups."""

    def __init__(self, sequences: int) -> None:
        super().__init__()
        self.sequences, self.leaves = sequences, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is nnf.embedding and found.ndim == 3 and len(found) == self.sequences:
            self.leaves.append(found := found.detach().requires_grad_())
        return found


def couples_sequences(specimen: Specimen) -> bool:
    """Whether the loss has second derivatives between the inputs of two sequences, or what is looked up for them.

    Where nothing is looked up for ids, nobody knows: then it may have.
    """
    for x, y in specimen.data:
        if len(x) < 2:
            continue
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), _LookedUp(len(x)) as lookups:
            leaves = [x.detach().clone().requires_grad_()] if x.is_floating_point() else lookups.leaves
            outputs = specimen.model(leaves[0] if leaves else x)
            outputs = outputs[0] if isinstance(outputs, tuple) else outputs
            value = share(specimen.loss, outputs, (leaves[0] if x.is_floating_point() else x, y), specimen.data)
        if not leaves:
            return True
        H, number = second_derivatives(value, leaves), torch.cat([_sequences(leaf) for leaf in leaves])
        size = float(H.abs().max())
        if float(H[number[:, None] != number].abs().max()) > 1e-12 * size:
            return True
    return False


def _sequences(leaf: Tensor) -> Tensor:
    """The sequence of every entry."""
    return torch.arange(len(leaf)).repeat_interleave(leaf[0].numel())

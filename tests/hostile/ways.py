"""Ways in which a weight acts on tokens, and in which weights are used a second time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.utils.checkpoint import checkpoint


class Product(torch.autograd.Function):
    """``a W``, by a user who writes the backward pass by hand and correctly."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, W: Tensor) -> Tensor:
        ctx.save_for_backward(a, W)
        return a @ W

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor]:
        a, W = ctx.saved_tensors
        (g,) = cotangents
        return g @ W.T, torch.einsum("...d,...e->de", a, g)


class Squared(torch.autograd.Function):
    """``x^2``, likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * cotangents[0]


Way = Callable[[Tensor, Tensor], Tensor]
"""From tokens ``[sequence, position, d]`` and a weight ``[d, e]`` to ``[sequence, position, e]``."""


def _by_loop(x: Tensor, W: Tensor) -> Tensor:
    return torch.stack([x[:, n] @ W for n in range(x.shape[1])], 1)


def _in_place(x: Tensor, W: Tensor) -> Tensor:
    z = x @ W
    z *= 2
    z[:, 0] = 0.5 * z[:, 0]
    return z


def _scattered(x: Tensor, W: Tensor) -> Tensor:
    z = x.new_zeros(*x.shape[:-1], W.shape[1])
    z[:, ::2] = x[:, ::2] @ W
    return z.index_add(1, torch.arange(1, x.shape[1], 2), x[:, 1::2] @ W)


def _by_rows(x: Tensor, W: Tensor) -> Tensor:
    return sum(x[..., n : n + 1] * W[n] for n in range(len(W)))  # type: ignore[return-value]


def _in_halves(x: Tensor, W: Tensor) -> Tensor:
    return torch.cat([x @ W[:, :1], x @ W[:, 1:]], -1)


ORDINARY: dict[str, Way] = {
    "x @ W": lambda x, W: x @ W,
    "torch.matmul": torch.matmul,
    "linear with a transpose": lambda x, W: nnf.linear(x, W.T),
    "einsum": lambda x, W: torch.einsum("bld,de->ble", x, W),
    "flattened": lambda x, W: (x.flatten(0, 1) @ W).unflatten(0, x.shape[:2]),
    "addmm": lambda x, W: torch.addmm(x.new_zeros(W.shape[1]), x.flatten(0, 1), W).unflatten(0, x.shape[:2]),
    "length first": lambda x, W: (x.transpose(0, 1) @ W).transpose(0, 1),
    "reshaped weight": lambda x, W: x @ W.reshape(-1).view(W.shape),
    "permuted weight": lambda x, W: x @ W.permute(1, 0).transpose(0, 1),
}

ODD: dict[str, Way] = {
    "by keyword": lambda x, W: torch.matmul(input=x, other=W),
    "linear by keyword": lambda x, W: nnf.linear(input=x, weight=W.T),
    "from the left": lambda x, W: (W.T @ x.transpose(1, 2)).transpose(1, 2),
    "a function of the user": Product.apply,
    "einsum with a list": lambda x, W: torch.einsum("bld,de->ble", [x, W]),
    "einsum by numbers": lambda x, W: torch.einsum(x, [0, 1, 2], W, [2, 3], [0, 1, 3]),
    "einsum with dots": lambda x, W: torch.einsum("...d,de->...e", x, W),
    "tensordot": lambda x, W: torch.tensordot(x, W, dims=1),
    "position by position": _by_loop,
    "scaled in place": _in_place,
    "scattered": _scattered,
    "row by row": _by_rows,
    "in halves": _in_halves,
    "convolution": lambda x, W: nnf.conv1d(x.transpose(1, 2), W.T[..., None]).transpose(1, 2),
    "vmap": lambda x, W: torch.func.vmap(lambda one: one @ W)(x),
    "expanded": lambda x, W: torch.bmm(x, W.expand(len(x), -1, -1)),
    "stacked": lambda x, W: x @ torch.stack([W, W])[0],
    "concatenated": lambda x, W: torch.cat([x, x], -1) @ torch.cat([W, W], 0) / 2,
    "centred": lambda x, W: x @ (W - W.mean()),
    "normalised": lambda x, W: x @ (W / W.norm()),
    "masked": lambda x, W: x @ W.tril(1),
    "rolled": lambda x, W: x @ W.roll(1, 0),
    "cloned": lambda x, W: x @ W.clone(),
    "twice": lambda x, W: (x @ W) * torch.sigmoid(x @ W),
    "twice, transposed": lambda x, W: torch.tanh(x @ W) @ W.T @ W,
    "multi_dot": lambda x, W: (torch.linalg.multi_dot([x.flatten(0, 1), W, W.T @ W])).unflatten(0, x.shape[:2]),
    "checkpoint": lambda x, W: checkpoint(lambda a, w: torch.tanh(a @ w), x, W, use_reentrant=False),  # type: ignore[no-any-return]
    "squared by a function of the user": lambda x, W: x @ Squared.apply(W),
    "baddbmm": lambda x, W: torch.baddbmm(x.new_zeros(1, 1, W.shape[1]), x, W.expand(len(x), -1, -1)),
    "chain_matmul": lambda x, W: torch.stack([torch.mm(one, W) for one in x]),
    "mv": lambda x, W: torch.stack([torch.stack([torch.mv(W.T, t) for t in one]) for one in x]),
    "from the sum of its halves": lambda x, W: W.chunk(2, 0)[0].sum().sin() + x @ W,
    "addcmul": lambda x, W: torch.addcmul(x @ W, x[..., :1], W[0]),
    "only for even positions": lambda x, W: torch.where(
        torch.arange(x.shape[1])[:, None] % 2 == 0, x @ W, x.sum() * W[0]
    ),
}

WAYS = ORDINARY | ODD

Again = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""From tokens and square weights to something that is added to the tokens."""

AGAIN: dict[str, Again] = {
    "cat of weights": lambda x, Ws: torch.sin(x @ torch.cat(list(Ws), 1))[..., : x.shape[-1]],
    "stack of weights": lambda x, Ws: torch.sin(x @ torch.stack(list(Ws)).prod(0)),
    "einsum of weights in a list": lambda x, Ws: torch.sin(torch.einsum("bld,de,ef->blf", [x, Ws[0], Ws[-1]])),
    "multi_dot of weights": lambda x, Ws: torch.sin(x @ torch.linalg.multi_dot([Ws[0], Ws[-1], Ws[0]])),
    "block_diag of weights": lambda x, Ws: (
        torch.sin(x @ torch.block_diag(*Ws)[: x.shape[-1], -x.shape[-1] :])
        + x @ torch.block_diag(*Ws)[: x.shape[-1], : x.shape[-1]]
    ),
    "hstack and vsplit": lambda x, Ws: torch.tanh(x @ torch.hsplit(torch.hstack(list(Ws)), [x.shape[-1]])[0]),
    "column_stack": lambda x, Ws: x * torch.sin(torch.column_stack([W[:, 0] for W in Ws]).sum(1)),
    "a dot product of two weights": lambda x, Ws: x * torch.tensordot(Ws[0], Ws[-1], 2).sin(),
    "norm of a weight": lambda x, Ws: x * torch.log1p(Ws[0].square().sum()),
    "a slice of a weight": lambda x, Ws: x * torch.sigmoid(Ws[0][0]),
    "broadcast tensors": lambda x, Ws: x * torch.sin(torch.broadcast_tensors(Ws[0][0], Ws[-1])[1].sum(0)),
    "foreach": lambda x, Ws: x * torch.stack(torch._foreach_norm(list(Ws))).sum().sin(),
    "where": lambda x, Ws: x @ torch.where(Ws[0] > 0, Ws[0], 0.1 * Ws[0] ** 2),
    "a function of the user, again": lambda x, Ws: torch.sin(Product.apply(x, Ws[0])),
    "bilinear": lambda x, Ws: x * nnf.bilinear(x, x, Ws[0][None]),
    "gathered": lambda x, Ws: x * Ws[0].gather(0, torch.zeros(1, x.shape[-1], dtype=torch.long)).tanh(),
}

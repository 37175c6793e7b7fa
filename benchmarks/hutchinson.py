"""Hutchinson estimates of all nine block norms, with the fastest products that autograd offers.

``E |H_ij v|^2 = |H_ij|_F^2`` for probes v with independent entries +-1. A probe of column parameter j gives the three
row blocks at once, so that n probes take 3 n products. Every estimator here is given the same probes, ``[j][n]``, and
returns the squares ``|H_ij v|^2`` as a tensor ``[n, i, j]``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.autograd import grad
from torch.func import grad as functional_grad
from torch.func import jvp, vmap

from benchmarks.problem import Problem

Probes = list[Tensor]
"""One tensor a column parameter, probes along the first axis."""


def draw(problem: Problem, number: int, seed: int = 2) -> Probes:
    """Random signs shaped as the weights."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, 2, (number, *w.shape), generator=generator).to(w.dtype).mul_(2).sub_(1)
        for w in problem.weights
    ]


def norms(squares: Tensor) -> Tensor:
    """Estimated block norms ``[i, j]``."""
    return squares.mean(0).sqrt()


def _squares(products: tuple[Tensor, ...], batched: bool = False) -> Tensor:
    return torch.stack([p.square().sum((-2, -1)) for p in products], -1 if batched else 0)


def kept_graph(problem: Problem, probes: Probes) -> Tensor:
    """Double backward through one gradient graph, kept for all products."""
    leaves = problem.leaves()
    gradient = grad(problem.loss(*leaves), leaves, create_graph=True)
    columns = [
        torch.stack([_squares(grad(g, leaves, v, retain_graph=True)) for v in vs])
        for g, vs in zip(gradient, probes, strict=True)
    ]
    return torch.stack(columns, -1)


def kept_graph_batched(problem: Problem, probes: Probes) -> Tensor:
    """The same with the products of a column parameter batched by vmap."""
    leaves = problem.leaves()
    gradient = grad(problem.loss(*leaves), leaves, create_graph=True)
    columns = [
        _squares(grad(g, leaves, vs, retain_graph=True, is_grads_batched=True), batched=True)
        for g, vs in zip(gradient, probes, strict=True)
    ]
    return torch.stack(columns, -1)


def fresh_graph(problem: Problem, probes: Probes) -> Tensor:
    """Double backward with a new graph for every product: the usual Hessian-vector product."""
    leaves = problem.leaves()

    def product(j: int, v: Tensor) -> Tensor:
        (gradient,) = grad(problem.loss(*leaves), leaves[j], create_graph=True)
        return _squares(grad(gradient, leaves, v))

    return torch.stack([torch.stack([product(j, v) for v in vs]) for j, vs in enumerate(probes)], -1)


def _along(problem: Problem, j: int, v: Tensor) -> tuple[Tensor, ...]:
    """``H[:, j] v`` by forward mode over reverse mode."""
    weights = problem.weights
    gradient = functional_grad(problem.loss, argnums=(0, 1, 2))
    products: tuple[Tensor, ...] = jvp(lambda w: gradient(*weights[:j], w, *weights[j + 1 :]), (weights[j],), (v,))[1]
    return products


def forward_over_reverse(problem: Problem, probes: Probes) -> Tensor:
    """``torch.func.jvp`` of ``torch.func.grad``."""
    columns = [torch.stack([_squares(_along(problem, j, v)) for v in vs]) for j, vs in enumerate(probes)]
    return torch.stack(columns, -1)


def forward_over_reverse_batched(problem: Problem, probes: Probes) -> Tensor:
    """The same with the products of a column parameter batched by vmap."""
    columns = [_squares(vmap(partial(_along, problem, j))(vs), batched=True) for j, vs in enumerate(probes)]
    return torch.stack(columns, -1)


def nine_blocks_kept(problem: Problem, probes: Probes) -> Tensor:
    """Block by block, 9 n products, through one kept graph."""
    leaves = problem.leaves()
    gradient = grad(problem.loss(*leaves), leaves, create_graph=True)
    squares = [
        [torch.stack([_squares(grad(g, w, v, retain_graph=True)) for v in vs])[:, 0] for w in leaves]
        for g, vs in zip(gradient, probes, strict=True)
    ]
    return torch.stack([torch.stack(column, -1) for column in squares], -1)


def nine_blocks_fresh(problem: Problem, probes: Probes) -> Tensor:
    """Block by block, 9 n products, each with a new graph: a block operator built on the usual product."""
    leaves = problem.leaves()

    def product(i: int, j: int, v: Tensor) -> Tensor:
        (gradient,) = grad(problem.loss(*leaves), leaves[j], create_graph=True)
        return _squares(grad(gradient, leaves[i], v))[0]

    rows, columns = range(len(leaves)), range(len(leaves))
    squares = [[torch.stack([product(i, j, v) for v in probes[j]]) for i in rows] for j in columns]
    return torch.stack([torch.stack(column, -1) for column in squares], -1)

"""A block as sums over positions, from the curvature between what two maps put out and what goes into them."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.hooked import HookedBatch
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.uses import Kind
from hessianlens.operators import Factor, Term


def sides_of(hooked: HookedBatch, piece: Piece, grouping: Grouping) -> tuple[Tensor | None, Tensor | None]:
    """The inputs of a weight, and those of a gain; ``[group, member, feature]`` both."""
    inputs = hooked.inputs(piece.use.parameter)
    if inputs is None:
        return None, None
    arranged = grouping.arrange(inputs.detach())
    if piece.use.kind is Kind.GAIN:
        return None, arranged[..., piece.features]
    return arranged[..., piece.inputs], None


def curved(matrix: Tensor, p: Tensor | None, q: Tensor | None) -> Term:
    """``sum p[n,l,a] q[n,m,c] C[n,l,b,m,d]``; without p or q the sum over their members is taken at once."""
    letters = "nlbmd"
    if p is None:
        matrix, letters = matrix.sum(letters.index("l")), letters.replace("l", "")
    if q is None:
        matrix, letters = matrix.sum(letters.index("m")), letters.replace("m", "")
    if p is None and q is None:
        matrix, letters = matrix.sum(0), letters.replace("n", "")
    return _term(Factor("C", letters, matrix), p, q, matrix)


def _term(found: Factor, p: Tensor | None, q: Tensor | None, like: Tensor) -> Term:
    one = torch.ones(1, dtype=like.dtype, device=like.device)
    sides = (
        Factor("1", "a", one) if p is None else Factor("x", "nla", p),
        Factor("1", "c", one) if q is None else Factor("x", "nmc", q),
    )
    return _squeezed(Term(1.0, (*sides, found)))


def moving(moved: Tensor, p: Tensor | None, slope: Tensor, gain: bool) -> Term:
    """``sum p[n,l,a] (da[n,m,c] / dz[n,l,b]) g[n,m,d]``; a gain has ``c = d``, and an axis of one in its place."""
    if gain:
        return curved(moved * slope[:, None, None], p, None)
    one = torch.ones(1, dtype=slope.dtype, device=slope.device)
    if p is None:
        factors = (Factor("1", "a", one), Factor("J", "nbmc", moved.sum(1)), Factor("g", "nmd", slope))
    else:
        factors = (Factor("x", "nla", p), Factor("J", "nlbmc", moved), Factor("g", "nmd", slope))
    return _squeezed(Term(1.0, factors))


def _squeezed(term: Term) -> Term:
    """The same without sums over a single member."""
    sizes = {letter: size for f in term.factors for letter, size in zip(f.indices, f.shape, strict=True)}
    single = [letter for letter in "lm" if sizes.get(letter) == 1]
    factors = []
    for factor in term.factors:
        tensor, indices = factor.tensor, factor.indices
        for letter in single:
            if letter in indices and tensor is not None:
                tensor, indices = tensor.squeeze(indices.index(letter)), indices.replace(letter, "")
        factors.append(Factor(factor.name, indices, tensor))
    return Term(term.coefficient, tuple(factors))

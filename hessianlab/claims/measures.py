"""Measurements that claims of several topics share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlab.claims.check import Check, at_most
from hessianlab.claims.draws import measured
from hessianlab.claims.figures import gap, largest
from hessianlab.claims.samples import Sample, small_samples
from hessianlab.claims.witness import Witness, mean_square, softmax_rows
from hessianlens.theory import AttentionHessian


@measured
def value_functional_entries() -> dict[str, float]:
    """Largest entry of H_f(V, V), by autograd and by the library."""
    routes = {
        "autograd": [s.witness.block("functional", "V", "V") for s in small_samples()],
        "the library": [s.hessian.functional["V", "V"].to_dense() for s in small_samples()],
    }
    return {route: largest(float(block.abs().max()) for block in blocks) for route, blocks in routes.items()}


def value_functional_checks() -> tuple[Check, ...]:
    """H_f(V, V) is zero by two routes."""
    found = value_functional_entries()
    return tuple(at_most(f"largest entry of H_f(V,V), by {route}", value, 0.0) for route, value in found.items())


def block_norm(H: AttentionHessian, part: str, block: str = "") -> float:
    """Frobenius norm of a block such as "QK", or of the whole matrix."""
    matrix = H.part(part)
    return float((matrix[block[0], block[1]] if block else matrix[:]).frobenius_norm())


def query_key_norm(H: AttentionHessian, part: str) -> float:
    """Frobenius norm of the query-key part, four blocks."""
    return math.sqrt(sum(block_norm(H, part, r + c) ** 2 for r in "QK" for c in "QK"))


def merged(one: Sample) -> Tensor:
    """The single matrix with the same scores."""
    w = one.weights
    return w["Q"] @ w["K"].T / math.sqrt(one.shape[2])


def single_witness(one: Sample, loss: Callable[[Tensor], Callable[[Tensor], Tensor]] = mean_square) -> Witness:
    """Automatic differentiation of the layer with one matrix."""

    def output(w: dict[str, Tensor]) -> Tensor:
        return softmax_rows(one.X @ w["QK"] @ one.X.T) @ one.X @ w["V"]

    return Witness(output, {"QK": merged(one), "V": one.weights["V"]}, loss(one.Y))


@measured
def single_witnesses() -> tuple[Witness, ...]:
    """Automatic differentiation of every small sample with one matrix."""
    return tuple(single_witness(s) for s in small_samples())


def t_functional_of_one_matrix() -> float:
    """Largest entry of sum dl/dT . d2T/dW2 for one matrix: T = X W X^T has no second derivative."""
    found = []
    for one in small_samples():
        scores = torch.func.hessian(lambda W, X=one.X: X @ W @ X.T)(merged(one))
        found.append(float(scores.abs().max()))
    return largest(found)


def group_spread(values: Tensor, multiplicity: int) -> float:
    """Largest spread inside groups of equal size of sorted eigenvalues, over the largest; none if all are zero."""
    groups = values.sort().values.reshape(-1, multiplicity)
    size = float(values.abs().max())
    return float((groups[:, -1] - groups[:, 0]).max()) / size if size > 0 else 0.0


def pair_gap(values: Tensor) -> float:
    """Distance of a sorted spectrum from its mirror image."""
    ordered = values.sort().values
    return gap(ordered, -ordered.flip(0))


def flip_gap(matrix: Tensor) -> float:
    """How far the eigenvectors with their first half negated are from belonging to the negated eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    half = len(values) // 2
    flipped = torch.cat([-vectors[:half], vectors[half:]])
    return float((matrix @ flipped + flipped * values).norm() / values.abs().max())

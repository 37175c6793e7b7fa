"""Two checks of the closed form at one layer: against autograd, and of how its blocks grow with the tokens.

Autograd knows only the layer's forward pass: `torch.func.hessian` and `torch.func.jacrev` form the matrices entry by
entry, Hessian-vector and GGN-vector products differentiate along one direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

from hessianlens.attention import SelfAttention
from hessianlens.display import Section, Table, short
from hessianlens.errors import InputError
from hessianlens.layer.assembly import attention_hessian
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.layer.predicted_exponents import predicted_growth
from hessianlens.losses import SquareLoss
from hessianlens.operators import BlockGrid, StructuredOperator, TokenSum
from hessianlens.parts import LAYER_PARTS

AGREEMENT_RTOL = 1e-10
"""Largest relative difference of two entries that is rounding."""

CANCELLATION_ROUNDINGS = 100
"""Rounding errors that may add up in an entry whose terms all cancel."""

EXPONENT_ATOL = 0.05
"""Largest difference of a fitted and a predicted exponent."""

FIT_MAX_SCORE = 0.01
"""Upper end of the fit: the scale at which no score exceeds this, so that activations look like their leading power."""

_PROBES, _FIT_POINTS, _FIT_DECADES = 4, 10, 1.5
_GROWTH_BLOCKS = (("Q", "Q"), ("V", "V"), ("V", "Q"), ("Q", "K"))


@dataclass(frozen=True)
class PartAgreement:
    """Largest relative differences of one part between three computations of it.

    Attributes:
        closed_dense: Closed form against dense autograd.
        closed_matvec: Closed form against autograd's products with random vectors.
        matvec_dense: Autograd's products against its dense matrix.
    """

    part: str
    largest_entry: float
    closed_dense: float
    closed_matvec: float
    matvec_dense: float
    verdict: str

    @property
    def worst(self) -> float:
        """The largest of the three."""
        return max(self.closed_dense, self.closed_matvec, self.matvec_dense)

    @property
    def agree(self) -> bool:
        """Whether they differ by rounding alone."""
        return self.verdict != "differ"


@dataclass(frozen=True)
class BlockGrowth:
    """The exponent of a block's norm in the scale of the tokens, fitted and predicted; None for a zero block."""

    part: str
    row: str
    column: str
    exponent: float | None
    predicted: int | None
    verdict: str


@dataclass(frozen=True, eq=False)
class LayerCheck:
    """One layer, one batch and one loss, and the Hessian of the three.

    >>> layer = SelfAttention.random(d_model=3, d_k=2, seed=0, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    >>> check = LayerCheck(layer, X, SquareLoss(Y))
    >>> [found.verdict for found in check.agreements()]
    ['agree', 'agree', 'agree']
    >>> {f"{g.part} {g.row}{g.column}": g.predicted for g in check.growth() if g.verdict == "agree"}
    {'outer QQ': 6, 'outer VV': 2, 'outer VQ': 4, 'outer QK': 6, 'functional QQ': 5, 'functional VV': None, ...}
    """

    layer: SelfAttention
    X: Tensor
    loss: SquareLoss

    @cached_property
    def hessian(self) -> AttentionHessian:
        """The closed form."""
        return attention_hessian(self.layer, self.X, self.loss)

    # --- against autograd ---------------------------------------------------------------------------------------------

    def agreements(self) -> list[PartAgreement]:
        """The three computations of every part compared."""
        return [self._agreement(part) for part in LAYER_PARTS]

    def _agreement(self, part: str) -> PartAgreement:
        grid, dense = self.hessian.part(part), self._dense(part)
        vectors = torch.randn(len(dense), _PROBES, generator=torch.Generator().manual_seed(0), dtype=dense.dtype)
        products = torch.stack([self._matvec(part, vector) for vector in vectors.T], 1)
        gaps = (
            relative_difference(_from_terms(grid), dense),
            relative_difference(grid[:] @ vectors, products),
            relative_difference(dense @ vectors, products),
        )
        largest = float(dense.abs().max())
        return PartAgreement(part, largest, *gaps, self._verdict(max(gaps), largest))

    def _verdict(self, gap: float, largest: float) -> str:
        if gap < AGREEMENT_RTOL:
            return "agree"
        return "agree up to rounding" if gap * largest < CANCELLATION_ROUNDINGS * self._cancellation else "differ"

    @cached_property
    def _cancellation(self) -> float:
        """What rounding may leave of an entry of a query-key block whose terms all cancel, as in one-hot attention.

        Those terms exceed the ones of the value block, which never cancel, by about the squared size of values and keys
        over the squared scale of the scores.
        """
        d_model, d_k = self.layer.W_Q.shape
        terms = float(self.hessian.outer["V", "V"].frobenius_norm())
        return terms * d_model**2 / (self.layer.temperature**2 * d_k) * torch.finfo(self.X.dtype).eps

    @cached_property
    def _weights(self) -> Tensor:
        return torch.cat([weight.reshape(-1) for weight in self.layer.parameters.values()])

    def _output(self, flat: Tensor) -> Tensor:
        """The layer's output as a function of one flat vector of weights, in the order Q, K, V."""
        parts = flat.split([weight.numel() for weight in self.layer.parameters.values()])
        named = {n: p.reshape(w.shape) for (n, w), p in zip(self.layer.parameters.items(), parts, strict=True)}
        return self.layer.with_parameters(named)(self.X)

    def _function(self, part: str) -> Callable[[Tensor], Tensor]:
        """A scalar whose Hessian is the full or the functional part: ``l(F)``, or ``<dl/dF, F>`` with dl/dF fixed."""
        if part == "full":
            return lambda flat: self.loss.value(self._output(flat))
        gradient = grad(self.loss.value)(self._output(self._weights)).detach()
        return lambda flat: (gradient * self._output(flat)).sum()

    def _loss_curvature(self, direction: Tensor) -> Tensor:
        return jvp(grad(self.loss.value), (self._output(self._weights).detach(),), (direction,))[1]

    def _dense(self, part: str) -> Tensor:
        if part != "outer":
            found: Tensor = hessian(self._function(part))(self._weights)
            return found.detach()
        J = jacrev(self._output)(self._weights).movedim(-1, 0).detach()
        return J.flatten(1) @ vmap(self._loss_curvature)(J).flatten(1).T

    def _matvec(self, part: str, vector: Tensor) -> Tensor:
        if part == "outer":
            change = jvp(self._output, (self._weights,), (vector,))[1]
            found: Tensor = vjp(self._output, self._weights)[1](self._loss_curvature(change))[0]
            return found.detach()
        weights = self._weights.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(self._function(part)(weights), weights, create_graph=True)
        return torch.autograd.grad(slope @ vector, weights)[0]

    # --- growth with the tokens ---------------------------------------------------------------------------------------

    def growth(self) -> list[BlockGrowth]:
        """Scale the tokens by sigma, hold weights, loss gradient and loss curvature, and fit powers of sigma."""
        high = math.sqrt(FIT_MAX_SCORE / float(self.hessian.heads[0].scores.abs().max()))
        sigmas = high * 10 ** np.linspace(-_FIT_DECADES, 0, _FIT_POINTS)
        gradient, curvature = self.hessian.loss.gradient, 2 / self.loss.targets.numel()
        scaled = [attention_hessian(self.layer, s * self.X, grad=gradient, curvature=curvature) for s in sigmas]
        found = []
        for part in ("outer", "functional"):
            for row, column in _GROWTH_BLOCKS:
                norms = [_norm(H.part(part)[row, column]) for H in scaled]
                exponent = _exponent(sigmas, norms)
                predicted = predicted_growth(
                    self.layer.activation,
                    part,
                    row,
                    column,
                    query_norm=self.layer.query_norm is not None,
                    key_norm=self.layer.key_norm is not None,
                )
                found.append(BlockGrowth(part, row, column, exponent, predicted, growth_verdict(exponent, predicted)))
        return found


def growth_verdict(exponent: float | None, predicted: int | None) -> str:
    """Whether a fitted and a predicted exponent agree.

    >>> growth_verdict(5.99, 6), growth_verdict(None, None), growth_verdict(None, 2), growth_verdict(4.2, 5)
    ('agree', 'agree', 'zero here', 'differ')
    """
    if exponent is None:
        return "agree" if predicted is None else "zero here"
    return "agree" if predicted is not None and abs(exponent - predicted) < EXPONENT_ATOL else "differ"


def relative_difference(found: Tensor, reference: Tensor) -> float:
    """Largest entrywise difference over the largest entry of the reference, if that is not zero."""
    return float((found - reference).abs().max()) / (float(reference.abs().max()) or 1.0)


def _from_terms(grid: BlockGrid) -> Tensor:
    """The matrix from the printed terms of its blocks, whatever shorter way there is at its size."""
    return torch.cat([torch.cat([_dense_from_terms(grid[r, c]) for c in grid.columns], 1) for r in grid.rows])


def _dense_from_terms(block: StructuredOperator) -> Tensor:
    return (block.written_out() if isinstance(block, TokenSum) else block).to_dense()


def _norm(block: StructuredOperator) -> float:
    try:
        return float(block.frobenius_norm())
    except InputError:  # it leaves the range of floating-point numbers
        return math.inf


def _exponent(sigmas: Any, norms: list[float]) -> float | None:
    """Least-squares slope of log norm over log sigma; None for zeros, not a number where a norm is not finite."""
    if not all(map(math.isfinite, norms)):
        return math.nan
    return None if min(norms) <= 0 else float(np.polyfit(np.log(sigmas), np.log(norms), 1)[0])


def layer_check_sections(
    agreements: Sequence[PartAgreement], growth: Sequence[BlockGrowth]
) -> tuple[list[Section], list[tuple[str, str]]]:
    """The checks of a layer as sections, and in short."""
    worst = max(found.worst for found in agreements)
    wrong = [found.part for found in agreements if not found.agree]
    agreed = (
        f"Closed form, Hessian-vector products and dense autograd do not agree on {', '.join(wrong)}; the largest "
        f"relative difference is {short(worst)}."
        if wrong
        else f"Closed form, Hessian-vector products and dense autograd agree on every part; the largest relative "
        f"difference is {short(worst)}."
    )
    fitted = [found for found in growth if found.verdict != "zero here"]
    held = sum(found.verdict == "agree" for found in fitted)
    powers = f"{held} of {len(fitted)} blocks grow with the power of the tokens' scale that the activation predicts."
    compared = Table(
        ["part", "largest entry", "closed form and dense", "closed form and products", "products and dense", "verdict"],
        [
            [
                found.part,
                short(found.largest_entry),
                *map(short, (found.closed_dense, found.closed_matvec, found.matvec_dense)),
                found.verdict,
            ]
            for found in agreements
        ],
        "Largest difference of two entries, relative to the largest entry of the part.",
    )
    exponents = Table(
        ["block", "part", "fitted exponent", "predicted", "verdict"],
        [
            [
                f"{found.row}, {found.column}",
                found.part,
                "zero" if found.exponent is None else f"{found.exponent:.3f}",
                "zero" if found.predicted is None else str(found.predicted),
                found.verdict,
            ]
            for found in growth
        ],
    )
    sections = [
        Section(
            "Agreement with autograd",
            [
                "The closed form writes each block as a sum of small products over tokens. Autograd only "
                "differentiates the layer's forward pass: once along random vectors, once entry by entry.",
                agreed,
                compared,
            ],
        ),
        Section(
            "Growth with the tokens",
            [
                "All tokens are multiplied by sigma; weights, loss gradient and loss curvature are held. For small "
                "sigma each block grows as a power of sigma that follows from the activation alone.",
                powers,
                exponents,
            ],
        ),
    ]
    return sections, [("Agreement with autograd", agreed), ("Growth with the tokens", powers)]

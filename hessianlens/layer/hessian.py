"""The exact Hessian of an attention layer, block by block, lazily."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.head import AttentionHead
from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.attention.state import HeadState
from hessianlens.display import Cells, DisplayableRows, Picture
from hessianlens.errors import check_choice, check_that
from hessianlens.layer.functional import score_pair_terms, value_pair_terms, value_score_terms
from hessianlens.layer.outer import outer_terms
from hessianlens.layer.scores import ScoreCurvature
from hessianlens.layer.sketch import LayerSketch
from hessianlens.layer.tangent import LayerTangent, PartTangent
from hessianlens.losses import (
    LossDerivatives,
    OutputCurvature,
    ScalarCurvature,
    UncoupledCurvature,
)
from hessianlens.operators import BlockGrid, Term, TokenSum
from hessianlens.operators.grid import block_name
from hessianlens.operators.product import Product
from hessianlens.parts import LAYER_PARTS
from hessianlens.state_guard import restores_state

Name = Hashable
Place = tuple[int, str]
Layer = AttentionHead | MultiHeadAttention


class AttentionHessian(DisplayableRows):
    """Every block of the Hessian of ``loss(layer(X))`` with respect to the layer's weights.

    ``H = H_o + H_f`` (Equation 2 of the paper): `outer`, `functional` and `full` are block grids, so that
    ``H.outer["Q", "K"]`` is a block and ``H.full[:]`` the whole matrix in the order of ``layer.parameters``. `t_outer`
    and `t_functional` split the query-key part at the scores instead (Remark D.1). Blocks are built when first asked
    for.

    Attributes:
        heads: Each head, evaluated at the query tokens that carry a loss.
        loss: Gradient and curvature of the loss at those tokens.
        outputs: Features of the output that come from each head, where heads are concatenated; None for their sum.
    """

    def __init__(
        self,
        places: dict[Name, Place],
        shapes: dict[Name, tuple[int, int]],
        heads: Sequence[HeadState],
        loss: LossDerivatives,
        outputs: Sequence[slice] | None = None,
    ) -> None:
        self._places, self._shapes = places, shapes
        self.heads, self.loss, self.outputs = tuple(heads), loss, outputs
        self._score_curvatures: dict[tuple[int, int], ScoreCurvature] = {}

    @cached_property
    @restores_state
    def _centred(self) -> tuple[HeadState, ...]:
        with torch.no_grad():
            return tuple(head.centred() for head in self.heads)

    def with_loss(self, loss: LossDerivatives) -> AttentionHessian:
        """The same layer at the same tokens, under another loss: its derivatives at the layer's output."""
        wanted = "LossDerivatives, such as the `loss` of an attention Hessian"
        check_that(isinstance(loss, LossDerivatives), "loss", loss, wanted)
        found = AttentionHessian(self._places, self._shapes, self.heads, loss, self.outputs)
        found.__dict__["_centred"] = self._centred
        return found

    @cached_property
    def _tangent(self) -> LayerTangent:
        return LayerTangent(self._places, self._shapes, self.heads, self._centred, self.loss, self.outputs)

    def gradient_of(self, head: int) -> Tensor:
        """Gradient of the loss with respect to the output of a head."""
        return self.loss.gradient if self.outputs is None else self.loss.gradient[..., self.outputs[head]]

    def _curvature_of(self, row: int, column: int) -> OutputCurvature:
        """Curvature of the loss between what two heads put out."""
        if self.outputs is None:
            return self.loss.curvature
        return self.loss.curvature.restricted(self.outputs[row], self.outputs[column])

    @cached_property
    def sketch(self) -> LayerSketch:
        """The blocks as random small matrices see them, for estimates of their norms."""
        side_by_side = "" if self.outputs is None else "a gate multiplies the output of the heads"
        return LayerSketch(self._places, self._centred, self.loss, side_by_side)

    @cached_property
    def outer(self) -> BlockGrid:
        """The outer-product Hessian, Theorem 3.1: ``J^T C J`` with J the Jacobian of the output."""
        return self._grid("outer")

    @cached_property
    def functional(self) -> BlockGrid:
        """The functional Hessian, Theorem 3.2: second derivatives of the output, weighted by the loss gradient."""
        return self._grid("functional")

    @cached_property
    def full(self) -> BlockGrid:
        """The Hessian, the sum of the two."""
        return self._grid("full")

    @cached_property
    def t_outer(self) -> BlockGrid:
        """The T-outer-product Hessian of the query-key part: all but the T-functional Hessian."""
        return self._grid("t_outer", self._score_names())

    @cached_property
    def t_functional(self) -> BlockGrid:
        """The T-functional Hessian of the query-key part: ``[[0, B], [B^T, 0]] (x) I`` without positions or norms."""
        return self._grid("t_functional", self._score_names())

    def part(self, name: str) -> BlockGrid:
        """A grid by name: outer (or ggn), functional, full, t_outer or t_functional."""
        check_choice("part", name, (*LAYER_PARTS, "t_outer", "t_functional", "ggn"))
        grid = getattr(self, "outer" if name == "ggn" else name)
        assert isinstance(grid, BlockGrid)
        return grid

    def _score_names(self) -> list[Name]:
        return [name for name, (h, own) in self._places.items() if own in self.heads[h].score_ports]

    def _grid(self, part: str, names: Sequence[Name] | None = None) -> BlockGrid:
        shapes = {name: self._shapes[name] for name in (names or self._shapes)}
        like, names = self.loss.gradient, tuple(shapes)
        product = Product(PartTangent(self._tangent, part), names, names)

        def build(row: Name, column: Name) -> TokenSum:
            return self._block(part, row, column, product.at([row], [column]))

        return BlockGrid(shapes, shapes, build, like.dtype, like.device, symmetric=True, product=product)

    def _block(self, part: str, row: Name, column: Name, product: Product | None) -> TokenSum:
        like = self.loss.gradient

        @restores_state
        def terms() -> Sequence[Term]:
            with torch.no_grad():
                found = _BLOCK_TERMS[part](self, self._places[row], self._places[column])
            if found is not None:
                return found
            mirrored = self._block(part, column, row, None).adjoint()
            assert isinstance(mirrored, TokenSum)
            return mirrored.terms

        return TokenSum(terms, self._shapes[row], self._shapes[column], like.dtype, like.device, product)

    def _scores(self, row: int, column: int, curvature: UncoupledCurvature) -> ScoreCurvature:
        if (row, column) not in self._score_curvatures:
            self._score_curvatures[row, column] = ScoreCurvature(
                self._centred[row], self._centred[column], curvature, self.gradient_of(row)
            )
        return self._score_curvatures[row, column]

    def _score_score(self, row: Place, column: Place, part: str) -> list[Term] | None:
        """Both parameters enter through the scores; the T-functional summand is left out."""
        (h, own), (k, other) = row, column
        curvature = self._curvature_of(h, k)
        if isinstance(curvature, UncoupledCurvature):
            ports = self._centred[h].score_ports[own], self._centred[k].score_ports[other]
            return self._scores(h, k, curvature).terms(*ports, part)
        terms = [] if part == "functional" else outer_terms(self._centred[h], own, self._centred[k], other, curvature)
        if part != "outer" and h == k:
            head = self._centred[h]
            alone = ScoreCurvature(head, head, _no_curvature(head), self.gradient_of(h))
            terms = terms + alone.terms(head.score_ports[own], head.score_ports[other], "functional")
        return terms

    def _outer_terms(self, row: Place, column: Place) -> list[Term] | None:
        (h, own), (k, other) = row, column
        if own in self._centred[h].score_ports and other in self._centred[k].score_ports:
            return self._score_score(row, column, "outer")
        return outer_terms(self._centred[h], own, self._centred[k], other, self._curvature_of(h, k))

    def _functional_terms(self, row: Place, column: Place) -> list[Term] | None:
        (h, own), (k, other) = row, column
        head, gradient = self._centred[h], self.gradient_of(h)
        if h != k:
            return []
        if own in head.value_ports:
            if other in head.score_ports:
                return value_score_terms(head, own, other, gradient)
            return value_pair_terms(head, own, other, gradient)
        split = None if other in head.value_ports else self._t_functional_terms(row, column)
        return None if split is None else (self._score_score(row, column, "functional") or []) + split

    def _full_terms(self, row: Place, column: Place) -> list[Term] | None:
        (h, own), (k, other) = row, column
        if own in self._centred[h].score_ports and other in self._centred[k].score_ports:
            split = self._t_functional_terms(row, column)
            return None if split is None else (self._score_score(row, column, "full") or []) + split
        functional = self._functional_terms(row, column)
        outer = self._outer_terms(row, column)
        return None if functional is None or outer is None else outer + functional

    def _t_outer_terms(self, row: Place, column: Place) -> list[Term] | None:
        return self._score_score(row, column, "full")

    def _t_functional_terms(self, row: Place, column: Place) -> list[Term] | None:
        (h, own), (k, other) = row, column
        return [] if h != k else score_pair_terms(self._centred[h], own, other, self.gradient_of(h))

    def _records(self) -> list[dict[str, Any]]:
        norms = {part: self.part(part).norms() for part in LAYER_PARTS}
        return [
            {
                "row": block_name(row),
                "column": block_name(column),
                "row_shape": tuple(self._shapes[row]),
                "column_shape": tuple(self._shapes[column]),
                **{part: float(norms[part][row, column]) for part in LAYER_PARTS},
            }
            for row in self._shapes
            for column in self._shapes
        ]

    def _cells(self) -> Cells:
        return self.full._cells()

    def _picture(self, asked: bool) -> Picture | None:
        """The norms of the blocks of the whole Hessian."""
        return self.full._picture(asked)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write a page about this Hessian: its blocks, spectra, eigenvalue pairs and attention, in one file.

        Args:
            path: The file; it asks for nothing from elsewhere.
        """
        from hessianlens.layer.page import hessian_page  # which asks everything of this class

        return hessian_page(self).write(path)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {shape[0]}x{shape[1]}" for name, shape in self._shapes.items())
        total = sum(r * c for r, c in self._shapes.values())
        return f"AttentionHessian {total}x{total}: blocks {sizes}; parts outer, functional, full, t_outer, t_functional"


_BLOCK_TERMS = {
    "outer": AttentionHessian._outer_terms,
    "functional": AttentionHessian._functional_terms,
    "full": AttentionHessian._full_terms,
    "t_outer": AttentionHessian._t_outer_terms,
    "t_functional": AttentionHessian._t_functional_terms,
}


def _no_curvature(head: HeadState) -> UncoupledCurvature:
    return ScalarCurvature(torch.zeros_like(head.scores[..., 0]), head.values.shape[-1])

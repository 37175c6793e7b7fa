"""Every block of a layer as random small matrices see it; why not, where they do not."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch

from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.errors import Refusal, check_choice, check_that
from hessianlens.layer.functional import score_pair_matrix
from hessianlens.layer.head_tangent import SUMMANDS
from hessianlens.layer.sketch.score_block import ScoreBlock
from hessianlens.layer.sketch.score_matrices import ScoreMatrices
from hessianlens.layer.sketch.unfolding import Unfolding
from hessianlens.layer.sketch.value_block import ValueBlock
from hessianlens.layer.sketch.value_score_block import ValueScoreBlock
from hessianlens.losses import LossDerivatives, UncoupledCurvature
from hessianlens.notation import SEQUENCE
from hessianlens.operators import Factor, Term
from hessianlens.operators.inner_products import squared_norm_cost

Name = Hashable
_ALL = slice(None)


class LayerSketch:
    """A layer at a batch, as sketches of its norms see it.

    Args:
        places: Head and own name of every parameter.
        heads: The heads, centred.
        loss: Gradient and curvature of the loss.
        refusal: Why no block has a sketch, if that is so.
    """

    def __init__(
        self,
        places: Mapping[Name, tuple[int, str]],
        heads: Sequence[HeadState],
        loss: LossDerivatives,
        refusal: str = "",
    ) -> None:
        self._places, self._heads, self._loss, self._refusal = places, heads, loss, refusal
        self._matrices: dict[tuple[int, int, str], ScoreMatrices] = {}

    def block(
        self, part: str, row: Name, column: Name, rows: tuple[slice, slice] = (_ALL, _ALL)
    ) -> Unfolding | Refusal:
        """The block between two parameters, or its transpose; a refusal where it has no sketch.

        Args:
            part: "outer", "functional", "full", "t_outer" or "t_functional".
            row: Parameter of the rows.
            column: Parameter of the columns.
            rows: Of either parameter, the rows that count.
        """
        if not isinstance(self._loss.curvature, UncoupledCurvature):
            return Refusal("the loss couples the tokens of a sequence")
        if self._refusal:
            return Refusal(self._refusal)
        (h, own), (k, other) = self._placed(part, row, column)
        head, second = self._heads[h], self._heads[k]
        if head.value_names or second.value_names:
            return Refusal("a norm changes values token by token")
        if own in head.value_ports and other in second.value_ports:
            return self._values(part, (h, own), (k, other), rows)
        turned = own in head.score_ports and other in second.value_ports
        if turned or (h == k and (other, own) == head.score_pair):
            return self.block(part, column, row, (rows[1], rows[0]))
        score = _cut_score(second.score_ports[other], rows[1])
        ports = [score] if own in head.value_ports else [score, head.score_ports[own]]
        if any(port.turn is not None for port in ports):
            return Refusal("rotary positions or a norm change queries or keys token by token")
        if own in head.value_ports:
            value = _cut_value(head.value_ports[own], rows[0])
            return ValueScoreBlock(head, value, second, score, self._loss, SUMMANDS[part])
        pair = None
        if SUMMANDS[part].t_functional and h == k and (own, other) == head.score_pair:
            pair = score_pair_matrix(head, self._loss.gradient)[rows[0], rows[1]]
        return ScoreBlock(self._scores(h, k, part), _cut_score(head.score_ports[own], rows[0]), score, pair)

    def exact_cost(self, part: str, row: Name, column: Name) -> float | None:
        """Multiply-adds of an exact norm whose factors are dear to build; None where they are not."""
        (h, own), (k, other) = self._placed(part, row, column)
        head, second = self._heads[h], self._heads[k]
        scores = own in head.score_ports and other in second.score_ports
        if not scores or not SUMMANDS[part].outer or not isinstance(self._loss.curvature, UncoupledCurvature):
            return None
        pair = SUMMANDS[part].t_functional and h == k and head.score_pair in ((own, other), (other, own))
        return score_norm_cost((head, second), (head.score_ports[own], second.score_ports[other]), pair)

    def _placed(self, part: str, row: Name, column: Name) -> tuple[tuple[int, str], tuple[int, str]]:
        check_choice("part", part, SUMMANDS)
        for axis, name in (("row", row), ("column", column)):
            known = isinstance(name, Hashable) and name in self._places
            check_that(known, axis, name, f"one of {', '.join(map(repr, self._places))}")
        return self._places[row], self._places[column]

    def _scores(self, h: int, k: int, part: str) -> ScoreMatrices:
        if (h, k, part) not in self._matrices:
            self._matrices.clear()  # they are large
            self._matrices[h, k, part] = ScoreMatrices(self._heads[h], self._heads[k], self._loss, SUMMANDS[part])
        return self._matrices[h, k, part]

    def _values(
        self, part: str, row: tuple[int, str], column: tuple[int, str], rows: tuple[slice, slice]
    ) -> Unfolding | Refusal:
        (h, own), (k, other) = row, column
        parts, pair, curvature = SUMMANDS[part], self._heads[h].value_pair, self._loss.curvature
        if parts.functional and h == k and pair in ((own, other), (other, own)):
            return Refusal("the two factors of a value matrix have a summand of their own")
        if not parts.outer:
            return Refusal("it is zero: values enter linearly")
        ports = self._heads[h].value_ports[own], self._heads[k].value_ports[other]
        assert isinstance(curvature, UncoupledCurvature)
        return ValueBlock(_cut_value(ports[0], rows[0]), _cut_value(ports[1], rows[1]), curvature)


def _cut_value(port: ValuePort, rows: slice) -> ValuePort:
    if rows == _ALL:
        return port
    whole = None if port.whole is None else port.whole[..., rows]
    return replace(port, content=port.content[..., rows], whole=whole)


def _cut_score(port: ScorePort, rows: slice) -> ScorePort:
    """Rows of the weight, which its vector or its matrix meets."""
    if rows == _ALL:
        return port
    if port.vector_axis == 0:
        return replace(port, vector=port.vector[..., rows])
    return replace(port, matrix=port.matrix[..., rows])


def score_norm_cost(heads: tuple[HeadState, HeadState], ports: tuple[ScorePort, ScorePort], pair: bool) -> float:
    """Multiply-adds of the exact squared norm of a block between two score parameters.

    Args:
        heads: Head of the rows and of the columns.
        ports: How the two parameters enter.
        pair: Whether there is a T-functional summand.
    """
    sequences, queries, length = heads[0].scores.shape
    widths, carried = [port.matrix_width for port in ports], [port.vector.shape[-1] for port in ports]
    tokens, turned = sequences * queries, any(port.key_turn is not None for port in ports)

    def factor(indices: str, *shape: int) -> Factor:
        return Factor("", SEQUENCE + indices, torch.empty(sequences, *shape, device="meta"))

    keys = ["l" if port.key_turn is not None else "" for port in ports]
    left = factor(f"i{keys[0]}a", queries, *([length] if keys[0] else []), carried[0])
    right = factor(f"i{'m' if keys[1] else ''}c", queries, *([length] if keys[1] else []), carried[1])
    built = tokens * length * (8.0 * length + heads[0].values.shape[-1])
    if turned or length * length <= widths[0] * widths[1]:
        sides = factor("lb", length, widths[0]), factor("md", length, widths[1])
        term = Term(1.0, (left, sides[0], factor("ilm", queries, length, length), sides[1], right))
    else:
        built += tokens * length * widths[1] * (length + widths[0])
        term = Term(1.0, (left, factor("ibd", queries, *widths), right))
    terms = [term]
    if pair:
        B = Factor("B", "ad", torch.empty(carried[0], widths[1], device="meta"))
        terms.append(Term(1.0, (B, Factor.identity("bc", widths[0]))))
    return built + squared_norm_cost(terms)

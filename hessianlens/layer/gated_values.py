r"""The Hessian of a layer with gated values, ``v_l = u_l * f(W_g^T x_l)``, from that by the values themselves.

Let B be a block of the Hessian by the values of every key token, as if these were a parameter. A parameter W of the
values moves them by a small matrix per token, so the chain rule multiplies rows and columns of B with ``dv_l/dW``, and

    V, value_gate            H_f  +=  sum_l x_l x_l' (x) diag(c_l * f'_l)
    value_gate, value_gate   H_f  +=  sum_l x_l x_l' (x) diag(c_l * u_l * f''_l)

with ``c_l = sum_i A_il g_i`` the gradient by the value of token l. Two factors of a value matrix have the term that
they have without a gate, ``x_l (x) f_l * c_l``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from string import ascii_lowercase

import torch
from torch import Tensor

from hessianlens.attention.head import VALUES
from hessianlens.attention.value_gate import GatedValues
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.layer.sketch import LayerSketch
from hessianlens.losses import LossDerivatives
from hessianlens.notation import COLUMN_AXES, ROW_AXES, VECTORS
from hessianlens.operators import BlockGrid, Factor, Term, TokenSum

Name = Hashable
Places = dict[Name, tuple[int, str]]
Shapes = dict[Name, tuple[int, int]]


def with_values_as_parameters(
    places: Mapping[Name, tuple[int, str]], shapes: Mapping[Name, tuple[int, int]], values: Mapping[int, GatedValues]
) -> tuple[Places, Shapes]:
    """Parameters of a layer, with the values of some heads in place of what they are made of."""
    kept = {name: place for name, place in places.items() if not _is_value(place, values)}
    stood_in: Places = {(VALUES, h): (h, VALUES) for h in values}
    own: Shapes = {(VALUES, h): (gated.plain.shape[1], gated.plain.shape[2]) for h, gated in values.items()}
    return kept | stood_in, {name: shapes[name] for name in kept} | own


def _is_value(place: tuple[int, str], values: Mapping[int, GatedValues]) -> bool:
    h, own = place
    return h in values and own in values[h].names


class ValueGatedHessian(AttentionHessian):
    """That of a layer with gated values.

    Args:
        places: Head and own name of every parameter.
        shapes: Shape of every parameter.
        by_values: The Hessian by the values of these heads, in place of their parameters.
        values: How values are made, by head.
    """

    def __init__(
        self,
        places: Mapping[Name, tuple[int, str]],
        shapes: Mapping[Name, tuple[int, int]],
        by_values: AttentionHessian,
        values: Mapping[int, GatedValues],
    ) -> None:
        super().__init__(dict(places), dict(shapes), by_values.heads, by_values.loss, by_values.outputs)
        self._by_values, self._values = by_values, dict(values)

    def with_loss(self, loss: LossDerivatives) -> ValueGatedHessian:
        """The same layer at the same tokens, under another loss."""
        return ValueGatedHessian(self._places, self._shapes, self._by_values.with_loss(loss), self._values)

    def gradient_of(self, head: int) -> Tensor:
        """Gradient of the loss with respect to what a head puts out, in front of a gate."""
        return self._by_values.gradient_of(head)

    @cached_property
    def sketch(self) -> LayerSketch:
        """None: every block is refused, with the reason."""
        return LayerSketch(self._places, self._centred, self.loss, refusal="a gate multiplies the values")

    def _grid(self, part: str, names: Sequence[Name] | None = None) -> BlockGrid:
        shapes = {name: self._shapes[name] for name in (names or self._shapes)}
        like, inner = self.loss.gradient, self._by_values.part(part)

        def build(row: Name, column: Name) -> TokenSum:
            with torch.no_grad():
                terms = self._terms_of(inner, part, row, column)
            return TokenSum(terms, self._shapes[row], self._shapes[column], like.dtype, like.device)

        return BlockGrid(shapes, shapes, build, like.dtype, like.device, symmetric=True)

    def _terms_of(self, inner: BlockGrid, part: str, row: Name, column: Name) -> list[Term]:
        sides = [_side(self._places[name], name, self._values) for name in (row, column)]
        block = inner.block(sides[0][0], sides[1][0])
        assert isinstance(block, TokenSum)
        terms = list(block.terms)
        for axes, (_, own, values) in zip((ROW_AXES, COLUMN_AXES), sides, strict=True):
            if values is not None:
                terms = [_chained(term, values, own, axes) for term in terms]
        (h, own), (k, other) = self._places[row], self._places[column]
        if part in ("functional", "full") and h == k and None not in (sides[0][2], sides[1][2]):
            gradient = self.heads[h].weights.mT @ self.gradient_of(h)
            terms += second_derivative_terms(self._values[h], own, other, gradient)
        return terms


def _side(
    place: tuple[int, str], name: Name, values: Mapping[int, GatedValues]
) -> tuple[Name, str, GatedValues | None]:
    """What stands for a parameter in the Hessian by the values, its own name, and how the values are made of it."""
    h, own = place
    return ((VALUES, h), own, values[h]) if _is_value(place, values) else (name, own, None)


def _chained(term: Term, values: GatedValues, name: str, axes: str) -> Term:
    """A term whose axes are token and entry of the values, with those of one of their parameters in place of them."""
    used = {letter for factor in term.factors for letter in factor.indices}
    token, entry = [x for x in reversed(ascii_lowercase) if x not in used | set(ROW_AXES + COLUMN_AXES + VECTORS)][:2]
    moved = term.relabel(str.maketrans(axes, token + entry))
    return Term(moved.coefficient, (*moved.factors, *derivative_factors(values, name, token, entry, axes)))


def derivative_factors(values: GatedValues, name: str, token: str, entry: str, axes: str) -> tuple[Factor, ...]:
    """``dv[s, token, entry] / dW[axes]``, as factors."""
    gate, slope, _ = values.derivatives
    first, second = axes[0], axes[1]
    if name in values.ports:
        port = values.ports[name]
        readout = Factor.identity(second + entry, port.width)
        if port.readout is not None:
            readout = Factor(port.readout_name, second + entry, port.readout)
        factor = Factor("f", f"s{token}{entry}", gate.expand_as(values.plain))
        return Factor(port.content_name, f"s{token}{first}", port.content), factor, readout
    moved = Factor("uf'", f"s{token}{entry}", values.plain * slope)
    return Factor("x", f"s{token}{first}", values.tokens), moved, _spread(values, entry, second)


def _spread(values: GatedValues, entry: str, axis: str) -> Factor:
    """From a logit to the entries of a value: one each, or one for all."""
    width = values.gate.weight.shape[1]
    if width == values.plain.shape[2]:
        return Factor.identity(entry + axis, width)
    return Factor("1", axis, values.plain.new_ones(1))


def second_derivative_terms(values: GatedValues, row: str, column: str, gradient: Tensor) -> list[Term]:
    """``sum_l c_l . d^2 v_l / dW dW'`` for two parameters of the values of one head.

    Args:
        values: How they are made.
        row: The parameter of the rows.
        column: That of the columns.
        gradient: ``c_l``, the gradient of the loss by the values, ``[s, l, f]``.
    """
    gate, slope, curvature = values.derivatives
    if row == column == "value_gate":
        return [_gate_with_itself(values, gradient * values.plain * curvature)]
    if "value_gate" in (row, column):
        port_first = column == "value_gate"
        port = values.ports[row if port_first else column]
        axes, gate_axes = (ROW_AXES, COLUMN_AXES) if port_first else (COLUMN_AXES, ROW_AXES)
        readout = Factor.identity(axes[1] + "h", port.width)
        if port.readout is not None:
            readout = Factor(port.readout_name, axes[1] + "h", port.readout)
        between = Factor("cf'", "slh", gradient * slope), readout, _spread(values, "h", gate_axes[1])
        inputs = (
            Factor(port.content_name, f"sl{axes[0]}", port.content),
            Factor("x", f"sl{gate_axes[0]}", values.tokens),
        )
        return [Term(1.0, (*inputs, *between))]
    if values.pair is None or {row, column} != set(values.pair):
        return []
    B = torch.tensordot(values.ports[values.pair[0]].content, gate * gradient, dims=([0, 1], [0, 1]))
    letters = ("ad", "bc") if (row, column) == values.pair else ("cb", "ad")
    width = values.ports[values.pair[0]].width
    return [Term(1.0, (Factor("x'fc", letters[0], B), Factor.identity(letters[1], width)))]


def _gate_with_itself(values: GatedValues, weights: Tensor) -> Term:
    inputs = Factor("x", "sla", values.tokens), Factor("x", "slc", values.tokens)
    if values.gate.weight.shape[1] == values.plain.shape[2]:
        return Term(1.0, (*inputs, Factor("cuf''", "slb", weights), Factor.identity("bd", weights.shape[2])))
    one = weights.new_ones(1)
    return Term(1.0, (*inputs, Factor("cuf''", "sl", weights.sum(-1)), Factor("1", "b", one), Factor("1", "d", one)))

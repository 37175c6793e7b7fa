"""One head's part of a product: how its output changes with its weights, and the gradients with all of them.

With changes dQ, dK, dV of queries, keys and values, A = a(T), E the gradient of the loss with respect to T, and
``u = C dF`` for the change dF of the output of all heads:

    dT = (dQ K' + Q dK') / s              dA = J dT              dF = dA V + A dV
    dE = J' (u V' + g dV') + D dT         Q: (dE K + E dK) / s   K: (dE' Q + E' dQ) / s   V: dA' g + A' u

Where queries or keys pass a map of their token, dQ and dK are what comes out of it, and gradients go back through its
transpose; where that map is the Jacobian of a norm, its own second derivative along ``E K / s`` is added to them.
Terms with u are the outer part, all others the functional one; those with E are its T-functional summand. Several
vectors z are multiplied at once as if each had sequences of its own: every tensor is ``[(z s), ., .]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.rows import RowTangent
from hessianlens.attention.state import HeadState, LinkedFactors, ValuePort
from hessianlens.layer.pairs import MERGED, MERGED_MAX_COST_SHARE, MergedScores
from hessianlens.layer.projection import Projected

_FEW = 2**10
"""Weights of attention below which a call costs more than what it computes."""


@dataclass(frozen=True)
class Summands:
    """Which summands of a product are asked for.

    Attributes:
        outer: Through the curvature of the loss.
        functional: Through second derivatives of the output, without the T-functional summand.
        t_functional: Through second derivatives of the scores.
    """

    outer: bool
    functional: bool
    t_functional: bool


SUMMANDS = {
    "outer": Summands(True, False, False),
    "functional": Summands(False, True, True),
    "full": Summands(True, True, True),
    "t_outer": Summands(True, True, False),
    "t_functional": Summands(False, False, True),
}


@dataclass(eq=False)
class HeadChange:
    """What some changes of a head's weights change in it; None where nothing does.

    Attributes:
        vectors: How many changes there are.
        inputs: Changes of what the weights put out, by name, turned where positions or norms are.
        untouched: The same in front of these, where second derivatives of queries or keys need it.
        scores: Change of the scores, as far as the weights see it.
        weights: ``dA``.
        output: ``dF`` of this head.
        vjp: ``u V'``, where it is known without u.
    """

    vectors: int
    inputs: dict[str, Tensor]
    untouched: dict[str, Tensor]
    scores: Tensor | None = None
    weights: Tensor | None = None
    output: Tensor | None = None
    vjp: Tensor | None = None

    def spread(self, kept: Tensor) -> Tensor:
        """Numbers of all sequences, for the sequences of every vector."""
        return kept if self.vectors == 1 else kept.repeat(self.vectors, 1, 1)


class HeadTangent:
    """What the products of one head keep.

    Args:
        head: The head, centred.
        gradient: ``g``, the gradient of the loss.
    """

    def __init__(self, head: HeadState, gradient: Tensor) -> None:
        self.head, self._gradient = head, gradient
        self.value_ports = head.value_ports
        self.merged = MergedScores(head) if MergedScores.exist(head) else None
        self.score_ports = head.score_ports | ({} if self.merged is None else {MERGED: self.merged.port})
        self._others: dict[str, Tensor] = {}
        self._fixed_sum = head.activation.fixed_sum

    def may_shift(self, name: str) -> bool:
        """Whether the common part of what enters a weight cancels, in the scores or before them."""
        if name in self.value_ports:
            return self._fixed_sum and self.value_ports[name].turn is None
        return self.score_ports[name].vector_axis == 1 and self.head.may_shift(self.score_ports[name])

    # --- kept from product to product --------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> RowTangent:
        """J and D."""
        return self.head.tangent(self._gradient, self._vjp_to_weights)

    @cached_property
    def _score_gradient(self) -> Tensor:
        """``E / s``."""
        return self.rows.vjp(self._vjp_to_weights.clone()[None], None)[0].div_(self.head.scale)

    @cached_property
    def _curved(self) -> set[str]:
        """Parameters of queries, keys or values that these are not linear in."""
        head = self.head
        sides = (
            (head.query_curvature, head.query_names),
            (head.key_curvature, head.key_names),
            (head.value_curvature, head.value_names),
        )
        return {name for curvature, names in sides if curvature is not None for name in names}

    @cached_property
    def _input_curvatures(self) -> dict[str, dict[str, Tensor]]:
        """Second derivatives along the gradient of the loss of what parameters put out, in either order of two."""
        found: dict[str, dict[str, Tensor]] = {}
        if self._curved:
            for (row, column), matrices in self.head.input_curvatures(self._score_gradient, self._gradient).items():
                found.setdefault(row, {})[column] = matrices
                found.setdefault(column, {})[row] = matrices if row == column else matrices.mT
        return found

    @cached_property
    def linked_factors(self) -> list[LinkedFactors]:
        """Parameters of which one acts on what the other puts out."""
        return self.head.linked_factors(self._score_gradient, self._gradient)

    def input_curvature(self, name: str) -> Tensor | None:
        """That of a parameter with itself; None if there is none."""
        return self._input_curvatures.get(name, {}).get(name)

    @cached_property
    def _vjp_to_weights(self) -> Tensor:
        return self.head.vjp_to_weights(self._gradient)

    def _other(self, name: str) -> Tensor:
        """What a score parameter meets in the scores, over s: keys for queries and queries for keys."""
        if name not in self._others:
            port = self.score_ports[name]
            self._others[name] = (port.matrix if port.vector_axis == 0 else port.vector) / self.head.scale
        return self._others[name]

    @cached_property
    def score_pair_gradient(self) -> Tensor:
        """``B = sum_i x_i (E_i X) / s``, the gradient with respect to the merged query-key matrix."""
        head = self.head
        return head.queries.flatten(0, 1).T @ (self._score_gradient @ head.tokens).flatten(0, 1)

    @property
    def score_pair_pays(self) -> bool:
        """Whether B, ``[d, d]``, is smaller than all E that it is the sum of, and these are worth its further calls."""
        several = self.head.weights.numel()
        return (
            self.merged is not None
            and several >= _FEW
            and self.head.tokens.shape[2] ** 2 < MERGED_MAX_COST_SHARE * several
        )

    @cached_property
    def _readout(self) -> Tensor | None:
        """The second factor of the values, if there are two."""
        return None if self.head.value_pair is None else self.value_ports[self.head.value_pair[0]].readout

    @cached_property
    def _values(self) -> Tensor:
        """What attention averages in front of the readout."""
        return self.head.values if self.head.value_pair is None else self.value_ports[self.head.value_pair[1]].content

    @cached_property
    def _gram(self) -> Tensor:
        """``V V'``."""
        return self.head.values @ self.head.values.mT

    @property
    def gram_pays(self) -> bool:
        """Whether one product with ``V V'`` is less than two with V."""
        return self._values.shape[1] <= 2 * self._values.shape[2]

    @cached_property
    def _row_sums(self) -> Tensor:
        """Sums of all rows of A, ``[1, (s i)]``."""
        return self.head.weights.sum(-1).reshape(1, -1)

    @cached_property
    def _read_gradient(self) -> Tensor:
        return self._read(self._gradient)

    def _read(self, outputs: Tensor) -> Tensor:
        """Outputs back through the readout."""
        return outputs if self._readout is None else outputs @ self._readout.T

    def held_tensors(self, names: Sequence[str], functional: bool) -> list[Tensor]:
        """The numbers that a product between some of the parameters reads, beside those of their inputs."""
        found = [self.head.weights, self._values]
        found += [self._other(name) for name in names if name in self.score_ports]
        if functional:
            found += [*self.rows.held_tensors(), self._gradient]
        if any(set(self._opposite(name)) & set(names) for name in names):
            found.append(self._score_gradient)
        asked = self._curved & set(names) if functional else set()
        return found + [
            self._input_curvatures[a][b]
            for a in asked
            for b in asked
            if b in self._input_curvatures.get(a, {}) and a <= b
        ]

    # --- forward -----------------------------------------------------------------------------------------------------

    def change(
        self, projected: Mapping[str, Projected], vectors: int, parts: Summands, alone: Tensor | None = None
    ) -> HeadChange:
        """What the changes of some of the weights change.

        Args:
            projected: Products of what enters the weights with their changes.
            vectors: How many changes there are.
            parts: The summands for which this is needed.
            alone: ``c_i`` if ``C_i = c_i I`` and nothing but scores of this head is changed and asked for.
        """
        moved = {name: self._turned(name, each.each) for name, each in projected.items()}
        found = HeadChange(vectors, moved, {name: projected[name].each for name in projected if name in self._curved})
        scores = self._scores(found) if parts.outer or parts.functional else None
        if scores is not None:
            by_vector = scores.view(vectors, *self.head.weights.shape)
            seen = self.rows.seen(by_vector)
            found.scores, found.weights = seen, self.rows.jvp(seen).flatten(0, 1)
        if parts.outer and alone is None:
            found.output = self._output(found, projected)
        elif parts.outer and alone is not None and found.weights is not None:
            met = torch.bmm(found.weights, found.spread(self._gram)).view(vectors, *self.head.weights.shape)
            found.vjp = met.mul_(alone[..., None]).flatten(0, 1)
        return found

    def _turned(self, name: str, each: Tensor, back: bool = False) -> Tensor:
        port = self.score_ports.get(name) or self.value_ports.get(name)
        turn = None if port is None else port.turn
        if turn is None:
            return each
        by_vector = each.unflatten(0, (-1, self.head.weights.shape[0]))
        return (turn.turn_own_back if back else turn.turn)(by_vector).flatten(0, 1)

    def _scores(self, change: HeadChange) -> Tensor | None:
        """``dT``."""
        total: Tensor | None = None
        for name, moved in change.inputs.items():
            port = self.score_ports.get(name)
            if port is not None:
                other = change.spread(self._other(name))
                left, right = (moved, other) if port.vector_axis == 0 else (other, moved)
                total = _plus(total, left, right.mT)
        return total

    def _output(self, change: HeadChange, projected: Mapping[str, Projected]) -> Tensor | None:
        """``dF = dA V + A dV``; where values are centred, A also averages what they have in common."""
        inner: Tensor | None = None
        downstream: Tensor | None = None
        for name, port in self.value_ports.items():
            moved = change.inputs.get(name)
            if moved is not None:
                found, common = torch.bmm(change.spread(self.head.weights), moved), projected[name].common
                if common is not None:
                    found.view(change.vectors, -1, found.shape[2]).addcmul_(self._row_sums[..., None], common)
                if self._before_readout(port):
                    inner = found if inner is None else inner + found
                else:
                    downstream = found
        if change.weights is not None:
            inner = _plus(inner, change.weights, change.spread(self._values))
        if inner is not None and self._readout is not None:
            inner = inner @ self._readout
        return inner if downstream is None else downstream if inner is None else inner + downstream

    def _before_readout(self, port: ValuePort) -> bool:
        return self._readout is None or port.readout is not None

    # --- backward ----------------------------------------------------------------------------------------------------

    def gradients(
        self, change: HeadChange, u: Tensor | None, names: Sequence[str], parts: Summands
    ) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Changes of the gradients at what some weights put out; for values also what their sum comes from, u.

        Args:
            change: Of this head.
            u: ``C dF``, if the outer part is asked for.
            names: The weights.
            parts: The summands.
        """
        read = None if u is None else self._read(u)
        asked = [name for name in names if name in self.score_ports]
        dE = self._changed_score_gradient(change, read, parts) if asked else None
        found: dict[str, tuple[Tensor, Tensor | None]] = {}
        for name in asked:
            gradient = self._score_rows(name, change, dE, parts)
            gradient = None if gradient is None else self._turned(name, gradient, back=True)
            gradient = self._with_input_curvature(name, change, gradient) if parts.t_functional else gradient
            if gradient is not None:
                found[name] = gradient, None
        for name in names:
            port = self.value_ports.get(name)
            if port is not None:
                g, vjp = (self._read_gradient, read) if self._before_readout(port) else (self._gradient, u)
                gradient = self._value_rows(change, g if parts.functional else None, vjp)
                gradient = None if gradient is None else self._turned(name, gradient, back=True)
                gradient = self._with_input_curvature(name, change, gradient) if parts.functional else gradient
                if gradient is not None:
                    found[name] = gradient, vjp
        return found

    def _changed_score_gradient(self, change: HeadChange, read: Tensor | None, parts: Summands) -> Tensor | None:
        """``dE = J' (u V' + g dV') + D dT``."""
        vjp = change.vjp if read is None else torch.bmm(read, change.spread(self._values).mT)
        if parts.functional:
            for name, port in self.value_ports.items():
                moved = change.inputs.get(name)
                if moved is not None:
                    g = self._read_gradient if self._before_readout(port) else self._gradient
                    vjp = _plus(vjp, change.spread(g), moved.mT)
        scores = change.scores if parts.functional else None
        if vjp is None and scores is None:
            return None
        by_vector = None if vjp is None else vjp.view(change.vectors, *self.head.weights.shape)
        return self.rows.vjp(by_vector, scores).flatten(0, 1)

    def _score_rows(self, name: str, change: HeadChange, dE: Tensor | None, parts: Summands) -> Tensor | None:
        """``(dE K + E dK) / s`` for queries, ``(dE' Q + E' dQ) / s`` for keys."""
        keys = self.score_ports[name].vector_axis == 1
        total: Tensor | None = None
        if dE is not None:
            total = torch.bmm(dE.mT if keys else dE, change.spread(self._other(name)))
        if parts.t_functional:
            for other in self._opposite(name):
                moved = change.inputs.get(other)
                if moved is not None:
                    E = change.spread(self._score_gradient)
                    total = _plus(total, E.mT if keys else E, moved)
        return total

    def _opposite(self, name: str) -> tuple[str, ...]:
        """Parameters of the keys for one of the queries, and the other way round."""
        queries, keys = self.head.query_names, self.head.key_names
        return keys if name in queries else queries if name in keys else ()

    def _with_input_curvature(self, name: str, change: HeadChange, gradient: Tensor | None) -> Tensor | None:
        """A gradient with what second derivatives of queries or keys add to it."""
        for other, matrices in self._input_curvatures.get(name, {}).items():
            moved = change.untouched.get(other)
            if moved is not None:
                by_vector = moved.unflatten(0, (change.vectors, -1))
                found = torch.einsum("snpq,zsnq->zsnp", matrices, by_vector).flatten(0, 1)
                gradient = found if gradient is None else gradient + found
        return gradient

    def _value_rows(self, change: HeadChange, g: Tensor | None, vjp: Tensor | None) -> Tensor | None:
        """``dA' g + A' u``."""
        total: Tensor | None = None
        if g is not None and change.weights is not None:
            total = torch.bmm(change.weights.mT, change.spread(g))
        return total if vjp is None else _plus(total, change.spread(self.head.weights).mT, vjp)

    def total(self, vjp: Tensor, vectors: int) -> Tensor:
        """``sum_l (A' u)_l``, ``[z, 1, f]``; where inputs may shift, the sum of ``dA' g`` is zero."""
        return self._row_sums @ vjp.reshape(vectors, -1, vjp.shape[2])


def _plus(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """``total + left right``, in place."""
    return torch.bmm(left, right) if total is None else total.baddbmm_(left, right)

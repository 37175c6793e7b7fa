"""One attention on the way of a backpropagated curvature: from what its heads put out to the maps in front of it.

Queries, keys and values of a head are some features of what a map puts out, perhaps turned by position. Behind the last
attention of a network no two positions are coupled, and the Gauss-Newton part in front of it is a closed form; where
positions are coupled already, cotangents of all of them go through, from the left and from the right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.layer.attention_core import AttentionCore
from hessianlens.network.base.every_attention import RecordedAttention
from hessianlens.network.base.operands import Operand, plain
from hessianlens.network.routes.linear_map.curvature_parts import Parts


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """Queries, keys or values, seen from the map that they come from.

    Attributes:
        site: The map.
        width: Features that it puts out.
        features: Those of every head, ``[head, e]``.
        factor: What they are multiplied with.
        turns: What they are turned with beside, ``[sequence, position, e, feature]``; None where they are not.
    """

    site: float
    width: int
    features: Tensor
    factor: float = 1.0
    turns: Tensor | None = None

    @classmethod
    def of(cls, operand: Operand, width: int) -> HeadFeatures:
        """From what was found of an operand; a factor where it is no more."""
        simple, of_heads = plain(operand.maps), torch.tensor(operand.heads, device=operand.features.device)
        if simple is None:
            return cls(operand.site, width, operand.features[of_heads], 1.0, operand.grouping.arrange(operand.maps))
        features = operand.features[:, simple.order.to(operand.features.device)]
        return cls(operand.site, width, features[of_heads], float(simple.cos[0, 0]))

    def turned(self, by_head: Tensor, chosen: slice) -> Tensor:
        """Cotangents ``[sequence, head, position, e, x]`` in front of factor and turn."""
        if self.turns is not None:
            return self.turns[chosen, None].mT @ by_head
        return by_head if self.factor == 1 else self.factor * by_head

    def at_map(self, by_head: Tensor, chosen: slice) -> Tensor:
        """Cotangents of all heads at what the map puts out, ``[position, feature, x]``."""
        given = self.turned(by_head, chosen).transpose(1, 2).flatten(2, 3)
        found = given.new_zeros(*given.shape[:2], self.width, given.shape[3])
        return found.index_add_(2, self.features.flatten().to(given.device), given).flatten(0, 1)

    def multiply_adds(self, cotangents: int) -> int:
        """Those of a turn, for one position."""
        return 0 if self.turns is None else self.features.numel() * self.features.shape[1] * cotangents


@dataclass(frozen=True, eq=False)
class AttentionStep:
    """One attention, and where its queries, keys and values come from.

    Attributes:
        site: Its place among the maps.
        seen: The attention.
        operands: Those of "q", "k" and "v" that depend on what the curvature is asked for at.
    """

    site: float
    seen: RecordedAttention
    operands: Mapping[str, HeadFeatures]

    @property
    def sources(self) -> tuple[float, ...]:
        """Sites of the maps in front of it."""
        return tuple(dict.fromkeys(one.site for one in self.operands.values()))

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return self.seen.q.shape[2]

    @property
    def heads(self) -> int:
        """How many there are."""
        return self.seen.q.shape[1]

    @property
    def width(self) -> int:
        """Features that all heads put out."""
        return self.heads * self.seen.v.shape[-1]

    def vjp(self, cotangents: Tensor, chosen: slice, coupled: bool = True) -> dict[float, Tensor]:
        """Cotangents of what the heads put out side by side, ``[position, feature, x]``, at the maps in front.

        Args:
            cotangents: Those at some sequences.
            chosen: The sequences.
            coupled: Whether they are of all positions, and not each of one alone, ``[position, feature, position x]``.
        """
        found = self._at_operands(cotangents, chosen, coupled)
        total: dict[float, Tensor] = {}
        for name, own in self.operands.items():
            at_map = own.at_map(found[name], chosen)
            total[own.site] = total[own.site] + at_map if own.site in total else at_map
        return total

    def vjp_to_inputs(
        self, cotangents: Tensor, weights: Mapping[str, Tensor], chosen: slice, coupled: bool = True
    ) -> Tensor:
        """The same at the inputs of the maps, which are the same for all of them, ``[position, input, x]``.

        Args:
            cotangents: Those at some sequences.
            weights: Of the maps, by operand: inputs by features of the heads.
            chosen: The sequences.
            coupled: Whether they are of all positions.
        """
        return self._at_inputs(self._at_operands(cotangents, chosen, coupled), weights, chosen)

    def _at_inputs(self, by_operand: Mapping[str, Tensor], weights: Mapping[str, Tensor], chosen: slice) -> Tensor:
        """From cotangents at queries, keys and values: all maps as one."""
        sequences, _, length, _, count = by_operand["q"].shape
        features = sum(weight.shape[1] for weight in weights.values())
        given, start = by_operand["q"].new_empty(sequences, length, features, count), 0
        for name, weight in weights.items():
            turned = self.operands[name].turned(by_operand[name], chosen)
            room = given[:, :, start : start + weight.shape[1]].unflatten(2, (self.heads, -1))
            room.copy_(turned.transpose(1, 2))
            start += weight.shape[1]
        return (torch.cat(list(weights.values()), 1) @ given).flatten(0, 1)

    def _at_operands(self, cotangents: Tensor, chosen: slice, coupled: bool) -> dict[str, Tensor]:
        """Cotangents at queries, keys and values, ``[sequence, head, position, e, x]``; none for a sink."""
        core = self._core(chosen)
        found = (core.vjp if coupled else core.vjp_by_position)(self._by_head(cotangents))
        kept = {name: one[:, : self.length].flatten(3) for name, one in found.items()}
        return {name: one.unflatten(0, (-1, self.heads)) for name, one in kept.items()}

    def _by_head(self, side_by_side: Tensor) -> Tensor:
        """``[sequence and head, position, feature, ...]``, from ``[position, feature, ...]``."""
        return side_by_side.unflatten(1, (self.heads, -1)).unflatten(0, (-1, self.length)).transpose(1, 2).flatten(0, 1)

    def second_derivative_at_inputs(self, gradient: Tensor, weights: Mapping[str, Tensor], chosen: slice) -> Tensor:
        """``d^2 (g . F)`` by the inputs of the maps, ``[position, input, position input]``.

        Args:
            gradient: ``g``, ``[position, feature]``.
            weights: Of the maps, by operand: inputs by features of the heads.
            chosen: The sequences.
        """
        sequences, width = len(gradient) // self.length, next(iter(weights.values())).shape[0]
        total = gradient.new_zeros(sequences, self.length, width, self.length, width)
        for (a, b), found in self._core(chosen).second_derivative(self._by_head(gradient)):
            if a not in weights or b not in weights:
                continue
            own = found[:, : self.length, :, : self.length].unflatten(0, (-1, self.heads))
            own = self.operands[a].turned(own.flatten(4), chosen).unflatten(-1, own.shape[4:])
            own = own.permute(0, 1, 4, 5, 2, 3)
            own = self.operands[b].turned(own.flatten(4), chosen)  # [s, h, j, f, (i e)]
            right = weights[b].unflatten(1, (self.heads, -1)).transpose(0, 1)  # [h, d, f]
            half = (right[:, None] @ own).unflatten(-1, (self.length, -1))  # [s, h, j, d, i, e]
            half = half.permute(0, 4, 1, 5, 2, 3).flatten(4).flatten(2, 3)  # [s, i, (h e), (j d)]
            mapped = (weights[a] @ half).unflatten(-1, (self.length, -1))
            total += mapped
            if a != b:
                total += mapped.permute(0, 3, 4, 1, 2)
        return total.flatten(0, 1).flatten(2)

    def curvature(self, own: Parts, gradient: Tensor, chosen: slice) -> dict[tuple[float, float], Parts]:
        """Both parts between the maps in front, the later one first, from those at what the heads put out.

        Args:
            own: The curvature there.
            gradient: The gradient of the loss there, ``[position, feature]``.
            chosen: The sequences.
        """
        functional = self._second_derivative(gradient, chosen)
        if own.functional is not None:
            for pair, part in self._both_sides(own.functional, chosen, own.length > 0).items():
                functional[pair] += part
        ggn = self._both_sides(own.ggn, chosen, own.length > 0)
        return {pair: Parts(part, functional[pair], self.length) for pair, part in ggn.items()}

    def _both_sides(self, part: Tensor, chosen: slice, coupled: bool) -> dict[tuple[float, float], Tensor]:
        """``J^T C J``."""
        found: dict[tuple[float, float], Tensor] = {}
        for column, half in self.vjp(part, chosen, coupled).items():
            for row, both in self.vjp(Parts(half, None, self.length).T.ggn, chosen).items():
                if row >= column:
                    found[row, column] = both
        return found

    def _second_derivative(self, gradient: Tensor, chosen: slice) -> dict[tuple[float, float], Tensor]:
        """``d^2 (g . F)``, in which no two heads meet."""
        total = self._room(gradient, chosen)
        for (a, b), found in self._core(chosen).second_derivative(self._by_head(gradient)):
            for head, one in enumerate(found.unflatten(0, (-1, self.heads)).unbind(1)):
                self._place(total, (a, b), head, one, chosen)
        return {pair: part.flatten(0, 1).flatten(2) for pair, part in total.items()}

    def _room(self, like: Tensor, chosen: slice) -> dict[tuple[float, float], Tensor]:
        widths = {one.site: one.width for one in self.operands.values()}
        sequences = len(self.seen.q[chosen])
        pairs = [(p, q) for p in widths for q in widths if p >= q]
        return {(p, q): like.new_zeros(sequences, self.length, widths[p], self.length, widths[q]) for p, q in pairs}

    def _place(
        self, total: dict[tuple[float, float], Tensor], pair: tuple[str, str], head: int, matrix: Tensor, chosen: slice
    ) -> None:
        """Add a matrix between two operands of a head, and its mirror image, where their features lie."""
        a, b = pair
        if a not in self.operands or b not in self.operands:
            return
        first, second = self.operands[a], self.operands[b]
        own = matrix[:, : self.length, :, : self.length]
        own = first.turned(own.flatten(3)[:, None], chosen)[:, 0].unflatten(-1, own.shape[3:])
        own = own.permute(0, 3, 4, 1, 2)
        own = second.turned(own.flatten(3)[:, None], chosen)[:, 0].unflatten(-1, own.shape[3:])
        rows, columns = first.features[head].to(own.device), second.features[head].to(own.device)
        by_feature = own.permute(4, 2, 0, 3, 1)
        if first.site >= second.site:
            total[first.site, second.site].permute(2, 4, 0, 1, 3)[rows[:, None], columns] += by_feature
        if first.site < second.site or (first.site == second.site and a != b):
            mirrored = by_feature.permute(1, 0, 2, 4, 3)
            total[second.site, first.site].permute(2, 4, 0, 1, 3)[columns[:, None], rows] += mirrored

    def _core(self, chosen: slice) -> AttentionCore:
        """All heads of some sequences."""
        seen = self.seen
        k, q, v, scores, visible = (
            tensor[chosen].flatten(0, 1) for tensor in (seen.k, seen.q, seen.v, seen.scores, seen.visible)
        )
        return AttentionCore(k, q, v, scores, visible, seen.activation, seen.scale)

    def multiply_adds(self, cotangents: int, per_number: float) -> float:
        """Those of cotangents of one sequence, with the numbers that are read and written beside them.

        Args:
            cotangents: How many.
            per_number: Multiply-adds that would take as long as to read and write a number.
        """
        e, f = self.seen.q.shape[-1], self.seen.v.shape[-1]
        turns = sum(one.multiply_adds(cotangents) for one in self.operands.values())
        products = 2 * self.heads * self.length**2 * (e + f) * cotangents
        numbers = self.heads * self.length * (4 * self.length + 6 * (e + f)) * cotangents
        return float(products + per_number * numbers + self.length * turns)

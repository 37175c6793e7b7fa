"""Products with the Hessian of a whole layer in one tangent pass: nothing a token is built for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hessianlens.attention.state import HeadState
from hessianlens.losses import LossDerivatives
from hessianlens.operators import ProductSource
from hessianlens.theory.head_tangent import SUMMANDS, HeadChange, HeadTangent
from hessianlens.theory.projection import Projected, Projection

Name = Hashable
Names = tuple[Hashable, ...]

_WORKSPACE_BYTES = 2**21
"""Attention weights of all vectors that are multiplied at once."""


@dataclass(frozen=True, eq=False)
class Entrance:
    """Where a parameter enters the layer.

    Attributes:
        head: Its head.
        own: Its name in that head.
        input: The rows on which it acts.
        relative: Whether they are taken relative to their mean.
    """

    head: int
    own: str
    input: Projection
    relative: bool


class LayerTangent:
    """A layer at a batch, as its products see it.

    Args:
        places: Head and own name of every parameter.
        shapes: Shape of every parameter.
        heads: The heads.
        centred: The same, centred.
        loss: Gradient and curvature of the loss.
    """

    def __init__(
        self,
        places: Mapping[Name, tuple[int, str]],
        shapes: Mapping[Name, tuple[int, int]],
        heads: Sequence[HeadState],
        centred: Sequence[HeadState],
        loss: LossDerivatives,
    ) -> None:
        self._places, self.shapes, self.loss, self._states = places, shapes, loss, heads
        self.heads = [HeadTangent(head, loss.gradient) for head in centred]

    @cached_property
    def entrances(self) -> dict[Name, Entrance]:
        """Where every parameter enters."""
        first = self._states[0]
        tokens = Projection(first.tokens)
        queries = tokens if first.queries is first.tokens else Projection(first.queries)
        found = {}
        for name, (h, own) in self._places.items():
            state = self._states[h]
            if own in state.score_ports:
                rows = queries if state.score_ports[own].vector_axis == 0 else tokens
            else:
                content = state.value_ports[own].content
                rows = tokens if content is state.tokens else Projection(content)
            found[name] = Entrance(h, own, rows, self.heads[h].may_shift(own) and rows.lopsided)
        return found

    @cached_property
    def vectors_at_once(self) -> int:
        """How many vectors the workspace has room for."""
        A = self._states[0].weights
        return max(1, _WORKSPACE_BYTES // (A.numel() * A.element_size()))

    @cached_property
    def value_pairs(self) -> list[tuple[Tensor, Name, Name]]:
        """``M_1^T g`` and the names of the two factors, for every head whose values have two."""
        found, names = [], {place: name for name, place in self._places.items()}
        for h, state in enumerate(self._states):
            if state.value_pair is not None:
                first, second = state.value_pair
                B = torch.tensordot(state.value_ports[first].vector, self.loss.gradient, dims=([0, 1], [0, 1]))
                found.append((B, names[h, first], names[h, second]))
        return found


class PartTangent(ProductSource):
    """One part of the Hessian, by its products.

    Args:
        layer: The layer.
        part: "outer", "functional", "full", "t_outer" or "t_functional".
    """

    def __init__(self, layer: LayerTangent, part: str) -> None:
        self._layer, self._parts = layer, SUMMANDS[part]

    def times(self, rows: Names, columns: Names, X: list[Tensor]) -> list[Tensor]:
        """As many vectors at once as the workspace has room for."""
        step = self._layer.vectors_at_once
        if X[0].shape[-1] <= step:
            return self._times(rows, columns, X)
        chunks = zip(*(x.split(step, -1) for x in X), strict=True)
        found = [self._times(rows, columns, list(chunk)) for chunk in chunks]
        return [torch.cat(parts, -1) for parts in zip(*found, strict=True)]

    def _times(self, rows: Names, columns: Names, X: list[Tensor]) -> list[Tensor]:
        layer, given, vectors = self._layer, dict(zip(columns, X, strict=True)), X[0].shape[-1]
        projected = self._projected(given)
        changes = [head.change(own, vectors) for head, own in zip(layer.heads, projected, strict=True)]
        products = self._products(rows, changes)
        if self._parts.functional:
            for B, first, second in layer.value_pairs:
                if first in rows and second in given:
                    _add(products, first, torch.einsum("pf,rfz->prz", B, given[second]))
                if second in rows and first in given:
                    _add(products, second, torch.einsum("pf,prz->rfz", B, given[first]))
        return [products[n] if n in products else X[0].new_zeros(*layer.shapes[n], vectors) for n in rows]

    def _projected(self, given: Mapping[Name, Tensor]) -> list[dict[str, Projected]]:
        """By head, the products of inputs with the changes of the weights on which they act."""
        groups: dict[Projection, list[Name]] = {}
        for name in given:
            groups.setdefault(self._layer.entrances[name].input, []).append(name)
        found: list[dict[str, Projected]] = [{} for _ in self._layer.heads]
        for rows, names in groups.items():
            at = [self._layer.entrances[name] for name in names]
            each = rows.forward([given[name] for name in names], [entrance.relative for entrance in at])
            for entrance, projected in zip(at, each, strict=True):
                found[entrance.head][entrance.own] = projected
        return found

    def _products(self, rows: Names, changes: list[HeadChange]) -> dict[Name, Tensor]:
        """Through the loss and back, head by head; what is zero is left out."""
        layer, u = self._layer, None
        outputs = [change.output for change in changes if change.output is not None]
        if self._parts.outer and outputs:
            by_vector = sum(outputs[1:], outputs[0]).unflatten(0, (changes[0].vectors, -1))
            u = layer.loss.curvature.apply(by_vector).flatten(0, 1)
        asked: dict[int, dict[str, Name]] = {}
        for name in rows:
            asked.setdefault(layer.entrances[name].head, {})[layer.entrances[name].own] = name
        found: dict[Name, Tensor] = {}
        for h, names in asked.items():
            head, change = layer.heads[h], changes[h]
            for own, (gradient, pulled) in head.gradients(change, u, list(names), self._parts).items():
                at = layer.entrances[names[own]]
                total = head.total(pulled, change.vectors) if at.relative and pulled is not None else None
                found[names[own]] = at.input.back(gradient, at.relative, total)
        return found

    def multiply_adds(self, rows: Names, columns: Names) -> float:
        """Counted in a product with a vector of zeros."""
        like = self._layer.loss.gradient
        zeros = [like.new_zeros(*self._layer.shapes[name], 1) for name in columns]
        with FlopCounterMode(display=False) as counted:
            self.times(rows, columns, zeros)
        return counted.get_total_flops() / 2

    def kept(self, rows: Names, columns: Names) -> list[Tensor]:
        """Inputs of the weights, and what their heads keep."""
        layer, names = self._layer, dict.fromkeys((*rows, *columns))
        at = [layer.entrances[name] for name in names]
        found = [entrance.input.rows for entrance in at]
        for h, head in enumerate(layer.heads):
            own = [entrance.own for entrance in at if entrance.head == h]
            found += head.kept(own, self._parts.functional) if own else []
        return found


def _add(products: dict[Name, Tensor], name: Name, found: Tensor) -> None:
    products[name] = products[name] + found if name in products else found

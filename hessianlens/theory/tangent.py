"""Products with the Hessian of a whole layer in one tangent pass: nothing a token is built for them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hessianlens.attention.state import HeadState
from hessianlens.losses import LossDerivatives, ScalarCurvature
from hessianlens.operators.product import ProductSource
from hessianlens.theory.diagonal import HeadDiagonals
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


@dataclass(frozen=True, eq=False)
class Route:
    """How a product between some rows and columns goes.

    Attributes:
        inputs: The columns by the rows on which they act.
        asked: By head, the rows by their own names.
        alone: ``c_i`` where that is all that scores of a single head need of the loss.
    """

    inputs: dict[Projection, dict[Name, Entrance]]
    asked: dict[int, dict[str, Name]]
    alone: Tensor | None


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
        self._routes: dict[tuple[Names, Names], Route] = {}

    @cached_property
    def diagonals(self) -> list[HeadDiagonals]:
        """Diagonals and traces, by head."""
        return [HeadDiagonals(head.head, self.loss) for head in self.heads]

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

    def route(self, rows: Names, columns: Names) -> Route:
        """How a product between these rows and columns goes; found once."""
        if (rows, columns) not in self._routes:
            inputs: dict[Projection, dict[Name, Entrance]] = {}
            asked: dict[int, dict[str, Name]] = {}
            for name in columns:
                inputs.setdefault(self.entrances[name].input, {})[name] = self.entrances[name]
            for name in rows:
                asked.setdefault(self.entrances[name].head, {})[self.entrances[name].own] = name
            self._routes[rows, columns] = Route(inputs, asked, self._alone(rows, columns))
        return self._routes[rows, columns]

    def _alone(self, rows: Names, columns: Names) -> Tensor | None:
        curvature, at = self.loss.curvature, [self.entrances[name] for name in (*rows, *columns)]
        head = self.heads[at[0].head]
        scores = all(entrance.head == at[0].head and entrance.own in head.score_ports for entrance in at)
        return curvature.values if isinstance(curvature, ScalarCurvature) and scores and head.gram_pays else None

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
        route, projected = layer.route(rows, columns), [dict[str, Projected]() for _ in layer.heads]
        for source, at in route.inputs.items():
            found = source.forward([given[name] for name in at], [entrance.relative for entrance in at.values()])
            for entrance, each in zip(at.values(), found, strict=True):
                projected[entrance.head][entrance.own] = each
        pairs = zip(layer.heads, projected, strict=True)
        changes = [head.change(own, vectors, self._parts, route.alone) for head, own in pairs]
        products = self._products(route, changes)
        if self._parts.functional:
            for B, first, second in layer.value_pairs:
                if first in rows and second in given:
                    _add(products, first, torch.einsum("pf,rfz->prz", B, given[second]))
                if second in rows and first in given:
                    _add(products, second, torch.einsum("pf,prz->rfz", B, given[first]))
        return [products[n] if n in products else X[0].new_zeros(*layer.shapes[n], vectors) for n in rows]

    def _products(self, route: Route, changes: list[HeadChange]) -> dict[Name, Tensor]:
        """Through the loss and back, head by head; what is zero is left out."""
        layer, u = self._layer, None
        outputs = [change.output for change in changes if change.output is not None]
        if outputs:
            dF = sum(outputs[1:], outputs[0])
            by_vector = dF.view(changes[0].vectors, -1, *dF.shape[1:])
            u = layer.loss.curvature.apply(by_vector).reshape(dF.shape)
        found: dict[Name, Tensor] = {}
        for h, names in route.asked.items():
            head, change = layer.heads[h], changes[h]
            for own, (gradient, pulled) in head.gradients(change, u, list(names), self._parts).items():
                at = layer.entrances[names[own]]
                total = head.total(pulled, change.vectors) if at.relative and pulled is not None else None
                found[names[own]] = at.input.back(gradient, at.relative, total)
        return found

    def multiply_adds(self, rows: Names, columns: Names) -> float:
        """Counted in a product with a vector of zeros, after one that leaves behind what is kept."""
        like = self._layer.loss.gradient
        zeros = [like.new_zeros(*self._layer.shapes[name], 1) for name in columns]
        self.times(rows, columns, zeros)
        with FlopCounterMode(display=False) as counted:
            self.times(rows, columns, zeros)
        return counted.get_total_flops() / 2

    def trace(self, name: Name) -> Tensor | None:
        """Where the loss couples no two tokens."""
        at = self._layer.entrances[name]
        return self._layer.diagonals[at.head].trace(at.own, self._parts)

    def diagonal(self, name: Name) -> Tensor | None:
        """Where the loss couples no two tokens."""
        at = self._layer.entrances[name]
        return self._layer.diagonals[at.head].diagonal(at.own, self._parts)

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

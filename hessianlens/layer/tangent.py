"""Products with the Hessian of a whole layer in one tangent pass: nothing a token is built for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hessianlens.attention.state import HeadState
from hessianlens.layer.dense import LayerEntries
from hessianlens.layer.diagonal import HeadDiagonals
from hessianlens.layer.head_tangent import SUMMANDS, HeadChange, HeadTangent
from hessianlens.layer.pairs import MERGED, Pair, ScorePair, ValuePair, factor_pair
from hessianlens.layer.projection import Projected, Projection
from hessianlens.losses import LossDerivatives, ScalarCurvature
from hessianlens.operators.product import ProductSource

Name = Hashable
Names = tuple[Hashable, ...]

_WORKSPACE_BYTES = 2**21
"""Attention weights of all vectors that are multiplied at once."""


@dataclass(frozen=True, eq=False)
class ParameterInput:
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
class MatvecRoute:
    """How a product between some rows and columns goes.

    Attributes:
        inputs: Where the columns enter; queries and keys that go as one matrix are one of them.
        asked: By head, the rows by their own names, likewise.
        merged_columns: Columns that are changed through the merged matrix of their head: head, and names by own name.
        merged_rows: Rows that are found from its gradient.
        pairs: Weights that meet in a product, where this is not left to the heads.
        paired: Heads whose queries and keys are among them.
        alone: ``c_i`` where that is all that scores of a single head need of the loss.
    """

    inputs: dict[Name, ParameterInput]
    asked: dict[int, dict[str, Name]]
    merged_columns: dict[int, dict[str, Name]]
    merged_rows: dict[int, dict[str, Name]]
    pairs: list[Pair]
    paired: frozenset[int]
    alone: Tensor | None


class LayerTangent:
    """A layer at a batch, as its products see it.

    Args:
        places: Head and own name of every parameter.
        shapes: Shape of every parameter.
        heads: The heads.
        centred: The same, centred.
        loss: Gradient and curvature of the loss.
        outputs: Features that every head puts out, where they stand side by side; None for their sum.
    """

    def __init__(
        self,
        places: Mapping[Name, tuple[int, str]],
        shapes: Mapping[Name, tuple[int, int]],
        heads: Sequence[HeadState],
        centred: Sequence[HeadState],
        loss: LossDerivatives,
        outputs: Sequence[slice] | None = None,
    ) -> None:
        self._places, self.shapes, self.loss, self._states = places, shapes, loss, heads
        self.outputs = outputs
        self._losses = [loss if outputs is None else loss.restricted(outputs[h]) for h in range(len(centred))]
        self.heads = [HeadTangent(head, own.gradient) for head, own in zip(centred, self._losses, strict=True)]
        self.merged = {h: head.merged for h, head in enumerate(self.heads) if head.merged is not None}
        self._routes: dict[tuple[Names, Names], MatvecRoute] = {}
        self._score_pairs: dict[int, Pair] = {}

    @cached_property
    def diagonals(self) -> list[HeadDiagonals]:
        """Diagonals and traces, by head."""
        return [HeadDiagonals(head, own) for head, own in zip(self.heads, self._losses, strict=True)]

    @cached_property
    def dense(self) -> LayerEntries:
        """Entries of blocks, where the layer is small."""
        return LayerEntries(self.heads, self.loss)

    def place(self, name: Name) -> tuple[int, str]:
        """Head and own name of a parameter."""
        return self._places[name]

    @cached_property
    def _tokens(self) -> Projection:
        return Projection(self._states[0].tokens)

    @cached_property
    def entrances(self) -> dict[Name, ParameterInput]:
        """Where every parameter enters, merged ones included."""
        first, tokens = self._states[0], self._tokens
        queries = tokens if first.queries is first.tokens else Projection(first.queries)
        known: dict[tuple[str, int], Projection] = {("tokens", first.tokens.shape[1]): tokens}
        found: dict[Name, ParameterInput] = {}

        def projection(state: HeadState, rows: Tensor) -> Projection:
            """That of all heads for their tokens, of which a head with a sink has one more."""
            if rows is state.queries:
                return queries
            key = ("tokens", rows.shape[1]) if rows is state.tokens else ("", id(rows))
            return known.setdefault(key, Projection(rows))

        for name, (h, own) in self._places.items():
            state, value = self._states[h], self._states[h].value_ports.get(own)
            rows = projection(state, state.score_ports[own].inputs if value is None else value.content)
            found[name] = ParameterInput(h, own, rows, self.heads[h].may_shift(own) and rows.lopsided)
        found.update({(MERGED, h): ParameterInput(h, MERGED, queries, relative=False) for h in self.merged})
        return found

    @cached_property
    def vectors_at_once(self) -> int:
        """How many vectors the workspace has room for."""
        A = self._states[0].weights
        return max(1, _WORKSPACE_BYTES // (A.numel() * A.element_size()))

    def route(self, rows: Names, columns: Names) -> MatvecRoute:
        """How a product between these rows and columns goes; found once."""
        if (rows, columns) not in self._routes:
            merged_columns, merged_rows = self._merged(columns), self._merged(rows)
            inputs = {name: self.entrances[name] for name in self._with_merged(columns, merged_columns)}
            asked: dict[int, dict[str, Name]] = {}
            for name in self._with_merged(rows, merged_rows):
                asked.setdefault(self.entrances[name].head, {})[self.entrances[name].own] = name
            # A head sees queries and keys meet only where both go apart.
            merged = {**merged_columns, **merged_rows}
            paired = frozenset(h for h, head in enumerate(self.heads) if head.score_pair_pays or h in merged)
            pairs = [*self._value_pairs, *self._factor_pairs, *(self._score_pair(h) for h in paired)]
            alone = self._alone(rows, columns)
            self._routes[rows, columns] = MatvecRoute(inputs, asked, merged_columns, merged_rows, pairs, paired, alone)
        return self._routes[rows, columns]

    def _merged(self, names: Names) -> dict[int, dict[str, Name]]:
        """By head, the weights among these that go through a merged matrix, by their own names."""
        found: dict[int, dict[str, Name]] = {}
        for name in names:
            at = self.entrances[name]
            if at.head in self.merged and at.own in self.heads[at.head].score_ports:
                found.setdefault(at.head, {})[at.own] = name
        return {h: own for h, own in found.items() if self._pays(h, own)}

    def _pays(self, h: int, names: Iterable[str]) -> bool:
        """Where tokens have most of their length in common, weights apart keep digits that one matrix would lose."""
        rows = self.entrances[MERGED, h].input
        return self.merged[h].pay(names) and not rows.lopsided and not self._tokens.lopsided

    def _with_merged(self, names: Names, merged: Mapping[int, Mapping[str, Name]]) -> list[Name]:
        gone = {name for own in merged.values() for name in own.values()}
        return [*(name for name in names if name not in gone), *((MERGED, h) for h in merged)]

    def _alone(self, rows: Names, columns: Names) -> Tensor | None:
        if self.outputs is not None:
            return None
        curvature, at = self.loss.curvature, [self.entrances[name] for name in (*rows, *columns)]
        head = self.heads[at[0].head]
        scores = all(entrance.head == at[0].head and entrance.own in head.score_ports for entrance in at)
        return curvature.values if isinstance(curvature, ScalarCurvature) and scores and head.gram_pays else None

    def through_loss(self, changes: Sequence[HeadChange]) -> list[Tensor | None]:
        """``u = C dF`` as every head sees it, for the changes dF of the output of all heads; None where there is none.

        Args:
            changes: Of the heads.
        """
        outputs = [(h, change.output) for h, change in enumerate(changes) if change.output is not None]
        if not outputs:
            return [None] * len(changes)
        if self.outputs is None:
            first, *others = (each for _, each in outputs)
            dF = sum(others, first)
        else:
            like = outputs[0][1]
            dF = like.new_zeros(*like.shape[:2], self.loss.gradient.shape[2])
            for h, each in outputs:
                dF[..., self.outputs[h]] += each
        by_vector = dF.view(changes[0].vectors, -1, *dF.shape[1:])
        u = self.loss.curvature.apply(by_vector).reshape(dF.shape)
        return [u if self.outputs is None else u[..., self.outputs[h]] for h in range(len(changes))]

    @cached_property
    def _names(self) -> dict[tuple[int, str], Name]:
        return {place: name for name, place in self._places.items()}

    def _score_pair(self, h: int) -> Pair:
        if h not in self._score_pairs:
            first, second = self.heads[h].head.score_pair or ("", "")
            B = self.heads[h].score_pair_gradient
            self._score_pairs[h] = ScorePair(B, self._names[h, first], self._names[h, second])
        return self._score_pairs[h]

    @cached_property
    def _factor_pairs(self) -> list[Pair]:
        """Weights that act on what other weights put out."""
        found: list[Pair] = []
        for h, head in enumerate(self.heads):
            names = {own: name for (k, own), name in self._names.items() if k == h}
            found += [factor_pair(factors, names) for factors in head.linked_factors]
        return found

    @cached_property
    def _value_pairs(self) -> list[Pair]:
        """Every head whose values have two factors, with ``B = M_1^T g``."""
        found: list[Pair] = []
        for h, state in enumerate(self._states):
            if state.value_pair is not None and not state.value_names:
                first, second = state.value_pair
                gradient = self._losses[h].gradient
                B = torch.tensordot(state.value_ports[first].vector, gradient, dims=([0, 1], [0, 1]))
                found.append(ValuePair(B, self._names[h, first], self._names[h, second]))
        return found


class PartTangent(ProductSource):
    """One part of the Hessian, by its products.

    Args:
        layer: The layer.
        part: "outer", "functional", "full", "t_outer" or "t_functional".
    """

    def __init__(self, layer: LayerTangent, part: str) -> None:
        self._layer, self._parts = layer, SUMMANDS[part]
        self._without_pairs = replace(self._parts, t_functional=False)

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
        for h, own in route.merged_columns.items():
            given[MERGED, h] = layer.merged[h].change({each: given[name] for each, name in own.items()})
        for name, at in route.inputs.items():
            projected[at.head][at.own] = at.input.forward(given[name], at.relative)
        pairs = zip(layer.heads, projected, strict=True)
        changes = [head.change(own, vectors, self._parts, route.alone) for head, own in pairs]
        products = self._products(route, changes)
        for pair in route.pairs:
            if getattr(self._parts, pair.summand):
                for name, part in pair.products(given, rows).items():
                    products[name] = products[name] + part if name in products else part
        return [products[n] if n in products else X[0].new_zeros(*layer.shapes[n], vectors) for n in rows]

    def _products(self, route: MatvecRoute, changes: list[HeadChange]) -> dict[Name, Tensor]:
        """Through the loss and back, head by head; what is zero is left out."""
        layer = self._layer
        u = layer.through_loss(changes)
        found: dict[Name, Tensor] = {}
        for h, names in route.asked.items():
            head, change = layer.heads[h], changes[h]
            parts = self._without_pairs if h in route.paired else self._parts
            for own, (gradient, vjp) in head.gradients(change, u[h], list(names), parts).items():
                at = layer.entrances[names[own]]
                total = head.total(vjp, change.vectors) if at.relative and vjp is not None else None
                found[names[own]] = at.input.back(gradient, at.relative, total)
        for h, own_names in route.merged_rows.items():
            merged = found.pop((MERGED, h), None)
            if merged is not None:
                found |= {name: layer.merged[h].gradient(own, merged) for own, name in own_names.items()}
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
        head, own = self._layer.place(name)
        return self._layer.diagonals[head].trace(own, self._parts)

    def diagonal(self, name: Name) -> Tensor | None:
        """Where the loss couples no two tokens."""
        head, own = self._layer.place(name)
        return self._layer.diagonals[head].diagonal(own, self._parts)

    def write(self, rows: Names, columns: Names, target: Tensor) -> bool:
        """Where the layer is small and the loss couples no two tokens."""
        if self._layer.outputs is not None:
            return False
        one, two = ([self._layer.place(name) for name in names] for names in (rows, columns))
        return self._layer.dense.write(one, two, self._parts, target)

    def held_tensors(self, rows: Names, columns: Names) -> list[Tensor]:
        """Inputs of the weights, what their heads keep, and the curvature of the loss."""
        layer, route = self._layer, self._layer.route(rows, columns)
        at = list(route.inputs.values())
        at += [layer.entrances[name] for names in route.asked.values() for name in names.values()]
        found = [entrance.input.rows for entrance in at]
        for h, head in enumerate(layer.heads):
            own = [entrance.own for entrance in at if entrance.head == h]
            found += head.held_tensors(own, self._parts.functional) if own else []
        found += layer.loss.curvature.tensors() if self._parts.outer else []
        found += [weight for h in {**route.merged_columns, **route.merged_rows} for weight in layer.merged[h].weights]
        meeting = [pair for pair in route.pairs if getattr(self._parts, pair.summand) and pair.meets(rows, columns)]
        return found + [pair.gradient for pair in meeting]

"""The last attention layer of a network: its heads, what enters, and where their weights lie in the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.errors import Refusal
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.models.attention import Attention
from hessianlens.models.block import TransformerBlock
from hessianlens.models.transformer import Transformer
from hessianlens.network.base.recognition import Grouping
from hessianlens.network.base.uses import Kind, Piece, Use, piece_of
from hessianlens.problems import Batch, Block, Problem

Downstream = Callable[[Tensor], Tensor]
CLOSED_FORM = {
    **{"q": "Q", "k": "K", "v": "O", "o": "U", "q2": "Q2", "k2": "K2", "q3": "Q3", "k3": "K3"},
    **{"v2": "O2", "v3": "O3", "g": "G", "g2": "G", "g3": "G"},
}
"""Names of the maps in the closed form, whose W_O W_U is our W_V W_O; some have several behind queries, keys, gates."""
CurvatureBefore = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""From gradient, Gauss-Newton and functional curvature behind a map of every position to those in front of it."""


@dataclass(frozen=True, eq=False)
class HeadProjection:
    """Where the heads of q, k, v or o lie in their parameters.

    Attributes:
        use: How the weight enters.
        shift: How its bias enters; None where there is none, and for o.
        features: Outputs of the map (inputs, for o) that a head takes, ``[piece, width]``, as the heads order them.
        heads: The piece of every head; several may share one.
        of_inputs: Whether a head takes inputs of the map: that is o.
        first: The first head.
    """

    use: Use
    shift: Use | None
    features: Tensor
    heads: tuple[int, ...]
    of_inputs: bool = False
    first: int = 0

    def sharing(self, piece: int) -> list[int]:
        """The heads that use a piece."""
        return [self.first + head for head, own in enumerate(self.heads) if own == piece]

    def matrices(self, weight: Tensor) -> list[Tensor]:
        """The weight by piece, in the order ``x @ W``."""
        matrix = self.use.matrix(weight)
        return [matrix[own] if self.of_inputs else matrix[:, own] for own in self.features.to(weight.device)]

    def pieces(self, block: Block, params: Mapping[str, Tensor]) -> tuple[int, ...] | None:
        """The pieces that a block of the weight or bias consists of; None if it does not consist of whole ones."""
        chosen, rest = self.pieces_within(block, params)
        return chosen if chosen and not rest else None

    def pieces_within(self, block: Block, params: Mapping[str, Tensor]) -> tuple[tuple[int, ...], frozenset[int]]:
        """The whole pieces that a block of the weight or bias has, and its features beside them."""
        piece = self._piece(block, params)
        if piece is None:
            return (), frozenset()
        own = frozenset(self._own(piece))
        chosen = [number for number, features in enumerate(self.features.tolist()) if own.issuperset(features)]
        return tuple(chosen), own.difference(*(self.features[number].tolist() for number in chosen))

    def cut(self, block: Block, params: Mapping[str, Tensor]) -> Callable[[Tensor], list[Tensor]]:
        """Cuts a tensor of the block's shape into its pieces, each in the order ``x @ W``; a bias is a row."""
        piece, (pieces, _) = self._piece(block, params), self.pieces_within(block, params)
        assert piece is not None
        place = {feature: number for number, feature in enumerate(self._own(piece))}
        chosen = [[place[feature] for feature in self.features[number].tolist()] for number in pieces]

        def cut(tensor: Tensor) -> list[Tensor]:
            (matrix,) = piece.cut(tensor)
            return [matrix[numbers] if self.of_inputs else matrix[:, numbers] for numbers in chosen]

        return cut

    def _own(self, piece: Piece) -> list[int]:
        """Features of the map that a piece feeds, or takes, for o."""
        found: list[int] = (piece.inputs if self.of_inputs else piece.features).tolist()
        return found

    def _piece(self, block: Block, params: Mapping[str, Tensor]) -> Piece | None:
        """The block as a piece of the weight's map, or of the bias; None if it is none, or has not all of its rows."""
        parameter = params.get(block.parameter)
        if parameter is None:
            return None
        if self.shift is not None and block.parameter == self.shift.parameter:
            return piece_of(block, self.shift, parameter)
        if block.parameter != self.use.parameter:
            return None
        piece = piece_of(block, self.use, parameter)
        if piece is None:
            return None
        others, axis = (piece.features, 1) if self.of_inputs else (piece.inputs, 0)
        return piece if len(others) == self.use.matrix(parameter).shape[axis] else None


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """The last attention layer at one batch.

    Attributes:
        layer: Its heads, ``F = sum_h A^h X W_V^h W_O^h``; biases are a last row of the weights.
        tokens: What enters, (B, L, d), with a last column of ones if there are biases.
        projections: q, k, v and o.
        grouping: Which positions of what o puts out are those of a sequence.
        downstream: The rest of the network, F (without output bias) to the model's outputs, where it can be called.
        narrowed: From some positions to the rest of the network at those alone, where it can be called.
        projected: The output projection, where something stands in front of it; then it is none of `projections`.
        before: Through the projection and that, back to what heads and gates put out side by side.
    """

    layer: MultiHeadAttention
    tokens: Tensor
    projections: Mapping[str, HeadProjection]
    grouping: Grouping
    downstream: Downstream | None = None
    narrowed: Callable[[Tensor], Downstream] | None = None
    projected: Use | None = None
    before: CurvatureBefore | None = None

    @property
    def output_use(self) -> Use:
        """How the weight of the output projection enters."""
        return self.projections["o"].use if self.projected is None else self.projected

    @property
    def biased(self) -> bool:
        """Whether q, k or v has a bias, so that all of them have a last row for it."""
        return any(projection.shift is not None for projection in self.projections.values())

    @cached_property
    def output(self) -> Tensor:
        """F, what the layer puts out (without output bias), (B, L, d)."""
        with torch.no_grad():
            return self.layer(self.tokens)

    @cached_property
    def network_output(self) -> Tensor:
        """The model's outputs, (B, L, v)."""
        assert self.downstream is not None
        with torch.no_grad():
            return self.downstream(self.output)


def heads_of(
    pieces: Mapping[str, Sequence[Tensor]],
    rows: Mapping[str, Sequence[Tensor] | None],
    heads: Mapping[str, Sequence[int]],
    kind: type[FactoredValueAttention] = FactoredValueAttention,
    options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
) -> MultiHeadAttention:
    """Heads from the pieces of q, k, v and o and the rows of their biases.

    All of q, k, v get a row as soon as one has a bias.

    Args:
        pieces: Matrices of q, k, v, o.
        rows: Biases of q, k and v, one row a piece, where they exist.
        heads: The piece of q, k, v and o of every head.
        kind: What a head is.
        options: Activation, mask, temperature and whatever else the heads take, for all of them or each.
    """
    cut = {name: list(found) for name, found in pieces.items()}
    if any(own is not None for own in rows.values()):
        for name in "qkv":
            own = rows.get(name) or [w.new_zeros(1, w.shape[1]) for w in cut[name]]
            cut[name] = [torch.cat([w, row]) for w, row in zip(cut[name], own, strict=True)]
    each = [[cut[name][piece] for piece in heads[name]] for name in "qkvo"]
    given = options or {}
    own_options = [given] * len(each[0]) if isinstance(given, Mapping) else list(given)
    return MultiHeadAttention([kind(*w, **o) for *w, o in zip(*each, own_options, strict=True)])


def with_ones(X: Tensor) -> Tensor:
    """Tokens with a last column of ones, on which biases act."""
    return torch.cat([X, X.new_ones(*X.shape[:-1], 1)], -1)


def frozen_copy(problem: Problem) -> Transformer | None:
    """A copy of the problem's model that holds the problem's own parameters; None for any other model or attention."""
    if not isinstance(problem.source, Transformer):
        return None
    if any(type(getattr(block, "attention", None)) is not Attention for block in list(problem.source.blocks)[-1:]):
        return None
    # Parameters are handed over, not copied: a copy of the model costs no more than its other attributes.
    handed = {
        id(parameter): nn.Parameter(problem.params[name], requires_grad=False)
        for name, parameter in problem.source.named_parameters()
    }
    try:
        model = copy.deepcopy(problem.source, handed).to(device=problem.device, dtype=problem.dtype)
    except (RuntimeError, TypeError):  # some models hold what cannot be copied, such as outputs with their graph
        return None
    return model.eval()


def toy_site(model: Transformer, batch: Batch) -> AttentionSite | Refusal:
    """The site, for two query-key matrices per head; a refusal where there is none."""
    if len(model.blocks) == 0:
        return Refusal("it has no attention")
    last, block = len(model.blocks) - 1, model.blocks[-1]
    assert isinstance(block, TransformerBlock)
    attention = block.attention
    if attention.query_key != "dual":
        return Refusal("its queries and keys are one matrix")
    inputs = inputs_of(batch)
    residual = model.residual(inputs["tokens"] if isinstance(inputs, dict) else inputs)
    X = block.attention_input(residual)
    projections = _projections(attention, f"blocks.{last}.attention.")
    shift = 0 if attention.b_O is None else attention.b_O

    def narrowed(positions: Tensor | slice) -> Downstream:
        entering = residual[:, positions]
        return lambda F: model.unembed(block.join(F + shift, entering))

    return AttentionSite(
        toy_heads(attention),
        with_ones(X) if attention.b_V is not None else X,
        projections,
        Grouping(*X.shape[:2]),
        narrowed(slice(None)),
        narrowed,
    )


def _projections(attention: Attention, prefix: str) -> dict[str, HeadProjection]:
    features = torch.arange(attention.heads * attention.d_head, device="cpu").reshape(attention.heads, -1)
    biased = attention.b_V is not None
    return {
        name: HeadProjection(
            Use(f"{prefix}W_{name.upper()}", Kind.IN_OUT, 0, None, ()),
            Use(f"{prefix}b_{name.upper()}", Kind.SHIFT, 0, None, ()) if biased and name != "o" else None,
            features,
            tuple(range(attention.heads)),
            of_inputs=name == "o",
        )
        for name in "qkvo"
    }


def toy_heads(attention: Attention) -> MultiHeadAttention:
    """The heads of an attention module."""
    weights = {
        name: getattr(attention, f"W_{name.upper()}").chunk(attention.heads, int(name != "o")) for name in "qkvo"
    }
    biases = {name: getattr(attention, f"b_{name.upper()}") for name in "qkv"}
    return heads_of(
        weights,
        {name: None if b is None else [row[None] for row in b.chunk(attention.heads)] for name, b in biases.items()},
        dict.fromkeys("qkvo", range(attention.heads)),
        options={
            "activation": attention.activation,
            "causal": attention.causal,
            "temperature": attention.temperature,
        },
    )

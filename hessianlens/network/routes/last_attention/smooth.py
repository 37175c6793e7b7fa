"""Queries, keys or values that are more than rotated products: behind a norm, of several maps, of other tokens.

Between the linear maps and the attention stands a smooth function of every position. Its Jacobian and its second
derivative along a given gradient are found by autograd through the few operations there, whatever they are called:

    dq_n = sum_p M_n^p dz_n^p,      sum_e w_ne d^2 q_ne / dz^p dz^r = D_n^pr

with ``z^p`` what the maps put out, cut from what is in front of them. The closed forms take any such M and D. Where a
map acts on what another one puts out, the other is not cut off: M and D go through it, and the two are linked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.attention.sides import FactorLink, InputCurvature
from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.operands import (
    NO_SOURCE,
    Operand,
    features_by_head,
    grouping_of,
    is_curved,
    refuse_positions,
    vjp_by_position,
)
from hessianlens.network.base.recognition import Grouping
from hessianlens.sizes import readable


@dataclass(frozen=True, eq=False)
class SmoothSource:
    """One of the maps that queries or keys come from.

    Attributes:
        site: The map.
        leaf: What it puts out.
        features: Its outputs that a head takes, ``[piece, p]``.
        heads: The piece of every head.
        grouping: Positions of the map by sequence.
    """

    site: int
    leaf: Tensor
    features: Tensor
    heads: tuple[int, ...]
    grouping: Grouping

    def of_head(self, head: int) -> Tensor:
        """Outputs that a head takes."""
        return self.features[self.heads[head]].to(self.leaf.device)


@dataclass(frozen=True, eq=False)
class SmoothOperand:
    """Queries, keys or values of all heads as a function of what their maps put out.

    Attributes:
        rows: ``[sequence, head, position, e]``, on the graph of the leaves.
        sources: The maps; none where these are not of this layer alone.
        curved: Whether some second derivative is not zero.
        linked: What those maps are multiplied with that act on what others put out, on their graph, by site.
    """

    rows: Tensor
    sources: tuple[SmoothSource, ...]
    curved: bool
    linked: Mapping[int, Tensor] = field(default_factory=dict)

    def maps(self) -> list[list[Tensor]]:
        """``M_n`` by source and head, ``[sequence, position, e, p]``; heads that share nothing are found together."""
        found: list[list[Tensor]] = []
        for source in self.sources:
            heads, width = range(self.rows.shape[1]), self.rows.shape[3]
            disjoint = (
                len(set(source.heads)) == len(heads)
                and len(set(source.features.flatten().tolist())) == source.features.numel()
            )
            rounds = [list(heads)] if disjoint else [[head] for head in heads]
            by_head: dict[int, Tensor] = {}
            for together in rounds:
                rows = [self._vjp(source, together, e) for e in range(width)]
                for head in together:
                    by_head[head] = torch.stack([row[..., source.of_head(head)] for row in rows], 2)
            found.append([by_head[head] for head in heads])
        return found

    def links(self, names: Sequence[str], widths: Sequence[int]) -> list[tuple[FactorLink, ...]]:
        """Maps that act on what others put out, by head.

        Args:
            names: Of the parameters, by source.
            widths: Entries of what they are multiplied with, a last one for a bias among them.
        """
        found: list[list[FactorLink]] = [[] for _ in range(self.rows.shape[1])]
        for outer, name, width in zip(self.sources, names, widths, strict=True):
            inputs = self.linked.get(outer.site)
            if inputs is None:
                continue
            for inner, other in zip(self.sources, names, strict=True):
                if inner.site == outer.site:
                    continue
                J = _jacobian(inputs, inner)
                J = nnf.pad(J, (0, 0, 0, width - J.shape[2]))
                for head, own in enumerate(found):
                    own.append(FactorLink(name, other, J[..., inner.of_head(head)]))
        return [tuple(own) for own in found]

    def _vjp(self, source: SmoothSource, heads: Sequence[int], e: int) -> Tensor:
        cotangent = torch.zeros_like(self.rows)
        cotangent[:, list(heads), :, e] = 1
        return source.grouping.arrange(vjp_by_position(self.rows, source.leaf, cotangent))


@dataclass(frozen=True, eq=False)
class GraphCurvature(InputCurvature):
    """Second derivatives by autograd, through the graph from some leaves to the queries or keys of one head.

    Attributes:
        names: Of the parameters, by source.
        sources: The maps.
        rows: ``[sequence, position, e]``, on the graph of the leaves.
        head: The head.
        kept: Positions that count; None for all.
    """

    names: tuple[str, ...]
    sources: tuple[SmoothSource, ...]
    rows: Tensor
    head: int
    kept: Tensor | None = None

    def along(self, cotangents: Float[Tensor, "s n k"]) -> dict[tuple[str, str], Float[Tensor, "s n p r"]]:
        """One double backward for every output of the maps that the head takes."""
        length = self.rows.shape[1]
        w = cotangents[:, :length]
        if self.kept is not None:
            w = torch.zeros_like(self.rows)
            w[:, self.kept] = cotangents
        with torch.enable_grad():
            found = self._along(w.detach())
        if cotangents.shape[1] <= length:
            return found
        return {names: nnf.pad(D, BELOW_MATRICES) for names, D in found.items()}  # a sink has no key

    def _along(self, w: Tensor) -> dict[tuple[str, str], Tensor]:
        leaves, found = [source.leaf for source in self.sources], dict[tuple[str, str], Tensor]()
        slopes = torch.autograd.grad((self.rows * w).sum(), leaves, create_graph=True, retain_graph=True)
        for i, slope in enumerate(slopes):
            if not slope.requires_grad:
                continue
            columns = [self._second(slope[..., feature].sum(), i) for feature in self.sources[i].of_head(self.head)]
            for j in range(i, len(leaves)):
                found[self.names[i], self.names[j]] = torch.stack([column[j - i] for column in columns], 2)
        return found

    def _second(self, slope: Tensor, first: int) -> list[Tensor]:
        """By source from this one on, ``[s, n, p]``."""
        sources = self.sources[first:]
        leaves = [source.leaf for source in sources]
        grads = torch.autograd.grad(slope, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        found = []
        for source, grad in zip(sources, grads, strict=True):
            by_sequence = source.grouping.arrange(grad.reshape(-1, grad.shape[-1]))[..., source.of_head(self.head)]
            found.append(by_sequence if self.kept is None else by_sequence[:, self.kept])
        return found

    def at(self, kept: Int[Tensor, " n"]) -> GraphCurvature:
        """That of some positions only."""
        return replace(self, kept=kept if self.kept is None else self.kept[kept])


BELOW_MATRICES = (0, 0, 0, 0, 0, 1)
"""One more token, with a matrix."""


def _jacobian(inputs: Tensor, source: SmoothSource) -> Tensor:
    """Of what a map is multiplied with, by what another one puts out, ``[sequence, position, r, feature]``."""
    rows = []
    for r in range(inputs.shape[-1]):
        cotangent = torch.zeros_like(inputs)
        cotangent[..., r] = 1
        rows.append(source.grouping.arrange(vjp_by_position(inputs, source.leaf, cotangent)))
    return torch.stack(rows, 2)


def constant_operand(taken: Tensor) -> SmoothOperand:
    """Queries, keys or values without parameters."""
    return SmoothOperand(taken.detach(), (), False)


def smooth_operand(
    taken: Tensor, leaves: Mapping[int, Tensor], linked: Mapping[int, Tensor] | None = None
) -> SmoothOperand | Refusal:
    """Queries or keys as a function of what their maps put out; a refusal where it mixes positions.

    Args:
        taken: ``[sequence, head, position, e]``.
        leaves: What the maps before it put out, by site.
        linked: What those of them are multiplied with that act on what others put out, on their graph.
    """
    if not taken.requires_grad:
        return NO_SOURCE
    slopes = torch.autograd.grad(taken, list(leaves.values()), random_like(taken), retain_graph=True, allow_unused=True)
    used = [site for site, slope in zip(leaves, slopes, strict=True) if slope is not None and bool(slope.any())]
    sources = []
    for site in used:
        found = features_by_head(taken, leaves[site])
        if isinstance(found, Refusal):
            return found
        grouping = grouping_of(taken, leaves[site])
        if grouping is None:
            return refuse_positions(taken, leaves[site])
        sources.append(SmoothSource(site, leaves[site], *found, grouping))
    if not sources:
        return NO_SOURCE
    curved = is_curved(taken, [source.leaf for source in sources])
    operand = SmoothOperand(taken, tuple(sources), curved, linked or {})
    widths = [source.features.shape[1] for source in sources]
    numbers = taken[..., 0].numel() * sum(p * (taken.shape[3] + operand.curved * p) for p in widths)
    held = numbers * taken.element_size()
    free = available_bytes(taken.device)
    if held > SAFE_SHARE * free:
        return Refusal(f"need {readable(held)} for their derivatives, and {readable(free)} are free")
    return operand


def depends_on(taken: Tensor, sources: Sequence[SmoothSource | Operand], leaves: Mapping[int, Tensor]) -> bool:
    """Whether rows come from the features of any of some sources."""
    if not sources or not taken.requires_grad:
        return False
    at = [leaves[source.site] for source in sources]
    slopes = torch.autograd.grad(taken, at, random_like(taken), retain_graph=True, allow_unused=True)
    return any(
        slope is not None and bool(slope[..., source.features.flatten().to(slope.device)].any())
        for source, slope in zip(sources, slopes, strict=True)
    )

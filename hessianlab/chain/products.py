"""Curvature products of every attention layer of a stack whose layers are joined by piecewise linear maps.

With one head per layer and a position-wise, piecewise linear map (residual, ReLU MLP) behind each but the last,

    h' = phi(rho h + F(h)),      F = a(X M X^T) X W,

second derivatives live in the attention layers and behind the last of them. A tangent of a weight enters as a tangent
of that layer's F, is carried up and comes back down twice: as ``J^T C J v`` (Gauss-Newton) and as the change of the
gradient under fixed loss derivatives (functional). The vectors of all layers go together: those of a layer join on the
way up and leave on the way down.

Activations, attention and gradients are in the precision of the model. Tangents may be in a lower one: what they are
multiplied with is rounded once, so that the error of a product is a few roundings of its own size, however far the
network is saturated. The Gauss-Newton part is the product of two derivatives and may leave the range of the numbers
where neither does; it is carried down at size one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hessianlab.chain.layer import Layer, LayerTangents, TangentCoefficients
from hessianlab.chain.links import Link
from hessianlab.chain.ports import Port, Vectors
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.network.routes.last_attention.positionwise import PositionDerivatives

_GROUP_BYTES = 2**25
"""Room for the tangents, or the matrices of attention rows, of the sequences whose vectors enter and leave together."""
_STEP_BYTES = 2**22
"""Room for the tangents, and for the Jacobians of a map between layers, of the sequences carried at once."""


class ChainProducts:
    """Vectors of blocks of a chain at one batch.

    Args:
        links: The attention layers, in order.
        found: Derivatives of the network behind the last one.
        blocks: Vectors of blocks, by number of the layer.
        dtype: Of tangents.
    """

    def __init__(
        self,
        links: Sequence[Link],
        found: PositionDerivatives,
        blocks: Mapping[int, Sequence[Vectors]],
        dtype: torch.dtype,
    ) -> None:
        self.links, self.found, self.blocks, self.dtype = links, found, blocks, dtype
        self.first, self.last = min(blocks), len(links) - 1
        self.units: Tensor | None = None
        self.vectors = sum(len(v.values) for vectors in blocks.values() for v in vectors)

    def products(self) -> dict[int, list[tuple[Tensor, Tensor]]]:
        """Products of the diagonal blocks with their vectors: Gauss-Newton and functional part, in double precision."""
        totals: dict[int, list[tuple[Tensor, Tensor]]] = {}
        with torch.no_grad():
            for chosen in self._groups():
                group = _Group(self, chosen)
                for step in self._steps(chosen.stop - chosen.start):
                    group.carry(step)
                for number, ports in group.ports.items():
                    products = [port.products() for port in ports]
                    if number not in totals:
                        totals[number] = products
                        continue
                    for total, more in zip(totals[number], products, strict=True):
                        total[0].add_(more[0])
                        total[1].add_(more[1])
        return self._in_own_units(totals)

    def scaled(self, u: Tensor) -> Tensor:
        """Cotangents [s, i, p, d] of about size one, in units of each vector that the first of them decide."""
        if self.units is None:
            largest = u.abs().amax((0, 1, 3)).double()
            self.units = torch.where((largest > 0) & largest.isfinite(), largest, 1.0).log2().round().exp2()
        return u.double().div_(self.units[:, None]).to(u.dtype) if self.dtype != torch.float64 else u

    def _in_own_units(self, totals: dict[int, list[tuple[Tensor, Tensor]]]) -> dict[int, list[tuple[Tensor, Tensor]]]:
        if self.dtype == torch.float64:
            return totals
        assert self.units is not None
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        start = 0
        for number in sorted(totals, reverse=True):  # those that joined last come first
            for ggn, functional in totals[number]:
                units = self.units[start : start + len(ggn), None, None]
                found.setdefault(number, []).append((ggn.double() * units, functional.double()))
                start += len(ggn)
        return found

    def _groups(self) -> Iterator[slice]:
        sequences, length, width = self.links[0].tokens.shape
        tangents = length * self.vectors * width * self.dtype.itemsize
        rows = length**3 * self.links[0].tokens.element_size()
        return _slices(sequences, _GROUP_BYTES // max(tangents, rows))

    def _steps(self, sequences: int) -> Iterator[slice]:
        _, length, width = self.links[0].tokens.shape
        each = length * width * max(self.vectors, width) * self.dtype.itemsize
        return _slices(sequences, _STEP_BYTES // each)


class _Group:
    """Some sequences: every layer, the gradient of the loss at the output of each, the vectors that enter."""

    def __init__(self, chain: ChainProducts, chosen: slice) -> None:
        links, found = chain.links, chain.found
        self.chain, self.chosen, self.first = chain, chosen, chain.first
        states = [link.head.attend(link.tokens[chosen]) for link in links[self.first :]]
        kept = [None] * (len(states) - 1) + [found.positions]
        pairs = zip(links[self.first :], states, kept, strict=True)
        layers = [Layer(link, chosen, state, positions) for link, state, positions in pairs]
        self.seen = _seen([state.visible for state in states], found.positions)
        g = found.gradient[chosen]
        for n in reversed(range(len(layers))):
            g = layers[n].linearise_gradient(g)
            downstream = links[self.first + n - 1].downstream if n else None
            g = g if downstream is None else downstream.vjp(g, chosen)
        self.linear = [layer.linear(self.seen, chain.dtype) for layer in layers]
        self.ports = {
            n: [Port(layers[n - self.first], v, self.seen, chain.dtype) for v in chain.blocks[n]]
            for n in sorted(chain.blocks)
        }
        self.ggn = _cast(found.ggn, chosen, chain.dtype)
        self.head = None if found.head is None else found.head[chosen].to(chain.dtype)

    def carry(self, step: slice) -> None:
        """The vectors at some sequences of the group, up and down again."""
        linear = [one.at(step) for one in self.linear]
        ways = [self._way(n, step) for n in range(self.first, self.chain.last)]
        entered, moves, dy = {}, [], None
        for n, (above, way) in enumerate(zip(linear[1:], ways, strict=True), self.first):
            entered[n] = [port.enter(linear[n - self.first], step) for port in self.ports.get(n, ())]
            joined = [dF for dF, _ in entered[n]] + ([] if dy is None else [dy])
            both = torch.cat(joined, 2) if len(joined) > 1 else joined[0]
            dy, moved = above.forward(both if way is None else _at_tokens(both, way))
            moves.append(moved)
        assert dy is not None
        ggn = self.chain.scaled(_curved(self.ggn, step, dy))
        functional = None if self.head is None else _at_tokens(dy, self.head[step])
        self._down(step, linear, ways, moves, entered, ggn, functional)

    def _down(
        self,
        step: slice,
        linear: Sequence[TangentCoefficients],
        ways: Sequence[Tensor | None],
        moves: Sequence[LayerTangents],
        entered: Mapping[int, Sequence[tuple[Tensor, Tensor | None]]],
        ggn: Tensor,
        functional: Tensor | None,
    ) -> None:
        for n in reversed(range(self.first, self.chain.last)):
            own, above = linear[n - self.first], linear[n - self.first + 1]
            ggn, functional = above.outer(ggn), above.functional(functional, moves[n - self.first])
            if (way := ways[n - self.first]) is not None:  # of all vectors at once: products of few columns are slow
                ggn, functional = (_at_tokens(u, way.transpose(-1, -2)) for u in (ggn, functional))
            start = 0
            for port, (_, dT) in zip(self.ports.get(n, ()), entered[n], strict=True):
                stop = start + port.count
                port.leave(own, step, (ggn[:, :, start:stop], functional[:, :, start:stop]), dT)
                start = stop
            ggn, functional = ggn[:, :, start:].contiguous(), functional[:, :, start:].contiguous()

    def _way(self, n: int, step: slice) -> Tensor | None:
        """The Jacobians of the map behind a layer, [s, l, d, d]."""
        downstream, start = self.chain.links[n].downstream, self.chosen.start
        if downstream is None:
            return None
        return downstream.matrices(slice(start + step.start, start + step.stop), self.seen, self.chain.dtype)


def _seen(visible: Sequence[Tensor], positions: Tensor) -> Tensor:
    """Which tokens reach a position that carries a loss, through any of the layers; [l]."""
    seen = torch.zeros(visible[0].shape[-1], dtype=torch.bool, device=positions.device)
    seen[positions] = True
    for layer in reversed(visible):
        seen = seen | layer[:, seen].any(0).any(0)
    return seen


def _slices(count: int, step: int) -> Iterator[slice]:
    step = max(1, step)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _cast(curvature: UncoupledCurvature, chosen: slice, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The factors of ``C_i`` at some sequences, the product of one or two matrices per token."""
    if isinstance(curvature, FactoredTokenCurvature):
        return curvature.right[chosen].to(dtype), curvature.left[chosen].transpose(-1, -2).to(dtype)
    assert isinstance(curvature, TokenCurvature)
    return (curvature.matrices[chosen].to(dtype),)


def _curved(factors: Sequence[Tensor], step: slice, dy: Tensor) -> Tensor:
    """``C_i dy_i`` for tangents [s, i, p, d]."""
    for factor in factors:
        dy = _at_tokens(dy, factor[step])
    return dy


def _at_tokens(tangents: Tensor, matrices: Tensor) -> Tensor:
    """Tangents [s, i, p, d] times a matrix [s, i, d, c] of each token."""
    return torch.bmm(tangents.flatten(0, 1), matrices.flatten(0, 1)).unflatten(0, tangents.shape[:2])

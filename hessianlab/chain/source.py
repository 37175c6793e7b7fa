"""Products of the blocks of earlier attention layers, all vectors of a layer at once, where layers form a chain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlab.chain.links import Link, find_chain
from hessianlab.chain.ports import Vectors
from hessianlab.chain.products import ChainProducts
from hessianlens.errors import Refusal
from hessianlens.network.base.question import Limits
from hessianlens.network.base.sampling import WORKSPACE, Drawn, Request, length, probe_source
from hessianlens.network.planner import planner_of
from hessianlens.network.routes.last_attention.exact import ExactAttention
from hessianlens.network.routes.last_attention.site import CLOSED_FORM
from hessianlens.problems import Block, Problem

_NAME = re.compile(r"layer(\d+)\.attn\.([qkvo])(\.bias)?")


@dataclass(frozen=True, eq=False)
class ChainedAttention:
    """The attention layers below the last one of a problem.

    Attributes:
        exact: The closed form of the last one.
        chains: All of them, at each batch.
    """

    exact: ExactAttention
    chains: tuple[tuple[Link, ...], ...]

    def covers(self, block: Block) -> bool:
        """Whether a block is a weight or bias of one of these layers."""
        found = _NAME.fullmatch(block.name)
        if found is None or int(found[1]) >= len(self.chains[0]) - 1:
            return False
        return not found[3] or (found[2] != "o" and self.exact.sites[0].biased)

    def products(
        self, vectors: Sequence[tuple[Block, Tensor]], tangents: torch.dtype | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Gauss-Newton and functional products of diagonal blocks, ``[vector, *shape]`` each, by name.

        Args:
            vectors: Blocks, each with vectors ``[vector, *shape]``.
            tangents: Precision in which vectors are carried; that of the model if omitted. Products of float32 tangents
                come in double precision, so that they keep their range.
        """
        layers: dict[int, list[tuple[Block, Tensor]]] = {}
        for block, values in vectors:
            layers.setdefault(self._place(block)[0], []).append((block, values))
        asked = {n: [self._vectors(*pair) for pair in pairs] for n, pairs in layers.items()}
        dtype = self.exact.problem.dtype if tangents is None else tangents
        totals: dict[str, tuple[Tensor, Tensor]] = {}
        for links, derivatives in zip(self.chains, self.exact.derivatives, strict=True):
            for n, products in ChainProducts(links, derivatives, asked, dtype).products().items():
                for (block, _), (G, F) in zip(layers[n], products, strict=True):
                    shape = (len(G), *block.shape)
                    found = (G.reshape(shape), F.reshape(shape))
                    before = totals.get(block.name)
                    totals[block.name] = found if before is None else (found[0] + before[0], found[1] + before[1])
        return totals

    def _place(self, block: Block) -> tuple[int, str, bool]:
        found = _NAME.fullmatch(block.name)
        assert found is not None
        return int(found[1]), found[2], bool(found[3])

    def _vectors(self, block: Block, values: Tensor) -> Vectors:
        _, name, bias = self._place(block)
        matrices = values[:, None] if bias else values
        return Vectors(CLOSED_FORM[name], self.exact.rows(name, bias), matrices)


def chained_attention(exact: ExactAttention) -> ChainedAttention | None:
    """The layers below the last; None if there are none, or the model is of no kind that forms a chain."""
    chains: list[tuple[Link, ...]] = []
    for batch in exact.problem.data:
        links = None if exact.own is None else find_chain(exact.own, batch)
        if links is None or len(links) < 2 or not _same_last(links, exact, len(chains)):
            return None
        chains.append(links)
    return ChainedAttention(exact, tuple(chains))


def _same_last(links: tuple[Link, ...], exact: ExactAttention, number: int) -> bool:
    """Whether the chain brings the tokens to the last layer that the model itself does.

    Half of the digits are enough to tell another architecture; saturated attention may lose many of the others on both
    sides.
    """
    expected, found = exact.sites[number].tokens, links[-1].tokens
    if expected.shape != found.shape:
        return False
    tolerance = torch.finfo(expected.dtype).eps ** 0.5 * float(expected.abs().max())
    return float((expected - found).abs().max()) <= tolerance


class ChainSource:
    """The same products for attention layers that form a chain, all vectors of a chunk together.

    With float32 tangents at a float64 model, products that come near the end of float32's range are made anew in
    float64: they may have lost parts on the way.

    Args:
        chain: The layers.
        problem: What is differentiated.
        parts: Among "full", "ggn" and "functional".
        seed: Seed of the probes.
        tangents: Precision in which vectors are carried; that of the problem if omitted.
        workspace: Bytes of products held at once.
    """

    reason = "it lies below the last attention layer; its probes go through the formulas of a chain of plain layers"

    def __init__(
        self,
        chain: ChainedAttention,
        problem: Problem,
        parts: Sequence[str],
        seed: int,
        tangents: torch.dtype | None = None,
        workspace: int = WORKSPACE,
    ) -> None:
        self.chain, self.problem, self.parts, self.seed, self.workspace = chain, problem, tuple(parts), seed, workspace
        self.tangents = problem.dtype if tangents is None else tangents

    def covers(self, block: Block) -> bool:
        """Whether a block is a weight or bias of a layer below the last."""
        return self.chain.covers(block)

    def hvp(self, block: Block, vector: Tensor) -> dict[str, Tensor]:
        """The parts of a diagonal block times a vector, all in the precision of the model."""
        ggn, functional = self.chain.products([(block, vector[None])])[block.name]
        return {"ggn": ggn[0], "functional": functional[0]}

    def draw(self, requests: Sequence[Request]) -> Iterator[Drawn]:
        """The lengths of all products asked for."""
        each = sum(request.block.numel for request in requests) * 2 * self.problem.dtype.itemsize
        step = max(1, self.workspace // max(each, 1))
        longest = max(request.stop - request.start for request in requests)
        for offset in range(0, longest, step):
            chunk = [
                Request(r.block, r.start + offset, min(r.stop, r.start + offset + step), r.basis)
                for r in requests
                if r.start + offset < r.stop
            ]
            yield from self._together(chunk)

    def _together(self, requests: Sequence[Request]) -> Iterator[Drawn]:
        vectors = [
            (r.block, r.probes(self.problem, self.seed).matrix(r.start, r.stop).T.reshape(-1, *r.block.shape))
            for r in requests
        ]
        found = self.chain.products(vectors, self.tangents)
        if self.tangents != self.problem.dtype:
            lost = [(block, values) for block, values in vectors if not _in_range(found[block.name])]
            found |= self.chain.products(lost) if lost else {}
        for name, (gauss_newton, rest) in found.items():
            for G, F in zip(gauss_newton, rest, strict=True):
                parts = {"ggn": G, "functional": F, "full": G + F}
                yield name, {part: length(parts[part]) for part in self.parts}


def chain_registered(tangents: torch.dtype | None = None) -> AbstractContextManager[None]:
    """A scope in which `hessianlens.block_norms` takes the probes of a chain of plain layers through its formulas.

    Args:
        tangents: Precision of the vectors; that of the problem if omitted. ``torch.float32`` in a float64 problem is
            about three times as fast: activations, softmax and gradients stay in float64; 2e-6 of a norm is the most
            that was seen to change.
    """

    def make(problem: Problem, blocks: Sequence[Block], parts: Sequence[str], seed: int) -> ChainSource | None:
        exact = planner_of(problem).closed_form(blocks, Limits())
        chain = None if isinstance(exact, Refusal) else chained_attention(exact)
        return None if chain is None else ChainSource(chain, problem, parts, seed, tangents)

    return probe_source(make)


def _in_range(products: tuple[Tensor, Tensor]) -> bool:
    """Whether nothing on the way can have left the range of float32: entries are far from its ends, and none is lost.

    The Gauss-Newton part comes down at size one and is judged by its finiteness alone.
    """
    ggn, functional = products
    largest = functional.flatten(1).abs().amax(1)
    return bool(ggn.isfinite().all()) and bool(((largest > _SMALLEST) & (largest < _LARGEST)).all())


_SMALLEST, _LARGEST = 1e-25, 1e25

"""Products with random vectors, streamed: a vector is made, multiplied, measured and dropped before the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from hessianlens.curvature import Repeated
from hessianlens.problems import Block, Problem
from hessianlens.spectra.norms import lengths_of
from hessianlens.spectra.probes import Probes
from hessianlens.work_times import counted_as

WORKSPACE = 2**28
"""Bytes of products that are held until all batches have added to them, if there are several; at least one vector's."""

Drawn = tuple[str, dict[str, Tensor]]
"""A block's name with the length of one product by part."""
Wanted = tuple[Block, Probes, int]
"""A block, its vectors, and which of them it is to be multiplied with."""
Products = dict[str, Tensor]
"""A product by part."""


@dataclass(frozen=True)
class Request:
    """Probes number start, ..., stop - 1 of a block; every basis vector where `basis` says so."""

    block: Block
    start: int
    stop: int
    basis: bool = False

    def probes(self, problem: Problem, seed: int) -> Probes:
        """Its vectors; every block has a stream of its own."""
        count = self.block.numel if self.basis else min(self.stop, self.block.numel - 1)
        return Probes.of_block(self.block.name, self.block.numel, count, seed, problem.dtype, problem.device)


class ProbeSource(Protocol):
    """Another way to the HVPs of probes of some blocks, for models that its author knows.

    Attributes:
        reason: Why blocks go this way.
    """

    reason: str

    def covers(self, block: Block) -> bool:
        """Whether a block goes this way."""

    def hvp(self, block: Block, vector: Tensor) -> Mapping[str, Tensor]:
        """The GGN and the functional part of a diagonal block times a vector, for the certificate."""

    def draw(self, requests: Sequence[Request]) -> Iterator[Drawn]:
        """The lengths of all products asked for."""


SourceMaker = Callable[[Problem, Sequence[Block], Sequence[str], int], ProbeSource | None]
"""Problem, blocks, parts and seed to a source; None where it knows no way."""
_MAKERS: ContextVar[tuple[SourceMaker, ...]] = ContextVar("probe sources", default=())


@contextmanager
def probe_source(make: SourceMaker) -> Iterator[None]:
    """A scope in which sampled norms ask for another source of HVPs first; it is used once autograd agreed with it."""
    token = _MAKERS.set((make, *_MAKERS.get()))
    try:
        yield
    finally:
        _MAKERS.reset(token)


def registered_sources() -> tuple[SourceMaker, ...]:
    """What `probe_source` has registered here, the innermost scope first."""
    return _MAKERS.get()


class GraphSource:
    """Products through the graph of each batch, or the tape that takes over from it.

    With a single batch its graph stays for further requests on the same blocks. With several, the products of all
    batches must add up before they are measured: as many are held at once as the workspace takes, and the graphs are
    made anew for the next ones. Where processes share the data, theirs add up too, one product after the other.

    Args:
        problem: What is differentiated.
        parts: Among "full", "ggn" and "functional".
        seed: Seed of the probes.
        workspace: Bytes of products held at once, where there are several batches.

    Attributes:
        way: How the last products were made, and the reason; empty as long as there were too few to choose.
    """

    def __init__(self, problem: Problem, parts: Sequence[str], seed: int, workspace: int = WORKSPACE) -> None:
        self.problem, self.parts, self.seed, self.workspace = problem, tuple(parts), seed, workspace
        self._kept: tuple[tuple[str, ...], Repeated] | None = None
        self.way = ""

    def draw(self, requests: Sequence[Request]) -> Iterator[Drawn]:
        """The lengths of all products asked for, block by block and probe by probe."""
        names = tuple(dict.fromkeys(request.block.parameter for request in requests))
        if len(self.problem.data) == 1:
            at = self._graph(names)
            at.expect(sum(request.stop - request.start for request in requests))
            for request in requests:
                yield from self._drawn_from(at, request)
            return
        self._kept = None
        drawn = [(r, r.probes(self.problem, self.seed)) for r in requests if r.start < r.stop]
        wanted = [(r.block, probes, k) for r, probes in drawn for k in range(r.start, r.stop)]
        for chunk in self._chunks(wanted):
            sums: list[Products] = []
            for number, item in enumerate(chunk):
                yield self._drawn(item, partial(self._summed, names, chunk, number, sums))

    def _drawn_from(self, at: Repeated, request: Request) -> Iterator[Drawn]:
        """The lengths of products with one batch, some vectors at once where that is faster."""
        k = request.start
        probes = request.probes(self.problem, self.seed) if k < request.stop else None
        while probes is not None and k < request.stop:
            width = at.vectors_at_once(request.stop - k)
            products: list[Products] = []

            def share(number: int, first: int = k, width: int = width, products: list[Products] = products) -> Products:
                if not products:
                    products += self._products(at, request.block, probes, first, width)
                return products[number]

            for number in range(width):
                yield self._drawn((request.block, probes, k + number), partial(share, number))
            k += width

    def release(self) -> None:
        """Drop the graph, or the tape, that is kept."""
        self._kept = None

    def _graph(self, names: tuple[str, ...]) -> Repeated:
        if self._kept is None or self._kept[0] != names:
            self._kept = None  # before the next one is made: never two graphs at once
            self._kept = names, Repeated(self.problem, self.problem.data[0], names)
        return self._kept[1]

    def _chunks(self, wanted: list[Wanted]) -> Iterator[list[Wanted]]:
        chunk: list[Wanted] = []
        held = 0
        for item in wanted:
            size = item[0].numel * len(self.parts) * self.problem.dtype.itemsize
            if chunk and held + size > self.workspace:
                yield chunk
                chunk, held = [], 0
            chunk.append(item)
            held += size
        yield chunk

    def _summed(self, names: tuple[str, ...], chunk: list[Wanted], number: int, sums: list[Products]) -> Products:
        """One product of a chunk, summed over the batches; with the first of them all are made."""
        if not sums:
            made: list[Products] = [self._nothing(block) for block, _, _ in chunk]
            for batch in self.problem.data:
                at = Repeated(self.problem, batch, names)
                at.expect(len(chunk))
                for total, products in zip(made, self._products_of(at, chunk), strict=True):
                    for part, found in products.items():
                        total[part] += found
            sums += made
        return sums[number]

    def _products_of(self, at: Repeated, wanted: Sequence[Wanted]) -> Iterator[Products]:
        """Products with one batch; some vectors of a block at once where that is faster."""
        for _, same in groupby(wanted, key=lambda item: (item[0].name, item[1])):
            items = list(same)
            while items:
                (block, probes, first), width = items[0], at.vectors_at_once(len(items))
                yield from self._products(at, block, probes, first, width)
                del items[:width]

    @property
    def _asked(self) -> tuple[str, ...]:
        """The parts that are made: the whole is the sum of the two others, if one of these is asked for."""
        return self.parts if len(self.parts) == 1 else ("ggn", "functional")

    def _nothing(self, block: Block) -> Products:
        """What no data adds up to."""
        like = self.problem.params[block.parameter]
        return {part: torch.zeros(block.shape, dtype=like.dtype, device=like.device) for part in self._asked}

    def _products(self, at: Repeated, block: Block, probes: Probes, first: int, count: int) -> list[Products]:
        """Products with one batch, in the parts that are made, from what they share."""
        if count == 1:
            return [self._product(at, (block, probes, first))]
        like = self.problem.params[block.parameter]
        vectors = probes.matrix(first, first + count).T.reshape(count, *block.shape)
        tangents = {block.parameter: torch.stack([block.embed(vector, like) for vector in vectors])}
        found = at.several(self._kind, tangents, [block.parameter])
        self.way = at.way
        products = [part[block.parameter] for part in found]
        return [{part: block.take(d[k]) for part, d in zip(self._asked, products, strict=True)} for k in range(count)]

    @property
    def _kind(self) -> str:
        """What is asked of a graph or a tape."""
        if len(self.parts) > 1:
            return "split"
        return {"full": "hessian", "ggn": "gauss_newton", "functional": "functional"}[self.parts[0]]

    def _product(self, at: Repeated, item: Wanted) -> Products:
        """One product with one batch, in the parts that are made, from what they share."""
        block, probes, k = item
        vector = probes.vector(k).reshape(block.shape)
        tangents = {block.parameter: block.embed(vector, self.problem.params[block.parameter])}
        found = getattr(at, self._kind)(tangents, [block.parameter])
        self.way = at.way
        parts = found if self._kind == "split" else (found,)
        return {part: block.take(d[block.parameter]) for part, d in zip(self._asked, parts, strict=True)}

    @counted_as("hvps")
    def _drawn(self, item: Wanted, share: Callable[[], Products]) -> Drawn:
        """The lengths of a product in all parts asked for, of which every process makes its share."""
        block, _, k = item
        said = f"product {k} of {block.name} in {self.parts}"
        summed = self.problem.ranks.all_reduce(said, lambda: list(share().values()))
        found = dict(zip(self._asked, summed, strict=True))
        if "full" in self.parts and "full" not in found:
            found["full"] = found["ggn"] + found["functional"]
        return block.name, {part: length(found[part]) for part in self.parts}


def length(product: Tensor) -> Tensor:
    """Euclidean length, a number in float64."""
    return lengths_of(product.reshape(-1, 1))[0]

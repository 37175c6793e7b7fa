"""Graphs of a network with deltas at some of its maps, never more than one at once, and its last map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hessianlens.network.linear_maps.hooked import HookedBatch
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.readout import Readout, readout_of
from hessianlens.problems import Problem


class Graphs:
    """The graph of one batch, kept for further blocks of the same maps.

    Args:
        problem: From `hessianlens.problem`.

    Attributes:
        kept: The graph, and the batch and maps that it is of; None if there is none.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kept: tuple[tuple[int, frozenset[int], bool], HookedBatch] | None = None
        self._readouts: dict[int, Readout | None] = {}
        self._joined: Mapping[int, Sequence[Piece]] = {}

    def hooked_batch(self, number: int, pieces: Sequence[Piece], products: int = 0) -> HookedBatch:
        """A batch with deltas at some maps; where many products follow, with the quadratic form of its last map."""
        sites = frozenset(piece.use.site for piece in pieces)
        readout = self._readout(number, max(sites), products)
        uses = {piece.use.site: piece.use for piece in (*self._joined.get(number, ()), *pieces)}
        if readout is not None:
            uses = {site: use for site, use in uses.items() if site < readout.use.site}
        key = number, frozenset(uses), readout is not None
        if self.kept is None or self.kept[0] != key:
            self.kept = None  # before the next one is made: never two graphs at once
            self.kept = key, HookedBatch(self.problem, self.problem.data[number], list(uses.values()), readout)
        return self.kept[1]

    @contextmanager
    def together(self, joined: Mapping[int, Sequence[Piece]]) -> Iterator[None]:
        """A scope in which some maps share one graph, because many pairs of them are asked for; by batch."""
        self._joined = joined
        try:
            yield
        finally:
            self._joined = {}
            self.release()

    def release(self) -> None:
        """Drop the graph."""
        self.kept = None

    def _readout(self, number: int, site: int, products: int) -> Readout | None:
        """The last map, if it lies behind a site and its quadratic form is worth so many products, or known."""
        readout = self.readout(number) if products or number in self._readouts else None
        if readout is None or site >= readout.use.site or not readout.pays:
            return None
        known = "curvature" in vars(readout)
        return readout if known or 2 * products >= readout.weight.shape[0] else None

    def readout(self, number: int) -> Readout | None:
        """The last map at a batch, if its outputs are those of the network and their loss is cross-entropy."""
        if number not in self._readouts:
            self._readouts[number] = readout_of(self.problem, self.problem.data[number])
        return self._readouts[number]

"""Norms of the diagonal blocks of a problem, refined step by step; what is known can be read at any time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hessianlens.curvature import verify
from hessianlens.network.base.progress import Deadline, DeadlinePace, Watch
from hessianlens.network.base.sampling import GraphSource, ProbeSource, Request
from hessianlens.network.exact_norms import RTOL, ExactNorms
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.parts import NORM_METHODS, method_name
from hessianlens.problems import Block, Problem, layer_groups
from hessianlens.sizes import number_of
from hessianlens.sketching.sampler import samples_needed
from hessianlens.spectra import Estimate
from hessianlens.spectra.norms import norm_from_lengths
from hessianlens.work_times import counted_as

PROBES = 20
"""Probe vectors per block, where nothing else is asked for."""
_BASIS_UP_TO = 20
"""Entries of a block up to which every basis vector is used in the first pass of a run with a budget."""
_MOST_AT_ONCE = 16
"""Probes that one visit of a block adds at most, so that time is spent where the interval is widest."""


class NormRun:
    """Norms by block and part: exact where the closed form is, sampled elsewhere.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What is measured.
        parts: Among "full", "ggn" and "functional".
        seed: Seed of the probes.
        method: "auto", "exact", "sketch" or "probes", as for `hessianlens.block_norms`.
        rtol: Half the width of an interval, over its norm, that is narrow enough; None for exact norms where these are
            worth it, and a given number of probes elsewhere.
        watch: Progress callback: the next step and the HVPs done.
        saved: Where exact norms are written as they become known, and read from before anything is done.
    """

    def __init__(
        self,
        problem: Problem,
        blocks: Sequence[Block],
        parts: Sequence[str],
        *,
        seed: int = 0,
        method: str = "auto",
        rtol: float | None = None,
        watch: Watch | None = None,
        saved: SavedNorms | None = None,
    ) -> None:
        self.problem, self.blocks, self.parts = problem, tuple(blocks), tuple(parts)
        self.seed, self.method, self.rtol, self.watch = seed, method_name(method, NORM_METHODS), rtol, watch or Watch()
        self.products, self.saved = 0, saved
        self.why: dict[str, str] = {}
        self._exact: dict[tuple[str, str], Estimate] = {}
        self._lengths: dict[str, list[dict[str, Tensor]]] = defaultdict(list)
        self._columns: dict[str, list[dict[str, Tensor]]] = {}
        self._known: dict[str, tuple[int, dict[str, Estimate]]] = {}
        self._sampled: list[Block] = list(self.blocks)
        self._graphs = GraphSource(problem, self.parts, seed)
        self._other: ProbeSource | None = None
        self._solver: ExactNorms | None = None
        self._covered: set[str] = set()

    # --- what is known -----------------------------------------------------------------------------------------------

    @property
    def found(self) -> dict[tuple[str, str], Estimate]:
        """Every norm that is known so far, by block and part, in the order of the model."""
        known = [(block.name, self.estimates(block)) for block in self.blocks]
        return {(name, part): norms[part] for name, norms in known for part in norms}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Blocks about which nothing is known."""
        return tuple(block.name for block in self.blocks if not self.estimates(block))

    def estimates(self, block: Block) -> dict[str, Estimate]:
        """The norms of a block by part; none before it was measured."""
        if (block.name, self.parts[0]) in self._exact:
            return {part: self._exact[block.name, part] for part in self.parts}
        columns, drawn = self._columns.get(block.name, []), self._lengths.get(block.name, [])
        size, cached = len(columns) + len(drawn), self._known.get(block.name)
        if cached is None or cached[0] != size:
            complete = len(columns) == block.numel
            cached = size, self._estimated(columns if complete else drawn, complete)
            self._known[block.name] = cached
        return cached[1]

    def _estimated(self, drawn: Sequence[dict[str, Tensor]], basis: bool) -> dict[str, Estimate]:
        if not drawn:
            return {}
        seed = None if basis else self.seed
        lengths = {part: torch.stack([one[part] for one in drawn]) for part in self.parts}
        return {part: norm_from_lengths(found, seed=seed, exact=basis) for part, found in lengths.items()}

    def width(self, block: Block) -> float:
        """How uncertain a block is: the relative half-width of its widest interval; infinite if nothing is known."""
        found = self.estimates(block)
        return max((norm.relative_width() for norm in found.values()), default=math.inf)

    def drawn(self, block: Block) -> int:
        """Random vectors that a block was multiplied with."""
        return len(self._lengths.get(block.name, ()))

    def lengths(self, block: Block) -> dict[str, Tensor]:
        """By part, the lengths of the products with the block's random vectors, in their order; empty if exact."""
        drawn = self._lengths.get(block.name, [])
        if not drawn or len(self._columns.get(block.name, [])) == block.numel:
            return {}
        return {part: torch.stack([one[part] for one in drawn]) for part in self.parts}

    # --- work --------------------------------------------------------------------------------------------------------

    def solve(self, probes: int = PROBES) -> None:
        """Everything that can be had exactly at a price that is worth it.

        Args:
            probes: Products with random vectors that a block would get otherwise.
        """
        if self.method == "probes":
            return
        self._solver = ExactNorms(self.problem, self.parts, self.method, self.rtol, self.seed, self.watch, self.saved)
        self._solve(self.blocks, {block.name: probes for block in self.blocks})

    @counted_as("closed_forms")
    def _solve(self, blocks: Sequence[Block], probes: Mapping[str, int]) -> None:
        """Everything exact that costs no more than so many probes per block."""
        solver = self._solver
        assert solver is not None
        solver.solve(blocks, probes)
        self._exact, self._other = solver.found, solver.source
        self._covered = {block.name for block in solver.covered}
        self.why.update(solver.why)
        self._sampled = [block for block in self.blocks if (block.name, self.parts[0]) not in self._exact]

    @property
    def sampled(self) -> list[Block]:
        """Blocks without a closed form; all of them before `solve`."""
        return self._sampled

    def sample(self, probes: int) -> None:
        """So many probes for every block without a closed form; all basis vectors where that is no more.

        With a tolerance, the blocks of a layer get more of them, or are solved exactly, while its graph is there.
        """
        together = [self._request(block, probes) for block in self._sampled if block.name in self._covered]
        if together:
            self.watch.step(f"{number_of(len(together), 'block')} together")
            self._keep(self._source(together).draw(together))
        for group in layer_groups([block for block in self._sampled if block.name not in self._covered]):
            self._verify(group)
            for _ in self._visit([self._request(block, probes) for block in group]):
                pass
            if self.rtol is not None:
                self._narrow(group)
        self._graphs.release()

    def _narrow(self, group: Sequence[Block]) -> None:
        """Blocks of a layer with intervals wider than asked: exactly, or by more probes, whichever is cheaper."""
        needed = {block.name: self._needed(block) for block in group if self.drawn(block)}
        wide = [block for block in group if needed.get(block.name, 0) > self.drawn(block)]
        if self._solver is not None and self.method == "auto" and wide:
            self._solve(wide, {block.name: needed[block.name] - self.drawn(block) for block in wide})
        requests = [self._request(block, needed[block.name]) for block in wide if block in self._sampled]
        if requests:
            self.watch.extend(sum(request.stop - request.start for request in requests))
            for _ in self._visit(requests):
                pass

    def _needed(self, block: Block) -> int:
        """Probes in all for an interval of the width asked for, in every part."""
        found = []
        for part in self.parts:
            lengths = torch.stack([one[part] for one in self._lengths[block.name]]).double()
            squares = (lengths / (float(lengths.max()) or 1.0)).square()
            if len(squares) > 1 and bool(squares.any()):
                found.append(samples_needed(float(squares.mean()), float(squares.std()), 0.0, self.rtol or RTOL))
        return max(found, default=0)

    def refine(self, deadline: Deadline, rtol: float, probes: int | None = None) -> None:
        """A first pass with one probe per block, then more where the interval is widest, until time is up.

        Args:
            deadline: When to stop; a product that would not end in time is not begun.
            rtol: Blocks whose intervals are no wider than this, relative to their norms, are left as they are.
            probes: The most probes per block.
        """
        most = math.inf if probes is None else probes
        pace = DeadlinePace(deadline)
        groups = layer_groups(self._sampled)
        for group in groups:
            self._verify(group)  # outside of the products that the pace is taken from
            if not pace.run(group[0].name, self._visit([self._first(block) for block in group])):
                break
        while pace.going:
            open_ones = [block for block in self._sampled if self.drawn(block) < most and self.width(block) > rtol]
            if not open_ones:
                break
            group = max(groups, key=lambda group: self._gain(group, open_ones, pace))
            widest = max((block for block in group if block in open_ones), key=self.width)
            chosen = [block for block in group if block in open_ones and self.width(block) > self.width(widest) / 2]
            pace.run(group[0].name, self._visit([self._more(block, most) for block in chosen]), spare_some=True)
        self._graphs.release()

    def _gain(self, group: Sequence[Block], open_ones: Sequence[Block], pace: DeadlinePace) -> tuple[float, float]:
        """Groups with wide intervals come first, and of two that are alike the one with the cheaper products."""
        widest = max((self.width(block) for block in group if block in open_ones), default=-math.inf)
        return widest, -pace.expected(group[0].name)

    def _visit(self, requests: Sequence[Request]) -> Iterator[None]:
        """Draw what is asked for, one product at a time."""
        first = requests[0].block.name
        self.watch.step(first + (f" and {len(requests) - 1} more" if len(requests) > 1 else ""))
        source = self._source(requests)
        for drawn in source.draw(requests):
            self._keep([drawn])
            self._say(drawn[0], source.way if isinstance(source, GraphSource) else "")
            yield

    def _say(self, name: str, way: str) -> None:
        """Which way the products of a block go, beside why they are needed."""
        known = self.why.get(name, "")
        if way and way not in known:
            self.why[name] = f"{known}; {way}" if known else way

    @counted_as("checks")
    def _verify(self, blocks: Sequence[Block]) -> None:
        """Once for every layer: its second derivatives are all there."""
        if blocks:
            verify(self.problem, [block.parameter for block in blocks])

    def _keep(self, drawn: Iterator[tuple[str, dict[str, Tensor]]] | Sequence[tuple[str, dict[str, Tensor]]]) -> None:
        for name, lengths in drawn:
            # Vectors of the basis, once begun, are finished before anything else is asked of a block.
            (self._columns if name in self._columns else self._lengths)[name].append(lengths)
            self.products += 1
            self.watch.products(1)

    def _source(self, requests: Sequence[Request]) -> GraphSource | ProbeSource:
        covered = all(request.block.name in self._covered for request in requests)
        return self._graphs if self._other is None or not covered else self._other

    def _request(self, block: Block, probes: int) -> Request:
        """Up to a number of probes in all; every basis vector if the block has no more entries."""
        if probes >= block.numel:
            return Request(block, len(self._columns.setdefault(block.name, [])), block.numel, basis=True)
        drawn = len(self._lengths[block.name])
        return Request(block, drawn, max(drawn, probes))

    def _first(self, block: Block) -> Request:
        return self._request(block, block.numel if block.numel <= _BASIS_UP_TO else 1)

    def _more(self, block: Block, most: float) -> Request:
        """Twice as many probes as before, up to a limit."""
        drawn = self.drawn(block)
        return self._request(block, int(min(drawn + min(max(drawn, 1), _MOST_AT_ONCE), most)))

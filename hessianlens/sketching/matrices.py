"""The norm of a block from random small matrices, exact along the directions that stand out."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from hessianlens.layer.sketch import RANK, Points, Unfolding
from hessianlens.sketching.sampler import LEAST, PILOT, OnProbes, Sampler, samples_needed
from hessianlens.spectra import Estimate, Probes

_AT_ONCE = 2**22
"""Numbers of all responses that are held at once."""
_MOST_DIRECTIONS = 64
_ROUNDING = 1e-12


class MatrixSampler(Sampler):
    """``|H|^2 = |Q^T H|^2 + E |Y - Q Q^T Y|^2`` with Y the response of the block to a random matrix.

    Q are orthonormal directions among the Y: the mean over tokens and, where that makes the rest cheaper, the responses
    of pilots.

    Args:
        block: The block, unfolded.
        name: Of the block: another one has other probes.
        seed: Seed of the probes.
        on_probes: Called with the number of probes made.
    """

    name = "sketch"

    def __init__(self, block: Unfolding, name: str, seed: int, on_probes: OnProbes, like: Tensor) -> None:
        super().__init__(seed, on_probes)
        self._block, self._like, self._next = block, like, 0
        signs, stream = PILOT * RANK * (block.left + block.right), zlib.crc32(name.encode())
        self._signs = Probes(signs, 2**62, seed, dtype=like.dtype, device=like.device, stream=stream)
        self._directions: Points | None = None
        self._pilot: list[Points] = []
        self._at_once, self._largest = 1, 0.0
        self.unit, self.probe_cost, self.complete = block.unit, block.probe_cost, block.left * block.right

    @property
    def left_cost(self) -> float:
        """What is needed once, and the mean."""
        return self._block.set_up_cost + self._block.direction_cost

    def prepare(self) -> None:
        """The mean over tokens is exact."""
        self.known = self._block.constant
        mean = self._block.mean()
        self._largest = float(mean.squares()[0])
        self._at_once = max(1, min(32, _AT_ONCE // max(1, mean.vectors.shape[1])))
        self._add(mean)
        self._largest = 0.0  # that of responses, from now on

    def _add(self, points: Points) -> None:
        """Further directions, orthogonal to those that are there; what they span already is left out."""
        points = self._rest(points)
        gram = points.inner(points)
        sizes, turns = torch.linalg.eigh((gram + gram.T) / 2)
        kept = sizes > _ROUNDING * self._largest
        if not bool(kept.any()):
            return
        points = points.combined((turns[:, kept] / sizes[kept].sqrt()).T)
        self.known += float(self._block.small(points).square().sum())
        self._directions = points if self._directions is None else Points.joined([self._directions, points])

    def _rest(self, points: Points) -> Points:
        """What is orthogonal to the directions; twice, for what rounding leaves at first."""
        for _ in range(2):
            if self._directions is not None:
                points = points.plus(self._directions.combined(-points.inner(self._directions)))
        return points

    def _draw(self, count: int) -> Tensor:
        return torch.cat([points.squares().clamp(min=0) for points in self._responses(count)])

    def pilot(self) -> Tensor:
        """The responses are kept, for they may become directions."""
        self._pilot, self.drawn = list(self._responses(PILOT)), self.drawn + PILOT
        return torch.cat([points.squares() for points in self._pilot]).cpu()

    def _responses(self, count: int) -> Iterator[Points]:
        for left, right in self._matrices(count):
            points = self._block.responses(left, right)
            self._largest = max(self._largest, float(points.squares().max()))
            self._on_probes(len(points))
            yield self._rest(points)

    def _matrices(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random signs over the root of the rank, ``[k, r, .]`` each; `PILOT` of them come from one generator."""
        groups, split = -(-count // PILOT), PILOT * RANK * self._block.left
        signs = self._signs.matrix(self._next, self._next + groups).T.contiguous()
        self._next += groups
        left = signs[:, :split].reshape(-1, RANK, self._block.left)[:count] / math.sqrt(RANK)
        right = signs[:, split:].reshape(-1, RANK, self._block.right)[:count]
        yield from zip(left.split(self._at_once), right.split(self._at_once), strict=True)

    def deepen(self, rtol: float, count: int) -> int | None:
        """Directions of the pilot pay where its responses say much about each other."""
        pilot = Points.joined(self._pilot)
        full = self._directions is not None and len(self._directions) + len(pilot) > _MOST_DIRECTIONS
        direction, probe = self._block.direction_cost, self.probe_cost
        if full or count * probe <= LEAST * probe + len(pilot) * direction:
            return None
        gram = pilot.inner(pilot)
        size = float(gram.diagonal().mean()) or 1.0
        even = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * (_ROUNDING * size)
        alone = 1 / torch.linalg.inv(gram + even).diagonal()  # what each has beyond the span of all others
        known = self.known + float(gram.diagonal().mean() - alone.mean())
        after = samples_needed(float(alone.mean()), float(alone.std()), known, rtol)
        if len(pilot) * direction + after * probe >= min(count, self.complete) * probe:
            return None
        self._add(pilot)
        return after

    def basis(self) -> Estimate:
        """The sum over all matrices of a single entry."""
        left, right = (torch.eye(n, dtype=self._like.dtype, device=self._like.device) for n in self._sizes)
        total = self._block.constant
        for some in torch.arange(self.complete, device=self._like.device).split(self._at_once):
            b, d = some // self._block.right, some % self._block.right
            total += float(self._block.responses(left[b][:, None], right[d][:, None]).squares().sum())
            self._on_probes(len(some))
        return Estimate.exactly(self.unit * math.sqrt(max(total, 0.0)), self.complete, "basis")

    @property
    def _sizes(self) -> tuple[int, int]:
        return self._block.left, self._block.right

"""Several blocks of one shape as one: the pairs of heads of a block that has many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.layer.sketch.unfolding import Points, Unfolding


class SeveralBlocks(Unfolding):
    """The same random matrices for all of them; their responses side by side.

    Args:
        blocks: How often each counts, and the block; all of them have axes of the same sizes.
    """

    def __init__(self, blocks: Sequence[tuple[int, Unfolding]]) -> None:
        first = blocks[0][1]
        assert all((block.left, block.right) == (first.left, first.right) for _, block in blocks)
        self.left, self.right = first.left, first.right
        self.unit = max(block.unit for _, block in blocks)
        self._blocks = [(math.sqrt(times) * block.unit / self.unit, block) for times, block in blocks]

    def responses(self, left: Tensor, right: Tensor) -> Points:
        """Side by side."""
        return self._beside([block.responses(left, right) for _, block in self._blocks])

    def mean(self) -> Points:
        """Where all tokens of all of them respond alike."""
        return self._beside([block.mean() for _, block in self._blocks])

    def _beside(self, found: Sequence[Points]) -> Points:
        sizes = [size for size, _ in self._blocks]
        self._widths = [points.vectors.shape[1] for points in found]
        vectors = torch.cat([size * points.vectors for size, points in zip(sizes, found, strict=True)], 1)
        if all(points.covectors is points.vectors for points in found):
            return Points(vectors, vectors)
        covectors = [size * points.covectors for size, points in zip(sizes, found, strict=True)]
        return Points(vectors, torch.cat(covectors, 1))

    def small(self, directions: Points) -> Tensor:
        """The sum of all of them."""
        split = [each.split(self._widths, 1) for each in (directions.vectors, directions.covectors)]
        total: Tensor | None = None
        for (size, block), vectors, covectors in zip(self._blocks, *split, strict=True):
            found = size * block.small(Points(vectors, covectors))
            total = found if total is None else total + found
        assert total is not None
        return total

    @cached_property
    def constant(self) -> float:
        """The sum of all of them."""
        return sum(size**2 * block.constant for size, block in self._blocks)

    @property
    def set_up_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.set_up_cost for _, block in self._blocks)

    @property
    def probe_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.probe_cost for _, block in self._blocks)

    @property
    def direction_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.direction_cost for _, block in self._blocks)

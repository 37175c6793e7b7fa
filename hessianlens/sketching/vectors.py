"""The norm of a block from its products with random vectors."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from hessianlens.operators import StructuredOperator
from hessianlens.operators.operator import square_by_columns
from hessianlens.sketching.sampler import OnProbes, Sampler
from hessianlens.spectra import Estimate, Probes
from hessianlens.spectra.norms import lengths_of

_AT_ONCE = 2**22
"""Numbers of all vectors and products that are held at once."""


class VectorSampler(Sampler):
    """``|A|^2 = E |A v|^2``.

    Args:
        op: The block.
        name: Of the block: another one has other probes.
        seed: Seed of the probes.
        on_probes: Called with the number of probes made.
    """

    name = "hutchinson"

    def __init__(self, op: StructuredOperator, name: str, seed: int, on_probes: OnProbes) -> None:
        super().__init__(seed, on_probes)
        self._op, self.complete, self.probe_cost = op, op.shape[1], op.multiply_adds
        stream = zlib.crc32(name.encode())
        self._probes = Probes(op.shape[1], 2**62, seed, dtype=op.dtype, device=op.device, stream=stream)
        self._scale = 0.0

    def _draw(self, count: int) -> Tensor:
        size = max(1, _AT_ONCE // sum(self._op.shape))
        found = []
        for start in range(self.drawn, self.drawn + count, size):
            stop = min(start + size, self.drawn + count)
            product = self._op @ self._probes.matrix(start, stop)
            assert isinstance(product, Tensor)
            found.append(lengths_of(product))
            self._on_probes(stop - start)
        lengths = torch.cat(found)
        if not self._scale:  # squares in units of the first lengths neither overflow nor vanish
            self._scale = self.unit = float(lengths.max()) or 1.0
        return (lengths / self._scale).square()

    def basis(self) -> Estimate:
        """One matvec per column."""
        norm = square_by_columns(self._op).root().number(torch.float64, "norm")
        return Estimate.exactly(float(norm), self.complete, "basis")

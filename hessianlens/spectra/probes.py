"""Random vectors to probe a matrix with: seeded one by one, made in chunks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_dtype
from hessianlens.errors import check_choice, check_that, check_whole, expect
from hessianlens.memory import ensure_fits

DISTRIBUTIONS = ("rademacher", "gaussian", "sphere")
_WORKSPACE = 2**25
"""Numbers that a chunk of vectors may hold if the user names no chunk: 256 MiB of float64."""


@dataclass(frozen=True)
class Probes:
    """Vectors ``v_0, ..., v_{count-1}`` with ``E v v^T = I``, or the vectors ``e_k`` of the basis.

    Every vector has a generator of its own, seeded by ``(seed, stream, k)``: ``v_k`` depends neither on the chunks in
    which the vectors are made nor on how many there are, nor on the device.

    Attributes:
        dim: Length of a vector.
        count: Number of vectors.
        seed: Seed of all of them.
        distribution: "rademacher" (entries ±1), "gaussian", "sphere" (uniform on the sphere of radius ``sqrt(dim)``),
            or "basis".
        dtype: Dtype of the entries.
        device: Where the vectors are put; torch's default device if omitted.
        stream: Probes of different streams are independent.

    >>> probes = Probes(dim=4, count=3, seed=0)
    >>> probes.matrix(0, 3).shape
    torch.Size([4, 3])
    >>> torch.equal(probes.matrix(0, 3)[:, 2], probes.vector(2))
    True
    """

    dim: int
    count: int
    seed: int | None = 0
    distribution: str = "rademacher"
    dtype: torch.dtype = torch.float64
    device: torch.device | None = None
    stream: int = 0

    def __post_init__(self) -> None:
        """The distribution is known and there are enough basis vectors."""
        check_choice("distribution", self.distribution, (*DISTRIBUTIONS, "basis"))
        check_whole("dim", self.dim)
        check_whole("probes", self.count)
        check_whole("stream", self.stream, 0)
        check_dtype(self.dtype)
        if self.distribution == "basis":
            expect(self.count <= self.dim, f"probes: got {self.count} basis vectors of length {self.dim}.")
        else:
            check_seed(self.seed)

    @classmethod
    def of_block(
        cls, name: str, dim: int, count: int, seed: int | None, dtype: torch.dtype, device: torch.device | None = None
    ) -> Probes:
        """The probes of a named block: random signs, or every basis vector where those are no more than `count`.

        The stream is a hash of the name, the same on every machine: blocks of equal size have independent probes, and
        a block has the same ones whatever other blocks are measured.

        >>> one, other = (Probes.of_block(name, 64, 1, 0, torch.float64) for name in ("layer0.attn.q", "layer0.attn.k"))
        >>> torch.equal(one.vector(0), other.vector(0))
        False
        """
        if check_whole("probes", count) >= check_whole("dim", dim):
            return cls(dim, dim, None, "basis", dtype, device)
        check_that(isinstance(name, str), "name", name, "the name of a block")
        return cls(dim, count, seed, "rademacher", dtype, device, zlib.crc32(name.encode()))

    def vector(self, k: int) -> Float[Tensor, "{self.dim}"]:
        """Probe number k."""
        check_whole("k", k, 0, self.count - 1)
        return self.matrix(k, k + 1)[:, 0]

    def matrix(self, start: int, stop: int) -> Float[Tensor, "{self.dim} vectors"]:
        """Probes number start, ..., stop - 1, as columns."""
        check_whole("start", start, 0)
        indices = range(start, check_whole("stop", stop, start, self.count, "the number of probes"))
        ensure_fits("The probes", (self.dim, len(indices)), torch.float64, torch.device("cpu"), "take fewer at once", 2)
        if self.distribution == "basis":
            columns = torch.zeros(self.dim, len(indices), dtype=self.dtype, device=self.device)
            columns[list(indices), list(range(len(indices)))] = 1
            return columns
        drawn = np.empty((self.dim, len(indices)), dtype=np.int8 if self.distribution == "rademacher" else np.float64)
        for column, k in enumerate(indices):
            drawn[:, column] = self._draw(k)
        return torch.from_numpy(drawn).to(device=self.device, dtype=self.dtype)

    def _draw(self, k: int) -> np.ndarray:
        source = np.random.SeedSequence(entropy=self.seed, spawn_key=(self.stream, k))
        generator = np.random.Generator(np.random.PCG64(source))
        if self.distribution == "rademacher":
            bits = np.frombuffer(generator.bytes(-(-self.dim // 8)), dtype=np.uint8)
            return np.unpackbits(bits, count=self.dim).view(np.int8) * 2 - 1
        normal = generator.standard_normal(self.dim)
        if self.distribution == "sphere":
            normal *= math.sqrt(self.dim) / np.linalg.norm(normal)
        return normal

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All probes as matrices of at most `size` columns."""
        check_whole("size", size)
        for start in range(0, self.count, size):
            yield self.matrix(start, min(start + size, self.count))


def chunk_size(chunk: int | None, length: int, count: int, copies: int = 1) -> int:
    """Vectors to multiply at once: what the user says, else as many as fit the workspace.

    >>> chunk_size(None, length=2**20, count=100), chunk_size(None, length=2**40, count=100), chunk_size(7, 10, 100)
    (32, 1, 7)
    """
    if chunk is not None:
        return min(check_whole("chunk", chunk, 1, why="vectors at once"), max(1, count))
    return max(1, min(count, _WORKSPACE // max(1, length * copies)))


def check_seed(seed: int | None) -> None:
    """A seed is a non-negative whole number."""
    whole = isinstance(seed, Integral) and not isinstance(seed, bool) and seed >= 0
    check_that(whole, "seed", seed, "a non-negative whole number")


def check_count(name: str, value: int, least: int, why: str) -> None:
    """A whole number that is large enough."""
    check_whole(name, value, least, why=why)

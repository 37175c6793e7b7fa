"""The matrix of norms between all pairs of blocks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.curvature import BlockPairOperator, FunctionalOperator, GaussNewtonOperator, HessianOperator
from hessianlens.errors import check_choice, check_seed, check_whole, shown
from hessianlens.network.forecast import ensure_fits_in_memory
from hessianlens.network.operators import Pattern
from hessianlens.network.sampling import WORKSPACE
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.spectra import Estimate
from hessianlens.spectra.probes import Probes

_KINDS: dict[str, type[BlockPairOperator]] = {
    "full": HessianOperator,
    "ggn": GaussNewtonOperator,
    "functional": FunctionalOperator,
}


@dataclass(frozen=True)
class PairNorms:
    """Frobenius norms of every pair of blocks.

    Attributes:
        names: The blocks, in model order.
        part: "full", "ggn" or "functional".
        estimates: Norm of the block in row r and column c, by name.
    """

    names: tuple[str, ...]
    part: str
    estimates: dict[tuple[str, str], Estimate]

    def __getitem__(self, key: tuple[str, str]) -> Estimate:
        if not isinstance(key, Hashable) or key not in self.estimates:
            raise KeyError(f"{shown(key)}, expected two of the blocks {', '.join(self.names[:8])}")
        return self.estimates[key]

    def values(self) -> Tensor:
        """The norms as a matrix."""
        return torch.tensor([[self.estimates[r, c].value for c in self.names] for r in self.names], dtype=torch.float64)

    def stderrs(self) -> Tensor:
        """Their standard errors as a matrix."""
        return torch.tensor(
            [[self.estimates[r, c].stderr for c in self.names] for r in self.names], dtype=torch.float64
        )

    def __str__(self) -> str:
        width = max(map(len, self.names))
        head = " " * width + "  " + "  ".join(name.rjust(max(9, len(name))) for name in self.names)
        rows = [
            name.ljust(width)
            + "  "
            + "  ".join(f"{self.estimates[name, c].value:.3g}".rjust(max(9, len(c))) for c in self.names)
            for name in self.names
        ]
        return "\n".join([head, *rows])


def block_pair_norms(
    problem: Problem, blocks: Pattern = "*", part: str = "full", *, probes: int = 20, seed: int = 0
) -> PairNorms:
    """Frobenius norms of all pairs of blocks: each probe of a column block gives the norms of every row block.

    The matrix is symmetric; both halves are estimated, from the probes of either side, and their squares averaged, so
    that the result is symmetric too.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Names, globs or ``re:`` expressions.
        part: "full", "ggn" or "functional".
        probes: Random vectors a column block; a block with no more entries than that is answered exactly.
        seed: Seed of the probes.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> norms = block_pair_norms(problem, "layer0.attn.?", probes=4)
    >>> norms.values().shape, norms["layer0.attn.q", "layer0.attn.v"] == norms["layer0.attn.v", "layer0.attn.q"]
    (torch.Size([4, 4]), True)
    """
    check_problem(problem)
    check_choice("part", part, tuple(_KINDS))
    check_whole("probes", probes, 2, why="the error bar is their spread")
    check_seed(seed)
    chosen = problem.select(blocks)
    ensure_fits_in_memory(problem, chosen, probes, 1)
    one_sided = {}
    for column in chosen:
        operator = _KINDS[part](problem, chosen, [column])
        one_sided.update(_column(operator, chosen, column, probes, seed))
    names = tuple(block.name for block in chosen)
    both: dict[tuple[str, str], Estimate] = {}
    for k, r in enumerate(names):
        for c in names[: k + 1]:
            both[r, c] = both[c, r] = _combined(one_sided[r, c], one_sided[c, r])
    return PairNorms(names, part, both)


def _column(
    operator: BlockPairOperator, rows: Sequence[Block], column: Block, probes: int, seed: int
) -> dict[tuple[str, str], Estimate]:
    exact = probes >= column.numel
    kind = "basis" if exact else "rademacher"
    # A stream of its own for every block: the two estimates of a pair must not share probes.
    stream = zlib.crc32(column.name.encode())
    vectors = Probes(
        column.numel, min(probes, column.numel), None if exact else seed, kind, operator.dtype, operator.device, stream
    )
    held = (column.numel + sum(block.numel for block in rows)) * operator.dtype.itemsize
    squares: dict[str, list[Tensor]] = {block.name: [] for block in rows}
    for chunk in vectors.chunks(max(1, WORKSPACE // held)):
        products = operator._matmat([chunk.reshape(*column.shape, -1)])
        for block, product in zip(rows, products, strict=True):
            squares[block.name].append(product.double().flatten(0, -2).square().sum(0))
    return {(name, column.name): norm_from_squares(torch.cat(found), vectors) for name, found in squares.items()}


def norm_from_squares(squares: Tensor, vectors: Probes) -> Estimate:
    """A Frobenius norm from the squared lengths of products with probes."""
    if vectors.distribution == "basis":
        return Estimate.exactly(math.sqrt(float(squares.sum())), vectors.count, "basis")
    square = Estimate.from_samples(squares, vectors.count, vectors.seed, "hutchinson")
    value = math.sqrt(square.value)
    stderr = square.stderr / (2 * value) if value else 0.0
    return Estimate(value, stderr, vectors.count, vectors.seed, "hutchinson", square.dof)


def _combined(one: Estimate, other: Estimate) -> Estimate:
    """The mean of two independent estimates of the same squared norm; an exact one wins."""
    if one is other or one.exact:
        return one
    if other.exact:
        return other
    value = math.sqrt((one.value**2 + other.value**2) / 2)
    spread = math.hypot(one.value * one.stderr, other.value * other.stderr)
    probes = one.probes + other.probes
    return Estimate(value, spread / (2 * value) if value else 0.0, probes, one.seed, "hutchinson", probes - 2)

"""Norms of every block of an attention layer: exact, sketched, or from random vectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from hessianlens.operators import TokenSum
from hessianlens.operators.inner_products import squared_norm_cost
from hessianlens.sketching.choice import Ways, measured
from hessianlens.sketching.matrices import MatrixSampler
from hessianlens.sketching.sampler import Sampler, Told
from hessianlens.sketching.vectors import VectorSampler
from hessianlens.spectra import Estimate
from hessianlens.theory import AttentionHessian

Name = Hashable
Found = tuple[Name, Name, Estimate, str]
"""Names of the rows and the columns, the norm, and why it was found in this way."""


def layer_norms(H: AttentionHessian, part: str, method: str, rtol: float, seed: int, told: Told) -> Iterator[Found]:
    """The norm of every block of a part, one after the other; of a block and its transpose the first.

    Args:
        H: From `hessianlens.attention_hessian`.
        part: "full", "outer" or "functional".
        method: "auto", "exact", "sketch" or "probes".
        rtol: Half the width of an interval, over the norm.
        seed: Seed of the probes.
        told: Is told how many probes are made.
    """
    names = list(H.part(part).rows)
    for number, row in enumerate(names):
        for column in names[number:]:
            found, why = measured(block_ways(H, part, row, column, seed, told), method, rtol)
            yield row, column, found, why


def block_ways(H: AttentionHessian, part: str, row: Name, column: Name, seed: int, told: Told) -> Ways:
    """How the norm of one block can be had."""
    grid, name = H.part(part), f"{row!r} {column!r}"

    def sketch() -> Sampler | str:
        block = H.sketch.block(part, row, column)
        return block if isinstance(block, str) else MatrixSampler(block, name, seed, told, H.loss.gradient)

    def exact_cost() -> float:
        counted, block = H.sketch.exact_cost(part, row, column), grid[row, column]
        assert isinstance(block, TokenSum)
        return squared_norm_cost(block.terms) if counted is None else counted

    return Ways(
        exact=lambda: float(grid[row, column].frobenius_norm()),
        exact_cost=exact_cost,
        sketch=sketch,
        probes=lambda: VectorSampler(grid[row, column], name, seed, told),
    )

"""How the norm of a block of an attention layer can be had: exact, sketched, or from random vectors."""

from __future__ import annotations

from collections.abc import Hashable

from hessianlens.errors import Refusal
from hessianlens.layer import AttentionHessian
from hessianlens.operators import TokenSum
from hessianlens.operators.inner_products import squared_norm_cost
from hessianlens.sketching.choice import Ways
from hessianlens.sketching.matrices import MatrixSampler
from hessianlens.sketching.sampler import Sampler, Told
from hessianlens.sketching.vectors import VectorSampler

Name = Hashable


def block_ways(H: AttentionHessian, part: str, row: Name, column: Name, seed: int, told: Told) -> Ways:
    """How the norm of one block can be had.

    Args:
        H: From `hessianlens.attention_hessian`.
        part: "full", "ggn" (or "outer") or "functional".
        row: Parameter of the rows.
        column: Parameter of the columns.
        seed: Seed of the probes.
        told: Is told how many probes are made.
    """
    part = "outer" if part == "ggn" else part
    grid, name = H.part(part), f"{row!r} {column!r}"

    def sketch() -> Sampler | Refusal:
        block = H.sketch.block(part, row, column)
        return block if isinstance(block, Refusal) else MatrixSampler(block, name, seed, told, H.loss.gradient)

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

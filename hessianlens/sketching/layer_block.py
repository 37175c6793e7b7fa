"""The norm of a block of an attention layer by the cheapest of several ways: exact, sketched, or from probe vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from hessianlens.errors import Refusal
from hessianlens.layer import AttentionHessian
from hessianlens.operators import TokenSum
from hessianlens.operators.inner_products import squared_norm_cost
from hessianlens.sketching.matrices import MatrixSampler
from hessianlens.sketching.sampler import LEAST, PILOT, OnProbes, Sampler, estimate_to_rtol
from hessianlens.sketching.vectors import VectorSampler
from hessianlens.spectra import Estimate


@dataclass(frozen=True, eq=False)
class NormMethods:
    """How the norm of a block can be had.

    Attributes:
        exact: The norm itself.
        exact_cost: Multiply-adds that it takes.
        sketch: From random small matrices; a refusal where there is no such way.
        probes: From products with random vectors.
    """

    exact: Callable[[], float]
    exact_cost: Callable[[], float]
    sketch: Callable[[], Sampler | Refusal]
    probes: Callable[[], Sampler] | None = None


def estimate_norm(ways: NormMethods, method: str, rtol: float) -> tuple[Estimate, str]:
    """The norm and why it was found in this way.

    Args:
        ways: How it can be had.
        method: "auto", "exact", "sketch" or "probes".
        rtol: Half the width of an interval, over the norm.
    """
    if method == "exact":
        return Estimate.exactly(ways.exact()), "method='exact' was asked for"
    if method == "probes" and ways.probes is not None:
        return _without_limit(ways.probes(), rtol), "method='probes' was asked for"
    sampler = ways.sketch()
    if method == "sketch" and isinstance(sampler, Sampler):
        return _trusted(ways, _without_limit(sampler, rtol), "method='sketch' was asked for")
    if isinstance(sampler, Refusal):
        return _without_sketch(ways, sampler, rtol)
    price = ways.exact_cost()
    least = sampler.left_cost + (PILOT + LEAST) * sampler.probe_cost
    if price <= least:
        return Estimate.exactly(ways.exact()), _exactly(price, f"a sketch {_amount(least)} at least")
    found = estimate_to_rtol(sampler, rtol, price)
    if isinstance(found, float):
        return Estimate.exactly(ways.exact()), _exactly(
            price, f"{rtol:.2g} by a sketch a further {_amount(found)}, by its {PILOT} pilot probes"
        )
    spent = sampler.left_cost + found.probes * sampler.probe_cost
    return _trusted(ways, found, f"a sketch takes about {_amount(spent)} multiply-adds, the exact sum {_amount(price)}")


def _without_sketch(ways: NormMethods, refusal: Refusal, rtol: float) -> tuple[Estimate, str]:
    """Exact, or by random vectors where that is far cheaper."""
    price = ways.exact_cost()
    sampler = None if ways.probes is None else ways.probes()
    if sampler is None or price <= (PILOT + LEAST) * sampler.probe_cost:
        return Estimate.exactly(ways.exact()), f"there is no sketch: {refusal}"
    found = estimate_to_rtol(sampler, rtol, price)
    if isinstance(found, float):
        return Estimate.exactly(ways.exact()), f"there is no sketch: {refusal}; " + _exactly(
            price, f"{rtol:.2g} by probes a further {_amount(found)}"
        )
    return found, f"there is no sketch: {refusal}; the exact sum would take {_amount(price)} multiply-adds"


def _without_limit(sampler: Sampler, rtol: float) -> Estimate:
    found = estimate_to_rtol(sampler, rtol)
    assert isinstance(found, Estimate)
    return found


def _trusted(ways: NormMethods, found: Estimate, why: str) -> tuple[Estimate, str]:
    """An estimate, unless its summands cancel so far that the sum may be anything."""
    if found.value > 0 and math.isfinite(found.value):
        return found, why
    return Estimate.exactly(ways.exact()), "the summands of its sketch cancel, or leave the range of numbers"


def _exactly(price: float, other: str) -> str:
    return f"the exact sum takes {_amount(price)} multiply-adds, {other}"


def _amount(multiply_adds: float) -> str:
    return f"{multiply_adds:.2g}"


Name = Hashable


def norm_methods(
    H: AttentionHessian, part: str, row: Name, column: Name, seed: int, on_probes: OnProbes
) -> NormMethods:
    """How the norm of one block can be had.

    Args:
        H: From `hessianlens.attention_hessian`.
        part: "full", "ggn" (or "outer") or "functional".
        row: Parameter of the rows.
        column: Parameter of the columns.
        seed: Seed of the probes.
        on_probes: Called with the number of probes made.
    """
    part = "outer" if part == "ggn" else part
    grid, name = H.part(part), f"{row!r} {column!r}"

    def sketch() -> Sampler | Refusal:
        block = H.sketch.block(part, row, column)
        return block if isinstance(block, Refusal) else MatrixSampler(block, name, seed, on_probes, H.loss.gradient)

    def exact_cost() -> float:
        counted, block = H.sketch.exact_cost(part, row, column), grid[row, column]
        assert isinstance(block, TokenSum)
        return squared_norm_cost(block.terms) if counted is None else counted

    return NormMethods(
        exact=lambda: float(grid[row, column].frobenius_norm()),
        exact_cost=exact_cost,
        sketch=sketch,
        probes=lambda: VectorSampler(grid[row, column], name, seed, on_probes),
    )

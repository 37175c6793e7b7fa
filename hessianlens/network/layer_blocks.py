"""Norms of the blocks of a layer by itself, under the names of a layer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hessianlens.errors import check_that, expect, shown
from hessianlens.layer import AttentionHessian
from hessianlens.network.watch import Deadline, Watch
from hessianlens.sketching import block_ways, measured
from hessianlens.spectra import Estimate

Name = Hashable
Pair = tuple[Name, Name]


def layer_block_norms(
    H: AttentionHessian,
    blocks: object,
    parts: Sequence[str],
    method: str,
    rtol: float,
    seed: int,
    watch: Watch,
) -> tuple[dict[tuple[Pair, str], Estimate], dict[Pair, str]]:
    """Norms by pair of parameters and part, and by pair why they were found in this way.

    Args:
        H: The layer's Hessian.
        blocks: Pairs of names; "*" for all.
        parts: Among "full", "ggn" and "functional".
        method: "auto", "exact", "sketch" or "probes".
        rtol: Half the width of an interval, over its norm.
        seed: Seed of the probes.
        watch: Is told what comes next and how many probes are made.
    """
    found: dict[tuple[Pair, str], Estimate] = {}
    why: dict[Pair, str] = {}
    watch.begin(None, Deadline())
    for row, column in _pairs(H, blocks):
        reasons: dict[str, str] = {}
        for part in parts:
            if ((column, row), part) in found:
                found[(row, column), part], reasons[part] = found[(column, row), part], why[column, row]
                continue
            watch.step(f"{row}, {column}, {part}")
            ways = block_ways(H, part, row, column, seed, watch.products)
            found[(row, column), part], reasons[part] = measured(ways, method, rtol)
        same = len(set(reasons.values())) == 1
        told = [reasons[parts[0]]] if same else [f"{part}: {reason}" for part, reason in reasons.items()]
        why[row, column] = "; ".join(told)
    return found, why


def _pairs(H: AttentionHessian, blocks: object) -> list[Pair]:
    names = list(H.full.rows)
    if isinstance(blocks, str) and blocks == "*":
        return [(row, column) for row in names for column in names]
    pairs = isinstance(blocks, Sequence) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in blocks)
    check_that(
        pairs and not isinstance(blocks, str), "blocks", blocks, f"pairs of names, as [({names[0]!r}, {names[-1]!r})]"
    )
    assert isinstance(blocks, Sequence)
    for name in (name for pair in blocks for name in pair):
        expect(name in names, f"blocks: got {shown(name)}, expected one of {', '.join(map(repr, names))}.")
    return [(row, column) for row, column in blocks]

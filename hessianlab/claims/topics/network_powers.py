"""Powers of the embeddings' scale in the blocks of a network, against what they are said to explain."""

from __future__ import annotations

import math

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Check, Finding, at_most, close
from hessianlab.claims.networks import BLOCK, norms, over_seeds
from hessianlab.experiments.statistics import geometric_mean


def _part(block: str, part: str, sigma: float) -> float:
    """Geometric mean over 3 seeds of a block's norm."""
    return geometric_mean(over_seeds(lambda seed: norms(BLOCK, seed, sigma)[0, block, part], 3))


@claim("A9")
def arithmetic_of_powers() -> Finding:
    """The powers near 0.1, and the orders between the blocks there."""
    sigma = 0.1
    sizes = {(b, p): _part(b, p, sigma) for b in "qv" for p in ("full", "ggn")}
    powers = {key: math.log2(size / _part(*key, sigma / 2)) for key, size in sizes.items()}
    apart = {p: math.log10(sizes["v", p] / sizes["q", p]) for p in ("full", "ggn")}

    def as_claimed(part: str, name: str) -> tuple[Check, Check, Check]:
        return (
            close(f"power of sigma in the query block, {name}", powers["q", part], 6, 0.2),
            close(f"power of sigma in the value block, {name}", powers["v", part], 2, 0.2),
            close(f"orders between the two at sigma = 0.1, {name}", apart[part], 4, 0.5),
        )

    outer = as_claimed("ggn", "outer product")
    return Finding(
        checks=(*outer, *as_claimed("full", "whole block")),
        conditional=outer,
        support=(
            close("power of sigma in the query block, whole block", powers["q", "full"], 5, 0.2),
            at_most(
                "outer product over the whole query block at sigma = 0.1", sizes["q", "ggn"] / sizes["q", "full"], 0.2
            ),
            at_most("orders between the whole blocks at sigma = 0.1", apart["full"], 3.5),
        ),
        example=f"sigma = 0.1, d = 32: query block {sizes['q', 'full']:.1e}, its outer product "
        f"{sizes['q', 'ggn']:.1e}, value block {sizes['v', 'full']:.1e}: ratios of {10 ** apart['full']:.0f} and "
        f"{10 ** apart['ggn']:.0f}.",
    )

"""Powers of the embeddings' scale in the blocks of a network, against what they are said to explain."""

from __future__ import annotations

import math

from hessianlens.lab.claims.check import Check, at_most, close
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.networks import BLOCK, norms, over_seeds
from hessianlens.lab.experiments.common.means import geometric_mean


def _part(block: str, part: str, sigma: float) -> float:
    """Geometric mean over 3 seeds of a block's norm."""
    return geometric_mean(over_seeds(lambda seed: norms(BLOCK, seed, sigma)[0, block, part], 3))


@claim(
    "A9",
    source="The root of the heterogeneity: data dependence",
    statement="At embeddings of scale 0.1, sigma^6 = 1e-6 is vastly smaller than sigma^2 = 1e-2, and this is precisely "
    "why the query block is so much smaller than the value block.",
    method="exact norms of the blocks at sigma = 0.05 and 0.1 (d = 32, 3 seeds), whole and outer product alone: their "
    "powers of sigma against 6 and 2 (within 0.2), and the orders between them at 0.1 against the 4 that 1e-6 and 1e-2 "
    "make (within 0.5)",
)
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
        condition="the outer product alone is meant.",
        support=(
            close("power of sigma in the query block, whole block", powers["q", "full"], 5, 0.2),
            at_most(
                "outer product over the whole query block at sigma = 0.1", sizes["q", "ggn"] / sizes["q", "full"], 0.2
            ),
            at_most("orders between the whole blocks at sigma = 0.1", apart["full"], 3.5),
        ),
        correction="The powers 6 and 2 and the four orders between them are right for the outer product. But at this "
        "scale the query block consists almost wholly of its functional part, which goes as the fifth power. So the "
        "whole blocks are about three orders apart at sigma = 0.1, not four; the two orders of the paper's figure "
        "belong to sigma = 0.2.",
        example=f"sigma = 0.1, d = 32: query block {sizes['q', 'full']:.1e}, its outer product "
        f"{sizes['q', 'ggn']:.1e}, value block {sizes['v', 'full']:.1e}: ratios of {10 ** apart['full']:.0f} and "
        f"{10 ** apart['ggn']:.0f}.",
    )


CLAIMS = (arithmetic_of_powers,)

"""Attention moments: what the blocks see of an attention row."""

from __future__ import annotations

import numpy as np

from hessianlab.claims.ledger import Ledger
from hessianlab.figures.presentation.moment_strata import BLOCKS, curve
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.results.table import numbers, select, short

_EXACT = 1e-9
_FADED = 1e-2


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Whether moments rebuild the blocks, and what is left of these near one-hot attention."""
    if "moment_strata" not in results:
        return None
    result = results["moment_strata"]
    gap = max(float(numbers(select(result, quantity=name), "gap").max()) for name in BLOCKS)
    left = {name: float(np.median(curve(result, name)[:, -1] / curve(result, name)[:, 0])) for name in BLOCKS}
    rebuilt, fades = gap < _EXACT, left["outer QQ"] < _FADED and left["functional QQ"] < _FADED
    good = rebuilt and fades
    told = (
        f"each block can be rebuilt from one moment of the attention rows, up to rounding ({short(gap)} of the norm "
        f"of the whole Hessian); when attention settles on a "
        f"single token, {short(left['outer QQ'])} of the query block's outer part is left, while the value block is "
        f"multiplied by {short(left['outer VV'])}."
    )
    return Answer(
        "yes" if good else "no",
        "yes" if good else "not in this run",
        told[0].upper() + told[1:],
        (
            Number("largest gap of a rebuilt block, over the norm of the whole Hessian", short(gap), "0"),
            *(Number(f"{name}, one-hot over uniform", short(value)) for name, value in left.items()),
        ),
    )


CHAPTER = Chapter(
    slug="moments",
    title="Attention moments",
    question="Does curvature depend on where attention looks?",
    introduction="A row of attention is a set of weights on the tokens. Its moments are the mean of the tokens under "
    "these weights (the first), their covariance (the second) and their skewness (the third). Attention that looks at "
    "one token only has a mean, and no spread.",
    figures=("moment_strata",),
    topics=("moments", "activation moments", "activation peaked", "scores"),
    answer=answer,
)

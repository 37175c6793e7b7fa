"""What was measured, as plain numbers; figures and page read these and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hessianlab.layer_page.config import LayerConfig
from hessianlab.results.result import Provenance


@dataclass(frozen=True)
class Agreement:
    """Largest entrywise differences between the witnesses of one part, relative to its largest entry.

    Attributes:
        verdict: "agree", "differ", or "agree up to rounding" for a part so small that it is made of cancellations, as
            when attention is one-hot.
    """

    part: str
    largest_entry: float
    closed_dense: float
    closed_product: float
    product_dense: float
    verdict: str

    @property
    def worst(self) -> float:
        """The largest of the three differences."""
        return max(self.closed_dense, self.closed_product, self.product_dense)

    @property
    def agree(self) -> bool:
        """Whether the witnesses give the same matrix."""
        return self.verdict != "differ"


@dataclass(frozen=True)
class BlockNorms:
    """Frobenius norms of the block between two weight matrices."""

    row: str
    column: str
    rows: int
    columns: int
    outer: float
    functional: float
    full: float


@dataclass(frozen=True)
class Curvature:
    """Trace and spectrum of one diagonal block, or of the whole matrix, in one part.

    Attributes:
        name: "Q", "K", "V", or "all" for the whole matrix.
        negative: Number of eigenvalues below zero by more than rounding.
        negative_share: What they add up to, as a share of the sum of all absolute eigenvalues.
    """

    name: str
    part: str
    size: int
    trace: float
    smallest: float
    largest: float
    negative: int
    negative_share: float


@dataclass(frozen=True)
class GrowthCurve:
    """Norms of one block along the token scale, the fitted exponent and the predicted one.

    Attributes:
        norms: One for each scale; None where the norm is not a finite number.
        slope: Least-squares slope of log norm against log scale in the fit range; None for a block of zeros.
        predicted: From the activation alone; None for a block that is identically zero.
        verdict: "agree", "differ", or "vanishes" if the block is zero here but not in general.
    """

    activation: str
    part: str
    row: str
    column: str
    norms: tuple[float | None, ...]
    slope: float | None
    predicted: int | None
    verdict: str


@dataclass(frozen=True)
class Growth:
    """All growth curves, on one grid of token scales."""

    sigmas: tuple[float, ...]
    fit_low: float
    fit_high: float
    largest_score: float
    tolerance: float
    curves: tuple[GrowthCurve, ...]


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues of the T-functional Hessian, from the closed form and from the dense matrix."""

    singular_values: tuple[float, ...]
    multiplicity: int
    rank: int
    nonzero: int
    negative: int
    closed: tuple[float, ...]
    dense: tuple[float, ...]
    largest_difference: float


@dataclass(frozen=True)
class Rank:
    """Rank of the T-outer-product Hessian at one length and query width.

    Attributes:
        exact: The formula for softmax, one sequence and no mask; None elsewhere.
        smallest_kept: Smallest eigenvalue counted, in absolute value, relative to the largest.
        largest_dropped: Largest one taken for zero; None if none was.
    """

    length: int
    d_k: int
    measured: int
    bound: int
    exact: int | None
    smallest_kept: float | None
    largest_dropped: float | None


@dataclass(frozen=True)
class Sharpness:
    """Norms, entropy and moments with the query weights multiplied by `scale`.

    Attributes:
        entropy: Mean over rows, in nats; None if the rows are not distributions.
        second_moment: Norm of M_2.
        third_moment: Norm of M_3 along the direction in which the loss sees it, ``W_V g_i``.
    """

    scale: float
    outer_qq: float | None
    functional_qq: float | None
    outer_vv: float | None
    entropy: float | None
    second_moment: float | None
    third_moment: float | None


@dataclass(frozen=True)
class Step:
    """A measurement and the time it took."""

    title: str
    seconds: float


@dataclass(frozen=True, eq=False)
class LayerFacts:
    """Everything the page says, computed.

    Attributes:
        matrices: The dense full, outer and functional Hessian, for the heat maps.
        algebra: Printed form of some blocks, by the expression that prints it.
    """

    config: LayerConfig
    loss: float
    mean_square_target: float
    agreements: tuple[Agreement, ...]
    blocks: tuple[BlockNorms, ...]
    curvatures: tuple[Curvature, ...]
    growth: Growth
    pairs: Pairs
    ranks: tuple[Rank, ...]
    sharpness: tuple[Sharpness, ...]
    algebra: Mapping[str, str]
    steps: tuple[Step, ...]
    provenance: Provenance
    matrices: Mapping[str, np.ndarray]

    @property
    def witnesses_agree(self) -> bool:
        """Whether closed form, products and dense autograd give the same matrix, for every part."""
        return all(a.agree for a in self.agreements)

    def to_dict(self) -> dict[str, Any]:
        """Every figure but the dense matrices, ready for JSON."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "matrices"]
        return {name: _plain(getattr(self, name)) for name in names}


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return value

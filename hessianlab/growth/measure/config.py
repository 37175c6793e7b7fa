"""Sizes, seeds, sigma grids and fit ranges of a growth experiment."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlens.errors import check_choice, expect
from hessianlens.notation import CARRIES

LINEAR_MLP, TRANSFORMER = "linear_mlp", "transformer"

NEAR_ZERO = ("small", 0.0, 0.3)
"""One block without norm: tokens have variance 2 sigma^2 an entry and scores a spread of about 1.3 sigma^2, whatever
the width. Below 0.3 that is less than 0.12, and the leading power of every block dominates."""

PRACTICAL = ("practical", 0.0, 1.0)
"""What the paper calls practical values of sigma."""

SATURATED = ("large", 1.0, 10.0)
"""Scores of size one and more: softmax saturates, and no single power is left."""


@dataclass(frozen=True)
class GrowthConfig:
    """One model under one loss, for every depth, sigma and repeat.

    The weights of repeat r come from ``seed + r``; the data are the same for every repeat. See `growth_cells` for the
    seeds of the embeddings and probes.

    Attributes:
        model: "transformer" or "linear_mlp".
        layers: Depths to measure.
        norm: None or "pre".
        attention: Activation of the attention.
        residual_scale: Factor of the skip connection around attention.
        mlp: Whether blocks have an MLP (with its own skip connection).
        loss: "cross_entropy" or "square", of the addition task.
        d_model: Width; d_head is the same, the MLP four times as wide.
        sequences: Sequences of the one batch.
        sigma_low: Smallest sigma of every grid.
        sigma_high: Largest sigma, one grid for each.
        points: Values of sigma a grid.
        spacing: "log" or "linear".
        repeats: Draws of the weights.
        probes: Random vectors a block where there is no closed form.
        seed: First seed of the weights.
        data_seed: Seed of the batch.
        carries: Kind of the batch, "none", "chains" or "mixed" as in `hessianlens.tasks.Addition`; published:
            "none".
        tangents: Precision in which probes go through the layers of a chain, "float32" or "float64"; everything else is
            in float64.
        fit_ranges: Ranges (name, lowest, highest sigma) in which exponents are fitted; `growth.findings.predictions`
            has what theory says about each name.
    """

    model: str = TRANSFORMER
    layers: tuple[int, ...] = (1,)
    norm: str | None = None
    attention: str = "softmax"
    residual_scale: float = 1.0
    mlp: bool = True
    loss: str = "cross_entropy"
    d_model: int = 128
    sequences: int = 64
    sigma_low: float = 0.01
    sigma_high: tuple[float, ...] = (10.0,)
    points: int = 20
    spacing: str = "log"
    repeats: int = 20
    probes: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"
    tangents: str = "float32"
    fit_ranges: tuple[tuple[str, float, float], ...] = (NEAR_ZERO, PRACTICAL, SATURATED)

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_choice("model", self.model, (TRANSFORMER, LINEAR_MLP))
        check_choice("loss", self.loss, ("cross_entropy", "square"))
        check_choice("carries", self.carries, CARRIES)
        check_choice("tangents", self.tangents, ("float32", "float64"))
        check_choice("spacing", self.spacing, ("log", "linear"))
        expect(
            self.model == TRANSFORMER or self.loss == "square",
            f"loss: got {self.loss!r}, expected 'square' for the linear MLP, whose closed form is of that loss.",
        )
        expect(len(self.layers) > 0, "layers: got no depth, expected one or more, e.g. layers=(1, 2).")
        expect(len(self.sigma_high) > 0, "sigma_high: got no grid, expected one or more upper ends, e.g. (10.0,).")
        expect(
            0 < self.sigma_low < min(self.sigma_high),
            f"sigma_low, sigma_high: got {self.sigma_low} and {self.sigma_high}, expected 0 < sigma_low < sigma_high.",
        )
        smallest = {"points": 2, "repeats": 1, "d_model": 1, "sequences": 1, "probes": 2}
        sizes = [(name, getattr(self, name), least) for name, least in smallest.items()]
        for name, value, least in (*sizes, ("layers", min(self.layers), 1)):
            expect(value >= least, f"{name}: got {value}, expected at least {least}.")
        for name, low, high in self.fit_ranges:
            expect(low < high, f"fit_ranges: got {name!r} from {low} to {high}, expected the lower end first.")

    def sigmas(self) -> list[tuple[float, ...]]:
        """The values of sigma, grid by grid.

        >>> GrowthConfig(sigma_low=0.1, sigma_high=(1.0, 10.0), points=3, spacing="linear").sigmas()
        [(0.1, 0.55, 1.0), (0.1, 5.05, 10.0)]
        """
        import numpy as np

        space = np.geomspace if self.spacing == "log" else np.linspace
        return [tuple(float(s) for s in space(self.sigma_low, high, self.points)) for high in self.sigma_high]

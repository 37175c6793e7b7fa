"""The cells of a growth experiment: one depth, one sigma, one repeat, with everything that decides its numbers."""

from __future__ import annotations

from hessianlab.growth.measure.config import GrowthConfig
from hessianlab.results import Scalar
from hessianlens.errors import expect

EMBEDDING_SEEDS = 1_000_000
"""First seed of embeddings, far from those of weights."""

PROBE_SEEDS = 2_000_000_000
"""First seed of probes, far from those of embeddings."""

SIGMAS_A_REPEAT = 10_000
"""Seeds set aside for the sigmas of one repeat."""

_MODEL = ("model", "norm", "attention", "residual_scale", "mlp", "d_model")
_MEASUREMENT = ("loss", "sequences", "data_seed", "carries", "probes", "tangents")


def growth_cells(config: GrowthConfig) -> list[dict[str, Scalar]]:
    """Repeats outermost, so that a run cut short still covers every depth and sigma.

    With n the number of sigma in the concatenated grids, repeat r has the weights of ``seed + r`` and, at its n-th
    sigma, embeddings from ``1000000 + 10000 (seed + r) + n`` and probes from ``2000000000 + 10000 (seed + r) + n``, the
    same for every depth.

    >>> cells = growth_cells(GrowthConfig(layers=(1, 2), points=3, repeats=2))
    >>> len(cells), cells[7]["layers"], cells[7]["repeat"], cells[7]["weight_seed"], cells[7]["embedding_seed"]
    (12, 1, 1, 1, 1010001)
    """
    sigmas = [(grid, sigma) for grid, values in enumerate(config.sigmas()) for sigma in values]
    expect(
        len(sigmas) <= SIGMAS_A_REPEAT,
        f"points: got {len(sigmas)} values of sigma, expected at most {SIGMAS_A_REPEAT}; each needs its own seed.",
    )
    shared: dict[str, Scalar] = {name: getattr(config, name) for name in _MODEL + _MEASUREMENT}
    found = []
    for repeat in range(config.repeats):
        for layers in config.layers:
            for number, (grid, sigma) in enumerate(sigmas):
                own = SIGMAS_A_REPEAT * (config.seed + repeat) + number
                place: dict[str, Scalar] = {"layers": layers, "repeat": repeat, "grid": grid, "sigma": sigma}
                seeds: dict[str, Scalar] = {
                    "weight_seed": config.seed + repeat,
                    "embedding_seed": EMBEDDING_SEEDS + own,
                    "probe_seed": PROBE_SEEDS + own,
                }
                found.append({**place, **shared, **seeds})
    return found

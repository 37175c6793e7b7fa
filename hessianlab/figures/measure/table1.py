"""Table 1 of the paper: what the Hessians of a linear MLP and of linear attention depend on.

``Sigma = X^T X / L`` and ``Omega = X^T (F - Y) / L``. Powers are measured by moving one of the two and holding the
other: tokens times s and residual over s leaves Omega and multiplies Sigma by s^2; residual times s multiplies Omega
alone. Factorisations are the blocks written in Sigma, Omega and the weights; the gap is their largest relative distance
from the measured block. And a rotation of the L tokens among each other (with their residuals) changes neither Sigma
nor Omega, so that no block may change if the two are all it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.figures.linear_models import Blocks

PRINTED = {
    ("linear MLP", "outer"): (1, 0),
    ("linear MLP", "functional"): (0, 1),
    ("linear attention", "outer"): (3, 0),
    ("linear attention", "functional"): (1, 1),
}
"""Powers of Sigma and of Omega in the printed table."""


MODELS = ("linear MLP", "linear attention", "softmax attention")


@dataclass(frozen=True)
class Table1Config:
    """Sizes and seeds; `factors` is the number of scales from 1/4 to 4 behind each power."""

    models: tuple[str, ...] = MODELS
    length: int = 12
    d_model: int = 6
    d_hidden: int = 4
    factors: int = 5
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 2, "factors": 2}, {"models": MODELS})


def cells(config: Table1Config) -> list[dict[str, Any]]:
    """One cell a model and draw."""
    shared = {"length": config.length, "d_model": config.d_model, "d_hidden": config.d_hidden}
    return [
        {"model": model, "seed": seed, **shared, "factors": config.factors}
        for model in config.models
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Powers, factorisation gaps and the change under a rotation of the tokens."""
    import torch

    from hessianlab.figures.linear_models import BLOCKS_OF, FACTORISED

    asked: Any = parameters
    source = torch.Generator().manual_seed(asked["seed"])
    length, d, h = asked["length"], asked["d_model"], asked["d_hidden"]
    X, R = torch.randn(2, length, d, generator=source, dtype=torch.float64)
    weights = [
        torch.randn(*shape, generator=source, dtype=torch.float64) / d**0.5 for shape in ((d, h), (d, h), (d, d))
    ]
    turn = torch.linalg.qr(torch.randn(length, length, generator=source, dtype=torch.float64)).Q
    measured, model = BLOCKS_OF[asked["model"]], asked["model"]
    at = measured(X, R, weights)
    turned = measured(turn @ X, turn @ R, weights)
    rows: list[Row] = []
    for part in ("outer", "functional"):
        rows.append({"part": part, "quantity": "change under rotation", "value": _gap(turned, at, part)})
        if model in FACTORISED:
            written = FACTORISED[model](X, R, weights)
            rows.append({"part": part, "quantity": "factorisation gap", "value": _gap(written, at, part)})
            rows += _powers(model, part, X, R, weights, asked["factors"])
    return Measurement(tuple(rows))


def _gap(one: Blocks, other: Blocks, part: str) -> float:
    """Largest relative distance of two blocks of a part."""
    names = [key for key in other if key[0] == part]
    return max(float((one[key] - other[key]).norm() / other[key].norm()) for key in names if other[key].norm() > 0)


def _powers(model: str, part: str, X: Tensor, R: Tensor, weights: list[Tensor], factors: int) -> list[Row]:
    """Powers of Sigma at fixed Omega and of Omega at fixed Sigma, block by block."""
    import numpy as np

    from hessianlab.figures.linear_models import BLOCKS_OF

    scales = np.geomspace(0.25, 4.0, factors)
    moved = {
        "Sigma": ([BLOCKS_OF[model](s * X, R / s, weights) for s in scales], scales**2),
        "Omega": ([BLOCKS_OF[model](X, s * R, weights) for s in scales], scales),
    }
    rows: list[Row] = []
    for against, (found, factor) in moved.items():
        printed = dict(zip(("Sigma", "Omega"), PRINTED[model, part], strict=True))[against]
        for name in (key[1] for key in found[0] if key[0] == part):
            norms = [float(blocks[part, name].norm()) for blocks in found]
            if min(norms) > 0:
                power = float(np.polyfit(np.log(factor), np.log(norms), 1)[0])
                asked = {"part": part, "quantity": f"power of {against}", "block": name}
                rows.append({**asked, "value": power, "printed": printed})
    return rows


EXPERIMENT = Experiment(
    name="table1",
    title="What linear models' Hessians depend on",
    source="The paper, Table 1",
    question="Do the Hessian blocks of a linear MLP see the data through Sigma and Omega once each, and those of "
    "linear attention through Sigma cubed and Omega times Sigma?",
    presets={"quick": Table1Config(repeats=5), "paper": Table1Config(length=24, d_model=12, d_hidden=8)},
    cells=cells,
    measure=measure_cell,
)

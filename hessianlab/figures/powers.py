"""Powers of the data and of the weights in Hessian blocks: Table 1 of the paper, and Section 3.3.

Table 1: ``Sigma = X^T X / L`` and ``Omega = X^T (F - Y) / L``. Powers are measured by moving one of the two and holding
the other: tokens times s and residual over s leaves Omega and multiplies Sigma by s^2; residual times s multiplies
Omega alone. Factorisations are the blocks written in Sigma, Omega and the weights; the gap is their largest relative
distance from the measured block. And a rotation of the L tokens among each other (with their residuals) changes neither
Sigma nor Omega, so that no block may change if the two are all it depends on.

Section 3.3: in small weights the output is ``F = sum_k c_k (W_Q W_K)^k W_V``, k = 0, 1, 2, ..., with coefficients c_k
of the data alone. A derivative with respect to a matrix takes one power of it away; the smallest k that survives leads.
The Gauss-Newton part has one derivative on either side, the functional part both on F and none on the loss gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer
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
class Table1Config(CheckedConfig, least={"length": 2, "factors": 2}, choices={"models": MODELS}):
    """Sizes and seeds; `factors` is the number of scales from 1/4 to 4 behind each power."""

    models: tuple[str, ...] = MODELS
    length: int = 12
    d_model: int = 6
    d_hidden: int = 4
    factors: int = 5
    repeats: int = 20
    seed: int = 0


def measure_table1(parameters: Parameters) -> Measurement:
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

    from hessianlab.experiments.statistics import log_log_slope
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
            power = log_log_slope(factor, norms)
            if power is not None:
                asked = {"part": part, "quantity": f"power of {against}", "block": name}
                rows.append({**asked, "value": power, "printed": printed})
    return rows


TABLE1 = Experiment(
    name="table1",
    title="What linear models' Hessians depend on",
    source="The paper, Table 1",
    question="Do the Hessian blocks of a linear MLP see the data through Sigma and Omega once each, and those of "
    "linear attention through Sigma cubed and Omega times Sigma?",
    presets={"quick": Table1Config(repeats=5), "paper": Table1Config(length=24, d_model=12, d_hidden=8)},
    cells=grid_cells(("model", "seed", "length", "d_model", "d_hidden", "factors"), {"model": "models"}),
    measure=measure_table1,
)


WEIGHTS = ("Q", "K", "V")
BLOCKS = ("QQ", "KK", "QK", "VQ", "VK", "VV")
PARTS = ("outer", "functional")
FACTORS = {"small": (2.0**-12, 2.0**-13), "drawn": (2.0**0.01, 2.0**-0.01)}
"""The two factors on one weight matrix between which the slope is taken: near zero, and around the drawn weights."""


@dataclass(frozen=True)
class WeightPowersConfig(CheckedConfig, least={"length": 3}):
    """Sizes and seeds."""

    d_model: int = 8
    d_k: int = 6
    length: int = 12
    repeats: int = 20
    seed: int = 0


def counted_powers(part: str, block: str) -> dict[str, int] | None:
    """Powers of W_Q, W_K and W_V in a block, by counting; None for a block that is identically zero.

    >>> counted_powers("outer", "QQ"), counted_powers("functional", "QQ")
    ({'Q': 0, 'K': 2, 'V': 2}, {'Q': 0, 'K': 2, 'V': 1})
    >>> counted_powers("functional", "QK"), counted_powers("functional", "VV")
    ({'Q': 0, 'K': 0, 'V': 1}, None)
    """
    sides = [_derivative(side) for side in (block if part == "outer" else (block,))]
    present = [side for side in sides if side is not None]
    if len(present) < len(sides):
        return None
    return {weight: sum(side[weight] for side in present) for weight in WEIGHTS}


def _derivative(by: str) -> dict[str, int] | None:
    """Powers that are left of ``(Q K)^k V`` after derivatives by these letters, for the smallest k that survives."""
    for k in range(len(by) + 1):
        left = {name: power - by.count(name) for name, power in {"Q": k, "K": k, "V": 1}.items()}
        if min(left.values()) >= 0:
            return left
    return None


def measure_weight_powers(parameters: Parameters) -> Measurement:
    """Slope of log norm by the logarithm of a factor on one weight matrix, all else moving as it does."""
    import math

    from hessianlab.experiments.models import lone_layer

    asked: Any = parameters
    setting = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"])
    rows: list[Row] = []
    for where, (above, below) in FACTORS.items():
        for weight in WEIGHTS:
            upper, lower = (_norms(setting, weight, factor) for factor in (above, below))
            for (part, block), norm in upper.items():
                zero = norm == 0 == lower[part, block]
                power = None if zero else math.log(norm / lower[part, block]) / math.log(above / below)
                counted = counted_powers(part, block)
                rows.append(
                    {
                        "where": where,
                        "part": part,
                        "block": block,
                        "weight": weight,
                        "power": power,
                        "counted": None if counted is None else counted[weight],
                    }
                )
    return Measurement(tuple(rows))


def _norms(setting: LoneLayer, weight: str, factor: float) -> dict[tuple[str, str], float]:
    """Every block with one weight matrix multiplied; the square loss sees the output that this gives."""
    from hessianlens.layer import attention_hessian

    layer = setting.layer.with_parameters({weight: factor * setting.layer.parameters[weight]})
    H = attention_hessian(layer, setting.X, setting.loss)
    return {
        (part, block): float(H.part(part)[block[0], block[1]].frobenius_norm()) for part in PARTS for block in BLOCKS
    }


WEIGHT_POWERS = Experiment(
    name="weight_powers",
    title="Powers of the weights in every block",
    source="The paper, Section 3.3",
    question="With which powers of W_Q, W_K and W_V does each block of the Hessian grow: do the powers that stand "
    "in the formulas hold, and where do they no longer?",
    presets={"quick": WeightPowersConfig(repeats=8), "paper": WeightPowersConfig(d_model=16, d_k=8, length=18)},
    cells=grid_cells(("seed", "d_model", "d_k", "length")),
    measure=measure_weight_powers,
)

"""With which power of each weight matrix every block grows: scale one matrix, take the slope of the block's norm.

Counted powers: in small weights the output is ``F = sum_k c_k (W_Q W_K)^k W_V``, k = 0, 1, 2, ..., with coefficients
c_k of the data alone. A derivative with respect to a matrix takes one power of it away; the smallest k that survives
leads. The Gauss-Newton part has one derivative on either side, the functional part both on F and none on the loss
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from hessianlab.experiments.models import LoneLayer

WEIGHTS = ("Q", "K", "V")
BLOCKS = ("QQ", "KK", "QK", "VQ", "VK", "VV")
PARTS = ("outer", "functional")
FACTORS = {"small": (2.0**-12, 2.0**-13), "drawn": (2.0**0.01, 2.0**-0.01)}
"""The two factors on one weight matrix between which the slope is taken: near zero, and around the drawn weights."""


@dataclass(frozen=True)
class WeightPowersConfig:
    """Sizes and seeds."""

    d_model: int = 8
    d_k: int = 6
    length: int = 12
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 3})


def cells(config: WeightPowersConfig) -> list[dict[str, Any]]:
    """One cell a draw."""
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [{"seed": seed, **shared} for seed in range(config.seed, config.seed + config.repeats)]


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


def measure_cell(parameters: Parameters) -> Measurement:
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


EXPERIMENT = Experiment(
    name="weight_powers",
    title="Powers of the weights in every block",
    source="The paper, Section 3.3",
    question="With which powers of W_Q, W_K and W_V does each block of the Hessian grow: do the powers that stand "
    "in the formulas hold, and where do they no longer?",
    presets={"quick": WeightPowersConfig(repeats=8), "paper": WeightPowersConfig(d_model=16, d_k=8, length=18)},
    cells=cells,
    measure=measure_cell,
)

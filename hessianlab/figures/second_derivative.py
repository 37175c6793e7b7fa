"""Figure 2 of the paper, computed: the second derivative of a layer's output as a stack of Hessians, and its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer

WEIGHTS = ("Q", "K", "V")
BLOCKS = ("QQ", "KK", "QK", "VQ", "VK", "VV")
VARIABLES = ("X", *WEIGHTS)
FACTORS = (2.0**-12, 2.0**-13)
"""The two factors on the tokens or on one weight matrix between which a power is measured."""

COUNTED: dict[str, dict[str, int] | None] = {
    "QQ": {"X": 5, "Q": 0, "K": 2, "V": 1},
    "KK": {"X": 5, "Q": 2, "K": 0, "V": 1},
    "QK": {"X": 3, "Q": 0, "K": 0, "V": 1},
    "VQ": {"X": 3, "Q": 0, "K": 1, "V": 0},
    "VK": {"X": 3, "Q": 1, "K": 0, "V": 0},
    "VV": None,
}
"""Smallest powers of the tokens and of the weights in a block, by Theorem 3.2; None for a block that is zero."""


@dataclass(frozen=True)
class Fig2Config(CheckedConfig, least={"length": 3}):
    """Sizes and seeds; the picture is of the first draw, the powers are of all."""

    d_model: int = 2
    d_k: int = 2
    length: int = 3
    repeats: int = 20
    seed: int = 0


def measure_fig2(parameters: Parameters) -> Measurement:
    """The stack in closed form and by automatic differentiation, its sum with the residual, and powers by block."""
    import math

    from hessianlab.experiments.models import lone_layer

    asked: Any = parameters
    setting = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"])
    stack = stacked_hessians(setting)
    gaps = {"autograd": _gap(stack, _differentiated_twice(setting)), "functional": _functional_gap(setting, stack)}
    rows: list[Row] = [{"block": "all", "check": name, "gap": gap} for name, gap in gaps.items()]
    norms = {v: [_block_norms(_scaled(setting, v, factor)) for factor in FACTORS] for v in VARIABLES}
    for block in BLOCKS:
        counted = COUNTED[block]
        zeros = float((_block(setting, stack, block) == 0).double().mean())
        for variable in VARIABLES:
            above, below = (found[block] for found in norms[variable])
            power = math.log2(above / below) if above > 0 and below > 0 else None
            rows.append(
                {
                    "block": block,
                    "variable": variable,
                    "power": power,
                    "counted": None if counted is None else counted[variable],
                    "zero_share": zeros,
                }
            )
    return Measurement(tuple(rows), {"stack": stack.numpy(), "sizes": _sizes(setting).numpy()})


def stacked_hessians(setting: LoneLayer) -> Tensor:
    """``d^2 F / dW^2`` as L x d_V x p x p: the Hessian of every entry of F with respect to all p weights.

    The Hessian of an entry is the functional part for a loss whose gradient is one at that entry and zero elsewhere.
    """
    import torch

    from hessianlens.layer import attention_hessian

    L, d = setting.Y.shape
    entries = torch.eye(L * d, dtype=setting.X.dtype).reshape(L * d, L, d)
    found = [
        attention_hessian(setting.layer, setting.X, grad=unit, curvature=0.0).functional[:].to_dense()
        for unit in entries
    ]
    return torch.stack(found).reshape(L, d, *found[0].shape)


def _differentiated_twice(setting: LoneLayer) -> Tensor:
    """The same from the Jacobian of the Jacobian, rows of F first, as Equation (4) lays it out."""
    import torch

    weights = setting.layer.parameters
    sizes = [w.numel() for w in weights.values()]

    def output(flat: Tensor) -> Tensor:
        parts = zip(weights.items(), flat.split(sizes), strict=True)
        Q, K, V = (part.reshape(w.shape) for (_, w), part in parts)
        scores = setting.X @ Q @ K.T @ setting.X.T / Q.shape[1] ** 0.5
        return scores.softmax(-1) @ setting.X @ V

    flat = torch.cat([w.reshape(-1) for w in weights.values()])
    found: Tensor = torch.func.jacrev(torch.func.jacrev(output))(flat)
    return found.detach()


def _functional_gap(setting: LoneLayer, stack: Tensor) -> float:
    """The stack weighted with the gradient of the loss, against the functional Hessian."""
    residual = setting.layer(setting.X) - setting.Y
    weighted = (2 / residual.numel() * residual[:, :, None, None] * stack).sum((0, 1))
    return _gap(weighted, setting.hessian().functional[:].to_dense())


def _gap(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def _sizes(setting: LoneLayer) -> Tensor:
    """Numbers of entries of W_Q, W_K and W_V."""
    import torch

    return torch.tensor([setting.layer.parameters[name].numel() for name in WEIGHTS])


def _block(setting: LoneLayer, stack: Tensor, block: str) -> Tensor:
    ends = _sizes(setting).cumsum(0).tolist()
    starts = dict(zip(WEIGHTS, [0, *ends], strict=False))
    place = {name: slice(starts[name], end) for name, end in zip(WEIGHTS, ends, strict=True)}
    return stack[:, :, place[block[0]], place[block[1]]]


def _block_norms(setting: LoneLayer) -> dict[str, float]:
    stack = stacked_hessians(setting)
    return {block: float(_block(setting, stack, block).norm()) for block in BLOCKS}


def _scaled(setting: LoneLayer, variable: str, factor: float) -> LoneLayer:
    """The tokens, or one weight matrix, multiplied."""
    from dataclasses import replace

    if variable == "X":
        return replace(setting, X=factor * setting.X)
    layer = setting.layer.with_parameters({variable: factor * setting.layer.parameters[variable]})
    return replace(setting, layer=layer)


FIG2 = Experiment(
    name="fig2",
    title="The second derivative of an attention layer, stacked",
    source="The paper, Figure 2",
    question="What does the second derivative of a matrix-valued layer look like, is it the stack of the Hessians of "
    "the output's entries, and on what does each of its blocks depend?",
    presets={"quick": Fig2Config(repeats=8), "paper": Fig2Config()},
    cells=grid_cells(("seed", "d_model", "d_k", "length")),
    measure=measure_fig2,
)

"""Growth experiments: norms of Hessian blocks at every scale sigma of the token embeddings.

`GrowthConfig` has sizes, seeds, sigma grids and fit ranges, `growth_cells` one cell per depth, sigma and repeat, with
everything that decides its numbers, and `measure_growth` the block norms of one cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from hessianlab.results import Measurement, Parameters, Row, Scalar
from hessianlens.errors import check_choice, expect
from hessianlens.notation import CARRIES
from hessianlens.parts import LAYER_PARTS

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlens.models import LinearMLP
    from hessianlens.spectra import Estimate


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
        probes: Probe vectors per block where there is no closed form.
        seed: First seed of the weights.
        data_seed: Seed of the batch.
        carries: Kind of the batch, "none", "chains" or "mixed" as in `hessianlens.tasks.Addition`; published:
            "none".
        tangents: Precision in which probes go through the layers of a chain, "float32" or "float64"; everything else is
            in float64.
        fit_ranges: Ranges (name, lowest, highest sigma) in which exponents are fitted; `growth.series.counted`
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


BLOCKS = {"query": "q", "value": "v"}
CLOSED_FORM = "closed form"


def measure_growth(parameters: Parameters) -> Measurement:
    """Frobenius norms of the query and value blocks of every layer, or of every matrix of a linear MLP.

    A linear MLP gives the full block alone: its logits are linear in each matrix, so the full block is the outer
    product and the functional part is identically zero.
    """
    asked: Any = parameters
    return Measurement(tuple(_linear_mlp(asked) if asked["model"] == LINEAR_MLP else _transformer(asked)))


def _transformer(asked: Any) -> list[Row]:
    import torch

    from hessianlab.chain import chain_registered
    from hessianlens.models import Transformer
    from hessianlens.models.adapters import problem
    from hessianlens.network import block_norms
    from hessianlens.tasks import Addition

    task = Addition()
    model = Transformer(
        layers=asked["layers"],
        d_model=asked["d_model"],
        vocab=task.vocab,
        context=task.context,
        attention=asked["attention"],
        norm=asked["norm"],
        residual_scale=asked["residual_scale"],
        mlp=asked["mlp"],
        seed=asked["weight_seed"],
        dtype=torch.float64,
    ).redraw_embeddings(asked["sigma"], asked["embedding_seed"])
    data = task.batch(asked["sequences"], seed=asked["data_seed"], carries=asked["carries"])
    names = [f"layer{layer}.attn.{short}" for layer in range(asked["layers"]) for short in BLOCKS.values()]
    # The model is the library's own: what is checked of a user's, in several passes, is known of it.
    known = problem(model, data, getattr(task, asked["loss"]), check=False, verify=False)
    with chain_registered(getattr(torch, asked["tangents"])):
        norms = block_norms(known, names, probes=asked["probes"], seed=asked["probe_seed"])
    return [
        _row(layer, block, part, norms[f"layer{layer}.attn.{short}", part])
        for layer in range(asked["layers"])
        for block, short in BLOCKS.items()
        for part in LAYER_PARTS
    ]


def _linear_mlp(asked: Any) -> list[Row]:
    import torch

    from hessianlens.models import LinearMLP
    from hessianlens.spectra import Estimate
    from hessianlens.tasks import Addition

    task = Addition()
    model = LinearMLP(
        layers=asked["layers"],
        width=asked["d_model"],
        vocab=task.vocab,
        seed=asked["weight_seed"],
        dtype=torch.float64,
    ).redraw_embeddings(asked["sigma"], asked["embedding_seed"])
    batch = task.batch(asked["sequences"], seed=asked["data_seed"], carries=asked["carries"])
    norms = linear_block_norms(model, batch["tokens"][:, list(task.loss_positions)])
    return [_row(layer, "mlp", "full", Estimate.exactly(norm)) for layer, norm in enumerate(norms)]


def linear_block_norms(model: LinearMLP, tokens: Tensor) -> list[float]:
    """Frobenius norm of every layer's own Hessian block, for the loss ``sum_p |logits_p - y_p|^2`` over `tokens`.

    With ``x_p`` the input of layer l and ``B`` the product of the matrices behind it, the logits are ``B W_l x_p``, so
    the block is ``2 (B^T B) kron (sum_p x_p x_p^T)`` (row-major vec of W_l) and its norm a product of two small norms.
    The targets do not enter: the logits are linear in W_l, and there is no functional part.

    >>> import torch
    >>> from hessianlens.models import LinearMLP
    >>> model = LinearMLP(layers=2, width=8, dtype=torch.float64)
    >>> [round(norm, 2) for norm in linear_block_norms(model, torch.tensor([[1, 2, 11]]))]
    [45.53, 42.19]
    """
    import torch

    with torch.no_grad():
        weights = [weight.double() for weight in model.layers.parameters()]
        x = model.token_embedding.double()[tokens.flatten()]
        found = []
        for layer, weight in enumerate(weights):
            downstream = reduce(lambda product, w: w @ product, weights[layer + 1 :], torch.eye(len(weight)).double())
            found.append(2 * float((downstream.T @ downstream).norm() * (x.T @ x).norm()))
            x = x @ weight.T
    return found


def _row(layer: int, block: str, part: str, norm: Estimate) -> Row:
    method = CLOSED_FORM if norm.exact else f"{norm.probes} probes"
    return {
        "layer": layer,
        "block": block,
        "part": part,
        "value": norm.value,
        "stderr": norm.stderr,
        "method": method,
    }

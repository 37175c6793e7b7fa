"""Factored weights and latent attention: where a pair of factors is curved, and what norms of latents do."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close
from hessianlab.claims.samples import normal
from hessianlab.experiments.models import LoneLayer, lone_layer
from hessianlab.experiments.statistics import geometric_mean, log_log_slope
from hessianlens.attention import FactoredValueAttention
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.models.adapters import problem
from hessianlens.network import block_norms

LAYERS = 5
D_MODEL, D_K, LENGTH = 8, 4, 12
RANKS = (1, 2, 4)


def _factored(seed: int, rank: int, outer_factor: float = 0.0) -> tuple[LoneLayer, AttentionHessian]:
    """The layer with the merged matrix, and the Hessian of that with two factors."""
    plain = lone_layer(D_MODEL, D_K, LENGTH, seed)
    W_O, W_U = normal(6000 + seed, D_MODEL, rank) / D_MODEL**0.5, outer_factor * normal(7000 + seed, rank, D_MODEL)
    layer = FactoredValueAttention(plain.layer.W_Q, plain.layer.W_K, W_O, W_U)
    return replace(plain, layer=replace(plain.layer, W_V=W_O @ W_U)), attention_hessian(layer, plain.X, plain.loss)


def _pair(H: AttentionHessian, part: str) -> Tensor:
    grid = H.part(part)
    return torch.cat([torch.cat([grid[row, column].to_dense() for column in "OU"], 1) for row in "OU"])


def _share_outside(H: AttentionHessian, part: str) -> float:
    """Share of the pair's squared norm that is not in the block of W_U."""
    return 1 - float(H.part(part)["U", "U"].frobenius_norm() / _pair(H, part).norm()) ** 2


def _gradient(setting: LoneLayer) -> Tensor:
    """Of the loss, by the merged matrix of the values."""
    W_V = setting.layer.W_V.clone().requires_grad_()
    outputs = replace(setting.layer, W_V=W_V)(setting.X)
    (found,) = torch.autograd.grad((outputs - setting.Y).square().mean(), W_V)
    return found


def _functional_error(seed: int, rank: int) -> float:
    """Norm of the functional block between the factors over sqrt(r) times that of the merged gradient, minus one."""
    setting, H = _factored(seed, rank, 1.0)
    wanted = rank**0.5 * float(_gradient(setting).norm())
    return abs(float(H.functional["O", "U"].frobenius_norm()) / wanted - 1)


def _at_least_squares(seed: int) -> tuple[float, float]:
    """Where the merged matrix has no gradient: norms of the functional block between factors, and of the residual."""
    setting, _ = _factored(seed, D_MODEL, 1.0)
    means = setting.layer.attend(setting.X[None]).weights[0] @ setting.X
    best = torch.linalg.lstsq(means, setting.Y).solution
    layer = FactoredValueAttention(setting.layer.W_Q, setting.layer.W_K, torch.eye(D_MODEL, dtype=torch.float64), best)
    H = attention_hessian(layer, setting.X, setting.loss)
    residual = layer(setting.X) - setting.Y
    return float(H.functional["O", "U"].frobenius_norm()), float(residual.norm() / setting.Y.norm())


@claim("D9")
def factor_at_zero() -> Finding:
    """Where the curvature of a pair is, one factor of which is zero."""
    every = [_factored(seed, rank)[1] for rank in RANKS for seed in seeds(LAYERS)]
    shares = [_share_outside(H, "full") for H in every]
    lowest = [torch.linalg.eigvalsh(_pair(H, "full")) for H in every]
    saddles = [float(values[0] / values[-1]) for values in lowest]
    flat = [_at_least_squares(seed) for seed in seeds(LAYERS)]
    return Finding(
        checks=(at_most("share of the squared norm outside of the block of W_U", shares, 0.01),),
        conditional=(at_most("Gauss-Newton part: the same", [_share_outside(H, "outer") for H in every], 0.01),),
        support=(
            at_most("block of W_O, largest norm", [float(H.full["O", "O"].frobenius_norm()) for H in every], 0),
            at_most(
                "functional block of the pair against sqrt(r) |dl/dW_V|, W_U not zero",
                [_functional_error(seed, rank) for rank in RANKS for seed in seeds(LAYERS)],
                1e-9,
            ),
            at_most("smallest over largest eigenvalue of the pair", saddles, -0.1),
            at_most("functional block of the pair where dl/dW_V = 0", [block for block, _ in flat], 1e-9),
            at_least("residual there, of the targets", [residual for _, residual in flat], 0.1),
        ),
        numbers={"low": min(shares), "high": max(shares)},
        example=f"rank 1, first layer: {shares[0]:.0%} of the squared norm is outside of the block of W_U; the "
        f"smallest eigenvalue is {saddles[0]:.2f} of the largest.",
    )


NETWORKS = 3
SEQUENCES, LATENT, ROTARY = 4, 4, 2
SCALES = (0.003, 0.03, 3.0)
SMALL = (0.003, 0.03)
EPSILON = 1e-12
WIDTHS = {
    "W_QA": (D_MODEL, LATENT),
    "W_QB": (LATENT, LATENT + ROTARY),
    "W_KVA": (D_MODEL, LATENT),
    "W_KR": (D_MODEL, ROTARY),
    "W_KB": (LATENT, LATENT),
    "W_VB": (LATENT, LATENT),
    "W_O": (LATENT, D_MODEL),
}
"""Latent attention as of DeepSeek-V2, one head: keys and values of one latent, and a rotary part of the keys beside."""
FACTORS = tuple(name for name in WIDTHS if name != "W_O")
ROTARY_KEYS, VALUES = "W_KR", "W_VB"


class LatentHead(nn.Module):
    """One head of multi-head latent attention, with norms of the latents or without."""

    def __init__(self, seed: int, normed: bool) -> None:
        super().__init__()
        self.normed = normed
        for place, (name, shape) in enumerate(WIDTHS.items()):
            setattr(self, name, nn.Parameter(normal(100 * seed + place, *shape) / shape[0] ** 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of all tokens."""
        w = dict(self.named_parameters())
        content, rotary = (self._norm(x @ w["W_QA"]) @ w["W_QB"]).split([LATENT, ROTARY], -1)
        latent = self._norm(x @ w["W_KVA"])
        queries = torch.cat([content, _rotated(rotary)], -1)
        keys = torch.cat([latent @ w["W_KB"], _rotated(x @ w["W_KR"])], -1)
        weights = (queries @ keys.transpose(-1, -2) / (LATENT + ROTARY) ** 0.5).softmax(-1)
        return weights @ (latent @ w["W_VB"]) @ w["W_O"]

    def _norm(self, z: Tensor) -> Tensor:
        return z * (z.square().mean(-1, keepdim=True) + EPSILON).rsqrt() if self.normed else z


def _rotated(z: Tensor) -> Tensor:
    angle = torch.arange(z.shape[-2], dtype=z.dtype)[:, None]
    first, second = z.chunk(2, -1)
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], -1)


def _latent_norms(seed: int, normed: bool, scale: float) -> dict[str, float]:
    """Gauss-Newton norms of all weights."""
    X, Y = normal(8000 + seed, 2, SEQUENCES, LENGTH, D_MODEL)
    found = problem(LatentHead(seed, normed), (scale * X, Y), "square")
    norms = block_norms(found, list(FACTORS), parts=("ggn",), method="exact")
    return {name: norms[name, "ggn"].value for name in FACTORS}


@measured
def _mean_norms() -> dict[tuple[bool, float], dict[str, float]]:
    """By whether latents are normalised, and the scale of the tokens."""

    def mean(normed: bool, scale: float) -> dict[str, float]:
        found = [_latent_norms(seed, normed, scale) for seed in seeds(NETWORKS)]
        return {name: geometric_mean([norms[name] for norms in found]) for name in FACTORS}

    return {(normed, scale): mean(normed, scale) for normed in (True, False) for scale in SCALES}


@claim("D10")
def norms_of_latents() -> Finding:
    """Ratios of the blocks to that of values, along the scale of the tokens."""
    found = _mean_norms()

    def ratios(name: str, normed: bool) -> list[float]:
        return [found[normed, scale][name] / found[normed, scale][VALUES] for scale in SCALES]

    def spread(name: str, normed: bool) -> float:
        return max(ratios(name, normed)) / min(ratios(name, normed))

    kept = {
        name: at_most(f"{name}: largest over smallest ratio to W_VB", spread(name, True), 4)
        for name in FACTORS
        if name != VALUES
    }
    power = log_log_slope(list(SMALL), [found[True, scale][ROTARY_KEYS] for scale in SMALL])
    assert power is not None
    queries, plain = ratios("W_QB", True), ratios("W_QB", False)
    return Finding(
        checks=tuple(kept.values()),
        conditional=tuple(check for name, check in kept.items() if name != ROTARY_KEYS),
        support=(
            at_least("without norms, W_QB: largest over smallest ratio", spread("W_QB", False), 1e6),
            close("power of the tokens' scale in the block of the rotary keys", power, 2, 0.1),
            at_most("without norms, W_KVA: largest over smallest ratio", spread("W_KVA", False), 4),
        ),
        numbers={"low": min(queries), "high": max(queries), "plain_low": min(plain), "plain_high": max(plain)},
        example="block of the rotary keys over that of values, tokens of scale "
        + ", ".join(f"{scale:g}: {ratio:.2g}" for scale, ratio in zip(SCALES, ratios(ROTARY_KEYS, True), strict=True))
        + "; of W_QB "
        + ", ".join(f"{ratio:.2g}" for ratio in queries)
        + ".",
    )

"""The registry of layers, masks, activations and losses that every property is tested over."""

from __future__ import annotations

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention.activations import (
    ACTIVATIONS,
    Activation,
    ElementwiseFunction,
    RowNormalised,
    Sigmoid,
    SoftCapped,
)
from hessianlens.attention.rotary import RotaryAttention, rotary_tables
from hessianlens.attention.rows import RowMatrices
from hessianlens.losses import LossDerivatives, OutputCurvature

DOUBLE = torch.float64
LENGTH, WIDTH, OUTPUT = 5, 4, 3


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class Cubic(Activation):
    """A user's activation with derivatives of its own: a(t) = t^3 + t."""

    name = "cubic"

    def value(self, scores: Tensor, visible: Tensor) -> Tensor:
        return torch.where(visible, scores**3 + scores, 0)

    def jacobian(self, scores: Tensor, visible: Tensor) -> RowMatrices:
        return RowMatrices(tuple(scores.shape), diagonal=torch.where(visible, 3 * scores**2 + 1, 0))

    def curvature(self, scores: Tensor, visible: Tensor, weights: Tensor) -> RowMatrices:
        return RowMatrices(tuple(scores.shape), diagonal=torch.where(visible, weights * 6 * scores, 0))


def sharpened(row: Tensor) -> Tensor:
    """A user's function of a row, non-symmetric in its derivatives: softmax weights times a running sum of scores."""
    return torch.softmax(2 * row, -1) * torch.cumsum(torch.tanh(row), -1)


def moved_on(row: Tensor) -> Tensor:
    """A user's function of a row whose derivative, a softmax's in another order of rows, is far from symmetric."""
    return torch.softmax(row, -1).roll(1, -1)


ALL_ACTIVATIONS = {
    **{name: make for name, make in ACTIVATIONS.items()},
    "sigmoid with bias": lambda: Sigmoid(-0.7),
    "softmax, soft-capped": lambda: SoftCapped(1.5),
    "softplus / row sum": lambda: RowNormalised(ElementwiseFunction(torch.nn.functional.softplus, "softplus")),
    "user elementwise": lambda: ElementwiseFunction(lambda t: torch.sin(t) + 0.3 * t**2, "wave"),
    "user row function": lambda: sharpened,
    "user class": Cubic,
}


def _mask(length: int) -> Tensor:
    seen = torch.rand(length, length, generator=torch.Generator().manual_seed(3)) < 0.6
    seen[:, 0] = True
    seen[2] = False  # a token with nothing to attend to
    return seen


def _bias(length: int) -> Tensor:
    bias = randn(length, length, seed=4)
    bias[1, 2:] = -torch.inf
    return bias


def _window(length: int) -> Tensor:
    """Each token sees itself and two others before it."""
    apart = torch.arange(length)[:, None] - torch.arange(length)
    return (apart >= 0) & (apart < 3)


def _documents(length: int) -> Tensor:
    """Two texts in one sequence, of which neither sees the other."""
    document = torch.arange(length) >= length // 2
    return document[:, None] == document


MASKS = {
    "no mask": lambda length: {},
    "causal": lambda length: {"causal": True},
    "boolean mask with an empty row": lambda length: {"mask": _mask(length)},
    "causal with additive bias": lambda length: {"bias": _bias(length), "causal": True},
    "sliding window": lambda length: {"mask": _window(length)},
    "documents, causal": lambda length: {"mask": _documents(length), "causal": True},
}


def tokens(batch: int | None, length: int = LENGTH) -> Tensor:
    return randn(length, WIDTH, seed=5) if batch is None else randn(batch, length, WIDTH, seed=5)


def square_loss(X: Tensor, width: int = OUTPUT) -> hl.SquareLoss:
    return hl.SquareLoss(randn(*X.shape[:-1], width, seed=6))


def self_attention(
    d_k: int | None = 3, seed: int = 1, *, width: int = WIDTH, output: int | None = OUTPUT, **options
) -> hl.SelfAttention:
    """A lone layer; d_k and output may be None, for the width of the tokens."""
    return hl.SelfAttention.random(width, d_k, output, seed=seed, **{"dtype": DOUBLE, **options})


def rotary(d_k: int = 4, length: int = LENGTH, seed: int = 1, **options) -> RotaryAttention:
    cos, sin = rotary_tables(length, d_k, base=20.0, dtype=DOUBLE)
    shapes = ((WIDTH, d_k), (WIDTH, d_k), (WIDTH, 2), (2, OUTPUT))
    weights = [randn(*shape, seed=seed + k) / 2 for k, shape in enumerate(shapes)]
    return RotaryAttention(*weights, **{"cos": cos, "sin": sin, **options})


def query_key_norm(width: int, kind: str, seed: int, shift: bool = False) -> hl.attention.QueryKeyNorm:
    """A norm with a gain, and perhaps a shift, of its own."""
    gain, added = 1 + randn(width, seed=seed) / 3, randn(width, seed=seed + 40) / 3
    return hl.attention.QueryKeyNorm(kind, gain=gain, shift=added if shift else None, eps=1e-3)


NORMS = {
    "queries and keys, gains": lambda width: {
        "query_norm": query_key_norm(width, "rms", 1),
        "key_norm": query_key_norm(width, "rms", 2),
    },
    "LayerNorm with shifts": lambda width: {
        "query_norm": query_key_norm(width, "layer", 1, shift=True),
        "key_norm": query_key_norm(width, "layer", 2, shift=True),
    },
    "queries alone": lambda width: {"query_norm": query_key_norm(width, "rms", 1)},
    "keys alone, no gain": lambda width: {"key_norm": "rms"},
    "neither": lambda width: {},
}
"""Norms of queries and keys, by their width."""
SINKS = {
    "no sink": lambda: {},
    "constant sink": lambda: {"sink": 0.0},
    "sink": lambda: {"sink": torch.tensor(0.3, dtype=DOUBLE)},
}
SCORE_OPTIONS = {
    "plain": lambda: {},
    "norms": lambda: {"query_norm": query_key_norm(3, "rms", 1), "key_norm": query_key_norm(3, "layer", 2, True)},
    **{name: make for name, make in SINKS.items() if make()},
}
"""What a head with queries and keys of width 3 may do to its scores, one thing at a time."""


def factored_values(**options) -> hl.attention.FactoredValueAttention:
    return hl.attention.FactoredValueAttention(
        *(randn(*s, seed=9) for s in ((4, 3), (4, 3), (4, 2), (2, 3))), **options
    )


def layers() -> dict[str, object]:
    """One layer of every parameterisation."""
    return {
        "self-attention": self_attention(),
        "single matrix": hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8), causal=True),
        "factored values": factored_values(),
        "two heads": hl.MultiHeadAttention([self_attention(2), self_attention(3, seed=2, activation="sigmoid")]),
        "mixed heads": hl.MultiHeadAttention(
            [
                self_attention(2, causal=True, temperature=0.7),
                hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8), activation="relu_normalised"),
            ]
        ),
    }


def recent_layers() -> dict[str, object]:
    """Norms of queries and keys, sinks and gates, each by itself and together."""
    gains = {"query_norm": query_key_norm(3, "rms", 11), "key_norm": query_key_norm(3, "layer", 12, shift=True)}
    gates = {"gate": randn(WIDTH, OUTPUT, seed=13), "value_gate": randn(WIDTH, OUTPUT, seed=14)}
    sink, wide = torch.tensor(0.3, dtype=DOUBLE), query_key_norm(4, "rms", 15)
    return {
        "norms of queries and keys": self_attention(3, causal=True, **gains),
        "norms in front of rotary positions": rotary(query_norm=wide, key_norm=wide, causal=True),
        "norms behind rotary positions": rotary(query_norm=wide, key_norm=wide, norm_behind_rotation=True),
        "sink": self_attention(3, causal=True, sink=sink),
        "softmax off by one": self_attention(3, sink=0.0),
        "output gate": self_attention(3, gate=gates["gate"]),
        "gated values": self_attention(3, causal=True, value_gate=gates["value_gate"]),
        "one gate for a value": self_attention(
            3, value_gate=hl.attention.ValueGate(randn(WIDTH, 1, seed=16), "silu"), mask=_window(LENGTH)
        ),
        "all of them": hl.MultiHeadAttention(
            [self_attention(3, sink=sink, **gains, **gates), factored_values(**gates)]
        ),
    }


def _coupling(F: Tensor) -> Tensor:
    return torch.logsumexp((F @ F.T).reshape(-1), 0) + (F**3).sum()


def losses(X: Tensor) -> dict[str, hl.losses.Loss]:
    """Losses of every form of curvature that a `Loss` can have."""
    batch = X if X.ndim == 3 else X[None]
    classes = torch.randint(OUTPUT, batch.shape[:2], generator=torch.Generator().manual_seed(10))
    classes[0, 1] = -100
    return {
        "square": hl.SquareLoss(randn(*batch.shape[:2], OUTPUT, seed=6)),
        "square sum": hl.SquareLoss(randn(*batch.shape[:2], OUTPUT, seed=6), reduction="sum"),
        "cross-entropy": hl.CrossEntropyLoss(classes),
        "by token": hl.losses.CustomLoss(lambda f: torch.exp(f).sum() * f[0], couples="none"),
        "coupling tokens": hl.losses.CustomLoss(_coupling),
    }


class QuadraticLoss(hl.losses.Loss):
    """``<g, F - F_0> + (F - F_0)^T C (F - F_0) / 2``: a loss with the two derivatives at ``F_0`` that it is given.

    Args:
        F: ``F_0``, (B, L, d_V).
        gradient: ``g``, the same shape.
        matrices: C of every sequence in full, (B, L d_V, L d_V).
        curvature: The same in another form.
    """

    def __init__(self, F: Tensor, gradient: Tensor, matrices: Tensor, curvature: OutputCurvature) -> None:
        self.F, self.gradient, self.matrices, self.curvature = F.detach(), gradient, matrices, curvature

    def value(self, F: Tensor) -> Tensor:
        delta = (F - self.F).flatten(1)
        return (self.gradient.flatten(1) * delta).sum() + torch.einsum("bi,bij,bj->", delta, self.matrices, delta) / 2

    def derivatives(self, F: Tensor) -> LossDerivatives:
        assert torch.equal(F, self.F)
        return LossDerivatives(self.gradient, self.curvature)


ROW_FUNCTIONS = {
    "divided by its sum": lambda row: row.exp() / row.exp().sum(),
    "softmax along axis 0": lambda row: torch.softmax(row, 0),
    "with a branch": lambda row: row.tanh() if row.sum() > 0 else row.sin(),
}
"""Functions of one row that would mean something else for a matrix of rows."""
ALL_ACTIVATIONS.update({f"row function {name}": (lambda f=f: f) for name, f in ROW_FUNCTIONS.items()})

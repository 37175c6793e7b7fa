"""The edge of stability: the curvature beyond which an optimiser's steps grow instead of shrink.

On a quadratic with Hessian H the steps of gradient descent, ``x <- x - lr H x``, shrink where every eigenvalue is below
``2 / lr``. With momentum and a diagonal preconditioner P the same holds of ``P^(-1/2) H P^(-1/2)`` and another limit.
Write an eigenvalue as s and the step in its direction as a recursion ``x_{t+1} = a x_t - b x_{t-1}``; it shrinks where
both roots of ``z^2 - a z + b`` lie within the unit circle, ``|b| < 1`` and ``|a| < 1 + b``:

==================  ==================================  =============================================================
optimiser           a, b                                s below
==================  ==================================  =============================================================
SGD, momentum m     1 + m - lr s, m                     ``2 (1 + m) / lr``
Nesterov            (1 + m)(1 - lr s), m (1 - lr s)     ``2 (1 + m) / ((1 + 2 m) lr)``
Adam, b1            1 + b1 - lr (1 - b1) s, b1          ``2 (1 + b1) / ((1 - b1) lr)``: 38 / lr with b1 = 0.9
AdamW, decay w      (1 - lr w) + b1 - lr (1 - b1) s,    ``(2 - lr w) (1 + b1) / ((1 - b1) lr)``
                    b1 (1 - lr w)
RMSprop, momentum   as SGD, with its P                  ``2 (1 + m) / lr``
==================  ==================================  =============================================================

Sign descent, Lion and Muon make steps of one length in another norm, ``lr argmax <g, d>`` over its unit ball: that of
the largest entry for the first two, the spectral norm of every matrix for Muon (with its factors by shape). On a
quadratic such a step raises the loss only where

    S = max_{|d| <= 1} d' H d  >  2 |g|* / lr,       |g|* = max_{|d| <= 1} <g, d>,

and steps that bounce between two sides of a valley do so at equality: the gradient's dual norm, the sum of its absolute
entries or the nuclear norms, is half of lr S there. So S and ``2 |g|* / lr`` meet, as an eigenvalue and ``2 / lr`` do
for gradient descent (Islamov and others, "Non-Euclidean Gradient Descent Operates at the Edge of Stability", 2026,
arXiv:2603.05002). The line is that of steps without momentum.

Training tends to the edge and stays there: Cohen, Kaur, Li, Kolter and Talwalkar, "Gradient Descent on Neural Networks
Typically Occurs at the Edge of Stability" (2021, arXiv:2103.00065), and for adaptive methods Cohen, Ghorbani and
others, "Adaptive Gradient Methods at the Edge of Stability" (2022, arXiv:2207.14484), whose P, with Adam's corrections
of bias, is ``P = (1 - b1^t) (sqrt(v / (1 - b2^t)) + eps)``. Their statements are about full batches; with small ones
training tends to stay below.

Weight decay that is added to the gradient is part of H: ``H + w``. Where groups have learning rates of their own, the
largest stands in the limit and P is divided by the others' shares of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlens.errors import Refusal, check_that, expect
from hessianlens.problems import Block
from hessianlens.spectra import RitzPairs
from hessianlens.spectra.geometry import dual_norm
from hessianlens.spectra.products import LinearOperator
from hessianlens.updates.optimizers import check_optimizer

_COMPARABLE_FACTOR = 1.02
"""Limits within this factor are taken as one, the lowest: decoupled weight decay moves them by half of lr * decay."""


@dataclass(frozen=True, eq=False)
class StabilityEdge:
    """How an optimiser sees curvature, and its stability threshold.

    Attributes:
        limit: What the largest eigenvalue of ``P^(-1/2) (H + W) P^(-1/2)`` must stay below.
        scale: The diagonal of ``P^(-1/2)``; None if it is one everywhere.
        decay: The diagonal of W, weight decay that is part of the gradient; None if there is none.
        lr: The learning rate, the largest where groups have their own.
    """

    limit: float
    scale: Float[Tensor, "n"] | None
    decay: Float[Tensor, "n"] | None
    lr: float

    def seen(self, op: LinearOperator) -> LinearOperator:
        """The Hessian as the optimiser sees it."""
        return op if self.scale is None and self.decay is None else _PreconditionedOperator(op, self.scale, self.decay)

    def see_pairs(self, known: RitzPairs) -> None:
        """Turn vectors with known products into what the optimiser sees: of ``S^-1 x`` it sees ``S (A x + W x)``."""
        check_that(isinstance(known, RitzPairs), "known", known, "RitzPairs")
        for vector, product in known:
            if self.decay is not None:
                product.addcmul_(self.decay.to(vector), vector)
            if self.scale is not None:
                product.mul_(self.scale.to(vector))
                vector.div_(self.scale.to(vector))


class _PreconditionedOperator:
    """``S (A + W) S`` with diagonal S and W."""

    SELF_ADJOINT = True

    def __init__(self, op: LinearOperator, scale: Tensor | None, decay: Tensor | None) -> None:
        self.op, self.shape, self.dtype, self.device = op, op.shape, op.dtype, op.device
        self._scale = None if scale is None else scale.to(op.device, op.dtype)[:, None]
        self._decay = None if decay is None else decay.to(op.device, op.dtype)[:, None]

    def __matmul__(self, X: Tensor) -> Tensor:
        inner = X if self._scale is None else X * self._scale
        found = self.op @ inner
        found = found if self._decay is None else found + self._decay * inner
        return found if self._scale is None else found * self._scale


@dataclass(frozen=True, eq=False)
class NormEdge:
    """How an optimiser whose steps have one length in a norm sees curvature.

    Attributes:
        geometry: "max" (sign descent, Lion) or "spectral" (Muon).
        blocks: What it trains of what is asked about.
        radii: By block, the length of its steps over `lr`.
        lr: The learning rate, the largest where groups have their own.
    """

    geometry: str
    blocks: tuple[Block, ...]
    radii: tuple[float, ...]
    lr: float

    def seen(self, op: LinearOperator) -> LinearOperator:
        """The Hessian of `blocks`, scaled so that a step of every block has length one."""
        if all(radius == 1 for radius in self.radii):
            return op
        scale = [torch.full((block.numel,), r, device="cpu") for block, r in zip(self.blocks, self.radii, strict=True)]
        return _PreconditionedOperator(op, torch.cat(scale), None)

    def limit(self, gradient: Mapping[str, Tensor]) -> float:
        """``2 |g|* / lr`` with the gradient by name of parameter."""
        pieces = [block.take(gradient[block.parameter]) for block in self.blocks]
        duals = [r * dual_norm(piece, self.geometry) for piece, r in zip(pieces, self.radii, strict=True)]
        return 2 * math.fsum(duals) / self.lr


Edge = StabilityEdge | NormEdge
"""What is known of the edge of an optimiser."""


def stability_edge(optimizer: Any, model: nn.Module, blocks: Sequence[Block]) -> Edge | Refusal:
    """The stability threshold of an optimiser at this moment, or a `Refusal` that says why there is none.

    Args:
        optimizer: One of `torch.optim`, perhaps wrapped by accelerate; Lion, Muon and sign descent by the names of
            their classes.
        model: The model that it trains.
        blocks: Parameters or parts of them, in the order of the Hessian.

    >>> layer = nn.Linear(2, 1)
    >>> blocks = [Block.of(name, name, p) for name, p in layer.named_parameters()]
    >>> stability_edge(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), layer, blocks).limit
    38.0
    """
    check_that(isinstance(model, nn.Module), "model", model, "the nn.Module that is trained")
    whole = isinstance(blocks, Sequence) and len(blocks) > 0 and all(isinstance(block, Block) for block in blocks)
    check_that(whole, "blocks", blocks, "at least one Block")
    inner = check_optimizer(optimizer)
    geometry = next((_NORMS[kind.__name__] for kind in type(inner).__mro__ if kind.__name__ in _NORMS), None)
    if geometry is not None:
        return _norm_edge(inner, geometry, model, blocks)
    rule = next((_RULES[kind.__name__] for kind in type(inner).__mro__ if kind.__name__ in _RULES), None)
    if rule is None:
        return Refusal(f"the edge of stability of {type(inner).__name__} is not known here")
    groups = {id(p): group for group in inner.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    pieces: list[_Piece] = []
    for block in blocks:
        expect(block.parameter in named, f"blocks: the model has no parameter {block.parameter}, expected its own.")
        parameter = named[block.parameter]
        if id(parameter) not in groups:
            return Refusal(f"{block.parameter} is trained, but not by this {type(inner).__name__}")
        found = rule(groups[id(parameter)], inner.state.get(parameter, {}), parameter)
        if isinstance(found, Refusal):
            return Refusal(f"{block.parameter}: {found}")
        pieces.append(found)
    return _joined(pieces, blocks)


def stability_edges(
    optimizer: Any, model: nn.Module, blocks: Mapping[str, Sequence[Block]], notes: list[str]
) -> dict[str, Edge]:
    """The edges of several groups of blocks, by name; why one is missing is noted once.

    Args:
        optimizer: As for `stability_edge`.
        model: The model that it trains.
        blocks: By name.
        notes: Is added to.
    """
    check_that(isinstance(blocks, Mapping), "blocks", blocks, "blocks by name")
    check_that(isinstance(notes, list), "notes", notes, "a list")
    found = {name: stability_edge(optimizer, model, members) for name, members in blocks.items()}
    reasons = dict.fromkeys(edge.reason for edge in found.values() if isinstance(edge, Refusal))
    notes.extend(f"no stability threshold: {reason}" for reason in reasons)
    return {name: edge for name, edge in found.items() if not isinstance(edge, Refusal)}


@dataclass(frozen=True, eq=False)
class _Piece:
    """One parameter: the limit times the learning rate, its learning rate, P and the decay within its gradient."""

    limit: float
    lr: float
    preconditioner: Tensor | None = None
    decay: float = 0.0


def _norm_edge(optimizer: Any, geometry: str, model: nn.Module, blocks: Sequence[Block]) -> NormEdge | Refusal:
    """Of the parameters that it trains in this norm: Muon is usually given the matrices alone."""
    kind = type(optimizer).__name__
    named = dict(model.named_parameters())
    groups = {id(p): g for g in optimizer.param_groups for p in g["params"] if g.get("use_muon", True)}
    own = [(block, groups[id(named[block.parameter])]) for block in blocks if id(named[block.parameter]) in groups]
    if not own:
        return Refusal(f"{blocks[0].name} is not trained by this {kind}")
    if geometry == "spectral":
        parts = [b.name for b, _ in own if b.numel != named[b.parameter].numel()]
        if parts:
            return Refusal(f"{kind} orthogonalises whole matrices, and {parts[0]} is a part of one")
    lr = max(float(group["lr"]) for _, group in own)
    rates = [float(group["lr"]) * _muon_factor(group, block) for block, group in own]
    if min(rates) <= 0:
        return Refusal("a learning rate is zero")
    return NormEdge(geometry, tuple(block for block, _ in own), tuple(rate / lr for rate in rates), lr)


def _muon_factor(group: Mapping[str, Any], block: Block) -> float:
    """Muon's factor by shape: Jordan's, Moonshot's or none."""
    if len(block.shape) < 2 or not ("adjust_lr_fn" in group or "use_muon" in group):
        return 1.0
    rows, columns = block.shape[0], math.prod(block.shape[1:])
    if group.get("adjust_lr_fn") in (None, "original"):
        return math.sqrt(max(1, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns)) if group["adjust_lr_fn"] == "match_rms_adamw" else 1.0


def _joined(pieces: Sequence[_Piece], blocks: Sequence[Block]) -> StabilityEdge | Refusal:
    lr = max(piece.lr for piece in pieces)
    if lr <= 0 or min(piece.lr for piece in pieces) <= 0:
        return Refusal("a learning rate is zero")
    limits = sorted({piece.limit for piece in pieces})
    if limits[-1] > _COMPARABLE_FACTOR * limits[0]:
        return Refusal(f"groups have momentum of their own (limits from {limits[0]:.3g} / lr to {limits[-1]:.3g} / lr)")
    scale = None
    if any(piece.preconditioner is not None or piece.lr != lr for piece in pieces):
        scale = torch.cat([_scale(piece, block, lr) for piece, block in zip(pieces, blocks, strict=True)])
    decay = None
    if any(piece.decay for piece in pieces):
        decay = torch.cat([torch.full((b.numel,), p.decay, device="cpu") for p, b in zip(pieces, blocks, strict=True)])
    return StabilityEdge(limits[0] / lr, scale, decay, lr)


def _scale(piece: _Piece, block: Block, lr: float) -> Tensor:
    P = (
        torch.ones(block.numel, device="cpu")
        if piece.preconditioner is None
        else block.take(piece.preconditioner.detach()).float().flatten()
    )
    return (piece.lr / lr / P).sqrt().cpu()


def _sgd(group: Mapping[str, Any], state: Mapping[str, Any], parameter: Tensor) -> _Piece | Refusal:
    momentum, damping = float(group["momentum"]), float(group["dampening"])
    if momentum and damping >= 1:
        return Refusal("with a dampening of one momentum alone moves it")
    limit = 2 * (1 + momentum) / ((1 + 2 * momentum) if group["nesterov"] else (1 - damping if momentum else 1))
    return _Piece(limit, float(group["lr"]), None, float(group["weight_decay"]))


def _adam(group: Mapping[str, Any], state: Mapping[str, Any], parameter: Tensor) -> _Piece | Refusal:
    if "exp_avg_sq" not in state:
        return Refusal("Adam has not seen a gradient of it yet")
    (b1, b2), lr, step = group["betas"], float(group["lr"]), float(state["step"])
    decoupled = bool(group.get("decoupled_weight_decay"))
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    P = (1 - b1**step) * ((second / (1 - b2**step)).sqrt() + group["eps"])
    decay = float(group["weight_decay"])
    limit = (2 - lr * decay if decoupled else 2) * (1 + b1) / (1 - b1)
    return _Piece(limit, lr, P, 0.0 if decoupled else decay)


def _rmsprop(group: Mapping[str, Any], state: Mapping[str, Any], parameter: Tensor) -> _Piece | Refusal:
    if "square_avg" not in state:
        return Refusal("RMSprop has not seen a gradient of it yet")
    second = state["square_avg"]
    if group["centered"]:
        second = second - state["grad_avg"] ** 2
    P = second.clamp(min=0).sqrt() + group["eps"]
    return _Piece(2 * (1 + float(group["momentum"])), float(group["lr"]), P, float(group["weight_decay"]))


_RULES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any], Tensor], _Piece | Refusal]] = {
    "SGD": _sgd,
    "AdamW": lambda group, state, p: _adam({"decoupled_weight_decay": True, **group}, state, p),
    "Adam": _adam,
    "RMSprop": _rmsprop,
}
"""By the name of a class or of an ancestor, nearest first."""
_NORMS = {
    **dict.fromkeys(("Lion", "Signum", "SignSGD", "SignDescent"), "max"),
    **dict.fromkeys(("Muon", "SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam"), "spectral"),
}
"""Optimisers whose steps have one length in a norm, in the same way."""

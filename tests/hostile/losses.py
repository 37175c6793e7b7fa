"""Losses as users write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as nnf

from tests.hostile.specimen import Batch

OwnLoss = Callable[[Tensor, Batch], Tensor]


def _smoothed(out: Tensor, batch: Batch) -> Tensor:
    return nnf.cross_entropy(out.flatten(0, -2), batch[1].flatten(), label_smoothing=0.1)


def _focal(out: Tensor, batch: Batch) -> Tensor:
    chosen = out.log_softmax(-1).gather(-1, batch[1][..., None])
    return -((1 - chosen.exp()) ** 2 * chosen).mean()


def _last(out: Tensor, batch: Batch) -> Tensor:
    return nnf.cross_entropy(out[:, -1], batch[1][:, -1])


def _z(out: Tensor, batch: Batch) -> Tensor:
    return nnf.cross_entropy(out.flatten(0, -2), batch[1].flatten()) + 0.1 * out.logsumexp(-1).square().mean()


def _warm(out: Tensor, batch: Batch) -> Tensor:
    return nnf.cross_entropy(out.flatten(0, -2) / 2, batch[1].flatten())


def _huber(out: Tensor, batch: Batch) -> Tensor:
    return ((out - batch[1]).square() + 1).sqrt().mean()


def _of_tokens(out: Tensor, batch: Batch) -> Tensor:
    """Neighbours in a sequence are compared."""
    return (out - batch[1]).square().mean() + (out[:, 1:] * out[:, :-1]).mean()


def _pooled(out: Tensor, batch: Batch) -> Tensor:
    return (out.mean(1) - batch[1].mean(1)).square().sum()


def _contrastive(out: Tensor, batch: Batch) -> Tensor:
    """Every sequence against all others."""
    flat = out.flatten(1)
    return nnf.cross_entropy(flat @ flat.T, torch.arange(len(flat))) + (out - batch[1]).square().mean()


def _variance(out: Tensor, batch: Batch) -> Tensor:
    return (out - batch[1]).square().mean() + (out - out.mean()).square().mean().sqrt()


def _linear(out: Tensor, batch: Batch) -> Tensor:
    """No Gauss-Newton part at all."""
    return (out * batch[1]).mean()


CLASSES: dict[str, OwnLoss] = {"smoothed": _smoothed, "focal": _focal, "z loss": _z, "halved logits": _warm}
ODD_CLASSES: dict[str, OwnLoss] = {"last position": _last}
NUMBERS: dict[str, OwnLoss] = {"pseudo-Huber": _huber, "linear": _linear}
ODD_NUMBERS: dict[str, OwnLoss] = {
    "neighbouring tokens": _of_tokens,
    "pooled": _pooled,
    "contrastive": _contrastive,
    "variance of everything": _variance,
}
LOSSES = CLASSES | ODD_CLASSES | NUMBERS | ODD_NUMBERS


def with_penalty(loss: OwnLoss) -> OwnLoss:
    """The last position of the outputs is a penalty."""

    def penalised(out: Tensor, batch: Batch) -> Tensor:
        return loss(out[:, :-1], batch) + 0.1 * out[:, -1].mean()

    return penalised

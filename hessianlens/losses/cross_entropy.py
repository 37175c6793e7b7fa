"""Cross-entropy with the layer's output as logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import check_choice, check_that, expect
from hessianlens.losses.base import Loss, LossDerivatives, check_outputs
from hessianlens.losses.softmax_curvature import SoftmaxCurvature
from hessianlens.near_one_hot import Peak


@dataclass(frozen=True, eq=False)
class CrossEntropyLoss(Loss):
    """``l = - mean_i log softmax(F_i)[y_i]``: ``g_i = (p_i - e_{y_i}) / n``, ``C_i = (diag p_i - p_i p_i^T) / n``.

    Args:
        targets: Class of every token, integers (L,) or (B, L); `ignore_index` marks tokens without loss.
        reduction: ``"mean"`` over the n tokens with a loss, or ``"sum"``.
        ignore_index: The target that means: no loss here.

    >>> CrossEntropyLoss(torch.tensor([0])).value(torch.zeros(1, 1, 4))
    tensor(1.3863)
    """

    targets: Tensor
    reduction: str = "mean"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        """Targets are integers; the reduction is known."""
        expect(
            isinstance(self.targets, Tensor)
            and not self.targets.is_floating_point()
            and self.targets.dtype != torch.bool
            and self.targets.ndim in (1, 2),
            "targets: expected an integer tensor of shape (L,) or (B, L), got "
            + (
                f"{self.targets.dtype} {tuple(self.targets.shape)}."
                if isinstance(self.targets, Tensor)
                else "no tensor."
            ),
        )
        check_dense("targets", self.targets)
        expect(not self.targets.is_complex(), f"targets: expected an integer tensor, got {self.targets.dtype}.")
        check_that(isinstance(self.ignore_index, int), "ignore_index", self.ignore_index, "a whole number")
        check_choice("reduction", self.reduction, ("mean", "sum"))

    def _batched(self, F: Tensor) -> tuple[Tensor, Tensor, float]:
        """Targets, which of them count, and the factor of the reduction."""
        check_outputs(F)
        targets = (self.targets if self.targets.ndim == 2 else self.targets[None]).long()
        expect(
            targets.device == F.device,
            f"targets: got a tensor on {targets.device}, expected {F.device} as the layer.",
        )
        expect(
            targets.shape == F.shape[:2],
            f"targets: got shape {tuple(self.targets.shape)}, expected {tuple(F.shape[:2])}, one class per token.",
        )
        counted = targets != self.ignore_index
        inside = ((targets >= 0) & (targets < F.shape[2])) | ~counted
        expect(
            bool(inside.all()),
            f"targets: got a class outside 0 .. {F.shape[2] - 1}; the layer gives {F.shape[2]} logits, and "
            f"{self.ignore_index} marks tokens without loss.",
        )
        expect(
            bool(counted.any()),
            f"targets: every target is {self.ignore_index}, expected at least one token with a loss.",
        )
        return targets, counted, 1 / float(counted.sum()) if self.reduction == "mean" else 1.0

    def value(self, F: Tensor) -> Tensor:
        """Cross-entropy of the tokens that count."""
        targets, _, factor = self._batched(F)
        total = torch.nn.functional.cross_entropy(
            F.flatten(0, 1), targets.flatten(), ignore_index=self.ignore_index, reduction="sum"
        )
        return factor * total

    def derivatives(self, F: Tensor) -> LossDerivatives:
        """Predicted minus true distribution, and the covariance of the predicted one."""
        targets, counted, factor = self._batched(F)
        p = F.softmax(-1)
        missing = Peak(p).complement
        hot = torch.nn.functional.one_hot(targets.masked_fill(~counted, 0), F.shape[2]).bool()
        weight = factor * counted.to(F.dtype)
        gradient = weight[..., None] * torch.where(hot, -missing, p)
        return LossDerivatives(gradient, SoftmaxCurvature(weight, p))

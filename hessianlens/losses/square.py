"""The square loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hessianlens.checks import check_tensor
from hessianlens.errors import check_choice, expect
from hessianlens.losses.base import Loss, LossDerivatives, check_outputs
from hessianlens.losses.curvature_forms import ScalarCurvature


@dataclass(frozen=True, eq=False)
class SquareLoss(Loss):
    """``l = mean (F - Y)^2`` over every entry: ``g = 2/(B L d_V) (F - Y)``, ``C = 2/(B L d_V) I``.

    Args:
        targets: Y, shaped as the output, (L, d_V) or (B, L, d_V).
        reduction: ``"mean"`` over every entry, or ``"sum"``.

    >>> import torch
    >>> SquareLoss(torch.zeros(1, 2)).value(torch.tensor([[[1.0, 3.0]]]))
    tensor(5.)
    """

    targets: Tensor
    reduction: str = "mean"

    def __post_init__(self) -> None:
        """Targets are finite; the reduction is known."""
        check_tensor("targets", self.targets, (2, 3))
        check_choice("reduction", self.reduction, ("mean", "sum"))

    def _residual(self, F: Tensor) -> tuple[Tensor, float]:
        check_outputs(F)
        targets = self.targets if self.targets.ndim == 3 else self.targets[None]
        expect(
            targets.shape == F.shape and targets.dtype == F.dtype and targets.device == F.device,
            f"targets: got shape {tuple(self.targets.shape)} {targets.dtype} on {targets.device}, expected "
            f"{tuple(F.shape)} {F.dtype} on {F.device}, the layer's output (no batch axis for one sequence).",
        )
        return F - targets, 1 / F.numel() if self.reduction == "mean" else 1.0

    def value(self, F: Tensor) -> Tensor:
        """Mean or sum of the squared residuals."""
        residual, factor = self._residual(F)
        return factor * residual.square().sum()

    def derivatives(self, F: Tensor) -> LossDerivatives:
        """A scaled residual and a multiple of the identity."""
        residual, factor = self._residual(F)
        constant = F.new_full((), 2 * factor).expand(F.shape[0], F.shape[1])
        return LossDerivatives(2 * factor * residual, ScalarCurvature(constant, F.shape[2]))

"""What a loss has to provide: its two derivatives at the output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from hessianlens.checks import check_dense, check_finite
from hessianlens.errors import InputError, expect
from hessianlens.losses.curvature_forms import OutputCurvature
from hessianlens.losses.curvature_input import as_curvature


@dataclass(frozen=True, eq=False)
class LossDerivatives:
    """A loss as a Hessian sees it: ``g = dl/dF`` and ``C = d^2 l/dF^2`` at the output F of shape (B, L, d_V)."""

    gradient: Tensor
    curvature: OutputCurvature

    def with_loss(self) -> Tensor:
        """Positions at which any sequence carries a loss; at least one, so that an empty loss is a zero Hessian."""
        has_curvature = ((self.gradient != 0).any(-1) | self.curvature.has_curvature()).any(0)
        found = has_curvature.nonzero()[:, 0]
        return found if len(found) else found.new_zeros(1)

    def at(self, kept: Tensor) -> LossDerivatives:
        """The derivatives at some of the tokens only."""
        return LossDerivatives(self.gradient[:, kept], self.curvature.at(kept))

    def restricted(self, features: slice) -> LossDerivatives:
        """The derivatives by some features of the output."""
        return LossDerivatives(self.gradient[..., features], self.curvature.restricted(features, features))


class Loss(ABC):
    """A loss of the layer's output; layers after it enter through the same two derivatives."""

    @abstractmethod
    def value(self, F: Tensor) -> Tensor:
        """The loss of outputs (B, L, d_V), a scalar; differentiable by autograd."""

    @abstractmethod
    def derivatives(self, F: Tensor) -> LossDerivatives:
        """Gradient and curvature at outputs (B, L, d_V)."""


def check_outputs(F: object) -> Tensor:
    """Outputs of a layer, (B, L, d_V)."""
    outputs = check_dense("F", F)
    expect(
        outputs.ndim == 3 and outputs.is_floating_point(),
        f"F: got {outputs.dtype} of shape {tuple(outputs.shape)}, expected outputs (B, L, d_V) of a floating dtype.",
    )
    return outputs


def given_derivatives(grad: Tensor, curvature: float | Tensor | OutputCurvature, F: Tensor) -> LossDerivatives:
    """A loss known through the two derivatives the user passes, with or without a batch axis."""
    check_outputs(F)
    if not isinstance(grad, Tensor):
        raise InputError(f"grad: got {type(grad).__name__}, expected a tensor shaped as the output, {tuple(F.shape)}.")
    check_dense("grad", grad)
    batched = grad if grad.ndim == 3 else grad[None]
    expect(
        batched.shape == F.shape and batched.dtype == F.dtype and batched.device == F.device,
        f"grad: got shape {tuple(grad.shape)} {grad.dtype} on {grad.device}, "
        f"expected {tuple(F.shape)} {F.dtype} on {F.device} (the output, without batch axis for one sequence).",
    )
    check_finite("grad", batched)
    return LossDerivatives(batched.detach().clone(), as_curvature(curvature, F))

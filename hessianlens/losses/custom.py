"""Any differentiable function of the output as a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.derivatives import expect_true_derivatives
from hessianlens.errors import InputError, check_choice
from hessianlens.failures import failures_as_input_errors
from hessianlens.losses.base import Loss, LossDerivatives, check_outputs
from hessianlens.losses.curvature_forms import CoupledCurvature, TokenCurvature
from hessianlens.memory import ensure_fits
from hessianlens.per_sample import sample_hessians, sample_jacobians


@dataclass(frozen=True, eq=False)
class CustomLoss(Loss):
    """A loss given as a function; its two derivatives at F come from autograd.

    Args:
        function: With ``couples="tokens"``, maps the output (L, d_V) of one sequence to a scalar; with
            ``couples="none"``, the output (d_V,) of one token. The loss is the sum over sequences, or over tokens.
        couples: Whether the function couples the tokens of a sequence.

    >>> quartic = CustomLoss(lambda f: (f**4).sum(), couples="none")
    >>> quartic.value(torch.ones(1, 2, 3))
    tensor(6.)
    """

    function: Callable[[Tensor], Tensor]
    couples: str = "tokens"

    def __post_init__(self) -> None:
        """The function can be called; the coupling is known."""
        if not callable(self.function):
            raise InputError(f"function: got {type(self.function).__name__}, expected a function of the output.")
        check_choice("couples", self.couples, ("tokens", "none"))

    def _each(self, outputs: Tensor) -> Tensor:
        with failures_as_input_errors("function: it failed", f"it was given outputs of shape {tuple(outputs.shape)}"):
            found = self.function(outputs)
        if not isinstance(found, Tensor) or found.numel() != 1:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"function: returned {got} for an output of shape {tuple(outputs.shape)}, expected a scalar."
            )
        return found.reshape(())

    def _samples(self, F: Tensor) -> Tensor:
        check_outputs(F)
        return F if self.couples == "tokens" else F.flatten(0, 1)

    def value(self, F: Tensor) -> Tensor:
        """The sum of the function over sequences or tokens."""
        return torch.stack([self._each(sample) for sample in self._samples(F)]).sum()

    def derivatives(self, F: Tensor) -> LossDerivatives:
        """Gradient and Hessian of the function by autograd."""
        check_outputs(F)
        samples = self._samples(F.detach())
        B, L, f = F.shape
        size = L * f if self.couples == "tokens" else f
        ensure_fits(
            "The curvature of this loss",
            (len(samples), size, size),
            F.dtype,
            F.device,
            'couples="none" needs far less for a loss that treats every token by itself',
        )
        if len(samples):
            expect_true_derivatives("function", self._each, samples[0], self.function)
        gradient = sample_jacobians(self._each, samples).reshape(F.shape)
        second = sample_hessians(self._each, samples)
        if self.couples == "none":
            return LossDerivatives(gradient, TokenCurvature(second.reshape(B, L, f, f)))
        return LossDerivatives(gradient, CoupledCurvature(second.reshape(B, L, f, L, f)))

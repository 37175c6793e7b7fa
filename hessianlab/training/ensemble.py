"""Several models of one architecture as one: their weights side by side in one matrix, a row a member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hessianlens.errors import InputError, expect

Loss = Callable[[Any, Any], Tensor]


class Ensemble:
    """Models of one architecture whose weights are the rows of one matrix, ``weights[m, p]``.

    What is computed for all members is computed once for a batched model (`torch.func.vmap`), so that the work of an
    operation, and not the call of it, takes the time. Members share nothing: ``losses`` differentiates to a matrix
    whose row m belongs to member m alone.

    Args:
        models: At least one; they must have the same parameters by name and shape, and are not changed.

    >>> ensemble = Ensemble([nn.Linear(2, 1) for _ in range(3)])
    >>> ensemble.weights.shape, ensemble.names
    (torch.Size([3, 3]), ('weight', 'bias'))
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        expect(len(models) > 0, "models: got none, expected one or more.")
        self._model = models[0]
        shapes = {name: tuple(parameter.shape) for name, parameter in models[0].named_parameters()}
        for model in models:
            if {name: tuple(p.shape) for name, p in model.named_parameters()} != shapes:
                raise InputError("models: got different parameters, expected the same names and shapes in all.")
        self._shapes = shapes
        self._sizes = [parameter.numel() for parameter in models[0].parameters()]
        flat = [torch.cat([p.detach().reshape(-1) for p in model.parameters()]) for model in models]
        self.weights: Float[Tensor, "m p"] = torch.stack(flat)
        self._calls: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order of the columns."""
        return tuple(self._shapes)

    def columns(self) -> dict[str, slice]:
        """The columns of every parameter."""
        found, start = {}, 0
        for name, size in zip(self._shapes, self._sizes, strict=True):
            found[name] = slice(start, start + size)
            start += size
        return found

    def parameters(self, weights: Float[Tensor, "m p"]) -> dict[str, Tensor]:
        """The rows as stacked parameters, (m, *shape) each."""
        pieces = weights.split(self._sizes, dim=1)
        return {
            name: piece.unflatten(1, shape) if shape else piece[:, 0]
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def over_members(
        self, function: Callable[[nn.Module, Tensor], Any], weights: Float[Tensor, "m p"], tokens: Tensor
    ) -> Any:
        """``function(model, tokens)`` for every member; tokens (m, B, L), or (B, L) that all of them see."""
        if function not in self._calls:
            wrapped = _Wrapped(self._model, function)
            self._calls[function] = lambda parameters, seen: functional_call(wrapped, parameters, (seen,))
        named = {f"model.{name}": value for name, value in self.parameters(weights).items()}
        return vmap(self._calls[function], in_dims=(0, 0 if tokens.ndim == 3 else None))(named, tokens)

    def load(self, member: int, model: nn.Module) -> nn.Module:
        """Give a model of this architecture the weights of one member; the model."""
        with torch.no_grad():
            for (name, parameter), piece in zip(
                model.named_parameters(), self.weights[member].split(self._sizes), strict=True
            ):
                expect(tuple(parameter.shape) == self._shapes.get(name), f"model: has another {name!r}.")
                parameter.copy_(piece.view(parameter.shape))
        return model


class _Wrapped(nn.Module):
    """A function of a model, as a module: the way `functional_call` wants it."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, tokens: Tensor) -> Any:
        return self._function(self.model, tokens)

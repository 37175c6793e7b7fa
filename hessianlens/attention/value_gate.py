r"""Gates of the values: ``v_l = u_l * f(W_g^T x_l)``, entry by entry, in front of the attention that averages them.

The values are no linear function of their parameters any more, but still one of every key token alone. So a head has
one parameter in their place, the values themselves, which meets the tokens as one-hot vectors; and what a parameter W
does to them is a small matrix for every key token,

    dv_l/dW_V = x_l (x) diag(f_l)        dv_l/dW_g = x_l (x) diag(u_l * f'_l)

    d^2 v_l / dW_V dW_g = x_l x_l' (x) diag(f'_l)        d^2 v_l / dW_g dW_g = x_l x_l' (x) diag(u_l * f''_l).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.attention.activations.elementwise import ElementwiseFunction
from hessianlens.attention.state import ValuePort
from hessianlens.checks import check_shape, check_tensor
from hessianlens.derivatives.difference import random_like
from hessianlens.errors import check_choice, check_that, expect

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": nnf.silu,
    "gelu": nnf.gelu,
    "tanh": torch.tanh,
    "linear": torch.clone,
}
"""Functions of a logit, by name."""
_ROUNDING = 1e3
"""Units in the last place of an entry by which it may differ when only other entries have changed."""


@dataclass(frozen=True, eq=False)
class ValueGate:
    """``v_l = u_l * f(W^T x_l)`` of every key token.

    Args:
        weight: W, d x d_V, or d x 1 for one number for all entries of a value; block ``value_gate``.
        function: f, "sigmoid", "silu", "gelu", "tanh", "linear" (a product of two linear maps), or a function of a
            tensor that acts entry by entry and can be differentiated twice.

    >>> gate = ValueGate(torch.zeros(3, 2))
    >>> gate(torch.ones(4, 3), torch.ones(4, 2)).unique()
    tensor([0.5000])
    """

    weight: Tensor
    function: str | Callable[[Tensor], Tensor] = "sigmoid"

    def __post_init__(self) -> None:
        """The weight is a matrix, and the function is known."""
        check_tensor("value_gate", self.weight, (2,))
        if not callable(self.function):
            check_that(isinstance(self.function, str), "function", self.function, "a name or a function of a tensor")
            check_choice("function", self.function, tuple(FUNCTIONS))

    def check_widths(self, tokens: int, values: int) -> None:
        """Refuse a weight that does not map tokens to values, or to one number."""
        shape = (tokens, values if self.weight.shape[1] != 1 else 1)
        check_shape("value_gate", self.weight, shape, "the width of key tokens, and that of the values or one")

    def with_weight(self, weight: Tensor) -> ValueGate:
        """The same function of other logits."""
        return replace(self, weight=weight)

    @property
    def elementwise(self) -> ElementwiseFunction:
        """The function with its derivatives, which are refused where autograd hides a part of them."""
        return ElementwiseFunction(self._callable, str(self))

    @property
    def _callable(self) -> Callable[[Tensor], Tensor]:
        return FUNCTIONS[self.function] if isinstance(self.function, str) else self.function

    def check_entry_by_entry(self, logits: Tensor, values: Tensor) -> None:
        """Refuse a function that mixes entries: none may change when others do.

        Both times the entries stand in the same places of a tensor of the same shape. So they go through the same
        instructions, and a right function rounds them alike, even where its terms cancel and leave little but rounding.

        Args:
            logits: Where the function is tried.
            values: What it gives there.
        """
        if isinstance(self.function, str):
            return
        unchanged = random_like(logits, seed=0) > 0
        unchanged.view(-1)[-1] = ~unchanged.view(-1)[0]
        rtol = _ROUNDING * torch.finfo(values.dtype).eps
        for own, shift in ((unchanged, 1.0), (~unchanged, -1.0)):
            found = self.of_logits(torch.where(own, logits, logits + shift))
            same = torch.isclose(found, values, rtol=rtol, atol=0, equal_nan=True)
            expect(
                bool((same | ~own).all()),
                f"value_gate: {self} gives other numbers for one entry when others change, expected a function that "
                "acts entry by entry.",
            )

    def of_logits(self, logits: Tensor) -> Tensor:
        """``f(z)``."""
        found = self._callable(logits)
        expect(
            isinstance(found, Tensor) and found.shape == logits.shape,
            f"value_gate: its function turned shape {tuple(logits.shape)} into {tuple(getattr(found, 'shape', ()))}, "
            "expected one number for every entry.",
        )
        return found

    def __call__(self, tokens: Float[Tensor, "*n d"], values: Float[Tensor, "*n f"]) -> Float[Tensor, "*n f"]:
        """The gated values."""
        return values * self.of_logits(tokens @ self.weight)

    def __str__(self) -> str:
        name = self.function if isinstance(self.function, str) else getattr(self.function, "__name__", "own function")
        return f"{name} gate of values"


@dataclass(frozen=True, eq=False)
class GatedValues:
    """The values of a head at a batch, and how their parameters enter them.

    Attributes:
        gate: The gate.
        tokens: ``x_l``, ``[s, l, e]``.
        plain: ``u_l``, the values in front of the gate.
        ports: The parameters of these.
        pair: Two of them whose product they are, if there are two.
    """

    gate: ValueGate
    tokens: Float[Tensor, "s l e"]
    plain: Float[Tensor, "s l f"]
    ports: Mapping[str, ValuePort]
    pair: tuple[str, str] | None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return (*self.ports, "value_gate")

    @property
    def rows(self) -> Float[Tensor, "s l f"]:
        """``v_l``."""
        return self.gate(self.tokens, self.plain)

    def port(self, weights: Float[Tensor, "s i l"]) -> ValuePort:
        """The values themselves as a parameter, with a row for every key token."""
        eye = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device).expand(len(weights), -1, -1)
        return ValuePort(eye, "1", weights, "A", self.plain.shape[-1])

    def apart(self) -> GatedValues:
        """The same with copies of the weights that it refers to."""
        kept = {n: replace(p, readout=None if p.readout is None else p.readout.clone()) for n, p in self.ports.items()}
        return replace(self, gate=self.gate.with_weight(self.gate.weight.clone()), ports=kept)

    @cached_property
    def derivatives(self) -> tuple[Tensor, Tensor, Tensor]:
        """``f``, ``f'`` and ``f''`` at every logit, ``[s, l, f]`` or ``[s, l, 1]``."""
        logits = (self.tokens @ self.gate.weight).detach()
        value, first, second = self.gate.elementwise.derivatives(logits)
        self.gate.check_entry_by_entry(logits, value)
        return value, first, torch.zeros_like(first) if second is None else second

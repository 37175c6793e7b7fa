"""Checks of the arguments that models share; without torch, so that a command can refuse them at once."""

from __future__ import annotations

from hessianlens.errors import InputError, check_choice

QUERY_KEY = ("dual", "single")
"""Two query-key matrices per head, or one."""

MLP_ACTIVATION_NAMES = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "linear")
"""What can be named in ``mlp_activation=``; `hessianlens.models.block.MLP_ACTIVATIONS` has what it stands for."""


def check_norm(norm: object) -> None:
    """The norm is one that a block knows."""
    if norm is not None:
        check_choice("norm (or None for no norm)", norm, ("pre", "post"))


def head_width(d_model: int, heads: int) -> int:
    """The width of a head where none is given."""
    if d_model % heads:
        raise InputError(
            f"heads: got {heads} for d_model = {d_model}, expected a divisor of d_model; otherwise give d_head."
        )
    return d_model // heads

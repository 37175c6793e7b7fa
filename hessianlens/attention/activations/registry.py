"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hessianlens.attention.activations.base import Activation
from hessianlens.attention.activations.elementwise import Exp, Linear, ReLU, Sigmoid, Tanh, normalised_relu, raw_row_sum
from hessianlens.attention.activations.rowwise import RowFunction
from hessianlens.attention.activations.softmax import Softmax
from hessianlens.errors import InputError

ACTIVATIONS: dict[str, Callable[[], Activation]] = {
    "softmax": Softmax,
    "linear": Linear,
    "sigmoid": Sigmoid,
    "sigmoid_log_length": lambda: Sigmoid("-log L"),
    "relu": ReLU,
    "tanh": Tanh,
    "exp": Exp,
    "relu_normalised": normalised_relu,
    "row_sum": raw_row_sum,
}
"""Every activation that can be named in ``activation=``."""

ActivationLike = str | Activation | Callable[[Tensor], Tensor]


def as_activation(given: object) -> Activation:
    """An activation from a name, an `Activation` or a plain function of a row of scores.

    >>> as_activation("tanh")
    tanh
    """
    if isinstance(given, Activation):
        return given
    if isinstance(given, str):
        if given not in ACTIVATIONS:
            raise InputError(
                f"activation: got {given!r}, expected one of {', '.join(ACTIVATIONS)}, "
                "an Activation or a function of a row of scores."
            )
        return ACTIVATIONS[given]()
    if isinstance(given, type) and issubclass(given, Activation):
        return given()
    if callable(given):
        return RowFunction(given)
    raise InputError(
        f"activation: got {type(given).__name__}, expected a name ({', '.join(ACTIVATIONS)}), "
        "an Activation or a function of a row of scores."
    )

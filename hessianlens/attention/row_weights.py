"""Attention weights of rows of scores, one function each: what a reader would write by hand, done safely.

The activations of `hessianlens.attention.activations` do the work; here they take scores of any shape, a mask and a
temperature. `naive_softmax` is the definition as printed, for comparison: it overflows.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessianlens.attention.activations import Activation, ActivationLike, as_activation
from hessianlens.attention.rows import RowMatrices
from hessianlens.checks import check_dense
from hessianlens.errors import check_number, expect


def attention_weights(
    scores: Float[Tensor, "*r l"],
    activation: ActivationLike = "softmax",
    mask: Bool[Tensor, "*m l"] | None = None,
    temperature: float = 1.0,
) -> Float[Tensor, "*r l"]:
    """``a(T / t)`` of every row of scores T, over the entries that the mask lets it see.

    Args:
        scores: Rows of scores, of any leading shape.
        activation: A name from `attention.activations.ACTIVATIONS`, an `Activation`, or a function of a row.
        mask: True where a row may look; fits the scores by broadcasting. What is hidden gets weight 0, and a row that
            sees nothing is 0 everywhere: there is nothing to normalise.
        temperature: t, which divides the scores.

    >>> attention_weights(torch.tensor([2.8, 1.2, 0.5, 3.1]), temperature=0.5)
    tensor([0.3481, 0.0142, 0.0035, 0.6342])
    >>> attention_weights(torch.tensor([1.0, 2.0, -3.0]), "relu_normalised")
    tensor([0.3333, 0.6667, 0.0000])
    >>> attention_weights(torch.tensor([1.0, 2.0]), mask=torch.tensor([False, False]))
    tensor([0., 0.])
    """
    chosen, rows, visible = activation_inputs(scores, activation, mask, temperature)
    return chosen.value(rows, visible).reshape(scores.shape)


def log_softmax(
    scores: Float[Tensor, "*r l"], mask: Bool[Tensor, "*m l"] | None = None, temperature: float = 1.0
) -> Float[Tensor, "*r l"]:
    """``T / t - m - log sum exp(T / t - m)`` with m the largest of the row: finite where softmax itself rounds to 0.

    What is hidden has logarithm minus infinity; so has all of a row that sees nothing, where the quotient of the
    definition would be 0/0 and `torch.log_softmax` is not a number.

    >>> log_softmax(torch.tensor([0.0, 200.0])), torch.softmax(torch.tensor([0.0, 200.0]), -1).log()
    (tensor([-200.,    0.]), tensor([-inf, 0.]))
    """
    _, rows, visible = activation_inputs(scores, "softmax", mask, temperature)
    hidden = rows.masked_fill(~visible, -torch.inf)
    top = hidden.amax(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).min).detach()
    total = (hidden - top).exp().sum(-1, keepdim=True)
    return (hidden - top - torch.where(total == 0, torch.ones_like(total), total).log()).reshape(scores.shape)


def naive_softmax(scores: Float[Tensor, "*r l"], temperature: float = 1.0) -> Float[Tensor, "*r l"]:
    """``exp(T_j / t) / sum_l exp(T_l / t)`` as the definition has it; not a number once an exponential overflows.

    >>> naive_softmax(torch.tensor([0.0, 88.0])), naive_softmax(torch.tensor([0.0, 89.0]))
    (tensor([6.0546e-39, 1.0000e+00]), tensor([0., nan]))
    """
    check_dense("scores", scores)
    exponentials = torch.exp(scores / check_number("temperature", temperature, 0.0, strictly=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def exp_limit(dtype: torch.dtype) -> float:
    """The score from which on its exponential is infinite in this dtype, ``log(largest number)``.

    >>> [round(exp_limit(dtype), 2) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    [11.09, 88.72, 88.72, 709.78]
    """
    return math.log(torch.finfo(dtype).max)


def vanishing_gap(dtype: torch.dtype) -> float:
    """How far below the largest score of its row a score has weight 0 in this dtype, ``-log(smallest number)``.

    >>> [round(vanishing_gap(dtype), 1) for dtype in (torch.float16, torch.float32, torch.float64)]
    [17.3, 104.0, 745.1]
    """
    found = torch.finfo(dtype)
    # half the smallest number that is not zero rounds to zero
    return -(math.log(found.tiny) + math.log(found.eps) - math.log(2))


def weights_jacobian(
    scores: Float[Tensor, "*r l"],
    activation: ActivationLike = "softmax",
    mask: Bool[Tensor, "*m l"] | None = None,
    temperature: float = 1.0,
) -> Float[Tensor, "*r l l"]:
    """``J[j, l] = dA_j / dT_l`` of every row, with respect to the scores as given: 1/t times that of ``a``.

    >>> weights_jacobian(torch.tensor([0.0, 0.0]), temperature=0.5)
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]])
    """
    chosen, rows, visible = activation_inputs(scores, activation, mask, temperature)
    found: RowMatrices = chosen.jacobian(rows, visible)
    return found.to_dense().reshape(*scores.shape, scores.shape[-1]).to(scores.dtype) / temperature


def activation_inputs(
    scores: object, activation: ActivationLike, mask: object, temperature: float
) -> tuple[Activation, Float[Tensor, "1 n l"], Bool[Tensor, "1 n l"]]:
    """The activation, the scores over the temperature and what each row sees, as activations take them."""
    given = check_dense("scores", scores)
    expect(
        given.is_floating_point() and given.ndim > 0 and given.numel() > 0,
        f"scores: got {given.dtype} of shape {tuple(given.shape)}, expected rows of floating numbers.",
    )
    t = check_number("temperature", temperature, 0.0, strictly=True)
    visible = torch.ones(given.shape, dtype=torch.bool, device=given.device)
    if mask is not None:
        seen = check_dense("mask", mask)
        expect(seen.dtype == torch.bool, f"mask: got {seen.dtype}, expected torch.bool (True: may be seen).")
        try:
            visible = visible & seen.expand(given.shape)
        except RuntimeError:
            expect(False, f"mask: got shape {tuple(seen.shape)}, expected one that fits {tuple(given.shape)}.")
    rows = (1, -1, given.shape[-1])
    return as_activation(activation), (given / t).reshape(rows), visible.reshape(rows)

"""The exact diagonal Hessian blocks of a linear MLP under the square loss."""

from __future__ import annotations

from functools import reduce

import torch
from jaxtyping import Int
from torch import Tensor

from hessianlens.models import LinearMLP


def linear_block_norms(model: LinearMLP, tokens: Int[Tensor, "*b"]) -> list[float]:
    """Frobenius norm of every layer's own Hessian block, for the loss ``sum_p |logits_p - y_p|^2`` over `tokens`.

    With ``x_p`` the input of layer l and ``B`` the product of the matrices behind it, the logits are ``B W_l x_p``, so
    the block is ``2 (B^T B) kron (sum_p x_p x_p^T)`` (row-major vec of W_l) and its norm a product of two small norms.
    The targets do not enter: the logits are linear in W_l, and there is no functional part.

    >>> model = LinearMLP(layers=2, width=8, dtype=torch.float64)
    >>> [round(norm, 2) for norm in linear_block_norms(model, torch.tensor([[1, 2, 11]]))]
    [45.53, 42.19]
    """
    with torch.no_grad():
        weights = [weight.double() for weight in model.layers.parameters()]
        x = model.token_embedding.double()[tokens.flatten()]
        found = []
        for layer, weight in enumerate(weights):
            behind = reduce(lambda product, w: w @ product, weights[layer + 1 :], torch.eye(len(weight)).double())
            found.append(2 * float((behind.T @ behind).norm() * (x.T @ x).norm()))
            x = x @ weight.T
    return found

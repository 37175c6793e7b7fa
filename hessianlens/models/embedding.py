"""Rows of an embedding for a batch of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError

INTEGERS = (torch.int64, torch.int32)


def check_tokens(tokens: object, allow_meta: bool = False) -> Tensor:
    """Integer tokens of shape (L,) or (B, L); without contents only where the model has none either."""
    if not isinstance(tokens, Tensor):
        hint = "; pass the tensor inside it, e.g. batch['tokens']" if isinstance(tokens, dict) else ""
        raise InputError(
            f"tokens: got {type(tokens).__name__}, expected an integer tensor of shape (B, L) or (L,){hint}."
        )
    if not (allow_meta and tokens.is_meta):
        check_dense("tokens", tokens)
    if tokens.dtype not in INTEGERS or tokens.ndim not in (1, 2) or tokens.numel() == 0:
        raise InputError(
            f"tokens: got {tokens.dtype} of shape {tuple(tokens.shape)}, expected integers of shape (B, L) or (L,); "
            "convert them with .long()."
        )
    return tokens


def look_up(table: Float[Tensor, "n d"], tokens: Int[Tensor, "*b l"]) -> Float[Tensor, "*b l d"]:
    """``table[tokens]``, differentiable any number of times in `table`.

    >>> look_up(torch.tensor([[1.0], [2.0]]), torch.tensor([[1, 1, 0]]))[0, :, 0]
    tensor([2., 2., 1.])
    """
    try:
        return torch.nn.functional.embedding(tokens, table)
    except IndexError as error:
        raise InputError(
            f"tokens: got numbers from {int(tokens.min())} to {int(tokens.max())}, expected 0 .. {len(table) - 1} "
            f"(vocab = {len(table)}); build the model with a larger vocab or check the tokens."
        ) from error

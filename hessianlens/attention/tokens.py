"""Tokens as layers take them: checked batches, and those that are looked at, perhaps with a sink behind them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_tensor
from hessianlens.errors import expect


@dataclass(frozen=True, eq=False)
class KeyTokens:
    """Tokens that are looked at; a sink is one more, a row of zeros.

    Attributes:
        rows: ``[s, l, d]``.
        ones: One for every token, zero for a sink, ``[s, l, 1]``.
    """

    rows: Tensor
    ones: Tensor

    @classmethod
    def of(cls, X: Tensor, sink: bool) -> KeyTokens:
        """The tokens X, with a row of zeros behind them if there is a sink."""
        ones = X.new_ones(*X.shape[:2], 1)
        if not sink:
            return cls(X, ones)
        below = (0, 0, 0, 1)
        return cls(torch.nn.functional.pad(X, below), torch.nn.functional.pad(ones, below))


def as_batch(X: Tensor) -> Float[Tensor, "s l d"]:
    """A checked batch of sequences, from (L, d) or (B, L, d)."""
    checked = check_tensor("X", X, (2, 3))
    return checked if checked.ndim == 3 else checked[None]


def as_key_batch(X: Tensor, X_kv: object) -> Float[Tensor, "s l e"] | None:
    """A checked batch of tokens for the keys, with a batch axis where X has one or not; None if there are none."""
    if X_kv is None:
        return None
    checked = check_tensor("X_kv", X_kv, (2, 3))
    expect(checked.ndim == X.ndim, f"X_kv: got {checked.ndim} axes, expected {X.ndim} as X.")
    return checked if checked.ndim == 3 else checked[None]

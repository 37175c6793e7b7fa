"""Attention with rotary positions: queries and keys are turned by their own token before they meet."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hessianlens.attention.head import RawScores
from hessianlens.attention.layer import FactoredValueAttention
from hessianlens.attention.token_maps import Rotation
from hessianlens.attention.tokens import KeyTokens
from hessianlens.checks import check_dtype, check_same_kind, check_shape, check_tensor
from hessianlens.errors import check_number, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.sizes import number_of


def rotary_tables(
    length: int, d_k: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """``cos`` and ``sin`` of ``n base^(-2 j / d_K)`` at positions n = 0 .. length - 1, each (length, d_K).

    Entries j and ``j + d_K / 2`` share an angle, as `rotate_half` pairs them.

    >>> cos, sin = rotary_tables(3, 4)
    >>> cos[0].tolist(), sin[0].tolist()
    ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0])
    """
    check_whole("length", length, 1)
    expect(check_whole("d_k", d_k, 1) % 2 == 0, f"d_k: got {d_k}, expected an even width.")
    base = check_number("base", base, 0.0, strictly=True)
    check_dtype(dtype)
    ensure_fits("The table of rotations", (length, d_k), torch.float64, torch.device("cpu"), "take fewer positions", 4)
    frequencies = base ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.cat([frequencies, frequencies])
    return angles.cos().to(dtype), angles.sin().to(dtype)


@dataclass(frozen=True, eq=False, repr=False)
class RotaryAttention(FactoredValueAttention):
    """``T_il = (R_i W_Q^T x_i) . (R_l W_K^T x_l) / (t sqrt(d_K))``, ``F = a(T) X W_O W_U``; blocks Q, K, O, U.

    ``R_n q = cos_n * q + sin_n * rotate_half(q)`` as in LLaMA. The layer equals `FactoredValueAttention` where all
    tokens are turned alike.

    Args:
        W_Q: Query weights, d x d_K with d_K even.
        W_K: Key weights, d x d_K.
        W_O: First value factor, d x r.
        W_U: Second value factor, r x d_V.
        cos: ``[n, k]`` for the positions of a sequence, (L, d_K), or by sequence, (B, L, d_K).
        sin: The same.
        norm_behind_rotation: Whether norms of queries and keys act behind the rotation; with gains that matters.
        activation: See `AttentionOptions`, as are `causal`, `mask`, `bias`, `temperature` and `sink`.
        query_norm: See `SelfAttention`, as is `key_norm`.

    >>> W_Q, W_K, W_O, W_U = torch.randn(4, 6, 6, dtype=torch.float64)
    >>> cos, sin = rotary_tables(5, 6, dtype=torch.float64)
    >>> layer = RotaryAttention(W_Q, W_K, W_O, W_U, cos, sin, causal=True)
    >>> layer(torch.zeros(5, 6, dtype=torch.float64)).shape
    torch.Size([5, 6])
    """

    cos: Tensor
    sin: Tensor
    norm_behind_rotation: bool = field(default=False, kw_only=True)

    def _check_shapes(self) -> None:
        super()._check_shapes()
        width = self.W_Q.shape[1]
        expect(width % 2 == 0, f"W_Q: got d_K = {width}, expected an even number: pairs are rotated.")
        check_tensor("cos", self.cos, (2, 3))
        check_tensor("sin", self.sin, (2, 3))
        check_same_kind({"W_Q": self.W_Q, "cos": self.cos, "sin": self.sin})
        check_shape("cos", self.cos, (*self.cos.shape[:-1], width), "one entry for every column of W_Q")
        check_shape("sin", self.sin, tuple(self.cos.shape), "the shape of cos")

    def _rotation(self, X: Tensor) -> Rotation:
        cos, sin = (table if table.ndim == 3 else table[None] for table in (self.cos, self.sin))
        expect(
            cos.shape[0] in (1, X.shape[0]) and cos.shape[1] == X.shape[1],
            f"cos and sin: got shape {tuple(self.cos.shape)}, expected {(X.shape[1], cos.shape[2])} or "
            f"{(*X.shape[:2], cos.shape[2])}, for {number_of(X.shape[0], 'sequence')} of "
            f"{number_of(X.shape[1], 'token')}.",
        )
        return Rotation(cos, sin)

    def _key_tokens(self, X: Tensor, X_kv: Tensor | None) -> KeyTokens:
        expect(X_kv is None, "X_kv: got tokens, expected none: a rotary layer has positions for the tokens X only.")
        return super()._key_tokens(X, None)

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        R = self._rotation(X)
        more = keys.rows.shape[1] - X.shape[1]  # a sink, a row of zeros that is not turned
        tables = ((R.cos, 1.0), (R.sin, 0.0))
        padded = (torch.nn.functional.pad(table, (0, 0, 0, more), value=own) for table, own in tables)
        return self._dual_scores(X, keys, (R, Rotation(*padded) if more else R), self.norm_behind_rotation)

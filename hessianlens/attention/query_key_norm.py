r"""QK-norm: queries and keys divided by their own length before they meet.

With ``r^2 = |P z|^2 / k + eps`` a norm is ``n(z) = P z / r``, where P takes off the mean (LayerNorm) or is the identity
(RMSNorm). Its derivatives are diagonal plus low rank:

    N = dn/dz            = (P - n n^T / k) / r
    sum_e w_e d^2 n_e    = -(n (P w)^T + (P w) n^T + (n . w) (P - 3 n n^T / k)) / (k r^2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessianlens.attention.token_maps import TokenMap
from hessianlens.checks import check_dense, check_shape, check_tensor
from hessianlens.errors import check_choice, check_number, expect

KINDS = ("rms", "layer")


@dataclass(frozen=True, eq=False)
class QueryKeyNorm:
    r"""``q = gain * n(W_Q^T x) + shift`` with ``n(z) = z / sqrt(mean(z^2) + eps)``, for queries or for keys.

    Args:
        kind: "rms", or "layer" to subtract the mean of z first.
        gain: One factor for every entry, (d_K,); a parameter of the layer, block ``gain_Q`` or ``gain_K``. None for 1.
        shift: Added after the gain, (d_K,); block ``shift_Q`` or ``shift_K``. None for 0.
        eps: Added to the mean square.

    >>> norm = QueryKeyNorm("rms", gain=torch.tensor([2.0, 2.0]), eps=0.0)
    >>> norm(torch.tensor([3.0, 3.0]))
    tensor([2., 2.])
    """

    kind: str = "rms"
    gain: Tensor | None = None
    shift: Tensor | None = None
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Gains and shifts are finite vectors."""
        check_choice("kind", self.kind, KINDS)
        check_number("eps", self.eps, 0.0)
        for name, vector in self.parameters.items():
            check_tensor(name, vector, (1,))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Gain and shift, where there are any."""
        both = {"gain": self.gain, "shift": self.shift}
        return {name: vector for name, vector in both.items() if vector is not None}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> QueryKeyNorm:
        """The same norm with another gain or shift."""
        gain, shift = parameters.get("gain", self.gain), parameters.get("shift", self.shift)
        return replace(self, gain=gain, shift=shift)

    def check_width(self, name: str, width: int) -> None:
        """Refuse a gain or a shift that is not as wide as what is normalised."""
        for own, vector in self.parameters.items():
            check_shape(f"{name}.{own}", vector, (width,), "one entry for every column of the weight")
        enough = self.kind == "rms" or width > 1
        expect(enough, f"{name}: got width {width}, expected 2 or more: layer norm subtracts the mean.")

    def normalised(self, z: Float[Tensor, "*n k"]) -> NormalisedRows:
        """Rows over their length, without gain and shift."""
        check_dense("z", z)
        expect(z.ndim > 0 and z.is_floating_point(), "z: got no rows of floating numbers, expected some.")
        away = z - z.mean(-1, keepdim=True) if self.kind == "layer" else z
        length = (away.square().mean(-1, keepdim=True) + self.eps).sqrt()
        inverse = 1 / torch.where(length == 0, torch.ones_like(length), length)
        return NormalisedRows(away * inverse, inverse, self.kind == "layer")

    def __call__(self, z: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
        """``gain * n(z) + shift``."""
        found = self.normalised(z).rows
        for own, vector in self.parameters.items():
            check_shape(own, vector, (z.shape[-1],), "one entry for every column of z")
        found = found if self.gain is None else found * self.gain
        return found if self.shift is None else found + self.shift

    def __str__(self) -> str:
        own = [f"{name} {len(vector)}" for name, vector in self.parameters.items()]
        return " ".join([{"rms": "RMSNorm", "layer": "LayerNorm"}[self.kind], *own])


@dataclass(frozen=True, eq=False)
class NormalisedRows(TokenMap):
    """Rows divided by their length, and, as a map, the Jacobian N of that, which is symmetric.

    Attributes:
        rows: ``n``, ``[..., k]``.
        inverse: ``1 / r``, ``[..., 1]``.
        centred: Whether the mean of every row was taken off.
    """

    rows: Float[Tensor, "*n k"]
    inverse: Float[Tensor, "*n 1"]
    centred: bool

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self.rows.shape[-1]

    def turn(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y k"]:
        """``N v``."""
        along = (self.rows * vectors).mean(-1, keepdim=True)
        return (self._away(vectors) - self.rows * along) * self.inverse

    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y k"]:
        """The same."""
        return self.turn(vectors)

    def matrices(self) -> Float[Tensor, "s n k k"]:
        """N in full."""
        return (self._projector - self.rows[..., :, None] * self.rows[..., None, :] / self.width) * self.inverse[
            ..., None
        ]

    def second_derivative(self, cotangents: Float[Tensor, "s n k"]) -> Float[Tensor, "s n k k"]:
        """``sum_e w_e d^2 n_e / dz dz``."""
        k, n, w = self.width, self.rows, self._away(cotangents)
        mixed = n[..., :, None] * w[..., None, :]
        along = (n * w).sum(-1)[..., None, None]
        own = along * (self._projector - 3 / k * n[..., :, None] * n[..., None, :])
        return -(mixed + mixed.mT + own) * (self.inverse.square() / k)[..., None]

    def at(self, kept: Int[Tensor, " n"]) -> NormalisedRows:
        """Some rows only."""
        return replace(self, rows=self.rows[:, kept], inverse=self.inverse[:, kept])

    def _away(self, vectors: Tensor) -> Tensor:
        """``P v``."""
        return vectors - vectors.mean(-1, keepdim=True) if self.centred else vectors

    @property
    def _projector(self) -> Float[Tensor, "k k"]:
        """P."""
        one = torch.eye(self.width, dtype=self.rows.dtype, device=self.rows.device)
        return one - 1 / self.width if self.centred else one

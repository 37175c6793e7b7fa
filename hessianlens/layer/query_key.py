"""The query-key part split at the scores: eigenvalue pairs, rank, and the directions in which nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.layer import SelfAttention
from hessianlens.checks import check_precision, check_tensor
from hessianlens.display import DisplayableRows, Picture, Spikes
from hessianlens.errors import InputError, check_number, check_whole, describe_value
from hessianlens.layer.functional import score_pair_matrix
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.sizes import number_of


@dataclass(frozen=True, eq=False, repr=False)
class EigenvaluePairs(DisplayableRows):
    """The spectrum of the T-functional Hessian ``[[0, B], [B^T, 0]] (x) I``, in closed form.

    Its non-zero eigenvalues are plus and minus each non-zero singular value of B, each `multiplicity` (= d_K) times;
    the eigenvectors are ``(u_i (x) e, +-v_i (x) e) / sqrt(2)`` with the singular vectors of B.

    Attributes:
        values: The d singular values of B, largest first.
        multiplicity: d_K.
        left: Singular vectors u_i as columns.
        right: Singular vectors v_i as columns.
    """

    values: Float[Tensor, " r"]
    multiplicity: int
    left: Float[Tensor, "d r"]
    right: Float[Tensor, "d r"]

    @property
    def rank(self) -> int:
        """Rank of B to working precision."""
        largest = float(self.values.max())
        return int((self.values > largest * len(self.values) * torch.finfo(self.values.dtype).eps).sum())

    @property
    def nonzero(self) -> int:
        """Number of non-zero eigenvalues, ``2 rank(B) d_K``; half of them are negative."""
        return 2 * self.rank * self.multiplicity

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"rank": k, "eigenvalue": sign * value, "multiplicity": self.multiplicity}
            for k, value in enumerate(self.values.tolist())
            for sign in (1.0, -1.0)
        ]

    def _picture(self, asked: bool) -> Picture:
        """Every pair once."""
        values = [row["eigenvalue"] for row in self._records()]
        return Spikes(values, f"eigenvalue pairs, each {number_of(self.multiplicity, 'time')}", paired=True)

    def __repr__(self) -> str:
        largest = ", ".join(f"±{value:.4g}" for value in self.values[:4].tolist())
        more = ", ..." if len(self.values) > 4 else ""
        times = number_of(self.multiplicity, "time")
        return f"EigenvaluePairs {largest}{more}, each {times}; {self.nonzero} are not zero"

    def eigenvalues(self) -> Float[Tensor, " n"]:
        """All ``2 d d_K`` eigenvalues, ascending."""
        pairs = torch.cat([self.values, -self.values]).repeat_interleave(self.multiplicity)
        return pairs.sort().values


def eigenvalue_pairs(H: AttentionHessian, head: int = 0) -> EigenvaluePairs:
    """The +-lambda pairs of a head's T-functional Hessian, from the SVD of a d x d matrix.

    >>> import hessianlens as hl
    >>> layer = hl.SelfAttention.random(4, 3, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    >>> pairs = eigenvalue_pairs(H)
    >>> bool(torch.allclose(pairs.eigenvalues(), torch.linalg.eigvalsh(H.t_functional[:].to_dense())))
    True
    """
    if not isinstance(H, AttentionHessian):
        raise InputError(
            f"H: got {describe_value(H)}, expected an AttentionHessian, from hessianlens.attention_hessian."
        )
    check_whole("head", head, 0, len(H.heads) - 1)
    state = H.heads[head]
    if state.score_pair is None:
        raise InputError(f"head {head}: it has a single query-key matrix, so there is no T-functional Hessian.")
    left, values, right = torch.linalg.svd(score_pair_matrix(state, H.gradient_of(head)))
    width = state.score_ports[state.score_pair[0]].matrix.shape[-1]
    return EigenvaluePairs(values, width, left, right.T)


def t_outer_rank_bound(d_model: int, d_k: int) -> int:
    """Lemma D.2: the T-outer-product Hessian has rank at most ``2 d_K d - d_K^2`` (d_K < d), else ``d^2``.

    >>> t_outer_rank_bound(8, 4), t_outer_rank_bound(8, 9)
    (48, 64)
    """
    check_whole("d_model", d_model)
    check_whole("d_k", d_k)
    return 2 * d_k * d_model - d_k**2 if d_k < d_model else d_model**2


def t_outer_rank(length: int, d_model: int, d_k: int) -> int:
    """The exact rank of the T-outer-product Hessian for one unmasked sequence, softmax, generic weights and tokens.

    With ``r_X = min(L, d)``, ``r_C = min(L - 1, d)`` and ``k = min(d_K, r_X, r_C)`` it is ``k (r_X + r_C - k)``; the
    bound of Lemma D.2 is attained exactly when ``L >= d + 1``. A causal mask lowers the rank; a batch of several
    sequences can only raise it, up to the bound.

    >>> t_outer_rank(9, 8, 4) == t_outer_rank_bound(8, 4), t_outer_rank(8, 8, 4)
    (True, 44)
    """
    for name, size in (("length", length), ("d_model", d_model), ("d_k", d_k)):
        check_whole(name, size)
    tokens, centred = min(length, d_model), min(length - 1, d_model)
    k = min(d_k, tokens, centred)
    return k * (tokens + centred - k)


def numerical_rank(matrix: Float[Tensor, "n m"], tolerance: float | None = None) -> int:
    """Singular values above ``tolerance`` times the largest (default: the size times machine precision)."""
    check_tensor("matrix", matrix, (2,))
    check_precision("matrix", matrix.dtype)
    values = torch.linalg.svdvals(matrix)
    machine = max(matrix.shape) * torch.finfo(matrix.dtype).eps
    relative = machine if tolerance is None else check_number("tolerance", tolerance, 0.0)
    return int((values > relative * values.max()).sum())


def gauge_directions(layer: SelfAttention) -> Float[Tensor, "n g"]:
    """An orthonormal basis of the directions ``(W_Q M, -W_K M^T)``, which leave ``W_Q W_K^T`` unchanged at first order.

    For ``d_K <= d < L`` and softmax they are exactly the null space of the T-outer-product Hessian, of dimension d_K^2.

    >>> gauge_directions(SelfAttention.random(5, 2, dtype=torch.float64)).shape
    torch.Size([20, 4])
    """
    if not isinstance(layer, SelfAttention):
        raise InputError(f"layer: got {describe_value(layer)}, expected a SelfAttention.")
    check_precision("layer", layer.W_Q.dtype)
    k = layer.d_k
    units = torch.eye(k * k, dtype=layer.W_Q.dtype, device=layer.W_Q.device).reshape(k * k, k, k)
    columns = torch.cat([(layer.W_Q @ units).flatten(1), -(layer.W_K @ units.transpose(-1, -2)).flatten(1)], 1).T
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    return left[:, values > values.max() * max(columns.shape) * torch.finfo(values.dtype).eps]

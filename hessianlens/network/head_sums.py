r"""Sums over rows and sequences of what an attention head looks at, as by-products of a forward pass.

Of a row of scores t with weights ``p = a(t)`` over the values v that it sees:

==================  ================================================================================================
largest logit       the largest score in size; beyond about 50 softmax has no derivative left in single precision
entropy             ``-sum_j p_j log p_j`` in nats, and its share of that of equal weights
effective tokens    ``exp(entropy)``
sink                weight on the first token
Jacobian            ``|diag(p) - p p'|`` (Frobenius): what all derivatives of queries and keys pass through
moments of values   mean ``|m|``, ``m = sum_j p_j v_j``; spread ``sum_j p_j |v_j - m|^2``, the trace of the second
                    moment, which feeds the Gauss-Newton part of the query block; skew ``|sum_j p_j |v_j - m|^2
                    (v_j - m)|``, a contraction of the third moment, which feeds its functional part
==================  ================================================================================================

All are averaged over the rows that see more than one token, the largest logit excepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.base.attention_calls import ObservedAttention

SATURATED = 0.99
"""A row that puts more than this on one token is saturated: its softmax hardly has a derivative."""


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums over sequences and rows ``[h]`` of one layer's heads; the logits are maxima.

    Attributes:
        sequences: How many.
        rows: Rows of each head that see more than one token.
        sums: By quantity.
        logits: Largest scores in size.
    """

    sequences: int
    rows: Tensor
    sums: Mapping[str, Tensor]
    logits: Tensor

    @classmethod
    def of(cls, seen: ObservedAttention) -> HeadSums:
        """One batch."""
        A = seen.weights.double()
        visible = seen.visible.expand_as(A)
        several = visible.sum(-1) > 1
        counted = several.sum((0, 2)).double()
        sound = bool((A >= 0).all()) and bool((A.sum(-1) - 1).abs()[visible.any(-1)].max() < 1e-3)
        entropy = torch.special.entr(A.clamp(min=0)).sum(-1) if sound else torch.full_like(A[..., 0], torch.nan)
        jacobian = _jacobian_norms(A) if sound else torch.full_like(entropy, torch.nan)
        by_row = {
            "effective": entropy.exp(),
            "saturated": (A.max(-1).values > SATURATED).double(),
            "sink": A[..., 0],
            "largest_weight": A.max(-1).values,
            "jacobian": jacobian,
            **_moments(A, seen.values.double()),
        }
        sums = {name: torch.where(several, rows, 0).sum((0, 2)).cpu() for name, rows in by_row.items()}
        sums["entropy"] = entropy.mean(-1).sum(0).cpu()
        sums["equal"] = visible.sum(-1).clamp(min=1).double().log().mean(-1).sum(0).cpu()
        scores = torch.where(visible, seen.scores, 0).abs().amax((0, 2, 3))
        return cls(A.shape[0], counted.cpu(), sums, scores.double().cpu())

    def plus(self, other: HeadSums) -> HeadSums:
        """Those of further sequences added."""
        sums = {name: self.sums[name] + other.sums[name] for name in self.sums}
        logits = torch.maximum(self.logits, other.logits)
        return HeadSums(self.sequences + other.sequences, self.rows + other.rows, sums, logits)

    @property
    def is_distribution(self) -> bool:
        """Whether the weights of every row are no less than zero and sum to one."""
        return bool(self.sums["entropy"].isfinite().all())

    def means(self) -> list[dict[str, float]]:
        """Every quantity of every head, in order."""
        means = {name: total / self.rows.clamp(min=1) for name, total in self.sums.items() if name not in _TOTALS}
        equal, entropy = self.sums["equal"], self.sums["entropy"]
        means["share"] = torch.where(equal > 0, entropy / equal, torch.zeros_like(equal))
        means |= {"entropy": entropy / self.sequences, "largest_logit": self.logits}
        return [{name: float(values[h]) for name, values in means.items()} for h in range(len(entropy))]


_TOTALS = ("entropy", "equal")
"""Sums over the sequences of means over all rows: of entropies, and of those of equal weights."""


def _jacobian_norms(A: Tensor) -> Tensor:
    """``|diag(p) - p p'|`` of every row, without cancellation where one weight m is nearly all.

    With the other weights o, of sum r: ``m^2 r^2 + sum o^2 (1 - o)^2 + 2 m^2 sum o^2 + (sum o^2)^2 - sum o^4``.
    """
    top = A.max(-1)
    others = A.scatter(-1, top.indices[..., None], 0.0)
    squares = others.square()
    total, fourth = squares.sum(-1), squares.square().sum(-1)
    largest = top.values.square()
    diagonal = largest * others.sum(-1).square() + (squares * (1 - others).square()).sum(-1)
    return (diagonal + 2 * largest * total + (total.square() - fourth).clamp(min=0)).sqrt()


def _moments(A: Tensor, V: Tensor) -> dict[str, Tensor]:
    """Norm of the mean, trace of the second and norm of the contracted third moment of the values, by row.

    With ``m = A V`` and ``n_j = |v_j|^2``: ``sum_j a_j |v_j - m|^2 (v_j - m)`` takes no moment but three products.
    """
    V = V[:, torch.arange(A.shape[1], device=V.device) * V.shape[1] // A.shape[1]]
    mean = A @ V
    inner = mean @ V.transpose(-1, -2)
    distance = (V * V).sum(-1)[:, :, None, :] - 2 * inner + (mean * mean).sum(-1, keepdim=True)
    weighed = A * distance.clamp(min=0)
    skew = weighed @ V - weighed.sum(-1, keepdim=True) * mean
    return {
        "mean": mean.norm(dim=-1),
        "spread": weighed.sum(-1),
        "skew": skew.norm(dim=-1),
    }

"""What a model does to the products of queries and keys before softmax: a factor, a soft cap, a bias, a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.recognition import close, entrywise_slope


@dataclass(frozen=True, eq=False)
class ScoreRule:
    """``cap tanh(scale raw / cap) + bias`` where visible.

    Attributes:
        scale: The factor.
        cap: The soft cap; None if there is none.
        bias: ``[sequence, head, i, j]``, zero where hidden; None if there is none.
        visible: Entries that take part, the same shape.
    """

    scale: float
    cap: float | None
    bias: Tensor | None
    visible: Tensor


def score_rule(raw: Tensor, scores: Tensor, shape: Sequence[int]) -> ScoreRule | Refusal:
    """The rule that made scores of products; a refusal where none is known.

    Args:
        raw: The products, a leaf.
        scores: The scores, on its graph.
        shape: ``[sequence, head, i, j]``.
    """
    with torch.enable_grad():
        slope = entrywise_slope(scores, raw, graph=True)
        bend = None if slope is None else entrywise_slope(slope, raw) if slope.requires_grad else torch.zeros_like(raw)
    if slope is None or bend is None:
        return Refusal("its scores are not made of the products of queries and keys one by one")
    values, slope, bend, products = (tensor.detach().reshape(*shape) for tensor in (scores, slope, bend, raw))
    visible = values > torch.finfo(values.dtype).min / 2
    # A row that is hidden by large numbers only, not by infinite ones, sees everything alike.
    visible |= ~visible.any(-1, keepdim=True) & values.isfinite().all(-1, keepdim=True)
    if not bool(visible.any()):
        return Refusal("none of its scores is visible")
    if not bool(bend[visible].any()):
        return _straight(products, values, slope, visible)
    return _capped(products, values, slope, visible)


def _straight(raw: Tensor, scores: Tensor, slope: Tensor, visible: Tensor) -> ScoreRule | Refusal:
    scale = float(slope[visible].median())
    if not close(slope[visible], torch.full_like(slope[visible], scale)) or scale <= 0:
        return Refusal("its products of queries and keys enter the scores with different factors")
    bias = (scores - scale * raw).masked_fill(~visible, 0)
    negligible = close(scores[visible], scale * raw[visible])
    return ScoreRule(scale, None, None if negligible else bias, visible)


def _capped(raw: Tensor, scores: Tensor, slope: Tensor, visible: Tensor) -> ScoreRule | Refusal:
    """``s = c tanh(a r / c)`` has ``ds/dr = a - (a / c^2) s^2``, a straight line in the square of s."""
    squares, slopes = scores[visible].double().square(), slope[visible].double()
    design = torch.stack([torch.ones_like(squares), -squares], -1)
    scale, fall = torch.linalg.lstsq(design, slopes[:, None]).solution[:, 0].tolist()
    unknown = Refusal("its scores are bent in a way that is not a soft cap")
    if scale <= 0 or fall <= 0:
        return unknown
    cap = (scale / fall) ** 0.5
    # The fit of two numbers loses digits where scores stay far below the cap; a cap is a plain number.
    for guess in (float(f"{cap:.6g}"), cap):
        if close(guess * torch.tanh(scale * raw[visible] / guess), scores[visible]):
            return ScoreRule(scale, guess, None, visible)
    return unknown

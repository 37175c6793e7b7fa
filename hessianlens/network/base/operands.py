"""How queries, keys and values come from what their linear maps put out: which features a head takes, how turned.

Between a linear map and the attention there are reshapes, perhaps a factor, perhaps a rotation by position. All are
linear in the map's outputs and act on every position alone, and are found from derivatives, whatever they are called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.token_maps import Rotation
from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.network.base.recognition import Grouping, close, entrywise_slope, groupings

NO_SOURCE = Refusal("do not come from a linear map")
_WEIGHTLESS = -1200
"""Binary exponent of a weight that is zero in any floating point format."""


@dataclass(frozen=True, eq=False)
class Operand:
    """Queries, keys or values of all heads, seen from the map that they come from.

    Attributes:
        site: The map.
        features: Its outputs that a head takes, ``[piece, e]``; several heads may share a piece.
        heads: The piece of every head.
        grouping: Positions of the map by sequence.
        maps: ``R_n``, from a piece's features to what the attention takes, ``[position, e, feature]``.
    """

    site: int
    features: Tensor
    heads: tuple[int, ...]
    grouping: Grouping
    maps: Tensor


def by_head(tensor: Tensor, sequences: int) -> Tensor | None:
    """``[sequence, head, position, e]``, from a tensor in which sequences and heads may be one axis."""
    if tensor.ndim == 4 and tensor.shape[0] == sequences:
        return tensor
    if tensor.ndim == 3 and tensor.shape[0] % sequences == 0:
        return tensor.unflatten(0, (sequences, -1))
    return None


def source_of(taken: Tensor, leaves: Mapping[int, Tensor]) -> int | Refusal:
    """The site of the map that an operand of the attention comes from; a refusal where there is none.

    Args:
        taken: ``[sequence, head, position, e]``.
        leaves: What the maps before it put out, by site.
    """
    if not taken.requires_grad:
        return NO_SOURCE
    slopes = torch.autograd.grad(taken, list(leaves.values()), random_like(taken), retain_graph=True, allow_unused=True)
    used = [site for site, slope in zip(leaves, slopes, strict=True) if slope is not None]
    if len(used) != 1:
        return Refusal(f"come from {len(used)} linear maps, not from one")
    return used[0]


def sites_before(tensors: Sequence[Tensor], leaves: Mapping[int, Tensor]) -> set[int]:
    """Sites of the maps that some tensors come from."""
    found = set[int]()
    for tensor in tensors:
        if tensor.requires_grad and tensor.grad_fn is not None:
            ones, every = torch.ones_like(tensor), list(leaves.values())
            slopes = torch.autograd.grad(tensor, every, ones, retain_graph=True, allow_unused=True)
            found |= {site for site, slope in zip(leaves, slopes, strict=True) if slope is not None}
    return found


Rows = Callable[[Tensor], Tensor]
"""From something in the form of what a map puts out to ``[position, feature]``."""


def last_axis_rows(tensor: Tensor) -> Tensor:
    """Features on the last axis."""
    return tensor.reshape(-1, tensor.shape[-1])


def operand_of(taken: Tensor, site: int, leaf: Tensor, rows: Rows = last_axis_rows) -> Operand | Refusal:
    """How an operand of the attention comes from its map; a refusal where that is not known.

    Args:
        taken: ``[sequence, head, position, e]``.
        site: The map.
        leaf: What it puts out.
        rows: How its positions and features lie in that.
    """
    features = features_by_head(taken, leaf, rows)
    if isinstance(features, Refusal):
        return features
    pieces, heads = features
    if pieces.shape[1] != taken.shape[-1]:
        return Refusal(f"take other than {taken.shape[-1]} features a head")
    grouping = grouping_of(taken, leaf, rows)
    if grouping is None:
        return refuse_positions(taken, leaf)
    maps = _maps(taken, leaf, pieces[0], rows)
    return Operand(site, pieces, heads, grouping, maps)


def is_curved(taken: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether some second derivative is not zero."""
    with torch.enable_grad():
        slopes = torch.autograd.grad(taken, leaves, random_like(taken), create_graph=True, retain_graph=True)
    bent = [slope for slope in slopes if slope.requires_grad]
    if not bent:
        return False
    drawn = [random_like(slope) for slope in bent]
    found = torch.autograd.grad(bent, leaves, drawn, retain_graph=True, allow_unused=True)
    return any(each is not None and bool(each.any()) for each in found)


def vjp_by_position(taken: Tensor, leaf: Tensor, cotangent: Tensor, rows: Rows = last_axis_rows) -> Tensor:
    """What a cotangent of an operand is at the map's outputs, ``[position, feature]``."""
    (found,) = torch.autograd.grad(taken, leaf, cotangent, retain_graph=True)
    return rows(found)


def features_by_head(
    taken: Tensor, leaf: Tensor, rows: Rows = last_axis_rows
) -> tuple[Tensor, tuple[int, ...]] | Refusal:
    """Features of a map by piece, ``[piece, p]``, and the piece of every head; a refusal where they are not alike."""
    drawn, found = random_like(taken), []
    for head in range(taken.shape[1]):
        cotangent = torch.zeros_like(drawn)
        cotangent[:, head] = drawn[:, head]
        found.append(tuple((vjp_by_position(taken, leaf, cotangent, rows) != 0).any(0).nonzero()[:, 0].tolist()))
    pieces = list(dict.fromkeys(found))
    if len({len(piece) for piece in pieces}) > 1:
        return Refusal("take different numbers of features per head")
    return torch.tensor(pieces, device="cpu"), tuple(pieces.index(own) for own in found)


def grouping_of(taken: Tensor, leaf: Tensor, rows: Rows = last_axis_rows) -> Grouping | None:
    """How the positions of the map are those of the sequences."""
    sequences, _, length, _ = taken.shape
    drawn = random_like(taken)
    numbers = 1 + torch.arange(sequences * length, device=taken.device).reshape(sequences, 1, length, 1)
    alone, numbered = (vjp_by_position(taken, leaf, cotangent, rows) for cotangent in (drawn, numbers * drawn))
    shape = tuple(leaf.shape) if rows is last_axis_rows else (sequences, length, alone.shape[1])
    for grouping in groupings(shape, sequences):
        if grouping.groups == sequences and grouping.members == length:
            expected = grouping.flatten(numbers[:, 0]) * alone
            if bool(((numbered - expected).abs() <= 1e-3 * alone.abs()).all()):
                return grouping
    return None


def refuse_positions(taken: Tensor, leaf: Tensor) -> Refusal:
    """Why positions of an operand are not those of its map."""
    own, of_map = taken[:, 0, :, 0].numel(), leaf[..., 0].numel()
    if own != of_map:
        return Refusal(f"are {own} positions, where their linear map has {of_map}")
    return Refusal("mix positions after their linear map")


def _maps(taken: Tensor, leaf: Tensor, features: Tensor, by_position: Rows) -> Tensor:
    """``R_n`` of the first head, ``[position, e, feature]``."""
    rows = []
    for e in range(taken.shape[-1]):
        cotangent = torch.zeros_like(taken)
        cotangent[:, 0, :, e] = 1
        rows.append(vjp_by_position(taken, leaf, cotangent, by_position)[:, features.to(leaf.device)])
    return torch.stack(rows, 1)


@dataclass(frozen=True, eq=False)
class RotatedFactor:
    """The maps of an operand as a factor, or as rotations of pairs of features, in an order of the features.

    Attributes:
        order: Features of a piece, in the order in which they enter.
        cos: ``[position, e]``, where they are turned; all one factor where they are not.
        sin: The same; None where they are not turned.
    """

    order: Tensor
    cos: Tensor
    sin: Tensor | None


def pairs_of(maps: Tensor) -> list[tuple[int, int]] | None:
    """Rows of the maps that mix the same two features; those that mix none, two by two; None if three are mixed.

    >>> quarter = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    >>> pairs_of(quarter + torch.eye(2)), pairs_of(torch.ones(1, 3, 3))
    ([(0, 1)], None)
    """
    columns = [tuple(row.nonzero()[:, 0].tolist()) for row in (maps != 0).any(0)]
    alone = [e for e, own in enumerate(columns) if len(own) == 1]
    mixed: dict[tuple[int, ...], list[int]] = {}
    for e, own in enumerate(columns):
        if len(own) != 1:
            mixed.setdefault(own, []).append(e)
    if len(alone) % 2 or any(len(own) != 2 or len(rows) != 2 for own, rows in mixed.items()):
        return None
    found = [(rows[0], rows[1]) for rows in mixed.values()] + list(zip(alone[::2], alone[1::2], strict=True))
    return sorted(found)


def rotated_factor(maps: Tensor, rows: Sequence[int]) -> RotatedFactor | None:
    """The maps with their rows in some order, the partners of the first half in the second; None if they do not fit.

    Args:
        maps: ``R_n``, ``[position, e, feature]``.
        rows: The order.
    """
    arranged = maps[:, list(rows)]
    half = arranged.shape[1] // 2
    sizes = arranged.abs().amax(0)
    own = sizes.argmax(-1)
    for k in range(half):  # two that turn far may both be largest in the same feature
        if own[k] == own[k + half]:
            other = sizes[k].clone()
            other[own[k]] = 0
            own[k + half] = other.argmax()
    if len(set(own.tolist())) != len(own):
        return None
    arranged = arranged[..., own]
    each = torch.arange(2 * half, device=own.device)
    partner = each.roll(half)
    sign = torch.where(each < half, -1, 1).to(arranged)
    cos, sin = arranged[:, each, each], sign * arranged[:, each, partner]
    rebuilt = Rotation(cos[None], sin[None]).matrices()[0]
    return RotatedFactor(own, cos, sin) if torch.equal(rebuilt, arranged) else None


def plain(maps: Tensor) -> RotatedFactor | None:
    """The maps as one factor, if they are no more than that."""
    sizes = maps.abs().amax(0)
    order = sizes.argmax(-1)
    factor = maps[0, 0, order[0]]
    expected = torch.zeros_like(maps[0])
    expected[torch.arange(len(order), device=order.device), order] = factor
    fits = len(set(order.tolist())) == len(order) and bool((maps == expected).all())
    return RotatedFactor(order, factor.expand(maps.shape[:2]), None) if fits else None


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
        if slope is None:
            return _shifted(raw, scores, shape)
        second_slope = (
            None if slope is None else entrywise_slope(slope, raw) if slope.requires_grad else torch.zeros_like(raw)
        )
    if slope is None or second_slope is None:
        return Refusal("its scores are not products of one query with one key each")
    values, slope, second_slope, products = (
        tensor.detach().reshape(*shape) for tensor in (scores, slope, second_slope, raw)
    )
    visible = values > torch.finfo(values.dtype).min / 2
    # A row that is hidden by large numbers only, not by infinite ones, sees everything alike.
    visible |= ~visible.any(-1, keepdim=True) & values.isfinite().all(-1, keepdim=True)
    visible &= (slope != 0) | (values - values.amax(-1, keepdim=True) > _WEIGHTLESS * math.log(2))
    if not bool(visible.any()):
        return Refusal("none of its scores is visible")
    if not bool(second_slope[visible].any()):
        return _straight(products, values, slope, visible)
    return _capped(products, values, slope, visible)


def _shifted(raw: Tensor, scores: Tensor, shape: Sequence[int]) -> ScoreRule | Refusal:
    """``scale raw + bias`` up to a number per row, which softmax does not see: cotangents that sum to zero tell."""
    found = []
    for _ in range(2):
        drawn = random_like(scores)
        drawn = drawn - drawn.mean(-1, keepdim=True)
        (slope,) = torch.autograd.grad(scores, raw, drawn, retain_graph=True)
        found.append((drawn.reshape(shape), slope.reshape(shape)))
    scale = float((found[0][0] * found[0][1]).sum() / found[0][0].square().sum())
    if scale <= 0 or not all(close(slope, scale * drawn) for drawn, slope in found):
        return Refusal("its scores are not products of one query with one key each")
    values, products = (tensor.detach().reshape(*shape) for tensor in (scores, raw))
    bias, everything = values - scale * products, torch.ones_like(values, dtype=torch.bool)
    return ScoreRule(scale, None, bias - bias.amax(-1, keepdim=True), everything)


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
    unknown = Refusal("its scores pass through a nonlinearity that is not a soft cap")
    if scale <= 0 or fall <= 0:
        return unknown
    cap = (scale / fall) ** 0.5
    # The fit of two numbers loses digits where scores stay far below the cap; a cap is a plain number.
    for guess in (float(f"{cap:.6g}"), cap):
        if close(guess * torch.tanh(scale * raw[visible] / guess), scores[visible]):
            return ScoreRule(scale, guess, None, visible)
    return unknown

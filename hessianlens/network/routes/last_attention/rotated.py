"""Heads whose queries and keys are products that rotations by position may turn, and whose values are products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention
from hessianlens.attention.rotary import RotaryAttention
from hessianlens.errors import Refusal
from hessianlens.network.base.operands import (
    Operand,
    RotatedFactor,
    pairs_of,
    plain,
    rotated_factor,
)
from hessianlens.network.base.recognition import close
from hessianlens.network.routes.last_attention.site import AttentionSite, HeadProjection, heads_of, with_ones
from hessianlens.network.routes.last_attention.surroundings import ROLES, AttentionByHead


def rotated_site(attention: AttentionByHead) -> AttentionSite | Refusal:
    """The site where queries and keys are rotated products."""
    around, output = attention.around, attention.output
    operands: dict[str, Operand] = {}
    for name, tensor in attention.operands.items():
        found = around.operand(tensor)
        if isinstance(found, Refusal):
            return Refusal(f"{ROLES[name]} {found}")
        operands[name] = found
    uses = {name: use for name, operand in operands.items() if (use := around.weight(operand.site)) is not None}
    shifts = {name: around.shift(operand.site) for name, operand in operands.items()}
    entering = [around.tokens(uses[name], operand.grouping) for name, operand in operands.items()]
    tokens = entering[0]
    if not all(torch.equal(tokens, other) for other in entering):
        return Refusal("its queries, keys and values are made of different tokens")
    turning = turning_of(operands)
    if isinstance(turning, Refusal):
        return turning
    out = around.output_map(output)
    if isinstance(out, Refusal):
        return out
    projections = {
        name: HeadProjection(uses[name], shifts[name], operand.features[:, turning.orders[name]], operand.heads)
        for name, operand in operands.items()
    }
    if out.between is not None and around.used_elsewhere(list(operands.values()), out.use):
        return Refusal("its queries, keys or values are used elsewhere too")
    gates = around.gates(out, projections, tokens, output)
    if isinstance(gates, Refusal):
        return gates
    features = {(own.use.site, feature) for own in projections.values() for feature in own.features.flatten().tolist()}
    more = {(g.projection.use.site, f) for g in gates.values() for f in g.projection.features.flatten().tolist()}
    if features & more:
        return Refusal("the output of its heads is changed by its own queries, keys or values")
    rows = attention.biases(projections, gates)
    options = attention.options(projections["q"].features.shape[1], turning.factor)
    tables = {} if turning.tables is None else dict(zip(("cos", "sin"), turning.tables, strict=True))
    layer = heads_of(
        attention.weights(projections, out),
        rows,
        attention.heads(projections),
        FactoredValueAttention if turning.tables is None else RotaryAttention,
        [own | tables for own in options],
    )
    biased = any(own is not None for own in rows.values())
    return around.site(layer, with_ones(tokens) if biased else tokens, projections, out, gates, output)


@dataclass(frozen=True, eq=False)
class Turning:
    """How features of q, k and v enter.

    Attributes:
        orders: Features of a piece, in the order in which they enter.
        factor: What the products of queries and keys are multiplied with on the way.
        tables: Cosines and sines by sequence and position; None where nothing is turned.
    """

    orders: Mapping[str, Tensor]
    factor: float
    tables: tuple[Tensor, Tensor] | None


def turning_of(operands: Mapping[str, Operand]) -> Turning | Refusal:
    """How features of q, k and v enter; a refusal where queries and keys are more than rotated."""
    q, k, v = (operands[name] for name in "qkv")
    value = plain(v.maps)
    if value is None or float(value.cos[0, 0]) != 1:
        return Refusal("its values are changed after their linear map")
    straight = [plain(operand.maps) for operand in (q, k)]
    if straight[0] is not None and straight[1] is not None:
        orders = {"q": straight[0].order, "k": straight[1].order, "v": value.order}
        return Turning(orders, float(straight[0].cos[0, 0] * straight[1].cos[0, 0]), None)
    changed = Refusal(
        "its queries and keys are changed after their linear maps by something other than a rotation of pairs"
    )
    pairs = [pairs_of(operand.maps) for operand in (q, k)]
    if pairs[0] is None or pairs[0] != pairs[1]:
        return changed
    rows = [first for first, _ in pairs[0]] + [second for _, second in pairs[0]]
    of_queries, of_keys = (rotated_factor(operand.maps, rows) for operand in (q, k))
    if of_queries is None or of_keys is None:
        return changed
    tables = [_by_sequence(operand, found) for operand, found in ((q, of_queries), (k, of_keys))]
    factor = float((tables[0] * tables[1]).sum() / tables[1].square().sum())
    if not close(tables[0], factor * tables[1]):
        return Refusal("its queries are rotated differently from its keys")
    cos, sin = tables[1]
    return Turning({"q": of_queries.order, "k": of_keys.order, "v": value.order}, factor, (cos, sin))


def _by_sequence(operand: Operand, found: RotatedFactor) -> Tensor:
    """Cosines and sines, ``[2, sequence, position, e]``."""
    assert found.sin is not None
    return torch.stack([operand.grouping.arrange(table) for table in (found.cos, found.sin)])

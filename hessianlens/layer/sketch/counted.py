"""What exact norms of a layer's blocks take, counted from the plans of their contractions before they are built."""

from __future__ import annotations

import torch

from hessianlens.attention.state import HeadState, ScorePort
from hessianlens.notation import SEQUENCE
from hessianlens.operators import Factor, Term
from hessianlens.operators.inner_products import squared_norm_cost


def score_norm_cost(heads: tuple[HeadState, HeadState], ports: tuple[ScorePort, ScorePort], pair: bool) -> float:
    """Multiply-adds of the exact squared norm of a block between two score parameters.

    Args:
        heads: Head of the rows and of the columns.
        ports: How the two parameters enter.
        pair: Whether there is a T-functional summand.
    """
    sequences, queries, length = heads[0].scores.shape
    widths, carried = [port.matrix_width for port in ports], [port.vector.shape[-1] for port in ports]
    tokens, turned = sequences * queries, any(port.key_turn is not None for port in ports)

    def factor(indices: str, *shape: int) -> Factor:
        return Factor("", SEQUENCE + indices, torch.empty(sequences, *shape, device="meta"))

    keys = ["l" if port.key_turn is not None else "" for port in ports]
    left = factor(f"i{keys[0]}a", queries, *([length] if keys[0] else []), carried[0])
    right = factor(f"i{'m' if keys[1] else ''}c", queries, *([length] if keys[1] else []), carried[1])
    built = tokens * length * (8.0 * length + heads[0].values.shape[-1])
    if turned or length * length <= widths[0] * widths[1]:
        sides = factor("lb", length, widths[0]), factor("md", length, widths[1])
        term = Term(1.0, (left, sides[0], factor("ilm", queries, length, length), sides[1], right))
    else:
        built += tokens * length * widths[1] * (length + widths[0])
        term = Term(1.0, (left, factor("ibd", queries, *widths), right))
    terms = [term]
    if pair:
        B = Factor("B", "ad", torch.empty(carried[0], widths[1], device="meta"))
        terms.append(Term(1.0, (B, Factor.identity("bc", widths[0]))))
    return built + squared_norm_cost(terms)

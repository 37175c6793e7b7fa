"""The summands of a block between two linear maps, from the curvature between what these put out.

A weight W that enters as ``z = a W`` acts on the loss through z alone, and z is linear in it. So with C the second
derivatives of the loss between the outputs of two maps, s and t,

    H[W_s, W_t] = sum_ij a_si a_tj^T (x) C_ij  +  sum_ij (da_tj / dz_si) (x) g_tj.

Where t is the network's last map, with outputs ``o_m = y_m W`` under a cross-entropy of weights w_m, only the motion
``J_im = dy_m / dz_si`` of its inputs is needed, whatever the vocabulary:

    C_im = J_im^T W w_m (diag(p_m) - p_m p_m^T),    g_m = dl / do_m,    C_mm = w_m (diag(p_m) - p_m p_m^T).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.network.base.recognition import Grouping
from hessianlens.network.base.uses import Kind, Piece
from hessianlens.network.routes.linear_map.batch_graph import HookedBatch, InputMotion, SiteCurvature
from hessianlens.network.routes.linear_map.readout import Readout
from hessianlens.operators import Factor, Term

Side = tuple[Piece, Grouping]
"""A piece of a map, with the groups of its positions."""


def terms_between(part: str, found: SiteCurvature, hooked: HookedBatch, sides: tuple[Side, Side]) -> list[Term]:
    """The block between pieces of two maps.

    Args:
        part: "full", "ggn" or "functional".
        found: The curvature between what the two maps put out.
        hooked: A batch, with deltas there.
        sides: The pieces of the rows and of the columns.
    """
    (row, rows), (column, columns) = sides
    matrix = found.ggn + found.functional if part == "full" else getattr(found, part)
    with torch.no_grad():
        p, row_gain = _sides_of(hooked, row, rows)
        q, column_gain = _sides_of(hooked, column, columns)
        if row_gain is not None:
            matrix = matrix * row_gain[..., None, None]
        if column_gain is not None:
            matrix = matrix * column_gain[:, None, None]
        terms = [_curvature_term(matrix, p, q)]
        if part != "ggn" and found.moved is not None:
            slope = columns.arrange(hooked.slope(column.use.site))[..., column.features]
            moved = found.moved if row_gain is None else found.moved * row_gain[..., None, None]
            terms.append(_gradient_term(moved, p, slope, gain=column.use.kind is Kind.GAIN))
    return terms


def terms_with_outputs(
    part: str, readout: Readout, hooked: HookedBatch, sides: tuple[Side, Side], motion: InputMotion
) -> list[Term]:
    """The block between a piece of a map and all of the last map's weight, or of its bias.

    Args:
        part: "full", "ggn" or "functional".
        readout: The last map.
        hooked: A batch, with a delta at what the first map puts out.
        sides: The piece of the first map, and that of the last one.
        motion: How the inputs of the last map move.
    """
    (row, rows), (column, columns) = sides
    if motion.moved is None:
        return []
    with torch.no_grad():
        p, gain = _sides_of(hooked, row, rows)
        moved = motion.moved if gain is None else motion.moved * gain[..., None, None]
        J = Factor("J", "nlbmk", moved) if p is not None else Factor("J", "nbmk", moved.sum(1))
        x = Factor("1", "a", moved.new_ones(1)) if p is None else Factor("x", "nla", p)
        y = Factor("1", "c", moved.new_ones(1)) if column.use.kind is Kind.SHIFT else _inputs(readout, columns)
        terms = []
        if part != "functional":
            chances, mean = readout.chances, readout.chances @ readout.weight.T
            p_m = Factor("p", "nmd", columns.arrange(readout.weights[:, None] * chances))
            terms.append(Term(1.0, (x, J, Factor("W", "kd", readout.weight), p_m, y)))
            terms.append(Term(-1.0, (x, J, Factor("Wp", "nmk", columns.arrange(mean)), p_m, y)))
        if part != "ggn" and column.use.kind is not Kind.SHIFT:
            J = J.relabel({ord("k"): "c"})
            terms.append(Term(1.0, (x, J, Factor("g", "nmd", columns.arrange(readout.slope)))))
    return terms


def _inputs(readout: Readout, grouping: Grouping) -> Factor:
    return Factor("y", "nmc", grouping.arrange(readout.at))


def terms_of_outputs(part: str, readout: Readout, row: Piece, column: Piece) -> list[Term]:
    """The block between pieces of the last map, its weight or its bias; it has no functional part.

    Args:
        part: "full", "ggn" or "functional".
        readout: The last map.
        row: The piece of the rows.
        column: The piece of the columns.
    """
    if part == "functional":
        return []
    chances, one = readout.chances, readout.at.new_ones(1)
    weighted = readout.weights[:, None] * chances
    sides = [
        Factor("1", letter, one) if piece.use.kind is Kind.SHIFT else Factor("y", "n" + letter, readout.at)
        for piece, letter in ((row, "a"), (column, "c"))
    ]
    diagonal = (Factor("p", "nb", weighted), Factor.identity("bd", chances.shape[1]))
    crossed = (Factor("p", "nb", weighted), Factor("p", "nd", chances))
    return [Term(1.0, (*sides, *diagonal)), Term(-1.0, (*sides, *crossed))]


def _sides_of(hooked: HookedBatch, piece: Piece, grouping: Grouping) -> tuple[Tensor | None, Tensor | None]:
    """The inputs of a weight, and those of a gain; ``[group, member, feature]`` both."""
    if piece.use.kind is Kind.LOOK_UP:
        return grouping.arrange(piece.one_hot(hooked.problem.dtype)), None
    inputs = hooked.inputs(piece.use)
    if inputs is None:
        return None, None
    arranged = grouping.arrange(inputs.detach())
    if piece.use.kind is Kind.GAIN:
        return None, arranged[..., piece.features]
    return arranged[..., piece.inputs], None


def _curvature_term(matrix: Tensor, p: Tensor | None, q: Tensor | None) -> Term:
    """``sum p[n,l,a] q[n,m,c] C[n,l,b,m,d]``; without p or q the sum over their members is taken at once."""
    letters = "nlbmd"
    if p is None:
        matrix, letters = matrix.sum(letters.index("l")), letters.replace("l", "")
    if q is None:
        matrix, letters = matrix.sum(letters.index("m")), letters.replace("m", "")
    if p is None and q is None:
        matrix, letters = matrix.sum(0), letters.replace("n", "")
    return _term(Factor("C", letters, matrix), p, q, matrix)


def _term(found: Factor, p: Tensor | None, q: Tensor | None, like: Tensor) -> Term:
    one = torch.ones(1, dtype=like.dtype, device=like.device)
    sides = (
        Factor("1", "a", one) if p is None else Factor("x", "nla", p),
        Factor("1", "c", one) if q is None else Factor("x", "nmc", q),
    )
    return _squeezed(Term(1.0, (*sides, found)))


def _gradient_term(moved: Tensor, p: Tensor | None, slope: Tensor, gain: bool) -> Term:
    """``sum p[n,l,a] (da[n,m,c] / dz[n,l,b]) g[n,m,d]``; a gain has ``c = d``, and an axis of one in its place."""
    if gain:
        return _curvature_term(moved * slope[:, None, None], p, None)
    one = torch.ones(1, dtype=slope.dtype, device=slope.device)
    if p is None:
        factors = (Factor("1", "a", one), Factor("J", "nbmc", moved.sum(1)), Factor("g", "nmd", slope))
    else:
        factors = (Factor("x", "nla", p), Factor("J", "nlbmc", moved), Factor("g", "nmd", slope))
    return _squeezed(Term(1.0, factors))


def _squeezed(term: Term) -> Term:
    """The same without sums over a single member."""
    sizes = {letter: size for f in term.factors for letter, size in zip(f.indices, f.shape, strict=True)}
    single = [letter for letter in "lm" if sizes.get(letter) == 1]
    factors = []
    for factor in term.factors:
        tensor, indices = factor.tensor, factor.indices
        for letter in single:
            if letter in indices and tensor is not None:
                tensor, indices = tensor.squeeze(indices.index(letter)), indices.replace(letter, "")
        factors.append(Factor(factor.name, indices, tensor))
    return Term(term.coefficient, tuple(factors))

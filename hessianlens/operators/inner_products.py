"""Frobenius inner products of sums of terms, in any range of numbers.

Terms are taken with factors of largest entry one and a power of two aside, so that no square overflows or vanishes.
Where that is not enough, because one factor is small at the tokens at which another is large, the factors are balanced
token by token in double precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import torch

from hessianlens.notation import COLUMN_AXES, ROW_AXES, SEQUENCE
from hessianlens.operators.exponent_scaling import Scaled, balance_factors, normalise_term
from hessianlens.operators.term import Factor, Term, contract, cost, index_sizes

_SUMMED = "".join(x for x in ascii_lowercase if x not in ROW_AXES + COLUMN_AXES)
_SECOND_COPY = str.maketrans(_SUMMED, _SUMMED.upper())
_HALVING_PAYS = 2e8
"""Operations above which the symmetry of a squared norm is used, group of sequences by group."""
_HALVING_GROUPS = 8

Unit = tuple[Term, int]


def squared_norm(terms: Sequence[Term], device: torch.device) -> Scaled:
    """The squared Frobenius norm of a sum of terms."""
    units: list[Unit] = []
    parts: list[Scaled] = []
    for term in terms:
        one = normalise_term(term)
        found = _self_inner(one)
        if _lost(found, one):
            one = normalise_term(balance_factors(term))
            found = _self_inner(one)
        parts.append(found)
        parts += [_inner(one, other).times(2.0) for other in units]
        units.append(one)
    return Scaled.total(parts, device)


def squared_norm_cost(terms: Sequence[Term]) -> float:
    """Multiply-adds of `squared_norm`, counted from the plans of its contractions."""
    copies = [term.relabel(_SECOND_COPY) for term in terms]
    pairs = [(term, copy) for number, term in enumerate(terms) for copy in copies[number:]]
    return sum(cost((*term.factors, *copy.factors), "") for term, copy in pairs) / 2


def inner_product(mine: Sequence[Term], theirs: Sequence[Term], device: torch.device) -> Scaled:
    """The Frobenius inner product of two sums of terms."""
    parts = []
    others = [(other, normalise_term(other)) for other in theirs]
    for term in mine:
        one = normalise_term(term)
        for other, two in others:
            found = _inner(one, two)
            parts.append(
                _inner(normalise_term(balance_factors(term)), normalise_term(balance_factors(other)))
                if _lost(found, one)
                else found
            )
    return Scaled.total(parts, device)


def _lost(found: Scaled, term: Unit) -> bool:
    """Whether a result is so small, or so large, that parts of it may have left the range of the numbers."""
    limits = torch.finfo(_dtype(term[0].factors))
    size = float(found.mantissa.detach().abs())
    return (size < limits.tiny / limits.eps or size > limits.max) and not _vanishes(term[0])


def _vanishes(term: Term) -> bool:
    """Whether a factor is zero throughout, and the term with it."""
    return term.coefficient == 0 or any(f.tensor is not None and not bool(f.tensor.any()) for f in term.factors)


def _inner(one: Unit, other: Unit) -> Scaled:
    """Inner product of two terms of unit size."""
    (mine, a), (theirs, b) = one, other
    factors = _alike((*mine.factors, *theirs.relabel(_SECOND_COPY).factors))
    return Scaled(contract(factors, "").double() * (mine.coefficient * theirs.coefficient), a + b)


def _self_inner(one: Unit) -> Scaled:
    """Squared norm of a term of unit size; large ones use the symmetry between its two copies."""
    term, exponent = one
    copy = term.relabel(_SECOND_COPY)
    sequences = index_sizes(term.factors).get(SEQUENCE, 1)
    if sequences == 1 or cost((*term.factors, *copy.factors), "") < _HALVING_PAYS:
        return _inner(one, one)
    parts = []
    width = -(-sequences // _HALVING_GROUPS)
    for start in range(0, sequences, width):
        stop = min(start + width, sequences)
        mine = term.sliced(SEQUENCE, start, stop).factors
        parts.append(contract((*mine, *copy.sliced(SEQUENCE.upper(), start, stop).factors), ""))
        if stop < sequences:
            parts.append(2 * contract((*mine, *copy.sliced(SEQUENCE.upper(), stop, sequences).factors), ""))
    return Scaled(torch.stack(parts).double().sum() * term.coefficient**2, 2 * exponent)


def _dtype(factors: Sequence[Factor]) -> torch.dtype:
    return next(f.tensor.dtype for f in factors if f.tensor is not None)


def _alike(factors: Sequence[Factor]) -> Sequence[Factor]:
    """Factors in double precision, if one of them is."""
    dtypes = {f.tensor.dtype for f in factors if f.tensor is not None}
    if len(dtypes) == 1:
        return factors
    return [f if f.tensor is None else Factor(f.name, f.indices, f.tensor.double()) for f in factors]

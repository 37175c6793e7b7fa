"""Pairwise arrays: few cases in which every two values of two factors meet, instead of all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def pairwise(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by cases in which every pair of values of two factors occurs.

    Greedy: each case takes the combination that holds the most pairs that are still missing, the first one of several,
    so that the cases are always the same. As many as the two longest factors make together, or a few more.

    Args:
        factors: Values by the name of the test's argument.
    """
    values = {name: list(found) for name, found in factors.items()}
    return pytest.mark.parametrize(tuple(values), pairwise_cases(list(values.values())))


def pairwise_cases(factors: list[list[Any]]) -> list[tuple[Any, ...]]:
    """The cases of some factors.

    >>> [len(pairwise_cases([list(range(n)) for n in sizes])) for sizes in ((18, 4, 3, 2), (5, 5, 2), (3, 3))]
    [72, 25, 9]
    """
    places = [range(len(values)) for values in factors]
    rest = list(itertools.product(*places))
    missing = {pair for case in rest for pair in _pairs(case)}
    chosen: list[tuple[int, ...]] = []
    while missing:
        best = max(rest, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        chosen.append(best)
    return [tuple(values[place] for values, place in zip(factors, case, strict=True)) for case in sorted(chosen)]


def _pairs(case: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(case), 2))

"""The recorded numbers come out again; ``python -m tests.golden --record`` shows every difference and records anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.cases import CASES
from tests.golden.comparison import differences
from tests.golden.file import GOLDEN, read
from tests.golden.reasons import category

RECORDED = read()


@pytest.mark.parametrize("name", CASES)
def test_the_recorded_numbers_come_out_again(name: str) -> None:
    make, rtol = CASES[name]
    found = list(differences(RECORDED[name], make(), rtol, name))
    assert not found, "\n".join(found[:20])


def test_the_file_holds_every_case_and_is_small() -> None:
    assert list(RECORDED) == list(CASES)
    assert GOLDEN.stat().st_size < 200_000


@pytest.mark.parametrize(
    ("recorded", "found", "said"),
    [
        ({"norm": 1.0}, {"norm": 1.0 + 1e-8}, "norm: recorded 1"),
        ({"norm": 1.0}, {"norm": float("nan")}, "norm"),
        ({"norm": 1.0}, {}, "no longer there"),
        ({}, {"norm": 1.0}, "not recorded"),
        ({"exact": True}, {"exact": False}, "exact"),
        ([1.0, 2.0], [1.0], "2 entries recorded"),
        ([1.0, 2.0], [1.0, 2.00001], "1: recorded 2"),
        ({"full": {"norm": 1.0}, "ggn": {"norm": 1e-6}}, {"full": {"norm": 1.0}, "ggn": {"norm": 1.01e-6}}, "ggn"),
        ({"q": {"norm": 1.0}, "k": {"norm": 1e-14}}, {"q": {"norm": 1.0}, "k": {"norm": 2e-14}}, "k / norm"),
        ({"why": "by a linear map", "category": "linear map"}, {"why": "", "category": "none"}, "linear map"),
    ],
)
def test_a_difference_is_seen(recorded: Any, found: Any, said: str) -> None:
    (line,) = differences(recorded, found, 1e-9)
    assert said in line


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ({"norm": 1.0}, {"norm": 1.0 + 1e-10}),
        ({"norm": 1.0, "trace": 0.0}, {"norm": 1.0, "trace": 1e-12}),
        ({"full": {"norm": 1.0}, "functional": {"norm": 0.0}}, {"full": {"norm": 1.0}, "functional": {"norm": 1e-16}}),
        (
            {"q": {"full": {"norm": 1.0}}, "k.bias": {"full": {"norm": 0.0}}},
            {"q": {"full": {"norm": 1.0}}, "k.bias": {"full": {"norm": 1e-17}}},
        ),
        ({"norm": float("nan")}, {"norm": float("nan")}),
        ({"why": "by a linear map", "category": "linear map"}, {"why": "through a linear map", "category": ""}),
    ],
)
def test_rounding_and_other_words_are_no_difference(recorded: Any, found: Any) -> None:
    assert not list(differences(recorded, found, 1e-9))


def test_categories_of_reasons() -> None:
    """Every reason that is recorded has a category, and the categories tell them apart."""

    def reasons(tree: Any) -> list[dict[str, str]]:
        if isinstance(tree, dict):
            return [tree] if "why" in tree else [found for branch in tree.values() for found in reasons(branch)]
        return []

    recorded = reasons(RECORDED)
    assert {one["category"] for one in recorded} >= {"attention", "linear map", "readout", "zero", "refused"}
    assert all(category(one["why"]) == one["category"] != "other" for one in recorded)

"""What counting and the paper predict, and where they part."""

from __future__ import annotations

import pytest

from hessianlab.growth.series import SeriesKey, counted_exponent, published_exponent

SOFTMAX = {"model": "transformer", "attention": "softmax", "norm": None}
LINEAR = {"model": "transformer", "attention": "linear", "norm": None}
PRE_NORM = {"model": "transformer", "attention": "softmax", "norm": "pre"}
MLP = {"model": "linear_mlp", "attention": "softmax", "norm": None}


def key(block: str, part: str, layer: int = 0, depth: int = 1) -> SeriesKey:
    return SeriesKey(0, depth, layer, block, part)


@pytest.mark.parametrize(
    ("block", "part", "exponent"),
    [("query", "outer", 6), ("query", "functional", 5), ("query", "full", 5), ("value", "outer", 2),
     ("value", "full", 2), ("value", "functional", "zero")],
)  # fmt: skip
def test_single_layer_agrees_with_the_paper(block: str, part: str, exponent: object) -> None:
    assert counted_exponent(SOFTMAX, key(block, part), "small") == exponent
    assert published_exponent(SOFTMAX, key(block, part), "small") == exponent
    assert counted_exponent(SOFTMAX, key(block, part), "large") is None


def test_lower_layers_have_a_functional_value_block() -> None:
    lower, last = key("value", "functional", 0, 2), key("value", "functional", 1, 2)
    assert (counted_exponent(SOFTMAX, lower, "small"), published_exponent(SOFTMAX, lower, "small")) == (3, None)
    assert (counted_exponent(SOFTMAX, last, "small"), published_exponent(SOFTMAX, last, "small")) == ("zero", "zero")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_linear_chains(depth: int) -> None:
    twice = 2 * 3**depth
    last = depth - 1
    for span in ("small", "large", "all"):
        assert counted_exponent(LINEAR, key("query", "outer", 0, depth), span) == twice
        assert counted_exponent(LINEAR, key("value", "full", last, depth), span) == twice
        assert counted_exponent(LINEAR, key("value", "functional", last, depth), span) == "zero"
    if depth > 1:
        lower = key("query", "full", 0, depth)
        assert [counted_exponent(LINEAR, lower, span) for span in ("small", "large", "all")] == [
            twice // 2,
            twice,
            None,
        ]
        assert [published_exponent(LINEAR, lower, span) for span in ("small", "large")] == [None, twice]


def test_pre_norm_has_no_published_exponent() -> None:
    assert published_exponent(PRE_NORM, key("query", "full"), "all") is None
    assert [counted_exponent(PRE_NORM, key("query", part), "large") for part in ("outer", "functional", "full")] == [
        -2,
        -1,
        -1,
    ]
    assert counted_exponent(PRE_NORM, key("value", "full"), "large") == -2
    assert counted_exponent(PRE_NORM, key("value", "full"), "small") == 0


def test_linear_mlp_is_quadratic_at_every_depth() -> None:
    assert {counted_exponent(MLP, key("mlp", "full", 0, depth), "all") for depth in range(1, 6)} == {2}
    assert published_exponent(MLP, key("mlp", "full", 0, 3), "all") == 2

"""Claimed derivatives against finite differences: right, wrong, and left open where a difference says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hessianlens.derivatives.difference import (
    VALUE,
    Agreement,
    DirectionSample,
    cannot_be_differentiated_twice,
    compare,
    confirm,
    hides_a_derivative,
)
from tests.curvature.refused import (
    CoarseTanh,
    CoarseTwiceTanh,
    DetachedTanh,
    OnceTanh,
    OpaqueTanh,
    StraightThrough,
    TwiceTanh,
)
from tests.variants import DOUBLE, randn

SIZE = 12
Slope = Callable[[Tensor], Tensor]


def _verdict(
    value: Callable[[Tensor], Tensor],
    gradient: Slope,
    claim: Slope,
    at: Tensor,
    narrower: bool = False,
    dtype: torch.dtype = DOUBLE,
):
    """The verdict on ``claim(v)`` as the derivative of `gradient` along random directions v."""

    def in_direction(number: int):
        v = randn(SIZE, seed=100 + number).to(dtype)

        def sample(step: float) -> DirectionSample:
            x = at + step * v
            return DirectionSample(value(x), gradient(x) @ v, {"x": gradient(x)})

        return compare(sample, {"x": claim(v)}, {"x": 1.0}, dtype, narrower)

    return confirm(in_direction)


def _sines(x: Tensor) -> Tensor:
    return x.sin().sum()


@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
@pytest.mark.parametrize("seed", range(5))
def test_a_right_claim_is_right_and_one_that_lacks_a_part_wrong(seed: int, dtype: torch.dtype) -> None:
    at = (2 * randn(SIZE, seed=seed)).to(dtype)
    options = {"at": at, "dtype": dtype}
    assert _verdict(_sines, torch.cos, lambda v: -at.sin() * v, **options).verdict is Agreement.RIGHT
    for share in (0.0, 0.5, 2.0):
        found = _verdict(_sines, torch.cos, lambda v, share=share: -share * at.sin() * v, **options)
        assert found.verdict is Agreement.WRONG and found.row == "x"
        assert found.claimed == pytest.approx(share * found.found, rel=0.05)


def test_a_gradient_that_is_not_that_of_the_value_is_wrong() -> None:
    at = randn(SIZE)
    found = _verdict(_sines, lambda x: 0.9 * x.cos(), lambda v: -0.9 * at.sin() * v, at)
    assert (found.verdict, found.row) == (Agreement.WRONG, VALUE)


@pytest.mark.parametrize("seed", range(20))
def test_kinks_right_at_the_point_accuse_nobody(seed: int) -> None:
    """Half of the entries sit on the kink of ``relu``, or of the derivative of ``relu^2``."""
    at = randn(SIZE, seed=seed) * (torch.arange(SIZE) % 2)
    active = (at > 0).double()
    relu = _verdict(lambda x: x.relu().sum(), lambda x: (x > 0).double(), lambda v: 0 * v, at)
    square = _verdict(lambda x: x.relu().square().sum(), lambda x: 2 * x.relu(), lambda v: 2 * active * v, at)
    assert relu.verdict is not Agreement.WRONG and square.verdict is not Agreement.WRONG


def _rounded(x: Tensor) -> Tensor:
    return x.float().double()


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("seed", range(10))
def test_a_gradient_rounded_to_float32_accuses_nobody(seed: int, size: float) -> None:
    """However small its derivative is beside it: small steps, and all of them at last, pass it by."""
    at = randn(SIZE, seed=seed)
    found = _verdict(
        lambda x: _rounded((x + size * x.sin()).sum()),
        lambda x: _rounded(1 + size * x.cos()),
        lambda v: -size * at.sin() * v,
        at,
        narrower=True,
    )
    assert found.verdict is not Agreement.WRONG


def test_a_missing_part_shows_through_float32() -> None:
    at = randn(SIZE)
    found = _verdict(lambda x: _rounded(x.sin()).sum(), lambda x: _rounded(x.cos()), lambda v: 0 * v, at, narrower=True)
    assert found.verdict is Agreement.WRONG


def test_noise_is_left_open() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return x.cos() + torch.randn(SIZE, generator=generator, dtype=DOUBLE)

    assert _verdict(_sines, noisy, lambda v: 0 * v, randn(SIZE)).verdict is Agreement.OPEN


@pytest.mark.parametrize("function", [DetachedTanh, OpaqueTanh, CoarseTanh])
@pytest.mark.parametrize("seed", range(3))
def test_functions_that_hide_a_derivative_are_found_out(function, seed: int) -> None:
    weights = randn(4, 8, seed=50)
    assert hides_a_derivative(lambda at: (function.apply(at["x"]) * weights).sum(), {"x": randn(4, 8, seed=seed)})


@pytest.mark.parametrize("function", [TwiceTanh, CoarseTwiceTanh])
@pytest.mark.parametrize("seed", range(10))
def test_functions_that_hide_nothing_are_not(function, seed: int) -> None:
    for shape in ((1,), (2, 3), (5, 40)):
        weights = randn(*shape, seed=50)
        point = {"x": randn(*shape, seed=seed)}
        assert not hides_a_derivative(lambda at, w=weights: (function.apply(at["x"]) * w).sum(), point)


def test_a_step_on_the_way_there_but_not_back() -> None:
    assert hides_a_derivative(lambda at: (StraightThrough()(at["x"]) * randn(5, seed=1)).sum(), {"x": randn(5)})


def test_only_the_marked_function_cannot_be_differentiated_twice() -> None:
    for function in (OnceTanh, TwiceTanh, DetachedTanh):
        found = cannot_be_differentiated_twice(lambda at, f=function: f.apply(at["x"]).sum(), {"x": randn(5)})
        assert found is (function is OnceTanh)

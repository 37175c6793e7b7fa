"""The rest of a network at some positions only, and the check that positions do not reach each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.network.routes.last_attention.locate import acts_alone, find_site
from hessianlens.network.routes.last_attention.site import frozen_copy
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn


def test_the_network_at_some_positions_is_the_network_there() -> None:
    problem = hl.problem(networks.toy(layers=2, norm="pre"), pairs(2), "cross_entropy")
    site = find_site(problem, problem.data[0], frozen_copy(problem))
    kept = torch.tensor([2, 0])
    moved = site.output + 0.3 * randn(*site.output.shape)
    assert_same(site.narrowed(kept)(moved[:, kept]), site.downstream(moved)[:, kept], "outputs")
    assert_same(site.network_output, site.downstream(site.output), "outputs at the point itself")


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("size", [1.0, 1e-42])
def test_a_map_of_every_position_by_itself_passes(dtype: torch.dtype, size: float) -> None:
    """Also where numbers are so small that rounding no longer commutes with powers of two."""
    at = randn(40, 60, 3).to(dtype).requires_grad_()
    mixing = (size * randn(3, 5, seed=1)).to(dtype)
    assert acts_alone((at @ mixing).tanh() * (at.softmax(-1) @ mixing), at)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, 64), (63, 64), (17, 2399), (2399, 17)])
def test_a_single_pair_of_positions_is_found(pair: tuple[int, int]) -> None:
    """In either direction, neighbours or not, with the same digit or another."""
    source, target = pair
    at = randn(40, 60, 3).float().requires_grad_()

    def reached(values: Tensor) -> Tensor:
        flat = values.sin().flatten(0, 1)
        change = torch.zeros_like(flat)
        change[target] = 1e-3 * values.flatten(0, 1)[source]
        return (flat + change).reshape(values.shape)

    assert not acts_alone(reached(at), at)


def test_half_precision_cannot_tell() -> None:
    """Its smallest numbers would hide positions that reach each other; other ways than the closed form remain."""
    at = randn(2, 5, 3).half().requires_grad_()
    assert not acts_alone(at + 1e-3 * at.mean(1, keepdim=True), at)
    assert not acts_alone(at * 2, at)

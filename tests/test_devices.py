"""Closed forms, attention and the products of a network make their tensors where those are that they are given.

There may be no second device where this runs, so the default one is made another: within `elsewhere` a tensor that is
made without saying where has no contents, and cannot be read or meet one that has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import Linearisation
from hessianlens.curvature.tape import Taped
from tests.attention.test_scaled_dot_product import BEYOND_TORCH, CASES, differentiated
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.oracles.comparison import assert_same
from tests.variants import layers, losses, randn, tokens

Answers = list[Tensor]


@contextmanager
def elsewhere() -> Iterator[None]:
    """A scope in which what is made without a device is not where everything else is."""
    with torch.device("meta"):
        yield


def same_elsewhere(walk: Callable[[], Answers], what: str) -> None:
    expected = walk()
    with elsewhere():
        found = walk()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, what, 1e-9)


def drawn(*shape: int) -> Tensor:
    """Random numbers that are where everything else is."""
    with torch.device("cpu"):
        return randn(*shape)


def contract(op: Any) -> Answers:
    """What every operator can do."""
    v, M = drawn(op.shape[1]), drawn(op.shape[1], 2)
    found = [op @ v, op @ M, op.adjoint() @ drawn(op.shape[0]), op.to_dense(), op.frobenius_norm()]
    found += [(2 * op - op / 2).to_dense(), torch.from_numpy(op.to_scipy() @ np.ones(op.shape[1])).to(v.device)]
    assert op.cost and op.why and repr(op)
    return found + ([op.trace(), op.diagonal()] if op._in_shape == op._out_shape else [])


# --- closed forms of a layer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["square", "cross-entropy", "coupling tokens"])
@pytest.mark.parametrize("kind", ["self-attention", "two heads"])
def test_hessians_of_layers(kind: str, loss: str) -> None:
    layer, X = layers()[kind], tokens(2)
    given = losses(X)[loss]

    def walk() -> Answers:
        H = hl.attention_hessian(layer, X, given)
        first, *_, last = layer.parameters
        return contract(H.full[:]) + contract(H.outer[first, last]) + contract(H.functional[first, first])

    same_elsewhere(walk, kind)


@pytest.mark.parametrize("name", [*CASES, *BEYOND_TORCH])
def test_attention_that_can_be_differentiated_twice(name: str) -> None:
    inputs, how = {**CASES, **BEYOND_TORCH}[name]
    expected = differentiated(hl.scaled_dot_product_attention, inputs, how)

    def here(*leaves: Tensor, **options: Any) -> Tensor:
        with elsewhere():
            return hl.scaled_dot_product_attention(*leaves, **options)

    found = differentiated(here, inputs, how)
    for one, other in zip(found, expected, strict=True):
        assert_same(one.detach(), other.detach(), name)


# --- products of a network -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [networks.toy, networks.nano_gpt])
def test_tapes_and_graphs(make: Callable[[], nn.Module]) -> None:
    problem = hl.problem(make(), pairs(2, 1), "cross_entropy", attention="chunked")
    names = [problem.blocks["layer0.attn.q"].parameter]
    v = {names[0]: randn(*problem.params[names[0]].shape)}

    def walk() -> Answers:
        sources = [kind(problem, problem.data[0], names) for kind in (Linearisation, Taped)]
        return [part[names[0]] for source in sources for part in source.split(v, names)]

    same_elsewhere(walk, "products")


# --- what would be found ---------------------------------------------------------------------------------------------


def test_a_tensor_made_without_a_device_is_found_out() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        same_elsewhere(lambda: [drawn(3) + torch.ones(3, dtype=torch.float64)], "sum")
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        same_elsewhere(lambda: [torch.eye(2, dtype=torch.float64)], "a tensor alone")

"""Closed forms, attention, products of a network and estimates make their tensors where those are that they are given.

There may be no second device where this runs, so the default one is made another: within `elsewhere` a tensor that is
made without saying where has no contents, and cannot be read or meet one that has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from curvlinops.examples import TensorLinearOperator
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import Linearisation
from hessianlens.curvature.tape import TapedLinearisation
from hessianlens.problems import Problem
from tests.attention.test_scaled_dot_product import BEYOND_TORCH, CASES, differentiated
from tests.curvature import networks
from tests.curvature.networks import pairs
from tests.losses.test_linear_cross_entropy import CASES as HEADS
from tests.losses.test_linear_cross_entropy import differentiated as differentiated_head
from tests.losses.test_linear_cross_entropy import ours as fused
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
        sources = [kind(problem, problem.data[0], names) for kind in (Linearisation, TapedLinearisation)]
        return [part[names[0]] for source in sources for part in source.split(v, names)]

    same_elsewhere(walk, "products")


@pytest.mark.parametrize("logits", ["whole", "chunked"])
def test_losses_of_logits_that_are_formed_or_not(logits: str) -> None:
    problem = hl.problem(networks.nano_gpt(), pairs(2, 1), "cross_entropy", logits=logits)
    names = [problem.blocks["layer0.attn.q"].parameter, problem.blocks["embed"].parameter]
    v = {name: randn(*problem.params[name].shape) for name in names}

    def walk() -> Answers:
        at = Linearisation(problem, problem.data[0], names)
        return [part[name] for part in (*at.split(v, names), at.hessian(v, names)) for name in names]

    same_elsewhere(walk, logits)


@pytest.mark.parametrize("name", [name for name in HEADS if name in ("plain", "everything")])
def test_cross_entropy_that_can_be_differentiated_twice(name: str) -> None:
    expected = differentiated_head(fused, *HEADS[name])

    def here(*given: Any, **options: Any) -> Tensor:
        with elsewhere():
            return fused(*given, **options)

    for one, other in zip(differentiated_head(here, *HEADS[name]), expected, strict=True):
        assert_same(one.detach(), other.detach(), name)


# --- operators of a network, and what is made of them ----------------------------------------------------------------

NETWORK = {"toy": networks.toy, "nanoGPT": networks.nano_gpt, "two heads": lambda: networks.toy(heads=2, norm="pre")}
PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}


def fresh(problem: Problem) -> Problem:
    """The same problem, about which nobody has found out anything."""
    return replace(problem)


@cache
def problem_of(name: str) -> Problem:
    return hl.problem(NETWORK[name](), pairs(2, 1), "cross_entropy")


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("part", "method"), [("full", "hvp"), ("ggn", "exact"), ("functional", "exact"), ("full", "auto")]
)
def test_operators_of_networks(part: str, method: str) -> None:
    """Every way to a block of a network keeps the contract; closed forms of the attention are among them."""
    rows = ["layer0.attn.k.bias" if method == "hvp" else "layer0.attn.q", "layer0.mlp.out.bias"]

    def walk() -> Answers:
        problem = fresh(problem_of("toy"))
        found = contract(PARTS[part](problem, rows, method=method))
        return found + contract(PARTS[part](problem, "layer0.attn.v.bias", "layer0.mlp.out.bias", method=method))

    same_elsewhere(walk, f"{part}, {method}")


@pytest.mark.expensive
@pytest.mark.parametrize("name", NETWORK)
def test_norms_of_networks(name: str) -> None:
    blocks = ["layer0.attn.q", "layer0.attn.o"]

    def walk() -> Answers:
        problem, found = fresh(problem_of(name)), []
        for method in ("exact", "probes"):
            norms = hl.block_norms(problem, blocks, method=method, probes=3)
            found += [torch.tensor([row["value"] for row in norms.rows()], device="cpu")]
        pairs_of = hl.block_pair_norms(problem, blocks)
        return [*found, pairs_of.values(), pairs_of.stderrs(), *pairs_of.intervals()]

    same_elsewhere(walk, name)


def test_sketched_norms_of_a_layer() -> None:
    H = hl.attention_hessian(layers()["self-attention"], X := tokens(2), losses(X)["square"])

    def walk() -> Answers:
        norms = hl.block_norms(H, parts=("full",), method="sketch", rtol=0.3)
        return [torch.tensor([row["value"] for row in norms.rows()], device="cpu")]

    same_elsewhere(walk, "sketch")


ESTIMATES: dict[str, Callable[[Any], Any]] = {
    "trace": lambda op: hl.trace(op, probes=4),
    "trace, hutch++": lambda op: hl.trace(op, probes=6, method="hutch++"),
    "diagonal": lambda op: hl.diagonal(op, probes=4),
    "diagonal, in chunks": lambda op: hl.diagonal(op, probes=4, chunk=2),
    "all of the diagonal": lambda op: hl.diagonal(op, probes=op.shape[0]),
    "frobenius": lambda op: hl.frobenius(op, probes=4),
    "eigenvalues": lambda op: hl.eigenvalues(op, k=2, vectors=True),
    "eigenvalues, lanczos": lambda op: hl.eigenvalues(op, k=2, method="lanczos"),
    "eigenvalues, arpack": lambda op: hl.eigenvalues(op, k=2, method="arpack"),
    "density": lambda op: hl.density(op, probes=3, steps=4, method="lanczos"),
    "density, dense": lambda op: hl.density(op, method="dense"),
    "inertia": lambda op: hl.inertia(op, probes=3, steps=4, method="lanczos"),
    "inertia, dense": lambda op: hl.inertia(op, method="dense"),
    "heterogeneity": lambda op: hl.heterogeneity({"a": op, "b": 2 * op}, probes=3, steps=4, method="lanczos"),
    "heterogeneity of norms": lambda op: hl.heterogeneity({"a": op, "b": 2 * op}, "norm", probes=3),
    "median entry": lambda op: hl.spectra.median_entry(op, columns=4),
}


def numbers(estimate: Any) -> Answers:
    """Every number of an estimate, however it is put together."""
    if isinstance(estimate, Tensor):
        return [estimate.detach().double()]
    if isinstance(estimate, (int, float)):
        return [torch.tensor(float(estimate), device="cpu")]
    if isinstance(estimate, (tuple, list)):
        return [one for each in estimate for one in numbers(each)]
    return [one for value in vars(estimate).values() for one in numbers(value)] if hasattr(estimate, "__dict__") else []


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates(name: str) -> None:
    A = drawn(12, 12)
    A = A + A.T

    def walk() -> Answers:
        found = numbers(ESTIMATES[name](TensorLinearOperator(A)))
        assert len(found) > 1
        return found

    same_elsewhere(walk, name)


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.expensive
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["whole", "chunked"])
def test_results_have_the_dtype_of_the_model(dtype: torch.dtype, how: str) -> None:
    """Half precision is computed in float32, of the weights as they were rounded."""
    model = networks.nano_gpt().to(dtype)
    problem = hl.problem(model, pairs(2, 1), "cross_entropy", logits=how, attention={"whole": "math"}.get(how, how))
    own = torch.float32 if dtype == torch.bfloat16 else dtype
    exact = hl.hessian(hl.problem(model, pairs(2, 1), "cross_entropy", dtype=torch.float64), "layer0.attn.q")
    op = hl.hessian(problem, "layer0.attn.q")
    assert problem.dtype == op.dtype == own
    found = [op @ drawn(op.shape[1]).to(own), op.diagonal(), op.to_dense()]
    expected = [exact @ drawn(op.shape[1]), exact.diagonal(), exact.to_dense()]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == own and (one - other).norm() <= 1e4 * torch.finfo(own).eps * other.norm()


# --- what would be found ---------------------------------------------------------------------------------------------


def test_a_tensor_made_without_a_device_is_found_out() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        same_elsewhere(lambda: [drawn(3) + torch.ones(3, dtype=torch.float64)], "sum")
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        same_elsewhere(lambda: [torch.eye(2, dtype=torch.float64)], "a tensor alone")

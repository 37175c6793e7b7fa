"""Norms of the parts of a block from shared Gram matrices are those of the blocks themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import hessianlens as hl
from hessianlens.network.routes.last_attention import grams
from hessianlens.network.routes.last_attention import many_heads_norms as head_norms
from hessianlens.network.routes.last_attention import one_head_norms as theory
from hessianlens.network.routes.last_attention.exact import ExactAttention, exact_attention
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import pairs, tokens
from tests.variants import DOUBLE

PARTS = ("full", "ggn", "functional")
ROLES = ("q", "k", "v", "o", "q.bias", "v.bias")
WIDE = {"d_model": 12, "d_mlp": 20}


def wide(loss: str = "cross_entropy", **options) -> Problem:
    """More features than twice the outputs, so that the Gauss-Newton curvature stays factored."""
    return networks.toy_problem(3, loss=loss, **{**WIDE, **options})


NETWORKS: dict[str, Callable[[], Problem]] = {
    "factored, piecewise linear": lambda: wide(mlp_activation="relu"),
    "factored, curved": wide,
    "dense, curved": lambda: wide(d_model=6),
    "pre-norm": lambda: wide(norm="pre"),
    "linear attention": lambda: wide(attention="linear"),
    "sigmoid": lambda: wide(attention="sigmoid", mlp_activation="relu"),
    "without biases": lambda: wide(attention_bias=False),
    "a loss of negative curvature": lambda: networks.toy_problem(
        data={"tokens": tokens(3)}, loss=lambda out, _: out.sin().sum(), **WIDE, mlp_activation="relu"
    ),
}


def norms_of(problem: Problem, role: str) -> dict[str, float] | None:
    exact = exact_attention(problem)
    block = problem.blocks[f"layer0.attn.{role}"]
    assert isinstance(exact, ExactAttention)
    return exact._shared_norms(block)


@pytest.mark.parametrize("name", NETWORKS)
def test_shared_norms_are_those_of_the_blocks(name: str) -> None:
    problem = NETWORKS[name]()
    for role in ROLES:
        if f"layer0.attn.{role}" not in problem.blocks:
            continue
        found = norms_of(problem, role)
        assert found is not None
        for part in PARTS:
            op = exact_attention(problem).operator(part, *[problem.blocks[f"layer0.attn.{role}"]] * 2)
            expected = float(op.to_dense().norm())
            assert found[part] == pytest.approx(expected, rel=1e-10, abs=1e-14), f"{role} {part}"


@pytest.mark.parametrize("groups, room, tile", [(1, 1, 1), (3, 10**9, 5)])
def test_the_sum_may_be_cut_in_any_way(groups: int, room: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide()
    expected = {role: norms_of(problem, role) for role in "qv"}
    for name, value in {"_GROUPS": groups, "_GROUP_BYTES": room}.items():
        monkeypatch.setattr(grams, name, value)
    monkeypatch.setattr(theory, "_TILE", tile)
    for role, norms in expected.items():
        assert norms_of(problem, role) == pytest.approx(norms, rel=1e-12)


def test_single_precision_does_not_underflow() -> None:
    """Products of four tiny factors would."""
    model = networks.toy(**WIDE, mlp_activation="relu")
    with torch.no_grad():
        model.token_embedding.mul_(1e-6)
        model.position_embedding.mul_(1e-6)
        for bias in (model.blocks[0].attention.b_Q, model.blocks[0].attention.b_K, model.blocks[0].attention.b_V):
            bias.zero_()
    double, single = (hl.problem(model, pairs(2), "cross_entropy", dtype=t) for t in (torch.float64, torch.float32))
    for role in "qkv":
        expected, found = norms_of(double, role), norms_of(single, role)
        assert 0 < expected["full"] < 1e-8
        assert found == pytest.approx(expected, rel=1e-3)


SEVERAL_HEADS: dict[str, Callable[[], Problem]] = {
    "factored": lambda: wide(heads=2),
    "three heads of width four, pre-norm": lambda: wide(heads=3, d_head=4, norm="pre"),
    "sigmoid": lambda: wide(heads=2, attention="sigmoid"),
    "dense": lambda: wide(heads=2, d_model=6),
    "BERT, padded": lambda: hl.problem(hugging_face.masked_bert(), hugging_face.padded(3), heads=True),
    "BLOOM": lambda: hl.problem(hugging_face.bloom(), hugging_face.padded(3), heads=True),
    "Llama, shared values": lambda: hl.problem(hugging_face.llama(), {"input_ids": tokens(3)}, heads=True),
}


@pytest.mark.parametrize("name", SEVERAL_HEADS)
def test_queries_keys_and_values_of_several_heads(name: str) -> None:
    """Weights, biases and single heads; keys that are turned, or biases of keys, are left to the blocks."""
    problem = SEVERAL_HEADS[name]()
    exact, seen = exact_attention(problem), 0
    assert isinstance(exact, ExactAttention)
    for block in problem.blocks.values():
        if exact.covers([block]) and block.name.split(".")[2] in "qkv":
            found = exact._shared_norms(block)
            dense = {part: float(exact.operator(part, block, block).to_dense().norm()) for part in PARTS}
            if found is not None:
                seen += 1
                assert found == pytest.approx(dense, rel=1e-10, abs=1e-14), block.name
            assert found is not None or "k" in block.name.split(".")
    assert seen >= 3


@pytest.mark.parametrize("wrong", ["block", "_pairs"])
def test_wrong_norms_of_heads_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transposed curvature, and pairs of heads that are counted once."""
    if wrong == "block":
        block = head_norms._AtHeads.block
        monkeypatch.setattr(head_norms._AtHeads, "block", lambda self, h, other: block(self, other, h))
    else:
        monkeypatch.setattr(
            head_norms, "_pairs", lambda items: ((a, b, 1) for k, a in enumerate(items) for b in items[k:])
        )
    with pytest.raises(AssertionError):
        test_queries_keys_and_values_of_several_heads("three heads of width four, pre-norm")


def test_outputs_of_several_heads_are_left_to_the_linear_maps() -> None:
    problem = wide(heads=2)
    assert norms_of(problem, "o") is None
    assert hl.block_norms(problem, "layer0.attn.o")["layer0.attn.o", "full"].method == "exact"


def test_parts_that_cancel_are_left_to_the_blocks() -> None:
    inner, sizes = torch.tensor([[1.0, -0.999], [-0.999, 1.0]], dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
    assert grams.norms_of_parts(inner, sizes, DOUBLE) is None
    assert grams.norms_of_parts(torch.eye(2, dtype=DOUBLE), sizes, DOUBLE)["full"] == pytest.approx(2**0.5)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_squares_of_norms_need_not_fit(size: float) -> None:
    found = grams.norms_of_parts(torch.eye(2, dtype=DOUBLE), size * torch.tensor([3.0, 4.0], dtype=DOUBLE), DOUBLE)
    assert found == pytest.approx({"ggn": 3 * size, "functional": 4 * size, "full": 5 * size}, rel=1e-14, abs=0)


def test_products_that_have_left_the_range_are_left_to_the_blocks() -> None:
    """Zero because it is small is not zero; zero because there is nothing is."""
    inner = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=DOUBLE)
    assert grams.norms_of_parts(inner, torch.tensor([1.0, 1e-9], dtype=DOUBLE), DOUBLE) is None
    nothing = grams.norms_of_parts(inner, torch.tensor([1.0, 0.0], dtype=DOUBLE), DOUBLE)
    assert nothing == {"ggn": 1.0, "functional": 0.0, "full": 1.0}


def test_positions_without_slope_still_have_curvature() -> None:
    """At the minimum of a loss the gradient is zero at every position; here everywhere, which verification refuses."""
    model = networks.toy(**WIDE)
    problem = hl.problem(model, {"tokens": tokens(3)}, lambda out, _: (out - out.detach()).square().sum(), verify=False)
    op = hl.ggn(problem, "layer0.attn.v", method="hvp")
    expected = float((op @ torch.eye(op.shape[1], dtype=op.dtype)).norm())
    assert hl.block_norms(problem, "layer0.attn.v", ("ggn",))["layer0.attn.v", "ggn"].value == pytest.approx(expected)


def test_too_many_tokens_are_left_to_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide()
    monkeypatch.setattr(theory, "LARGEST_BYTES", 1)
    assert norms_of(problem, "q") is None and norms_of(problem, "v") is None
    assert hl.block_norms(problem, "layer0.attn.v")["layer0.attn.v", "ggn"].exact

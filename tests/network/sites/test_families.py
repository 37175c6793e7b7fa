"""Every family of models: the last attention and all that lies behind it, in closed form, against dense autograd."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from torch import nn

import hessianlens as hl
from hessianlens.network.base.question import NO_LIMITS, Question
from hessianlens.network.planner import Choice, planner_of
from hessianlens.network.routes.last_attention import ExactAttention, exact_attention, rotated
from hessianlens.problems import Problem, layer_of
from tests.curvature.networks import VOCAB
from tests.curvature.registry import cross_entropy, next_token
from tests.curvature.registry import problem_of as case_of
from tests.network.sites.families import FAMILIES, token_ids
from tests.oracles.autograd import DenseHessian
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS, Batch, Total, dense_network_hessian
from tests.variants import randn

DOUBLE = torch.float64


def data_of(model: nn.Module) -> tuple[Batch, Total]:
    """A batch, and the loss that belongs to it."""
    ids = token_ids()
    if not hasattr(model, "config"):
        return (ids % VOCAB, ids.flip(-1) % VOCAB), cross_entropy
    masked = type(model).__name__.endswith("MaskedLM")
    return {"input_ids": ids, "labels": ids.flip(-1)}, cross_entropy if masked else next_token


def problem_of(model: nn.Module) -> Problem:
    batch, _ = data_of(model)
    return hl.problem(model, batch, None if isinstance(batch, dict) else "cross_entropy", heads=True)


def behind_and_in(problem: Problem) -> list[str]:
    """Blocks of the last attention and behind it, no two of which overlap."""
    names = [name for name in problem.blocks if ".head" not in name]
    last = max((layer for name in names if (layer := layer_of(name))), key=lambda layer: int(layer[5:]))
    attention = [name for name in names if name.startswith(f"{last}.attn.")]
    rest = [n for n in names if n.startswith((f"{last}.mlp.", "unembed", "norm_final"))]
    return attention + [name for name in rest if "shared" not in problem.blocks[name].note]


def dense_of(problem: Problem, model: nn.Module, names: list[str]) -> DenseHessian:
    pieces = {}
    for name in names:
        block, whole = problem.blocks[name], problem.params[problem.blocks[name].parameter]
        places = block.take(torch.arange(whole.numel()).reshape(whole.shape))
        pieces[name] = (block.parameter, torch.unravel_index(places, whole.shape))
    batch, total = data_of(model)
    return dense_network_hessian(model, [batch], total, pieces)


@cache
def witnesses(family: str) -> tuple[Problem, DenseHessian, list[str]]:
    model = FAMILIES[family]()
    problem = problem_of(model)
    names = behind_and_in(problem)
    return problem, dense_of(problem, model, names), names


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(FAMILIES)[::12])
def test_every_pair_of_blocks_behind_and_in_the_last_attention(family: str) -> None:
    problem, dense, names = witnesses(family)
    assert {"q", "k", "v", "o"} <= {name.split(".")[2] for name in names if ".attn." in name}
    planner = planner_of(problem)
    for row, column in itertools.combinations_with_replacement(names, 2):
        choice = planner.choose(Question(problem.blocks[row], problem.blocks[column], NO_LIMITS))
        assert isinstance(choice, Choice), f"{row} x {column}: {choice}"
        for part, key in PARTS.items():
            expected = dense.block(key, row, column)
            size = max(float(expected.norm()), 1e-4 * float(getattr(dense, key).norm()))
            op, V = choice.route.operator(choice.question, part), randn(expected.shape[1], 2)
            for found, exact, length in ((op.to_dense(), expected, 1.0), (op @ V, expected @ V, float(V.norm()))):
                error = float((found - exact).norm()) / length
                assert error <= 1e-9 * size, f"{part} {row} x {column}: {error / size:.1e}"


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(FAMILIES)[1::4])
def test_keys_and_values_are_known_at_the_price_of_the_curvature_behind(family: str) -> None:
    """Whole and by head: never position by position."""
    problem = witnesses(family)[0]
    found = exact_attention(problem)
    assert isinstance(found, ExactAttention), found
    covered = [name for name, block in problem.blocks.items() if found.covers([block])]
    assert {name.split(".")[2] for name in covered} == set("qkvo")
    assert any(".head" in name for name in covered)
    for name in covered:
        block = problem.blocks[name]
        exact = found.operator("full", block, block)
        products = hl.hessian(problem, name, method="hvp")
        V = randn(products.shape[1], 2)
        error, size = float((exact @ V - products @ V).norm()), float((products @ V).norm())
        assert error <= 1e-9 * max(size, 1e-6), f"{name}: {error / size:.1e}"


@pytest.mark.parametrize(
    "case", ["ViT", "BERT, classes", "nn.TransformerEncoder, square", "Falcon, groups of queries", "nanoGPT"]
)
def test_encoders_and_classifiers(case: str) -> None:
    """Of a classifier only the first position carries a loss."""
    problem = case_of(case)
    found = exact_attention(problem)
    assert isinstance(found, ExactAttention), found
    for role in "qkvo":
        block = problem.blocks[f"{found.prefix}.{role}"]
        assert found.covers([block])
        products = hl.hessian(problem, block.name, method="hvp")
        V = randn(products.shape[1], 2)
        assert_same(found.operator("full", block, block) @ V, products @ V, block.name, 1e-9)


def test_a_wrong_turn_of_the_keys_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are not those of the model are refused by plain autograd's product, and the next route is taken."""
    turning = rotated.turning_of

    def wrong(operands: object) -> object:
        found = turning(operands)
        cos, sin = found.tables
        return rotated.Turning(found.orders, found.factor, (cos, -sin))

    monkeypatch.setattr(rotated, "turning_of", wrong)
    problem = problem_of(FAMILIES["Llama"]())
    op = hl.hessian(problem, "layer1.attn.q")
    expected = hl.hessian(problem, "layer1.attn.q", method="hvp").to_dense()
    assert_same(op.to_dense(), expected, relative=1e-9)
    assert "differs from plain autograd's by" in op.why


def test_the_model_is_left_as_it_was() -> None:
    model = FAMILIES["Llama"]().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    exact_attention(problem_of(model))
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.expensive
@pytest.mark.parametrize("family", ["GPT-2", "Llama", "BERT"])
def test_padding_and_several_batches(family: str) -> None:
    ids = token_ids(3)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    batches = [
        {"input_ids": ids[k], "attention_mask": mask[k], "labels": labels[k]} for k in (slice(0, 2), slice(2, 3))
    ]
    assert_exact(hl.problem(FAMILIES[family](), batches, dtype=DOUBLE))


def test_positions_given_by_the_user() -> None:
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 9, 10]])
    assert_exact(hl.problem(FAMILIES["Llama"](), {"input_ids": token_ids(), "position_ids": positions}, dtype=DOUBLE))


def test_single_precision() -> None:
    """Also where a cap is found from rounded numbers."""
    for family in ("Gemma2, capped scores, window", "Qwen2"):
        rough = hl.problem(FAMILIES[family](), {"input_ids": token_ids()}, dtype=torch.float32)
        assert isinstance(exact_attention(rough), ExactAttention)


def assert_exact(problem: Problem) -> None:
    found = exact_attention(problem)
    assert isinstance(found, ExactAttention), found
    for row, column in (("q", "q"), ("k", "k"), ("q", "v"), ("k", "o")):
        blocks = [problem.blocks[f"layer1.attn.{role}"] for role in (row, column)]
        products = hl.hessian(problem, *(block.name for block in blocks), method="hvp")
        V = randn(products.shape[1], 2)
        error, size = found.operator("full", *blocks) @ V - products @ V, float((products @ V).norm())
        assert float(error.norm()) <= 1e-9 * size, f"{row} x {column}"

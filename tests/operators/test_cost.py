"""What an operator says about its cost is what a product takes."""

from __future__ import annotations

import pytest
from torch.utils.flop_counter import FlopCounterMode

import hessianlens as hl
from hessianlens.operators import StructuredOperator
from tests.curvature import networks
from tests.variants import randn, self_attention


def operators() -> dict[str, StructuredOperator]:
    layer = self_attention(3, 0, output=None)
    H = hl.attention_hessian(layer, randn(2, 5, 4), hl.SquareLoss(randn(2, 5, 4, seed=1)))
    problem = networks.toy_problem(2, heads=2)
    return {
        "one block": H.full["Q", "Q"],
        "a grid": H.outer[:],
        "a network's block": hl.hessian(problem, "layer0.attn.v", method="exact"),
    }


@pytest.mark.parametrize("name", operators())
def test_multiply_adds_are_those_of_a_product(name: str) -> None:
    op = operators()[name]
    said, v = op.multiply_adds, randn(op.shape[1])
    with FlopCounterMode(display=False) as counted:
        op @ v
    # Elementwise products are in the plan, but not in PyTorch's count
    assert counted.get_total_flops() / 2 <= said <= 1.5 * counted.get_total_flops() / 2


def test_held_bytes_count_shared_factors_once() -> None:
    op = operators()["one block"]
    assert op.held_bytes == (op + op).held_bytes > 0
    grid = operators()["a grid"]
    assert max(grid[r, r].held_bytes for r in "QKV") < grid.held_bytes
    assert grid.held_bytes < sum(grid[r, c].held_bytes for r in "QKV" for c in "QKV")


def test_print_says_what_a_product_costs() -> None:
    found = operators()["a network's block"]
    assert f"float64, {found.cost}: blocks" in str(found)
    assert "multiply-adds per matvec" in found.cost and "KiB held" in found.cost
    problem = networks.toy_problem(2)
    for op, gradients in ((hl.hessian(problem, "embed"), 2), (hl.ggn(problem, "embed"), 3)):
        assert op.product_cost == f"about {gradients} gradients per matvec"
        assert op.cost.startswith(f"{op.product_cost}; its norm, trace, diagonal and entries from a closed form: ")
        assert op.hvps.cost == f"{op.product_cost}; its norm or its entries take {op.shape[0]} matvecs"
        assert str(op).endswith("float64 (exact on demand: 17 HVPs)")
        assert str(op.hvps).endswith(f"{op.hvps.method}, {op.product_cost}")

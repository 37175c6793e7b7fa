"""Tables of embeddings: a linear map of one-hot vectors, summed over the occurrences of a token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.oracles.comparison import assert_same
from tests.variants import randn

MAKERS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
ROWS = 9


class LookUps(nn.Module):
    """Tokens and positions from tables, mixed over positions, with a product of both."""

    def __init__(self, look_up: Callable[[Tensor, Tensor], Tensor], length: int, mixes: bool = True) -> None:
        super().__init__()
        self.look_up, self.mixes = look_up, mixes
        self.table, self.places = nn.Parameter(randn(ROWS, 3, seed=1)), nn.Parameter(randn(length, 3, seed=2))
        self.W = nn.Parameter(randn(3, 4, seed=3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.look_up(self.table, tokens)
        x = x * (1 + self.places[: tokens.shape[-1]]).tanh()
        x = x + x.softmax(-1).cumsum(1) if self.mixes else x
        return (x @ self.W).tanh()


LOOK_UPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda table, rows: nnf.embedding(rows, table),
    "padding": lambda table, rows: nnf.embedding(rows, table, padding_idx=2),
    "padding from the end": lambda table, rows: nnf.embedding(rows, table, padding_idx=-1),
    "index_select": lambda table, rows: table.index_select(0, rows.flatten()).reshape(*rows.shape, -1),
    "indexed": lambda table, rows: table[rows],
    "converted": lambda table, rows: nnf.embedding(rows, table.to(torch.float64)),
}


def problem_of(look_up: str, length: int = 4, batches: tuple[int, ...] = (3, 2), mixes: bool = True) -> Problem:
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randint(0, ROWS - 2, (batch, length), generator=generator), randn(batch, length, 4, seed=batch))
        for batch in batches
    ]
    data[0][0][0, 0] = ROWS - 1
    return hl.problem(LookUps(LOOK_UPS[look_up], length + 2, mixes).double(), data, "square")


def agree(problem: Problem, row: str, column: str) -> None:
    for part, make in MAKERS.items():
        found, products = (make(problem, row, column, method=method) for method in ("exact", "hvp"))
        expected = products @ torch.eye(found.shape[1], dtype=torch.float64)
        assert_same(found.to_dense(), expected, f"{part} {row} x {column}", 1e-9)
        assert abs(found.frobenius_norm() - expected.norm()) <= 1e-9 * expected.norm()
        V = randn(found.shape[1], 2, seed=5)
        assert_same(found @ V, expected @ V, "matvecs", 1e-9)
        if row == column:
            assert_same(found.diagonal(), expected.diagonal(), "diagonal", 1e-9)
            assert_same(found.trace(), expected.trace(), "trace", 1e-9)


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_a_table_is_that_of_autograd(look_up: str) -> None:
    agree(problem_of(look_up), "table", "table")


@pytest.mark.parametrize("pair", [("table", "places"), ("places", "places"), ("W", "table"), ("places", "W")])
def test_pairs_with_positions_and_weights(pair: tuple[str, str]) -> None:
    agree(problem_of("embedding"), *pair)


def test_positions_that_are_not_coupled_take_fewer_products() -> None:
    alone, mixed = (
        hl.hessian(problem_of("embedding", batches=(3,), mixes=mixes), "table", method="exact")
        for mixes in (False, True)
    )
    assert alone.why == (
        "it enters by look-up, a linear map of one-hot vectors, and the loss couples no two positions of its "
        "output; 3 HVPs"
    )
    assert mixed.why.endswith("the 4 positions of a sequence are taken together; 12 HVPs")
    agree(problem_of("embedding", batches=(3,), mixes=False), "table", "table")


def test_a_table_with_fewer_rows_than_positions() -> None:
    """A delta for each of its rows is then looked up itself."""
    problem = hl.problem(networks.toy(context=20), networks.pairs(2, 1, length=16), "cross_entropy")
    rows, width = problem.params["token_embedding"].shape
    assert rows < 16
    assert hl.hessian(problem, "embed", method="exact").why.endswith(
        f"the {rows} rows of the table are taken together; {rows * width} HVPs"
    )
    for column in ("embed", "pos", "layer0.attn.q", "unembed"):
        agree(problem, "embed", column)


def test_tokens_that_do_not_occur_have_zero_rows() -> None:
    H = hl.hessian(problem_of("embedding"), "table", method="exact").to_dense().reshape(ROWS, 3, ROWS, 3)
    assert not H[ROWS - 2].any() and not H[:, :, ROWS - 2].any() and H[ROWS - 1, :, ROWS - 1].any()


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_a_look_up_that_is_no_linear_map(options: dict[str, object]) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(ROWS, 3, **options)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.embed(tokens).tanh()

    problem = hl.problem(Odd().double(), (torch.zeros(2, 3, dtype=torch.int64), randn(2, 3, 3)), "square", check=False)
    op = hl.hessian(problem, "embed.weight")
    assert not op.exact and op.why == "it enters the network through embedding"

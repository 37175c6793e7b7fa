"""Parameters that enter in several places: sums over pairs of their uses, tied embeddings above all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.network.base.question import NO_LIMITS, Cost, Limits, Question
from hessianlens.network.planner import planner_of
from hessianlens.network.routes import SeveralUsesRoute
from hessianlens.network.routes.linear_map import exact, several_uses
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.registry import problem_of
from tests.oracles.comparison import assert_same
from tests.oracles.properties import PROPERTIES
from tests.variants import randn

MAKERS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
VOCAB, WIDTH, LENGTH = networks.VOCAB, networks.WIDTH, networks.LENGTH


def gemma() -> nn.Module:
    """Tied, and the look-up is scaled by the root of the width."""
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=3, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, max_position_embeddings=8, tie_word_embeddings=True,
    )  # fmt: skip
    return networks.scrambled(transformers.Gemma3ForCausalLM(config).double())


def albert() -> nn.Module:
    """One layer that runs twice."""
    config = transformers.AlbertConfig(
        vocab_size=VOCAB, embedding_size=3, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=3, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    return networks.scrambled(transformers.AlbertForSequenceClassification(config).double())


class Twice(nn.Module):
    """A table that is looked up by tokens and by their neighbours, and a weight, a gain and a bias that act twice."""

    def __init__(self, tied: bool = False, padding: int | None = None) -> None:
        super().__init__()
        self.tied, self.padding = tied, padding
        self.table = nn.Parameter(randn(7, 3, seed=1))
        self.W, self.gain, self.bias = nn.Parameter(randn(3, 3)), nn.Parameter(randn(3)), nn.Parameter(randn(3, seed=4))
        self.out = nn.Parameter(randn(3, 5, seed=2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = nnf.embedding(tokens, self.table, self.padding) * nnf.embedding(tokens.roll(1, -1), self.table).tanh()
        for _ in range(2):
            x = ((x + x.cumsum(1)).tanh() @ self.W).sin() * self.gain + self.bias
        return x @ self.table.T if self.tied else x @ self.out


def token_data(batches: tuple[int, ...] = (2, 1), width: int = 5) -> list[tuple[Tensor, Tensor]]:
    ids = [torch.randint(0, 6, (batch, 3), generator=torch.Generator().manual_seed(batch)) for batch in batches]
    return [(one, randn(*one.shape, width, seed=len(one))) for one in ids]


def twice(**options: object) -> Problem:
    return hl.problem(Twice(**options).double(), token_data(width=7 if options.get("tied") else 5), "square")


def causal(make: Callable[[], nn.Module]) -> Problem:
    return hl.problem(make(), [hugging_face.padded(2), hugging_face.padded(1, seed=4)])


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "GPT-2": lambda: causal(hugging_face.gpt2),
    "Gemma 3": lambda: causal(gemma),
    "ALBERT": lambda: hl.problem(albert(), {**hugging_face.padded(2), "labels": torch.tensor([0, 1])}),
    "BART": lambda: hl.problem(hugging_face.bart(), hugging_face.sentences()),
    "nanoGPT": lambda: problem_of("nanoGPT"),
    "twice": twice,
    "twice, padding": lambda: twice(padding=2),
    "three times, square loss": lambda: twice(tied=True),
}
BLOCKS: dict[str, tuple[tuple[str, str], ...]] = {
    "GPT-2": (("embed", "embed"), ("embed", "layer1.mlp.in"), ("pos", "embed"), ("layer0.attn.k", "embed")),
    "Gemma 3": (("embed", "embed"), ("embed", "layer0.attn.v"), ("norm_final", "embed")),
    "ALBERT": (("layer0.attn.q", "layer0.attn.q"), ("layer0.norm1", "layer0.mlp.in.bias"), ("embed", "layer0.attn.v")),
    "BART": (("embed", "embed"), ("embed", "decoder.layer0.cross.k")),
    "nanoGPT": (("embed", "embed"),),
    "twice": (("table", "table"), ("table", "W"), ("W", "W"), ("gain", "bias"), ("bias", "bias"), ("out", "gain")),
    "twice, padding": (("table", "table"),),
    "three times, square loss": (("table", "table"), ("table", "W"), ("gain", "table")),
}


def dense(problem: Problem, part: str, row: str, column: str) -> Tensor:
    op = MAKERS[part](problem, row, column, method="hvp")
    return op @ torch.eye(op.shape[1], dtype=torch.float64)


@pytest.mark.expensive
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_block_is_that_of_autograd(name: str) -> None:
    problem = PROBLEMS[name]()
    for row, column in BLOCKS[name]:
        size = float(dense(problem, "full", row, column).norm())
        for part, make in MAKERS.items():
            found, expected = make(problem, row, column, method="exact"), dense(problem, part, row, column)
            assert found.exact and "places, each a linear map" in found.why
            assert float((found.to_dense() - expected).norm()) <= 1e-9 * size, f"{name} {part} {row} x {column}"
            V = randn(found.shape[1], 2, seed=5)
            assert float((found @ V - expected @ V).norm()) <= 1e-9 * size * float(V.norm())
            assert abs(float(found.frobenius_norm()) - float(expected.norm())) <= 1e-9 * size
        if row == column:
            norms = hl.block_norms(problem, row, method="exact")
            for part in MAKERS:
                expected_norm = float(dense(problem, part, row, row).norm())
                assert abs(norms[row, part].value - expected_norm) <= 1e-9 * size
            pair = hl.block_pair_norms(problem, [row], method="exact")[row, row]
            assert pair.exact and abs(pair.value - size) <= 1e-9 * size


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
def test_a_tied_embedding_has_the_properties_of_its_matrix(holds) -> None:
    problem = problem_of("GPT-2")
    holds(hl.hessian(problem, "embed", method="exact"), dense(problem, "full", "embed", "embed"))


def test_a_tied_embedding_costs_what_an_embedding_does() -> None:
    """As many HVPs as coupled positions have features, known before one is made; none for the logits."""
    problem = causal(lambda: hugging_face.gpt2(vocab_size=30))
    planner, embed = planner_of(problem), problem.blocks["embed"]
    choice = planner.choose(Question(embed, embed, NO_LIMITS))
    expected = (LENGTH + 1) * WIDTH
    assert isinstance(choice.route, SeveralUsesRoute) and choice.cost.upfront_hvps == expected < embed.numel
    assert choice.why == (
        "it enters in 2 places, each a linear map, and its block is the sum of those between each two of them, and "
        f"that of the last map with itself is known from the outputs alone; {expected} HVPs"
    )
    ticks: list[int] = []
    with planner.maps.watched(lambda: ticks.append(1)):
        planner.norms(choice, tuple(MAKERS))
    assert len(ticks) == expected * len(problem.data)
    refused = planner.choose(Question(embed, embed, Limits(hvps=expected - 1)))
    assert refused.reason == f"exact needs {expected} HVPs, above the limit of {expected - 1}; method='exact' allows it"


def test_a_loss_that_is_no_cross_entropy_takes_products_for_the_logits() -> None:
    problem = twice(tied=True)
    table = problem.blocks["table"]
    cost = planner_of(problem).routes[3].cost(Question(table, table, NO_LIMITS))
    assert isinstance(cost, Cost) and cost.upfront_hvps == 2 * 3 * 3 + 7 and "last map" not in cost.reason


def test_norms_from_terms_are_those_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("nanoGPT")
    expected = hl.block_norms(problem, "embed", method="exact")
    monkeypatch.setattr(several_uses, "_DENSE_MAX_ENTRIES", 0)
    for cancelled in (1e-6, 1e6):  # by inner products of terms, and by columns
        monkeypatch.setattr(several_uses, "_CANCELLED", cancelled)
        found = hl.block_norms(PROBLEMS["nanoGPT"](), "embed", method="exact")
        assert all(abs(found["embed", p].value - expected["embed", p].value) <= 1e-9 for p in MAKERS)


@pytest.mark.parametrize("name", ["terms_with_outputs", "terms_of_outputs", "terms_between"])
def test_a_sum_without_one_of_its_pairs_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, name, lambda *_: [])
    problem = PROBLEMS["GPT-2"]()
    with pytest.raises(hl.InputError, match="differs from plain autograd's by"):
        hl.block_norms(problem, "embed", method="exact")


def test_uses_in_different_arrangements_are_refused() -> None:
    class Rearranged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W = nn.Parameter(randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.W + x @ self.W.reshape(2, 2, 4).transpose(0, 1).reshape(4, 4)

    problem = hl.problem(Rearranged().double(), (randn(2, 3, 4), randn(2, 3, 4, seed=9)), "square")
    assert hl.hessian(problem, "W").why == "it is used in several places, rearranged in different ways"


def test_single_precision() -> None:
    model = hugging_face.gpt2().float()
    rough, fine = hl.problem(model, hugging_face.padded(2)), hl.problem(hugging_face.gpt2(), hugging_face.padded(2))
    found, expected = (hl.hessian(one, "embed", method="exact").to_dense() for one in (rough, fine))
    assert found.dtype == torch.float32
    assert_same(found.double(), expected, "embed", 1e-3)


@pytest.mark.parametrize("name", ["W_Q", "W_V", "W_O"])
def test_layers_of_a_toy_may_share_a_map_of_attention(name: str) -> None:
    model = networks.toy(layers=2)
    setattr(model.blocks[1].attention, name, getattr(model.blocks[0].attention, name))
    problem = hl.problem(model, networks.pairs(2), "cross_entropy")
    for block in ("layer1.attn.k", f"layer0.attn.{name[-1].lower()}"):
        found, expected = (hl.hessian(problem, block, method=method).to_dense() for method in ("auto", "hvp"))
        assert float((found - expected).norm()) <= 1e-9 * max(float(expected.norm()), 1e-3)

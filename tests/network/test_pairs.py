"""`block_pair_norms`: the norms of all pairs of blocks, each from the probes of both sides."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from hessianlens.network.base.progress import Deadline, Watch
from hessianlens.network.planner import planner_of
from hessianlens.network.routes.linear_map import batch_graph, curvatures, exact
from hessianlens.problems import Block, Problem
from tests.curvature import networks
from tests.curvature.agreement import OPERATORS, identity
from tests.curvature.registry import CASES, dense_of, problem_of
from tests.network.registry import NETWORKS
from tests.network.sites.families import FAMILIES, token_ids
from tests.network.test_linear_maps import LOOKUPS, TIED
from tests.oracles.network import PARTS
from tests.spectra.coverage import assert_covers
from tests.spectra.registry import symmetric
from tests.variants import randn


@pytest.mark.expensive
@pytest.mark.parametrize("part", ["full", "ggn", "functional"])
@pytest.mark.parametrize("name", ["MLP, cross-entropy", "nanoGPT", "GPT-NeoX, interleaved"])
def test_norms_at_full_order_are_exact(name: str, part: str) -> None:
    problem, blocks = problem_of(name), list(CASES[name].blocks)
    norms = hl.block_pair_norms(problem, blocks, part, probes=20)
    assert norms.names == tuple(blocks) and torch.equal(norms.values(), norms.values().T)
    assert not norms.stderrs().any()
    for row in blocks:
        for column in blocks:
            op = OPERATORS[part](problem, row, column)
            assert norms[row, column].value == pytest.approx(float((op @ identity(op)).norm()), rel=1e-9, abs=1e-12)


def test_the_diagonal_is_that_of_block_norms_up_to_the_probes() -> None:
    problem = problem_of("MLP, cross-entropy")
    both, alone = hl.block_pair_norms(problem, "*.weight", probes=8), hl.block_norms(problem, "*.weight", probes=12)
    assert all(both[block, block] == alone[block, "full"] and alone[block, "full"].exact for block in both.names)
    pairs = hl.block_pair_norms(problem, "*.weight", probes=8, method="probes")
    for block in pairs.names:
        found = pairs[block, block]
        assert found.probes == 8 and abs(found.value - alone[block, "full"].value) < 6 * found.stderr


def bilinear(size: int) -> tuple[Problem, torch.Tensor]:
    """``u^T S w`` with a symmetric S: the block between u and w is its own transpose, and both are equally long."""
    S = symmetric(size)
    params = {"u": randn(size), "w": randn(size, seed=1)}
    blocks = {name: Block.of(name, name, value) for name, value in params.items()}

    def forward(weights, batch):
        return weights["u"] @ batch @ weights["w"]

    return Problem(forward, lambda outputs, batch: outputs, params, blocks, [S]), S


def test_error_bars_of_a_pair_cover_the_truth_at_the_stated_rate() -> None:
    """Probes shared by the two sides would give the same number twice and an error bar that is too small."""
    problem, S = bilinear(24)
    runs = [hl.block_pair_norms(problem, "*", probes=10, seed=seed) for seed in range(200)]
    assert_covers([run["u", "w"] for run in runs], float(S.norm()))
    assert all(run["u", "w"] == run["w", "u"] and run["u", "w"].probes == 20 for run in runs)


def test_one_seed_gives_the_same_numbers_whatever_else_is_asked_for() -> None:
    problem = problem_of("MLP, cross-entropy")
    few, many = (hl.block_pair_norms(problem, pattern, probes=5, seed=3) for pattern in ("*.weight", "*"))
    for row in few.names:
        for column in few.names:
            assert few[row, column].value == pytest.approx(many[row, column].value, rel=1e-12)


def test_pairs_print_as_a_table() -> None:
    norms = hl.block_pair_norms(problem_of("MLP, cross-entropy"), "*.bias", probes=20)
    head, *rows = str(norms).splitlines()
    assert head.split() == list(norms.names)
    assert [row.split()[0] for row in rows] == list(norms.names)


def test_sampled_pairs_say_how_wide_their_intervals_are() -> None:
    problem, _ = bilinear(24)
    few, more = (hl.block_pair_norms(problem, "*", probes=probes) for probes in (3, 12))
    low, high = few.intervals()
    assert bool((low <= few.values()).all() and (few.values() <= high).all())
    assert (low[0, 1], high[0, 1]) == few["u", "w"].interval()
    assert str(few).splitlines()[-1].startswith("widest 95 % interval: -") and str(few).endswith("; few probes")
    assert str(more).splitlines()[-1].endswith("%")


@pytest.mark.parametrize(
    "message, options",
    [
        ("part: got 'half', expected one of 'full', 'ggn', 'functional'", {"part": "half"}),
        ("probes: got 0, expected a whole number of at least 1", {"probes": 0}),
        ("blocks: nothing matches 'x'", {"blocks": "x"}),
    ],
)
def test_bad_input(message: str, options: dict[str, object]) -> None:
    with pytest.raises(hl.InputError, match=message):
        hl.block_pair_norms(problem_of("MLP, cross-entropy"), **options)


# --- what all pairs of one call share --------------------------------------------------------------------------------


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["GPT-2", "Llama, grouped queries", "BERT, masked", "ViT"])
@pytest.mark.parametrize("room", [2**28, 1])
def test_pairs_together_are_those_of_autograd(name: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (exact, curvatures):
        monkeypatch.setattr(module, "KEPT_BYTES", room)
    problem = CASES[name].problem()
    names = [block for block in CASES[name].blocks if block not in (*LOOKUPS, *TIED.get(name, ()))]
    for part in ("full", "functional"):
        norms = hl.block_pair_norms(problem, names, part, method="exact")
        for row in names:
            for column in names:
                expected = float(dense_of(name).block(PARTS[part], row, column).norm())
                found = norms[row, column]
                assert found.exact and found.value == pytest.approx(expected, rel=CASES[name].relative, abs=1e-9)


def test_products_of_a_row_serve_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for the groups of positions and one for the products; a product per feature of each map."""
    problem = networks.toy_problem(2, layers=1, norm="pre", loss=lambda o, b: o.pow(3).mean())
    names = ["layer0.mlp.in", "layer0.mlp.out", "layer0.norm2", "norm_final", "unembed"]
    graphs, products = [], []
    made, split = batch_graph.HookedBatch.__init__, batch_graph.HookedBatch.products_at
    monkeypatch.setattr(batch_graph.HookedBatch, "__init__", lambda self, *args: graphs.append(1) or made(self, *args))
    monkeypatch.setattr(
        batch_graph.HookedBatch, "products_at", lambda self, *args: products.append(1) or split(self, *args)
    )
    hl.block_pair_norms(problem, names, method="exact")
    maps = planner_of(problem).maps
    features = [len(maps.planner.pieces(problem.blocks[name])[0].features) for name in names]
    checks = 4 * len(names) ** 2  # which positions are coupled, for every pair
    assert len(graphs) == 1
    assert len(products) <= 2 * sum(features) + checks


def test_a_row_is_paid_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = networks.toy_problem(2, layers=1, norm="pre")
    names = ["layer0.mlp.out", "layer0.norm2", "norm_final", "layer0.mlp.in"]
    norms = hl.block_pair_norms(problem, names, probes=2)
    assert all(norms[row, column].exact for row in names for column in names)


@pytest.mark.parametrize("name", ["GPT-2", "two layers, two heads, pre-norm"])
def test_what_nothing_depends_on_is_zero_with_everything(name: str) -> None:
    """Key biases in front of a softmax: alone, in pairs, as operators, and with blocks that have no closed form."""
    problem = NETWORKS[name].problem()
    flat, others = "layer1.attn.k.bias", ["layer1.attn.v", "layer1.mlp.in", "embed", "layer0.attn.q"]
    pairs = hl.block_pair_norms(problem, [flat, *others], probes=2)
    assert hl.block_norms(problem, flat)[flat, "full"].value == 0
    assert all(pairs[flat, other].value == 0 and pairs[flat, other].exact for other in pairs.names)
    for make in (hl.hessian, hl.ggn, hl.functional):
        op = make(problem, others[0], flat)
        expected = make(problem, others[0], flat, method="hvp").to_dense()
        assert float(expected.norm()) < 1e-12 and not bool(op.to_dense().any()) and "changes none" in op.why
        assert op.shape == expected.shape and float(op.adjoint().frobenius_norm()) == 0
    assert pairs["layer1.attn.v", "layer1.mlp.in"].value > 0


def test_a_key_bias_that_weights_do_see_is_not_flat() -> None:
    """Sigmoids see a common shift of the scores."""
    problem = NETWORKS["post-norm, sigmoid"].problem()
    assert hl.block_norms(problem, "layer0.attn.k.bias")["layer0.attn.k.bias", "full"].value > 1e-8


def test_a_key_bias_that_is_turned_with_its_position_is_not_flat() -> None:
    """Rotary positions turn the bias of every key by another angle, so that the scores of a row differ in it."""
    problem = hl.problem(FAMILIES["Qwen2"](), {"input_ids": token_ids()}, dtype=torch.float64)
    name = "layer1.attn.k.bias"
    expected = hl.hessian(problem, name, method="hvp").frobenius_norm()
    assert hl.block_norms(problem, name, method="exact")[name, "full"].value == pytest.approx(float(expected)) != 0


def test_names_as_the_problem_has_them() -> None:
    """Blocks, patterns and parameters: the keys of `problem.blocks`, and the names that the model itself has."""
    model, task = hl.models.Transformer(d_model=4, d_mlp=8, dtype=torch.float64), hl.tasks.Addition(digits=1)
    problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    names = ["embed", "layer0.attn.q"]
    wanted = hl.block_pair_norms(problem, names, method="probes", probes=3)
    parameters = [problem.blocks[name].parameter for name in names]
    found = hl.block_pair_norms(problem, parameters, method="probes", probes=3)
    assert found.names == wanted.names == tuple(names) and torch.equal(found.values(), wanted.values())
    assert hl.block_pair_norms(problem, {name: problem.blocks[name] for name in names}, probes=3).names == tuple(names)


def test_a_bar_counts_sampled_products() -> None:
    class Counted(Watch):
        planned, done = 0.0, 0.0

        def begin(self, products: float | None, _: Deadline) -> None:
            self.planned += products or 0

        def products(self, count: float) -> None:
            self.done += count

    problem, watch = problem_of("MLP, cross-entropy"), Counted()
    hl.block_pair_norms(problem, "*.weight", probes=3, method="probes", progress=watch)
    assert watch.planned == watch.done == 3 * len(problem.select("*.weight"))

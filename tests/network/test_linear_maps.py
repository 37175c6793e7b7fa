"""Exact blocks of weights, biases and gains behind linear maps: every architecture, pair of blocks and part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.uses import Kind
from hessianlens.network.planner import planner_of
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps, batch_graph, curvatures, plan
from hessianlens.network.routes.linear_map.batch_graph import record_uses
from hessianlens.network.routes.linear_map.norms import downstream_elementwise, weight_off_diagonal
from hessianlens.network.routes.linear_map.plan import IN_SEVERAL_PLACES
from hessianlens.operators import BlockGrid
from hessianlens.problems import Block, Problem
from tests.curvature import networks
from tests.curvature.registry import CASES, dense_of, problem_of
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS
from tests.oracles.properties import PROPERTIES
from tests.variants import randn

LOOKUPS = ("embed.patch",)
"""Blocks that enter otherwise."""
TIED = {name: ("embed",) for name in ("GPT-2", "BERT, masked", "T5", "nanoGPT")}
"""Blocks that enter in several places, by model: their block is a sum over pairs of these."""
ANY = float("inf")


def agreement(maps: LinearMaps, name: str, most: float = ANY) -> int:
    """Every pair of blocks and every part against dense autograd; gives the number of pairs."""
    problem, dense, pairs_seen = maps.problem, dense_of(name), 0
    for block in TIED.get(name, ()):
        tied = problem.blocks[block]
        assert maps.plan(tied, tied, most) is IN_SEVERAL_PLACES
        for part, key in PARTS.items():
            expected = dense.block(key, block, block)
            found = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](
                problem, block, method="exact"
            )
            assert float((found.to_dense() - expected).norm()) <= CASES[name].relative * float(expected.norm())
    names = [block for block in CASES[name].blocks if block not in (*LOOKUPS, *TIED.get(name, ()))]
    for row in names:
        for column in names:
            plan = maps.plan(problem.blocks[row], problem.blocks[column], most)
            assert isinstance(plan, LinearMapPlan), f"{row} x {column}: {plan}"
            for part, key in PARTS.items():
                expected = dense.block(key, row, column)
                # A block may be zero by structure, or tiny beside the others.
                size = max(float(expected.norm()), 1e-3 * float(getattr(dense, key).norm()))
                error = float((maps.operator(part, plan).to_dense() - expected).norm())
                assert error <= CASES[name].relative * size, f"{part} {row} x {column}: {error / size}"
            pairs_seen += 1
    return pairs_seen


@pytest.mark.expensive
@pytest.mark.parametrize("name", [name for name in CASES if "between sequences" not in name][::2])
def test_every_pair_of_blocks_is_that_of_autograd(name: str) -> None:
    assert agreement(LinearMaps(problem_of(name)), name) >= 9


def test_a_loss_between_sequences_is_refused() -> None:
    problem = problem_of("pooled encoder, loss between sequences")
    block = problem.blocks["layer0.mlp.out"]
    assert (
        LinearMaps(problem).plan(block, block, ANY).reason
        == "the loss couples its outputs across the sequences of a batch"
    )


# --- maps that are wrong in one place --------------------------------------------------------------------------------


def _without_motion(*args):
    return [replace(found, moved=None) for found in exact_site_curvatures(*args)]


def _positions_alone(batch, row, column, rows, columns):
    return rows[0], columns[0]


def _functional_forgotten(*args):
    return [replace(found, functional=torch.zeros_like(found.functional)) for found in exact_site_curvatures(*args)]


exact_site_curvatures = curvatures.site_curvatures
WRONG = {
    "inputs that stand still": (curvatures, "site_curvatures", _without_motion),
    "positions never coupled": (plan, "grouping_of", _positions_alone),
    "no functional part": (curvatures, "site_curvatures", _functional_forgotten),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_one_fails(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises((AssertionError, hl.InputError)):
        agreement(LinearMaps(CASES["toy"].problem()), "toy")


# --- what an operator can do -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("block", ["layer1.mlp.in", "layer1.norm2", "layer1.attn.o.bias", "layer0.attn.v"])
def test_a_block_has_the_properties_of_its_matrix(block: str, holds) -> None:
    problem = networks.toy_problem(2, layers=2, heads=2, norm="pre")
    op = hl.hessian(problem, block, method="exact")
    dense = hl.hessian(problem, block, method="hvp") @ torch.eye(op.shape[1], dtype=torch.float64)
    holds(op, dense)


def test_several_blocks_are_one_matrix() -> None:
    problem = problem_of("GPT-NeoX, interleaved")
    names = ["layer0.attn.q", "layer0.mlp.in.bias", "norm_final"]
    for make in (hl.hessian, hl.ggn, hl.functional):
        op, products = make(problem, names, method="exact"), make(problem, names, method="hvp")
        assert isinstance(op, BlockGrid) and op.shape == products.shape
        V = randn(op.shape[1], 3)
        assert_same(op @ V, products @ V, "stacked", 1e-9)
        assert_same(op.to_dense(), products @ torch.eye(op.shape[1], dtype=torch.float64), "dense", 1e-9)
    wide = hl.hessian(problem, names[0], names[1:], method="exact")
    assert_same(
        wide.to_dense(), hl.hessian(problem, names, method="exact").to_dense()[: wide.shape[0], -wide.shape[1] :]
    )


def test_norms_are_exact_with_a_reason() -> None:
    problem = problem_of("BERT, masked")
    norms = hl.block_norms(problem, "layer0.mlp.*", method="exact")
    for (block, part), norm in norms.items():
        op = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](problem, block, method="hvp")
        expected = float((op @ torch.eye(op.shape[1], dtype=torch.float64)).norm())
        assert norm.exact and norm.value == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["GPT-NeoX, interleaved", "Llama, grouped queries", "BERT, masked", "ViT"])
def test_norms_row_by_row_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES[name].problem()
    names = [name for name in problem.blocks if problem.blocks[name].shape and ("mlp" in name or "norm" in name)]
    plans = {name: LinearMaps(problem).plan(*[problem.blocks[name]] * 2, ANY) for name in names}
    streaming = [name for name, plan in plans.items() if plan.streams]
    assert streaming
    expected = {name: LinearMaps(problem).norms(plans[name], tuple(PARTS)).values for name in streaming}
    monkeypatch.setattr("hessianlens.network.routes.linear_map.plan.KEPT_BYTES", 0)
    monkeypatch.setattr("hessianlens.network.routes.linear_map.norms._CHUNK_BYTES", 2000)
    ticks: list[int] = []
    for name in streaming:
        maps = LinearMaps(problem)
        maps.tick = lambda: ticks.append(1)
        found = maps.norms(plans[name], tuple(PARTS)).values
        largest = max(expected[name].values())
        assert all(abs(found[part] - expected[name][part]) <= 1e-9 * largest for part in PARTS), name
        assert plans[name].norm_bytes > 0
    # Fewer where the curvature at the next map, with fewer outputs, is enough.
    assert 0 < len(ticks) <= sum(plans[name].products for name in streaming)


@pytest.mark.parametrize("name", ["GPT-NeoX, interleaved", "Llama, grouped queries", "BERT, masked", "ViT"])
def test_the_curvature_before_an_elementwise_function_follows_from_that_behind(name: str) -> None:
    problem = problem_of(name)
    maps = LinearMaps(problem)
    first = [block for block in problem.blocks.values() if block.name in ("layer0.mlp.in", "layer0.mlp.gate")]
    for block in first:
        plan = maps.plan(block, block, ANY)
        following = downstream_elementwise(problem, problem.data[0], plan.row[0].use.site)
        downstream = Block.of("next", following.use.parameter, problem.params[following.use.parameter])
        next_plan = maps.plan(downstream, downstream, ANY)
        curvature, slope = maps.curvature(next_plan, 0), maps.slope(next_plan, 0)
        expected = maps.curvature(plan, 0)
        features = plan.row[0].features
        for size in (1, 2, len(features)):
            for strip in following.strips(curvature, slope, features, size):
                for part in ("ggn", "functional"):
                    whole = getattr(expected, part).squeeze(3).squeeze(1)
                    rows = weight_off_diagonal(whole[:, strip.start : strip.start + size, strip.start :].clone())
                    assert_same(strip.part(part), rows, f"{block.name} {part}", 1e-9)
    assert first


def test_what_reaches_more_than_the_next_map_has_no_such_form() -> None:
    problem = problem_of("GPT-NeoX, interleaved")
    maps = LinearMaps(problem)
    for name in ("layer0.attn.q", "layer0.mlp.out", "unembed"):
        block = problem.blocks[name]
        plan = maps.plan(block, block, ANY)
        assert downstream_elementwise(problem, problem.data[0], plan.row[0].use.site) is None, name


def test_single_precision() -> None:
    rough, fine = CASES["GPT-2"].problem(dtype=torch.float32), problem_of("GPT-2")
    for block in ("layer1.mlp.out", "layer1.norm2"):
        found = hl.hessian(rough, block, method="exact").to_dense()
        assert found.dtype == torch.float32
        assert_same(found.double(), hl.hessian(fine, block, method="exact").to_dense(), block, 1e-3)


# --- prices ----------------------------------------------------------------------------------------------------------


def test_the_price_is_known_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = networks.toy_problem(3, layers=2, heads=2)
    maps = LinearMaps(problem)
    width, length = networks.WIDTH, networks.LENGTH
    early, late = problem.blocks["layer0.attn.q"], problem.blocks["layer1.attn.o"]
    monkeypatch.setattr(batch_graph, "HookedBatch", lambda *_: pytest.fail("a graph was made"))
    assert maps.plan(early, early, width * length - 1).reason == (
        f"exact needs {width * length} HVPs, above the limit of {width * length - 1}; method='exact' allows it"
    )
    assert "exact needs" in maps.plan(late, late, width - 1).reason
    monkeypatch.undo()
    for block, products in ((early, width * length), (late, width)):
        plan = maps.plan(block, block, products)
        assert isinstance(plan, LinearMapPlan) and plan.products == products
        assert plan.held_bytes >= 3 * 8 * 3 * length * products * width
    assert (
        "no two positions" in maps.plan(late, late, ANY).why
        and f"the {length} positions" in maps.plan(early, early, ANY).why
    )


def test_nothing_is_built_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight and bias of a map, all parts, norms and operators: one curvature."""
    built = []

    def counted(*args):
        built.append(args)
        return exact_site_curvatures(*args)

    monkeypatch.setattr(curvatures, "site_curvatures", counted)
    problem = networks.toy_problem(2, norm="pre", loss=lambda outputs, _: outputs.pow(3).mean())
    hl.block_norms(problem, "layer0.mlp.out*", method="exact")
    hl.hessian(problem, "layer0.mlp.out.bias", method="exact").to_dense()
    hl.block_norms(problem, "layer0.mlp.out*", method="exact")
    assert len(built) == 2  # the toy adds its bias in a step of its own


def test_nothing_but_curvature_is_kept_with_a_problem() -> None:
    problem = networks.toy_problem(2)
    ticks: list[int] = []
    hl.block_norms(problem, "layer0.mlp.*", method="exact")
    hl.hessian(problem, "layer0.mlp.in", method="exact").to_dense()
    maps = planner_of(problem).maps
    assert maps.graphs.kept is None and all(
        use.inputs is None for record in maps.planner.records for use in record.uses
    )
    with maps.watched(lambda: ticks.append(1)):
        maps.tick()
    maps.tick()
    assert ticks == [1]


def test_a_wide_block_is_refused_without_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "record_uses", lambda *_: pytest.fail("the model was run"))
    problem = problem_of("toy")
    said = LinearMaps(problem).plan(*[problem.blocks["layer0.mlp.in"]] * 2, 2)
    assert said.reason == "exact needs 3 or more HVPs, above the limit of 2; method='exact' allows it"


def test_a_stack_without_attention_beside_one_with_it() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.ModuleDict({"layer0": nn.Linear(3, 3), "layer1": nn.Linear(3, 3)})
            self.layer0 = nn.ModuleDict({"attn": nn.ModuleDict({"q": nn.Linear(3, 3)})})

        def forward(self, x: Tensor) -> Tensor:
            return self.layer0["attn"]["q"](self.stem["layer1"](self.stem["layer0"](x).tanh()).tanh())

    data = (randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))
    problem = hl.problem(networks.scrambled(Both().double()), data, "cross_entropy")
    assert any(".attn." in name for name in problem.blocks) and any("stem" in name for name in problem.blocks)
    for name in problem.blocks:
        op = hl.hessian(problem, name, method="exact")
        products = hl.hessian(problem, name, method="hvp").to_dense()
        assert_same(op.to_dense(), products, name, 1e-9)


# --- where parameters are met ----------------------------------------------------------------------------------------


class MixedByBatch(nn.Module):
    """Positions are mixed by a matrix that comes with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, mixing: Tensor) -> Tensor:
        return self.second(mixing @ self.first(x).tanh())


def test_positions_are_coupled_in_one_batch_and_not_in_another() -> None:
    mixings = (torch.eye(5, dtype=torch.float64).expand(2, 5, 5), randn(2, 5, 5, seed=3))
    data = [{"x": randn(2, 5, 3, seed=k), "mixing": mixing} for k, mixing in enumerate(mixings)]
    for batches in (data, data[::-1]):
        problem = hl.problem(MixedByBatch().double(), batches, lambda outputs, batch: outputs.pow(4).sum())
        exact, products = (hl.hessian(problem, "first.weight", method=method) for method in ("exact", "hvp"))
        assert_same(exact.to_dense(), products @ torch.eye(12, dtype=torch.float64), "dense", 1e-9)
        assert "was not used" not in exact.why


class Odd(nn.Module):
    """A weight used twice, one that is looked at only, one cut in two, a gain up to a constant, a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"twice": (3, 3), "cut": (3, 4), "gain": (3,), "turned": (3, 3), "bias": (3,)}.items():
            self.register_parameter(name, nn.Parameter(torch.ones(shape)))

    def forward(self, x: Tensor) -> Tensor:
        assert self.gain.shape == (3,) and self.gain.dtype is x.dtype and self.gain.requires_grad in (True, False)
        x = x @ self.twice @ self.twice
        x = x * (1.0 + self.gain) + self.bias
        x = torch.matmul(x, self.turned.T)
        return x @ self.cut[:, :2]


def test_uses_are_told_apart() -> None:
    data = (torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64))
    problem: Problem = hl.problem(Odd(), data, "cross_entropy")
    record = record_uses(problem, problem.data[0])
    assert record.of("cut").reason == "it enters the network through __getitem__"
    assert record.of("nothing").reason == "it was not seen to enter through a linear map"
    kinds = {name: [use.kind for use in record.of(name)] for name in ("twice", "gain", "turned", "bias")}
    once = {"gain": [Kind.GAIN], "turned": [Kind.OUT_IN], "bias": [Kind.SHIFT]}
    assert kinds == {"twice": [Kind.IN_OUT, Kind.IN_OUT], **once}
    for block in ("gain", "turned", "bias"):
        op = hl.hessian(problem, block, method="exact")
        products = hl.hessian(problem, block, method="hvp") @ torch.eye(op.shape[1])
        assert_same(op.to_dense(), products, block, 1e-4)


def test_taps_leave_a_model_as_it_is() -> None:
    problem = problem_of("nn.TransformerEncoder, square")
    with problem.scope(), torch.no_grad():
        before = problem.forward(problem.params, problem.data[0])
        with Hooks(problem.params):
            during = problem.forward(problem.params, problem.data[0])
    assert_same(during, before, "outputs", 1e-12)


# --- parameters that are rearranged before they enter ----------------------------------------------------------------


class Rearranged(nn.Module):
    """Heads by letters, with an axis of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(randn(2, 3, 4, seed=1))
        self.b = nn.Parameter(randn(2, 4, seed=2))
        self.V = nn.Parameter(randn(2, 4, 3, seed=3))

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.einsum("bld,hde->bhle", x, self.W).permute(0, 2, 1, 3).flatten(2) + self.b.flatten()
        return torch.einsum("blhe,hed->bld", heads.tanh().unflatten(-1, (2, 4)), self.V)


@pytest.mark.parametrize("pair", [("W", "W"), ("b", "V"), ("V", "W"), ("b", "b")])
def test_heads_by_letters(pair: tuple[str, str]) -> None:
    problem = hl.problem(Rearranged(), (randn(2, 3, 3), randn(2, 3, 3, seed=9)), "square")
    for make in (hl.hessian, hl.ggn, hl.functional):
        op, products = make(problem, *pair, method="exact"), make(problem, *pair, method="hvp")
        assert_same(op.to_dense(), products @ torch.eye(op.shape[1], dtype=torch.float64), str(pair), 1e-9)


def test_letters_that_are_no_plain_product_are_left_to_products() -> None:
    class Diagonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W = nn.Parameter(randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bld,le->ble", x[:, :, :1], self.W)

    problem = hl.problem(Diagonal(), (randn(2, 3, 3), randn(2, 3, 4, seed=9)), "square")
    assert hl.hessian(problem, "W").why == "it enters the network through einsum"

"""`block_norms`: exact where that is possible, the same probes for every part, honest error bars elsewhere."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import hessianlens as hl
from hessianlens.problems import Block, Problem
from tests.curvature import networks
from tests.curvature.agreement import OPERATORS, identity
from tests.curvature.networks import pairs, scrambled
from tests.curvature.registry import CASES, problem_of
from tests.spectra.coverage import assert_covers
from tests.spectra.registry import symmetric
from tests.variants import DOUBLE, randn

PARTS = ("full", "ggn", "functional")


def direct(problem: Problem, block: str, part: str) -> float:
    op = OPERATORS[part](problem, block)
    return float((op @ identity(op)).norm())


@pytest.mark.expensive
@pytest.mark.parametrize(
    "name",
    [
        *("MLP, bce, summed", "toy", "GPT-2", "BERT, masked", "nn.TransformerEncoder, square"),
        *("GPT-NeoX, interleaved", "BLOOM, interleaved, with heads", "GPT-2, LoRA around c_attn"),
    ],
)
def test_norms_at_full_order_are_exact(name: str) -> None:
    """As many probes as entries: every basis vector; fewer would be drawn at random."""
    problem, blocks = problem_of(name), list(CASES[name].blocks)
    norms = hl.block_norms(problem, blocks, probes=20, method="probes")
    assert list(norms) == [(block.name, part) for block in problem.select(blocks) for part in PARTS]
    assert len(norms) == 3 * len(blocks)
    for (block, part), estimate in norms.items():
        size = problem.blocks[block].numel
        assert estimate.exact == (size <= 20)
        if estimate.exact:
            assert (estimate.stderr, estimate.probes, estimate.method) == (0, size, "basis")
            assert estimate.value == pytest.approx(direct(problem, block, part), rel=1e-9)
        else:
            assert estimate.stderr > 0 and estimate.probes == 20
            assert abs(estimate.value - direct(problem, block, part)) < 6 * estimate.stderr


@pytest.mark.long
def test_the_closed_form_answers_without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS_PER_PROBE", 2)
    problem = networks.toy_problem(2, 1, layers=2, heads=2, norm="pre")
    norms = hl.block_norms(problem, ["layer*.attn.[qv]", "layer1.attn.v.bias", "layer1.mlp.in"], probes=3)
    for (block, part), estimate in norms.items():
        if block.startswith("layer1."):
            assert (estimate.probes, estimate.stderr, estimate.method) == (0, 0, "exact")
            assert estimate.value == pytest.approx(direct(problem, block, part), rel=1e-9)
        else:
            assert (estimate.probes, estimate.method) == (3, "hutchinson")
    forced = hl.block_norms(problem, "layer1.attn.?", method="exact")
    assert all(estimate.exact for estimate in forced.values())
    assert forced["layer1.attn.q", "full"] == norms["layer1.attn.q", "full"]
    sampled = hl.block_norms(problem, "layer1.attn.q", probes=3, method="probes")
    assert all(estimate.method == "hutchinson" for estimate in sampled.values())


def test_the_model_is_searched_for_a_closed_form_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hessianlens.network.routes.last_attention import route

    searches, search = [], route.exact_attention

    def counted(problem: Problem, *maps):
        searches.append(problem)
        return search(problem, *maps)

    monkeypatch.setattr(route, "exact_attention", counted)
    problem = networks.toy_problem(2, layers=2)
    hl.block_norms(problem, "*.mlp.in", ("ggn",), probes=2)
    assert len(searches) == 0
    hl.block_norms(problem, "*.attn.*", ("ggn",), probes=2)
    hl.block_norms(problem, "layer0.attn.*", ("ggn",), probes=2)
    hl.hessian(problem, "layer1.attn.q")
    assert len(searches) == 1


@pytest.mark.parametrize("parts", [("full",), ("ggn",), ("functional", "full"), ("ggn", "functional", "full")], ids=str)
def test_parts_share_probes_and_do_not_change_each_other(parts: tuple[str, ...]) -> None:
    problem = problem_of("MLP, cross-entropy")
    alone = hl.block_norms(problem, "0.weight", parts, probes=7, seed=3, method="probes")
    together = hl.block_norms(problem, "0.weight", probes=7, seed=3, method="probes")
    assert list(alone) == [("0.weight", part) for part in parts]
    for key, estimate in alone.items():
        assert estimate.value == pytest.approx(together[key].value, rel=1e-12)
        assert estimate.stderr == pytest.approx(together[key].stderr, rel=1e-9)


def test_norms_are_those_of_the_probes() -> None:
    """``|A v|^2`` averaged over the very vectors of the seed; the full product is the sum of its parts."""
    problem = problem_of("MLP, cross-entropy")
    norms = hl.block_norms(problem, "0.weight", probes=7, seed=3, method="probes")
    V = hl.spectra.Probes.of_block("0.weight", 12, 7, 3, torch.float64).matrix(0, 7)
    products = {part: OPERATORS[part](problem, "0.weight") @ V for part in PARTS}
    assert torch.allclose(products["ggn"] + products["functional"], products["full"])
    for part, product in products.items():
        assert norms["0.weight", part].value == pytest.approx(float(product.square().sum(0).mean().sqrt()), rel=1e-12)


def test_one_seed_gives_the_same_numbers_however_the_data_is_cut() -> None:
    model, batch = networks.toy(), pairs(4)[0]
    problems = [hl.problem(model, batch, "cross_entropy", micro_batch=size) for size in (None, 1, 3)]
    first, *others = (
        hl.block_norms(p, "layer0.mlp.*", probes=5, seed=11, method="probes") for p in (problems[0], *problems)
    )
    assert first == others[0]
    for other in others[1:]:
        for key, estimate in first.items():
            assert other[key].value == pytest.approx(estimate.value, rel=1e-9)
    assert first != hl.block_norms(problems[0], "layer0.mlp.*", probes=5, seed=12, method="probes")


def test_a_glob_takes_every_block_and_the_default_takes_all() -> None:
    problem = problem_of("MLP, cross-entropy")
    assert {block for block, _ in hl.block_norms(problem, probes=2)} == set(problem.blocks)
    assert {block for block, _ in hl.block_norms(problem, "*.bias", probes=2)} == {"0.bias", "3.bias"}


def test_norms_print_as_a_table() -> None:
    problem = problem_of("toy")
    norms = hl.block_norms(problem, ["layer0.attn.q", "embed"], ("full", "ggn"), probes=1)
    head, second, first = str(norms).splitlines()
    assert head.split() == ["block", "full", "ggn"]
    assert first.split()[0] == "layer0.attn.q" and first.count("(exact)") == 2
    assert second.split()[0] == "embed" and second.count("(1 probe: few)") == 2
    assert first.index(str(norms["layer0.attn.q", "full"])) == head.index("full")
    assert repr(norms) == str(norms)


def test_single_precision_accumulates_in_double() -> None:
    problem = CASES["toy"].problem(dtype=torch.float32)
    for (block, part), estimate in hl.block_norms(problem, "layer0.mlp.in", probes=12, method="probes").items():
        assert estimate.value == pytest.approx(direct(problem_of("toy"), block, part), rel=1e-4)


BAD = {
    "parts: got 'half', expected one of 'full', 'ggn', 'functional'": {"parts": ("half",)},
    "parts: got none, expected some of": {"parts": ()},
    "probes: got 0, expected a whole number of at least 1": {"probes": 0},
    "probes: got 2.5, expected a whole number of at least 1": {"probes": 2.5},
    "method: got 'fast', expected one of": {"method": "fast"},
    "seed: got -1, expected a whole number from 0": {"seed": -1, "probes": 2},
    "blocks: nothing matches 'layer9'": {"blocks": "layer9"},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        hl.block_norms(problem_of("MLP, cross-entropy"), **{"blocks": "0.weight", **BAD[message]})


# --- error bars ------------------------------------------------------------------------------------------------------


@cache
def wide_problem() -> Problem:
    model = scrambled(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5)).to(DOUBLE))
    return hl.problem(model, [(randn(9, 5, seed=s), randn(9, 5, seed=9 + s)) for s in range(2)], "square")


@pytest.mark.long
def test_error_bars_cover_the_truth_at_the_stated_rate() -> None:
    problem = wide_problem()
    runs = [hl.block_norms(problem, "0.weight", probes=10, seed=seed, method="probes") for seed in range(200)]
    for part in PARTS:
        assert_covers([run["0.weight", part] for run in runs], direct(problem, "0.weight", part))


def twins(size: int) -> tuple[Problem, torch.Tensor]:
    """``u^T S u / 2 + w^T S w / 2``: two blocks with one and the same Hessian."""
    S = symmetric(size)
    params = {"u": randn(size), "w": randn(size, seed=1)}
    blocks = {name: Block.of(name, name, value) for name, value in params.items()}

    def forward(weights, batch):
        return sum(v @ batch @ v for v in weights.values()) / 2

    return Problem(forward, lambda outputs, batch: outputs, params, blocks, [S]), S


def test_blocks_of_equal_size_have_independent_errors() -> None:
    """Shared probes would give equal blocks equal numbers, whatever their errors."""
    problem, S = twins(24)
    runs = [hl.block_norms(problem, "*", ("full",), probes=4, seed=seed) for seed in range(150)]
    errors = torch.tensor([[run[name, "full"].value - float(S.norm()) for name in "uw"] for run in runs])
    assert abs(float(torch.corrcoef(errors.T)[0, 1])) < 4 / len(runs) ** 0.5
    alone = hl.block_norms(problem, "w", ("full",), probes=4, seed=7)
    assert alone["w", "full"] == runs[7]["w", "full"] != runs[7]["u", "full"]


def test_one_probe_gives_the_interval_of_any_matrix() -> None:
    problem, S = twins(24)
    found = hl.block_norms(problem, "u", ("full",), probes=1)["u", "full"]
    low, high = found.interval()
    assert (found.probes, found.few, high / low > 50) == (1, True, True)
    assert low < float(S.norm()) < high


def test_a_part_that_is_zero_is_found_to_be() -> None:
    """The outputs are linear in the last weights."""
    estimate = hl.block_norms(wide_problem(), "2.weight", probes=5)["2.weight", "functional"]
    assert (estimate.value, estimate.stderr) == (0, 0)

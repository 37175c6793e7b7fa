"""Backpropagated curvature of networks that are out of the ordinary, what it is shared by, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.memory import LiveBytes
from hessianlens.network.base import thresholds
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps, backpropagated
from hessianlens.network.routes.linear_map.batch_graph import Column, HookedBatch, site_curvatures
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.curvature.networks import LENGTH, VOCAB, pairs, scrambled
from tests.variants import randn

ANY = float("inf")


def found_and_expected(problem: Problem, name: str) -> tuple[int, float]:
    """HVPs that were made for the curvature at a map, and its largest error relative to the part."""
    block, ticks, worst = problem.blocks[name], [], 0.0
    maps = LinearMaps(problem)
    maps.tick = lambda: ticks.append(1)
    plan = maps.plan(block, block, ANY)
    assert isinstance(plan, LinearMapPlan)
    for number in range(len(problem.data)):
        found, row = maps.curvature(plan, number), plan.row[number]
        hooked, (grouping, _) = maps.graphs.hooked_batch(number, (row,)), plan.groups[number]
        (expected,) = site_curvatures(hooked, row, grouping, [Column(row, grouping)], lambda: None)
        for part in ("ggn", "functional"):
            size = max(float(getattr(expected, part).norm()), 1e-6)
            worst = max(worst, float((getattr(found, part) - getattr(expected, part)).norm()) / size)
    return len(ticks), worst


@pytest.fixture(autouse=True)
def _at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "BACKPROPAGATION_MIN_HVPS", 1)
    monkeypatch.setattr(thresholds, "HVP_MULTIPLY_ADDS_PER_PARAMETER", 1e9)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether what was backpropagated agreed with a product, time after time."""
    found: list[bool] = []
    right = HookedBatch.agrees

    def agrees(self: HookedBatch, *args: object) -> bool:
        found.append(right(self, *args))
        return found[-1]

    monkeypatch.setattr(HookedBatch, "agrees", agrees)
    yield found


@pytest.fixture
def passages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every time that the network is gone through."""
    found: list[int] = []
    right = backpropagated.backpropagate_curvature
    monkeypatch.setattr(
        backpropagated, "backpropagate_curvature", lambda *args, **named: found.append(1) or right(*args, **named)
    )
    return found


class ScaledHeads(nn.Module):
    """Attention whose heads have temperatures of their own, which are no parameters."""

    def __init__(self, temperatures: Tensor) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("temperatures", temperatures)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        heads = nnf.scaled_dot_product_attention(q * self.temperatures[:, None, None], k, v, is_causal=True)
        return x + self.o(heads.transpose(1, 2).flatten(2))


def stacked(*layers: nn.Module) -> Problem:
    model = nn.Sequential(nn.Embedding(VOCAB, 4), *layers, nn.Linear(4, VOCAB))
    return hl.problem(scrambled(model.double()), pairs(2)[0], "cross_entropy")


@pytest.mark.parametrize("temperatures", [(0.5, 0.5), (0.5, 2.0)], ids=["alike", "different"])
def test_heads_that_are_scaled_differently_are_not_taken_for_one(
    temperatures: tuple[float, float], answers: list[bool]
) -> None:
    problem = stacked(*(ScaledHeads(torch.tensor(temperatures, dtype=torch.float64)) for _ in range(2)))
    products, error = found_and_expected(problem, "1.v.weight")
    alike = temperatures[0] == temperatures[1]
    assert (products == 0) == alike and answers == [True] * alike and error < 1e-9


def test_what_another_map_was_passed_with_is_compared_with_a_product_too(
    answers: list[bool], passages: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are taken wrongly leave the curvature at the values as it is."""
    problem = deep_toy(2)
    maps = LinearMaps(problem)
    q, k = (problem.blocks[f"layer0.attn.{name}"] for name in "qk")
    plans = [maps.plan(block, block, ANY) for block in (q, k)]
    key_site = plans[1].row[0].use.site
    own = backpropagated.BackpropagatedCurvature._found

    def wrong_for_keys(self: backpropagated.BackpropagatedCurvature, number: int, *args: object) -> Parts:
        found = own(self, number, *args)
        self._known = {
            key: parts.scaled(torch.full((4,), 2.0)) if key_site in key[1:] else parts
            for key, parts in self._known.items()
        }
        return found

    monkeypatch.setattr(backpropagated.BackpropagatedCurvature, "_found", wrong_for_keys)
    for plan in plans:
        maps.curvature(plan, 0)
    assert answers == [True, False] and len(passages) == 1


class StillGate(nn.Module):
    """A sum whose slope by one of its summands is one everywhere, though it is bent there: z is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.still, self.side = (nn.Linear(3, 3) for _ in range(3))
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.still(y)
        return self.last(y + z + (z - 1).square() / 2 + self.side(z.sin()))


def test_a_matrix_that_two_pairs_share_is_not_changed_for_one_of_them(answers: list[bool]) -> None:
    model = scrambled(StillGate().double(), size=0.3)
    with torch.no_grad():
        model.still.weight.zero_()
        model.still.bias.fill_(1)
    data = randn(2, 3, 3), torch.tensor([[0, 1, 2], [3, 1, 0]])
    problem = hl.problem(model, data, "cross_entropy")
    for block in ("first.weight", "still.weight"):
        assert found_and_expected(problem, block) == (0, pytest.approx(0, abs=1e-9))
    assert answers and all(answers)


def deep_toy(*sizes: int, **options: object) -> Problem:
    return networks.toy_problem(*sizes, layers=2, heads=2, norm="pre", **options)


def test_a_bias_that_several_layers_share_is_behind_the_map_of_each(answers: list[bool]) -> None:
    model = networks.toy(layers=2, heads=2, norm="pre", mlp=False)
    model.blocks[1] = model.blocks[0]
    problem = hl.problem(model, pairs(2)[0], "cross_entropy")
    found, expected = (hl.hessian(problem, "layer0.attn.v.bias", method=m).to_dense() for m in ("exact", "hvp"))
    assert answers and all(answers)
    assert float((found - expected).norm()) < 1e-9 * float(expected.norm())


@pytest.mark.parametrize("batches", [1, 2])
def test_one_passage_through_each_batch_serves_all_maps_with_the_same_inputs(batches: int, passages: list[int]) -> None:
    problem = deep_toy(*[2] * batches)
    names = ["layer0.attn.q", "layer0.attn.k", "layer0.attn.v"]
    norms = hl.block_norms(problem, names, method="exact")
    found = hl.hessian(problem, names, method="exact").to_dense()
    assert len(passages) == batches
    expected = hl.hessian(problem, names, method="hvp").to_dense()
    assert float((found - expected).norm()) < 1e-9 * float(expected.norm())
    assert norms["layer0.attn.q", "full"].value == pytest.approx(float(expected[:16, :16].norm()), rel=1e-9)


def test_without_room_one_curvature_is_kept(passages: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpropagated, "_ROOM", 0)
    problem = deep_toy(2, 2)
    maps, block = LinearMaps(problem), problem.blocks["layer0.attn.q"]
    plan = maps.plan(block, block, ANY)
    for number in (0, 0, 1, 1, 0):
        maps.curvature(plan, number)
    assert len(passages) == 3 and len(maps.planner._backpropagated._known) == 1


@pytest.mark.parametrize(("noise", "agrees"), [(1e-15, True), (1e-12, False)])
def test_a_small_part_is_rounded_as_the_large_one(noise: float, agrees: bool) -> None:
    """Of a nearly linear loss, whose Gauss-Newton part is next to nothing."""

    def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (
            1e-14 * nnf.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())
            + outputs.sin().mean() * 0
            + (outputs * torch.linspace(-1, 1, VOCAB, dtype=outputs.dtype)).mean()
        )

    problem = deep_toy(2, loss=loss)
    maps, block = LinearMaps(problem), problem.blocks["layer0.attn.v"]
    plan = maps.plan(block, block, ANY)
    curvature = maps.curvature(plan, 0)
    site = plan.row[0].use.site
    ggn, functional = (part.flatten(0, 1).flatten(2) for part in (curvature.ggn, curvature.functional))
    assert float(ggn.abs().max()) < 1e-12 * float(functional.abs().max())
    off = ggn + noise * float(functional.abs().max()) * randn(*ggn.shape) / ggn.shape[-1]
    hooked = maps.graphs.hooked_batch(0, plan.row)
    assert hooked.agrees(site, site, Parts(ggn, functional, LENGTH))
    assert hooked.agrees(site, site, Parts(off, functional, LENGTH)) == agrees


SIZES: dict[str, Callable[[], Problem]] = {
    "one sequence": lambda: hl.problem(sized(), tokens(1), "cross_entropy"),
    "chunks": lambda: hl.problem(sized(), tokens(6), "cross_entropy"),
    "many heads": lambda: hl.problem(sized(heads=8), tokens(1), "cross_entropy"),
}


def sized(**options: object) -> nn.Module:
    sizes = {"layers": 2, "d_model": 32, "heads": 2, "vocab": VOCAB, "context": 16, "norm": "pre"}
    return hl.models.Transformer(**{**sizes, "dtype": torch.float64, **options})


def tokens(sequences: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(VOCAB, (sequences, 16), generator=torch.Generator().manual_seed(0))
    return ids, ids


@pytest.mark.long
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("block", ["layer0.attn.q", "layer0.attn.o", "layer0.mlp.in"])
def test_what_a_plan_promises_to_hold_covers_the_passage(
    name: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpropagated, "_ROOM", 0)
    problem = SIZES[name]()
    maps, own = LinearMaps(problem), problem.blocks[block]
    plan = maps.plan(own, own, ANY)
    assert isinstance(plan, LinearMapPlan) and plan.backpropagated
    use = plan.row[0].use
    maps.planner._backpropagated.steps(0, use)
    with LiveBytes() as live:
        maps.planner._backpropagated.curvature(0, use, use, lambda _: True)
    assert 0.6 * plan.held_bytes < live.peak <= 1.01 * plan.held_bytes


def test_a_model_is_left_as_it_was() -> None:
    model = networks.toy(layers=2)
    before = [dict(vars(module)) for module in model.modules()]
    problem = hl.problem(model, pairs(2)[0], "cross_entropy")
    hl.hessian(problem, "layer0.attn.q", method="exact").to_dense()
    for module, attributes in zip(model.modules(), before, strict=True):
        assert vars(module).keys() == attributes.keys()

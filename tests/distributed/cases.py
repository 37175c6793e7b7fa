"""What processes that share a problem must do, each a function that all of them run; see `driver`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed, nn

import hessianlens as hl
from hessianlens.distributed import RankGroup, ranks_of
from hessianlens.errors import InputError, RankError
from hessianlens.network.base import all_data
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.problems import Batch, Problem, narrow_batch, pieces
from tests.distributed import second_derivatives


@dataclass(frozen=True)
class Place:
    """Where a case runs: its process, the group of all three, that of the first two, and a folder."""

    rank: int
    world: Any
    pair: Any
    folder: Path


CASES: dict[str, Callable[[Place], None]] = {}


def case(function: Callable[[Place], None]) -> Callable[[Place], None]:
    CASES[function.__name__] = function
    return function


def paired(function: Callable[[Place], None]) -> Callable[[Place], None]:
    """A case of the first two processes."""
    CASES[function.__name__] = lambda place: function(place) if place.pair is not None else None
    return function


def agree(found: object, expected: object, tolerance: float = 1e-10) -> None:
    """Numbers are the same to rounding."""
    one, other = (torch.as_tensor(value).detach().double() for value in (found, expected))
    assert one.shape == other.shape
    difference, size = float((one - other).abs().max()), float(other.abs().max())
    assert difference <= tolerance * size, f"{found} is not {expected}: {difference:.3g} of {size:.3g}"


def same_everywhere(value: Any, group: Any) -> None:
    """All processes have the very same numbers."""
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, value, group)
    assert all(other == everyone[0] for other in everyone), everyone


# --- problems --------------------------------------------------------------------------------------------------------


def text_model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Embedding(7, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 7)
    return nn.Sequential(*layers).double()


def text_data() -> tuple[Tensor, Tensor]:
    """Five sequences, of which the first ones have fewer targets."""
    source = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(7, (2, 5, 6), generator=source)
    for row in range(3):
        targets[row, row + 1 :] = -100
    return tokens, targets


def share(batch: Batch, rank: int, size: int) -> Batch | None:
    """Uneven shares: three sequences, two, and none."""
    return None if rank == 2 else narrow_batch(batch, *((0, 3), (3, 5))[rank])


def small() -> tuple[nn.Module, Any, Batch]:
    task = hl.tasks.Addition(digits=1)
    model = hl.models.Transformer(
        layers=2, d_model=4, heads=2, d_mlp=5, dtype=torch.float64, context=task.context, vocab=12
    )
    return model, task.cross_entropy, task.batch(5, seed=0, carries="mixed")


def both(group: Any, rank: int, **options: Any) -> tuple[Problem, Problem]:
    """A problem whose data is shared, and the same in one process."""
    model, loss, batch = small()
    shared = hl.problem(model, share(batch, rank, 2), loss, process_group=group, **options)
    return shared, hl.problem(model, batch, loss, **options)


def vector(size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- sums are those of one process -----------------------------------------------------------------------------------


def products_agree(problem: Problem, one: Problem, names: Sequence[str]) -> None:
    agree(problem.total_loss(), one.total_loss())
    for make in (hl.hessian, hl.ggn, hl.functional):
        for name in names:
            op, expected = (make(p, name, method="hvp") for p in (problem, one))
            agree(op @ vector(op.shape[1]), expected @ vector(op.shape[1]))


LOSSES: dict[str, dict[str, Any]] = {
    "a mean over targets": {"loss": "cross_entropy"},
    "a mean over sequences": {"loss": "cross_entropy", "reduction": "sequence"},
    "a sum": {"loss": "cross_entropy", "reduction": "sum"},
    "torch's own": {"loss": nn.CrossEntropyLoss(weight=torch.arange(1.0, 8.0))},
    "a function": {"loss": lambda out, batch: out.square().mean()},
}


@case
def losses_of_two_and_of_three_processes_are_those_of_one(place: Place) -> None:
    model, batch = text_model(), text_data()
    for group in (place.world, place.pair):
        if group is None:
            continue
        for options in LOSSES.values():
            shared = hl.problem(model, share(batch, place.rank, 2), process_group=group, **options)
            alone = hl.problem(model, batch, **options)
            assert shared.reduction == alone.reduction
            products_agree(shared, alone, ["1.weight"])


@paired
def a_wrong_reduction_is_found_out(place: Place) -> None:
    model, batch = text_model(), text_data()

    def own_mean(problem: Problem) -> Problem:  # what a mean of every process's mean would be
        part = hl.problem(model, problem.data, "cross_entropy")
        return Problem(
            part.forward, lambda out, batch: part.loss(out, batch) / 2, part.params, part.blocks, part.data,
            ranks=problem.ranks,
        )  # fmt: skip

    shared = hl.problem(model, share(batch, place.rank, 2), "cross_entropy", process_group=place.pair)
    alone = hl.problem(model, batch, "cross_entropy")
    products_agree(shared, alone, ["1.weight"])
    for wrong in (own_mean(shared), shared.alone()):
        try:
            products_agree(wrong, alone, ["1.weight"])
        except AssertionError:
            continue
        raise AssertionError("a wrong sum went unnoticed")


@case
def batches_may_be_cut_differently(place: Place) -> None:
    model, loss, batch = small()
    own = share(batch, place.rank, 2)
    cut = None if own is None else list(pieces(own, 1)) if place.rank == 1 else own
    shared = hl.problem(model, cut, loss, process_group=place.world)
    alone = hl.problem(model, batch, loss)
    (block,) = alone.select("layer0.attn.q")
    requests = [Request(block, 0, 5)]
    parts = ("full", "ggn", "functional")
    found = list(GraphSource(shared, parts, 0, workspace=2 * 3 * 16 * 8).draw(requests))
    for (_, one), (_, other) in zip(found, GraphSource(alone, parts, 0).draw(requests), strict=True):
        for part in parts:
            agree(one[part], other[part])


@case
def a_process_without_data_takes_part(place: Place) -> None:
    shared, alone = both(place.world, place.rank)
    assert bool(shared.data) == (place.rank < 2) and "3, 2, 0" in shared.notes[-1]
    products_agree(shared, alone, ["layer0.attn.q", "layer1.mlp.in"])
    for empty in ([], (torch.zeros(0, 6, dtype=torch.long),) * 2, None):
        data = text_data() if place.rank == 0 else empty
        problem = hl.problem(text_model(), data, "cross_entropy", process_group=place.world)
        agree(problem.total_loss(), hl.problem(text_model(), text_data(), "cross_entropy").total_loss())
    with refusal("no sequence at all on any of 3 ranks"):
        hl.problem(text_model(), [], "cross_entropy", process_group=place.world)


# --- every estimator -------------------------------------------------------------------------------------------------


def numbers(op: Any) -> dict[str, Any]:
    density = hl.density(op, probes=2, steps=4)
    return {
        "trace": hl.trace(op, probes=3).value,
        "norm": hl.frobenius(op, probes=3).value,
        "diagonal": hl.diagonal(op, probes=3).value.tolist(),
        "eigenvalues": hl.eigenvalues(op, 2, "both").values.tolist(),
        "density": (density.nodes.sort().values * density.weights.sum()).tolist(),
        "inertia": hl.inertia(op).negative.value,
    }


@paired
def estimates_are_those_of_one_process(place: Place) -> None:
    shared, alone = both(place.pair, place.rank)
    name = "layer0.attn.q"
    found = numbers(hl.hessian(shared, name, method="hvp"))
    same_everywhere(found, place.pair)
    if place.rank == 0:
        expected = numbers(hl.hessian(alone, name, method="hvp"))
        for key, value in expected.items():
            if isinstance(value, str):
                assert found[key] == value
            else:
                agree(found[key], value, 1e-8)
    densities = {k: hl.density(hl.hessian(shared, f"layer0.attn.{k}"), 2, 4) for k in ("q", "v")}
    assert hl.heterogeneity(densities) is not None


@case
def norms_are_those_of_one_process(place: Place) -> None:
    shared, alone = both(place.world, place.rank)
    blocks = ["layer*.attn.[qvo]", "layer0.mlp.in", "embed", "unembed"]
    for method in ("auto", "probes"):
        found = hl.block_norms(shared, blocks, probes=3, method=method)
        same_everywhere({key: norm.value for key, norm in found.items()}, place.world)
        if place.rank == 0:
            for key, norm in hl.block_norms(alone, blocks, probes=3, method=method).items():
                agree(found[key].value, norm.value, 1e-9)
                assert found[key].exact == norm.exact
    exact = hl.hessian(shared, "layer1.attn.v")
    assert exact.exact
    agree(exact.frobenius_norm(), hl.hessian(alone, "layer1.attn.v").frobenius_norm())
    pairs = hl.block_pair_norms(shared, "layer1.attn.[qv]", probes=3)
    same_everywhere(pairs.values().tolist(), place.world)
    agree(pairs.values(), hl.block_pair_norms(alone, "layer1.attn.[qv]", probes=3).values(), 1e-9)


@paired
def closed_forms_of_much_data_are_refused_and_say_so(place: Place) -> None:
    with patch.object(all_data, "MOST_BYTES", 10):
        shared, alone = both(place.pair, place.rank)
        norms = hl.block_norms(shared, "layer1.attn.v", probes=3)
    assert not norms["layer1.attn.v", "full"].exact and "the data of all 2 ranks" in norms.why["layer1.attn.v"]
    expected = hl.block_norms(alone, "layer1.attn.v", probes=3, method="probes")
    agree(norms["layer1.attn.v", "full"].value, expected["layer1.attn.v", "full"].value)
    with refusal("the data of all 2 ranks"):
        hl.hessian(shared, "layer1.attn.v", method="exact")


@paired
def exact_norms_are_kept_by_one_process(place: Place) -> None:
    file = place.folder / "norms.jsonl"
    shared, alone = both(place.pair, place.rank)
    first = hl.block_norms(shared, "layer1.attn.[qv]", method="exact", resume=file)
    again = hl.block_norms(shared, "layer1.attn.[qv]", method="exact", resume=file)
    assert {k: n.value for k, n in first.items()} == {k: n.value for k, n in again.items()}
    if place.rank == 0:
        assert len(file.read_text().splitlines()) == 3
        assert SavedNorms(file, alone).norms("layer1.attn.q", ["full"]) is not None  # the file of one process


# --- decisions are made alike ----------------------------------------------------------------------------------------


@paired
def clocks_that_differ_stop_at_the_same_point(place: Place) -> None:
    shared, _ = both(place.pair, place.rank)
    ticks = count(step=0.01 * 1000**place.rank)  # the second one is past every deadline at once
    with patch("time.monotonic", lambda: next(ticks)):
        found = hl.measure(shared, ["layer0.attn.?", "embed"], budget=1.0, rtol=1e-9, method="probes", progress=False)
    same_everywhere((found.products, found.left_out), place.pair)
    assert found.products > 5


@paired
def memory_that_differs_is_decided_alike(place: Place) -> None:
    shared, _ = both(place.pair, place.rank)
    free = 1 if place.rank else 2**40
    routes = "hessianlens.network.routes"
    with (
        patch(f"{routes}.linear_map.route.available_bytes", lambda _: free),
        patch(f"{routes}.last_attention.route.available_bytes", lambda _: free),
    ):
        op = hl.hessian(shared, "layer1.attn.v")
        assert not op.exact
    assert "are free" in op.why, op.why
    agree(op.trace(), hl.hessian(both(None, 0)[1], "layer1.attn.v").trace())


@paired
def tapes_are_a_matter_of_each_process(place: Place) -> None:
    shared, alone = both(place.pair, place.rank)
    with patch("hessianlens.curvature.thresholds.TAPE_MIN_MULTIPLY_ADDS", 1e30 * place.rank):
        op = hl.hessian(shared, "layer0.attn.q", method="hvp")
        op.announce(10)
        found = [op @ vector(op.shape[1], seed) for seed in range(4)]
    assert ("tape, which" in op.why) == (place.rank == 0)
    expected = hl.hessian(alone, "layer0.attn.q", method="hvp")
    agree(found[-1], expected @ vector(op.shape[1], 3))


# --- models that are wrapped or cut ----------------------------------------------------------------------------------


@paired
def a_model_in_ddp_is_looked_through(place: Place) -> None:
    model, loss, batch = small()
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=place.pair)
    fired: list[int] = []
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: fired.append(1))
        parameter.register_post_accumulate_grad_hook(lambda parameter: fired.append(1))
    wrapped.register_comm_hook(None, lambda state, bucket: fired.append(2))  # type: ignore[arg-type]
    shared = hl.problem(wrapped, share(batch, place.rank, 2), loss, process_group=place.pair)
    products_agree(shared, hl.problem(model, batch, loss), ["layer0.attn.q"])
    assert not fired and all(parameter.grad is None for parameter in model.parameters())
    assert any("DistributedDataParallel" in note for note in shared.notes)


@paired
def what_torch_does_to_second_derivatives_of_cut_models_is_as_documented(place: Place) -> None:
    second_derivatives.check(place.pair)


# --- what goes wrong -------------------------------------------------------------------------------------------------


@contextmanager
def refusal(text: str, kind: type[Exception] = InputError) -> Any:
    try:
        yield
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was raised, expected {text!r}")


@case
def what_one_process_fails_with_all_raise(place: Place) -> None:
    broken = place.rank == 1

    def loss(out: Tensor, batch: Batch) -> Tensor:
        if broken:
            raise ValueError("a loss of its own mind")
        return out.square().mean()

    with refusal("a loss of its own mind" if broken else "rank 1: loss: the given function failed"):
        hl.problem(text_model(), share(text_data(), place.rank, 2), loss, process_group=place.world)
    broken, usual = False, place.rank == 1
    shared = hl.problem(text_model(), share(text_data(), place.rank, 2), loss, process_group=place.world)
    op = hl.hessian(shared, "1.weight", method="hvp")
    op @ vector(op.shape[1])
    op._kept.clear()
    broken = usual
    with refusal("a loss of its own mind"):
        op @ vector(op.shape[1])
    broken = False
    agree(op @ vector(op.shape[1]), op @ vector(op.shape[1]))  # they work together again


@paired
def processes_that_ask_for_different_things_say_so(place: Place) -> None:
    shared, _ = both(place.pair, place.rank)
    q, v = (hl.hessian(shared, f"layer0.attn.{name}", method="hvp") for name in "qv")
    q @ vector(16), v @ vector(16)
    with refusal("rank 1: HessianOperator of [['layer0.attn.v']", RankError):
        (v if place.rank else q) @ vector(16)
    with refusal("the same arguments, seeds and vectors", RankError):
        q @ vector(16, seed=place.rank)
    agree(q @ vector(16), q @ vector(16))


@paired
def weights_that_differ_are_refused(place: Place) -> None:
    model = text_model()
    with torch.no_grad():
        model[1].weight[0, 0] += 1e-9 * place.rank
    with refusal("rank 1 and rank 0 differ in 1 of their parameters or buffers, such as 1.weight"):
        hl.problem(model, text_data(), "cross_entropy", process_group=place.pair)


@paired
def a_monitor_refuses_several_processes(place: Place) -> None:
    with refusal("whose clocks would differ"):
        hl.Monitor(both(place.pair, place.rank)[0], ["layer0.attn.q"])


@case
def a_process_that_does_not_come_is_named(place: Place) -> None:
    distributed.barrier()  # a group with so short a wait must be made by all of them at about the same time
    group = distributed.new_group([0, 1, 2], timeout=timedelta(seconds=4))
    ranks = ranks_of(group)
    assert isinstance(ranks, RankGroup) and ranks.timeout == timedelta(seconds=4)
    ranks.broadcast(0.0)
    if place.rank == 1:
        time.sleep(9)
        return
    start = time.monotonic()
    with refusal("rank 1 of 3 did not come within", RankError):
        ranks.broadcast(0.0)
    assert time.monotonic() - start < 30
    with refusal("did not come", RankError):  # at once
        ranks.broadcast(0.0)


@case
def a_process_that_ends_is_named(place: Place) -> None:
    shared, _ = both(place.world, place.rank)
    op = hl.hessian(shared, "layer0.attn.q", method="hvp")
    op @ vector(op.shape[1])
    if place.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with refusal("rank 2 of 3 has ended", RankError):
        for _ in range(3):
            op @ vector(op.shape[1])
    assert time.monotonic() - start < 30

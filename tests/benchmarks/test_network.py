"""Network benchmarks: every competitor multiplies with the same matrix, and its memory is measured."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from benchmarks import first_layer
from benchmarks.network import NETWORKS
from benchmarks.network_peers import only, shared_probes
from benchmarks.network_reading import in_gradients, merged, timings
from benchmarks.network_settings import GRADIENT, Q, V
from benchmarks.results import OURS, PEER, SET_UP, Memory
from hessianlens.network.base import thresholds


# PyHessian calls backward() with create_graph=True, of which PyTorch warns.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_every_peer_gives_our_products() -> None:
    (benchmark,) = (b for b in NETWORKS if b.name == "network_product")
    runs, size = benchmark.setting(True)
    ours = runs["ours"].run()
    assert size["products"] == len(ours) == 1
    for name, scaled in runs.items():
        if name != GRADIENT:
            (found,) = scaled.run()
            assert torch.allclose(found, ours[0], rtol=1e-3, atol=1e-6 * float(ours[0].abs().max())), name


@pytest.mark.parametrize("benchmark", [b for b in NETWORKS if b.check is not None], ids=lambda b: b.name)
def test_norms_of_first_layers_are_those_of_every_peer(benchmark) -> None:
    before = thresholds.BACKPROPAGATION_MIN_HVPS
    runs, size = benchmark.setting(True)
    outputs = {name: scaled.run() for name, scaled in runs.items()}
    assert outputs["ours"].shape == (size["blocks"], size["parts"]) and len(outputs) > 2
    benchmark.check(outputs)
    assert before == thresholds.BACKPROPAGATION_MIN_HVPS
    with pytest.raises(AssertionError, match="by HVPs differs from ours"):
        benchmark.check({**outputs, first_layer.BY_HVPS: outputs["ours"] * (1 + 1e-6)})


def test_nothing_is_backpropagated_in_the_peer_that_makes_hvps() -> None:
    before = thresholds.BACKPROPAGATION_MIN_HVPS
    with pytest.raises(ZeroDivisionError), first_layer._nothing_backpropagated():
        assert float("inf") == thresholds.BACKPROPAGATION_MIN_HVPS
        1 / 0  # noqa: B018
    assert before == thresholds.BACKPROPAGATION_MIN_HVPS


@pytest.mark.long
@pytest.mark.parametrize("benchmark", NETWORKS[::6], ids=lambda b: b.name)
def test_memory_of_every_competitor_is_measured(benchmark) -> None:
    before = torch.get_num_threads()
    name = next(iter(benchmark.setting(True)[0]))
    found = benchmark.memory_here(name, threads=1, tiny=True)
    torch.set_num_threads(before)
    assert 0 <= found.run < 200 * 2**20


def test_parts_of_a_path_add_up_in_time_and_not_in_memory() -> None:
    parts = ("curvlinops, hessian products", "curvlinops, ggn products")
    seconds = {"ours": [1.0, 1.0], parts[0]: [2.0, 4.0], parts[1]: [3.0, 3.0], GRADIENT: [0.5, 0.5]}
    wall = {name: [2 * t for t in values] for name, values in seconds.items()}
    counted = dict(zip(seconds, (7.0, 2.0, None, 1.0), strict=True))
    ours, whole, unit = timings(seconds, wall, {name: values[1] for name, values in seconds.items()}, counted)
    assert (ours.role, whole.role, unit.role) == (OURS, PEER, SET_UP)
    assert whole.seconds.median == 6.0
    assert (ours.operations, whole.operations, unit.operations) == (7.0, None, 1.0)
    assert (whole.wall, whole.first, ours.wall) == (12.0, 7.0, 2.0)
    memory = merged({"ours": Memory(1, 1, 1), parts[0]: Memory(5, 2, 7), parts[1]: Memory(4, 3, 9)})
    assert memory == {"ours": Memory(1, 1, 1), whole.name: Memory(5, 3, 9)}


def test_shared_probes_are_exact_with_every_basis_vector() -> None:
    task = hl.tasks.Addition()
    model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, dtype=torch.float64, seed=0)
    batch = task.batch(2, seed=0)
    attention = model.blocks[0].attention
    weights = [attention.W_Q, attention.W_V]
    basis = [w.numel() ** 0.5 * torch.eye(w.numel(), dtype=w.dtype).reshape(-1, *w.shape) for w in weights]
    found = shared_probes(model, batch, task.cross_entropy, weights, basis)
    exact = hl.block_norms(hl.problem(model, batch, task.cross_entropy), [Q, V], method="exact")
    expected = [[exact[name, part].value for part in ("full", "ggn", "functional")] for name in (Q, V)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)


def test_nothing_else_asks_for_gradients_within_the_scope_only() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].bias.requires_grad_(False)
    with only(model, [model[0].weight]):
        assert [p.requires_grad for p in model.parameters()] == [True, False, False, False]
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, False]


def test_a_product_is_told_in_gradients_with_its_goal() -> None:
    seconds = {"ours": [14.0], "ours, slower": [16.0], "peer": [20.0], GRADIENT: [1.0]}
    told = in_gradients(timings(seconds, seconds, dict.fromkeys(seconds, 1.0), dict.fromkeys(seconds)), 20)
    assert "ours 0.70, ours, slower 0.80, peer 1.00." in told
    assert "ours: met, ours, slower: NOT met" in told

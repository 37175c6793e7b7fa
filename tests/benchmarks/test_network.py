"""Network benchmarks: every competitor multiplies with the same matrix, and its memory is measured."""

from __future__ import annotations

import pytest
import torch

from benchmarks.network import GRADIENT, NETWORKS, _merged, _timings
from benchmarks.results import OURS, PEER, SET_UP, Memory


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


@pytest.mark.parametrize("benchmark", NETWORKS, ids=lambda b: b.name)
def test_memory_of_every_competitor_is_measured(benchmark) -> None:
    before = torch.get_num_threads()
    name = next(iter(benchmark.setting(True)[0]))
    found = benchmark.memory_here(name, threads=1, tiny=True)
    torch.set_num_threads(before)
    assert 0 <= found.run < 200 * 2**20


def test_parts_of_a_path_add_up_in_time_and_not_in_memory() -> None:
    parts = ("curvlinops, hessian products", "curvlinops, ggn products")
    seconds = {"ours": [1.0, 1.0], parts[0]: [2.0, 4.0], parts[1]: [3.0, 3.0], GRADIENT: [0.5, 0.5]}
    ours, whole, unit = _timings(seconds)
    assert (ours.role, whole.role, unit.role) == (OURS, PEER, SET_UP)
    assert whole.seconds.median == 6.0
    memory = _merged({"ours": Memory(1, 1, 1), parts[0]: Memory(5, 2, 7), parts[1]: Memory(4, 3, 9)})
    assert memory == {"ours": Memory(1, 1, 1), whole.name: Memory(5, 3, 9)}

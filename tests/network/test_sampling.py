"""Streamed products: the same lengths however they are cut up, and no more memory for more of them."""

from __future__ import annotations

import pytest
import torch

from hessianlens.memory import LiveBytes
from hessianlens.network.base.sampling import GraphSource, Request, length
from hessianlens.parts import PARTS
from hessianlens.problems import Problem, layer_groups, tensors
from tests.curvature import networks
from tests.curvature.agreement import OPERATORS


def problem(micro_batch: int | None = None) -> Problem:
    return networks.toy_problem(6, given={"micro_batch": micro_batch}, layers=2, d_model=6, d_mlp=9)


def drawn(source: GraphSource, names: list[str], probes: int) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    blocks = source.problem.select(names)
    for name, lengths in source.draw([Request(block, 0, probes) for block in blocks]):
        for part, one in lengths.items():
            found.setdefault((name, part), []).append(float(one))
    return found


NAMES = ["layer0.attn.q", "layer0.mlp.in.bias", "layer0.mlp.out"]


def test_lengths_are_those_of_products_with_the_operators() -> None:
    whole = problem()
    found = drawn(GraphSource(whole, PARTS, seed=3), NAMES, 4)
    for block in whole.select(NAMES):
        vectors = Request(block, 0, 4).probes(whole, 3).matrix(0, 4)
        for part in PARTS:
            products = OPERATORS[part](whole, block.name) @ vectors
            assert found[block.name, part] == pytest.approx(products.norm(dim=0).tolist(), rel=1e-9)


@pytest.mark.expensive
@pytest.mark.parametrize("workspace", [1, 1500, 2**28])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_batches_and_chunks_change_nothing(micro_batch: int, workspace: int) -> None:
    expected = drawn(GraphSource(problem(), PARTS, seed=0), NAMES, 3)
    found = drawn(GraphSource(problem(micro_batch), PARTS, 0, workspace), NAMES, 3)
    assert list(found) == list(expected)
    for key, lengths in expected.items():
        assert found[key] == pytest.approx(lengths, rel=1e-9), key


def test_later_probes_go_on_where_earlier_ones_ended() -> None:
    whole = problem()
    source, block = GraphSource(whole, ("full",), seed=0), whole.blocks["layer1.mlp.in"]
    together = [float(one["full"]) for _, one in source.draw([Request(block, 0, 5)])]
    apart = [float(one["full"]) for k in (0, 2) for _, one in source.draw([Request(block, k, k + 2 + k // 2)])]
    assert apart == pytest.approx(together)
    assert len(set(together)) == 5


@pytest.mark.long
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_more_probes_hold_no_more_memory(micro_batch: int | None) -> None:
    whole = problem(micro_batch)

    def peak(probes: int) -> int:
        source = GraphSource(whole, PARTS, 0, workspace=1)
        with LiveBytes((*whole.params.values(), *tensors(list(whole.data)))) as live:
            for _ in source.draw([Request(whole.blocks["layer0.mlp.in"], 0, probes)]):
                pass
        return live.peak

    assert peak(52) <= peak(34)  # sixteen at most go through one graph at once


def test_blocks_of_a_layer_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem()
    runs, forward = [], whole.forward
    object.__setattr__(whole, "forward", lambda *args: runs.append(1) or forward(*args))
    source = GraphSource(whole, PARTS, 0)
    groups = layer_groups(whole.select("layer*"))
    assert len(groups) == 2
    for group in groups:
        for _ in source.draw([Request(block, 0, 2) for block in group]):
            pass
    assert len(runs) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.9, 0.0])
def test_lengths_neither_overflow_nor_vanish(dtype: torch.dtype, share: float) -> None:
    """From near the largest to near the smallest numbers of a dtype."""
    info = torch.finfo(dtype)
    size = (info.max if share else info.tiny) * (share or 4.0)
    assert float(length(torch.full((3,), size / 2, dtype=dtype))) == pytest.approx(size / 2 * 3**0.5, rel=1e-6)
    assert float(length(torch.zeros(3, dtype=dtype))) == 0

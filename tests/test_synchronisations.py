"""How often the host waits for the device: numbers that are read from tensors (`item`, `bool`, `float`, `torch.equal`).

Every such read ends the queue of a GPU. They are counted where they pass PyTorch's dispatcher, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hessianlens as hl
from hessianlens.curvature import Repeated, thresholds
from hessianlens.network.base.sampling import GraphSource, Request
from hessianlens.problems import Problem
from tests.curvature.registry import CASES
from tests.variants import randn

_READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique"}


class _Reads(TorchDispatchMode):
    """Counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _READS:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def reads(run: Callable[[], object]) -> list[str]:
    """The reads of a run."""
    with _Reads() as seen:
        run()
    return seen.names


def test_reads_are_seen() -> None:
    one = torch.ones(2)
    assert reads(lambda: (float(one.sum()), bool(one[0] > 0), torch.equal(one, one))) == [
        "_local_scalar_dense",
        "_local_scalar_dense",
        "equal",
    ]


def _problem() -> Problem:
    problem = CASES["toy"].problem(verify=False)
    return hl.problem(problem.source, list(problem.data)[:1], "cross_entropy", verify=False)


@pytest.fixture(params=["graph", "tape"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way HVPs go."""
    monkeypatch.setattr(thresholds, "VECTORS_MULTIPLY_ADDS", 0.0)
    monkeypatch.setattr(thresholds, "TAPE_MIN_MULTIPLY_ADDS", 0.0 if request.param == "tape" else float("inf"))
    return str(request.param)


@pytest.mark.parametrize("part", ["full", "ggn", "functional"])
def test_an_hvp_reads_nothing(part: str, by: str) -> None:
    make = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part]
    op = make(_problem(), "layer0.attn.q", method="hvp")
    v = randn(op.shape[1])
    for _ in range(4):  # the way is settled then
        op @ v
    assert ("tape" in op.method) == (by == "tape")
    assert reads(lambda: op @ v) == []


def test_vectors_at_once_read_nothing() -> None:
    op = hl.hessian(_problem(), "layer0.attn.q", method="hvp")
    V = randn(op.shape[1], 8)
    op @ V
    assert reads(lambda: op @ V) == []


def test_a_probe_of_sampled_norms_reads_nothing(by: str) -> None:
    problem = _problem()
    source, block = GraphSource(problem, ("full", "ggn", "functional"), 0), problem.blocks["layer0.attn.q"]
    list(source.draw([Request(block, 0, 4)]))
    assert reads(lambda: list(source.draw([Request(block, 4, 6)]))) == []


@pytest.mark.parametrize("estimate", [hl.trace, hl.frobenius], ids=["trace", "norm"])
def test_reads_of_an_estimate_do_not_grow_with_its_probes(estimate: Callable[..., object], by: str) -> None:
    """Whether its products are finite, its value, its spread and its scale."""
    op = hl.hessian(_problem(), "layer0.attn.q", method="hvp")
    for probes in (8, 8, 14):
        counted = len(reads(lambda n=probes: estimate(op, probes=n)))
    assert 1 <= counted <= 4


def test_a_step_of_the_search_for_an_eigenvalue_reads_its_residual_alone(by: str) -> None:
    """Rayleigh-Ritz in a small space is done on the host: reads of a row of it, of lengths and of the residual."""
    op = hl.hessian(_problem(), "layer0.attn.q", method="hvp")
    op.announce(20)
    hl.spectra.leading_eigenpair(op, rtol=1e-1)
    found = [hl.spectra.leading_eigenpair(op, rtol=rtol).products for rtol in (1e-1, 1e-6)]
    counted = [len(reads(lambda r=rtol: hl.spectra.leading_eigenpair(op, rtol=r))) for rtol in (1e-1, 1e-6)]
    assert found[1] > found[0]
    assert (counted[1] - counted[0]) / (found[1] - found[0]) <= 12


def test_nothing_is_made_on_the_cpu_by_an_hvp(by: str) -> None:
    at = Repeated(_problem(), _problem().data[0], ["blocks.0.attention.W_Q"])
    v = {"blocks.0.attention.W_Q": torch.randn_like(at.problem.params["blocks.0.attention.W_Q"])}
    at.expect(20)
    expected = at.hessian(v, list(v))
    with torch.device("meta"):  # what is made without a device would have no contents
        found = at.hessian(v, list(v))
    for name in v:
        assert torch.equal(found[name], expected[name])

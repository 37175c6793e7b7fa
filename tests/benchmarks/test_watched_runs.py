"""Benchmarks of watched runs and of `inspect`, at a tiny size: what they count is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import inspection
from benchmarks.harness import Options
from benchmarks.monitor import TINY, WATCHED

OPTIONS = Options(quick=True, threads=1)


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.expensive
@pytest.mark.parametrize("name", [benchmark.name for benchmark in WATCHED])
def test_a_watched_run(name: str) -> None:
    benchmark = next(one for one in WATCHED if one.name == name)
    result = benchmark.run(OPTIONS, lambda step: None, replace(TINY, steps=30))
    assert result.notes and all(timing.seconds.median > 0 for timing in result.timings)
    if "share" in result.details:
        assert result.details["share"] > 0


@pytest.mark.expensive
def test_inspect() -> None:
    result = inspection.run(OPTIONS, lambda step: None, inspection.TINY)
    assert result.details["products"] > 0 and result.details["gradients"] > 10
    assert 0 < result.details["share of HVPs"] <= result.details["share of HVPs and closed forms"] <= 1

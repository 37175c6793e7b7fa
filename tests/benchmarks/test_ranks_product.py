"""What the benchmark of two processes says of the times of each."""

import pytest

from benchmarks import ranks_product
from benchmarks.ranks_product import ALONE, BOTH, GRADIENT


def test_the_busier_process_counts():
    traffic = {"bytes": 1024, "seconds": 0.001, "waited": 0.002, "sums": 1, "waits": 1}
    seconds = (
        {BOTH: [(0.5, 1.0)], ALONE: [(1.0, 1.5)], GRADIENT: [(2.0, 2.5)]},
        {BOTH: [(0.6, 1.1)], ALONE: [(0.0, 1.6)], GRADIENT: [(0, 0)]},
    )
    found = [{"seconds": s, "apart": 1e-7, "traffic": traffic, "why": "", "entries": 64} for s in seconds]
    result = ranks_product.result(ranks_product.TINY, found)
    assert result.timing(BOTH).seconds.median == 0.6 and result.timing(BOTH).wall == 1.1
    assert result.timing(ALONE).ratio.median == pytest.approx(1 / 0.6)
    assert result.details["wall"]["median"] == pytest.approx(1.6 / 1.1) and result.details["gradients"] == 0.5

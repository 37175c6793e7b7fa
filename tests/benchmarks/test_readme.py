"""Numbers that the README takes from recorded benchmarks are those of the last records."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.results import RESULTS, Result

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")


def recorded(name: str) -> Result:
    """The last record of a benchmark."""
    return Result.from_json((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def stated(pattern: str) -> float:
    """The number in a sentence of the README."""
    found = re.search(re.sub(" ", r"\\s+", pattern), README)
    assert found, pattern
    return float(found[1])


def test_comparisons_that_peers_win_are_counted_as_on_the_page_of_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from generate.measurements import outcomes

    results = [Result.from_json(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    lost, won = outcomes(results)
    assert f"peers win {len(lost)} of {len(lost) + len(won)} " in README
    sys.modules.pop("generate.measurements")


def test_speed_and_memory_are_those_recorded() -> None:
    shared = next(t for t in recorded("network_norms").timings if t.name.startswith("shared-probe"))
    assert stated(r"model: ([\d.]+) times faster than 20 shared probes") == round(shared.ratio.median, 1)
    dense = recorded("dense_hessian").fastest_peer
    assert stated(r"layer ([\d.]+) times faster than vectorised autograd") == round(dense.ratio.median)
    tiny = recorded("cold_tiny").fastest_peer
    assert stated(r"plain autograd is up to ([\d.]+) times faster") == round(1 / tiny.ratio.median, 1)
    attention = recorded("attention_product").memory
    saved = attention["PyTorch, plain kernel"].run / attention["hessianlens"].run
    assert stated(r"needs (\d+) times less memory") == round(saved)

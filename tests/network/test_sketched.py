"""Norms of the last attention layer by a sketch: complete probes give the exact norms, and `auto` says what it did."""

from __future__ import annotations

import math

import pytest

import hessianlens as hl
from hessianlens.layer.sketch import Unfolding
from hessianlens.network.planner import planner_of
from hessianlens.network.routes.last_attention import ExactAttention, SketchedAttention
from hessianlens.problems import Problem
from tests.layer.test_sketch import _all_responses
from tests.network.test_part_norms import NETWORKS, PARTS, ROLES, SEVERAL_HEADS, wide


def _sketches(problem: Problem) -> tuple[ExactAttention, SketchedAttention]:
    source = planner_of(problem).attention.located
    assert isinstance(source, ExactAttention)
    return source, SketchedAttention(source, 0, lambda made: None)


@pytest.mark.parametrize("name", [*NETWORKS, *SEVERAL_HEADS])
def test_complete_probes_give_the_exact_norms(name: str) -> None:
    problem = (NETWORKS | SEVERAL_HEADS)[name]()
    source, sketches = _sketches(problem)
    checked, reasons = 0, set()
    for role in ROLES:
        block = problem.blocks.get(f"{source.prefix}.{role}")
        if block is None or not source.covers([block]):
            continue
        exact = source.norms(block, PARTS)
        for part in PARTS:
            unfolded = sketches._unfolded(block, part)
            if isinstance(unfolded, Unfolding):
                square = float(_all_responses(unfolded).squares().sum()) + unfolded.constant
                found = math.sqrt(max(square, 0.0)) * unfolded.unit
                assert found == pytest.approx(exact[part], rel=1e-7, abs=1e-12), (role, part)
                checked += 1
            else:
                reasons.add(unfolded.reason)
    assert checked >= 4 or any("rotary" in why or "share" in why for why in reasons)


def test_a_sketch_is_used_where_it_is_asked_for() -> None:
    problem, names = wide(), ["layer0.attn.q", "layer0.attn.k", "layer0.attn.v"]
    exact = hl.block_norms(problem, names)
    found = hl.block_norms(problem, names, method="sketch", rtol=0.1, seed=1)
    for key, norm in found.items():
        assert norm.method == "sketch" and norm.value == pytest.approx(exact[key].value, rel=0.4), key
    assert found == hl.block_norms(problem, names, method="sketch", rtol=0.1, seed=1)
    assert set(found.why.values()) == {"method='sketch' was asked for"}


def test_a_tolerance_lets_the_cheaper_way_answer_and_says_which() -> None:
    """So few tokens that the exact sum is cheaper; another block is sampled until its intervals are narrow."""
    problem = wide()
    norms = hl.block_norms(problem, ["layer0.attn.q", "embed"], ("full",), probes=8, rtol=0.2)
    assert norms["layer0.attn.q", "full"].method == "exact"
    assert "multiply-adds" in norms.why["layer0.attn.q"]
    assert norms["embed", "full"].probes > 8 or norms["embed", "full"].relative_width() <= 0.2
    assert norms["embed", "full"].relative_width() < 0.3


def test_values_have_no_functional_part() -> None:
    problem = wide(mlp_activation="relu")
    found = hl.block_norms(problem, "layer0.attn.v", method="sketch", rtol=0.2)
    assert found["layer0.attn.v", "functional"] == hl.spectra.Estimate.exactly(0.0)
    assert found["layer0.attn.v", "ggn"].method in ("sketch", "basis")

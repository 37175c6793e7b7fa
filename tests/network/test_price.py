"""Exact answers are taken where they cost no more than sampled ones, and both prices are said."""

from __future__ import annotations

import pytest

import hessianlens as hl
from hessianlens.network.base.price import affordable_hvps, little_hvps
from tests.curvature.registry import CASES

SMALL = "hessianlens.network.base.thresholds.EXACT_SMALL_MULTIPLY_ADDS"


def _exact(problem: hl.problems.Problem, blocks: list[str], **given: float) -> tuple[list[bool], dict[str, str]]:
    norms = hl.block_norms(problem, blocks, ("full",), **given)
    return [norms[block, "full"].exact for block in blocks], dict(norms.why)


def test_exact_is_taken_up_to_the_price_of_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["GPT-2"].problem()
    block = "layer1.mlp.out"
    width = problem.blocks[block].shape[-1]
    exact, why = _exact(problem, [block], probes=4)
    assert exact == [True] and why[block].endswith(f"exact takes {width + 1} HVPs, sampling 4")  # it is little work
    monkeypatch.setattr(SMALL, 0.0)
    exact, why = _exact(CASES["GPT-2"].problem(), [block], probes=4)
    assert exact == [False] and why[block].startswith(
        f"exact takes at least {width + 1} HVPs, sampling 4; method='exact' asks"
    )
    exact, _ = _exact(CASES["GPT-2"].problem(), [block], probes=width + 1)
    assert exact == [True]


def test_blocks_that_share_their_hvps_share_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SMALL, 0.0)
    blocks = ["layer1.attn.q", "layer1.attn.k", "layer1.attn.v"]
    width = CASES["GPT-2"].problem().blocks[blocks[0]].shape[-1]
    probes = width - 1
    assert _exact(CASES["GPT-2"].problem(), blocks[:1], probes=probes)[0] == [False]
    exact, why = _exact(CASES["GPT-2"].problem(), blocks, probes=probes)
    assert exact == [True] * 3 and f"exact takes {width + 3} HVPs for 3 blocks, sampling {3 * probes}" in why[blocks[0]]


def test_a_tolerance_makes_exact_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SMALL, 0.0)
    block = ["layer1.mlp.out"]
    assert _exact(CASES["GPT-2"].problem(), block, probes=4, rtol=0.01)[0] == [True]
    assert _exact(CASES["GPT-2"].problem(), block, probes=4)[0] == [False]


def test_estimators_ask_a_closed_form_that_takes_no_more_than_their_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["GPT-2"].problem()
    assert little_hvps(problem) > 0 and affordable_hvps(problem, 1) == max(1, little_hvps(problem))
    assert hl.trace(hl.hessian(problem, "layer1.mlp.out"), probes=3).exact
    monkeypatch.setattr(SMALL, 0.0)
    op = hl.hessian(CASES["GPT-2"].problem(), "layer1.mlp.out")
    assert not op.exact_within(3) and not hl.trace(op, probes=3).exact
    assert op.exact and hl.trace(op, probes=3).exact  # once it is there it costs nothing

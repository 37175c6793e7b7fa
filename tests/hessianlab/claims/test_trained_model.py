"""The claims on a trained model follow the recorded atlas."""

from __future__ import annotations

import math

import pytest

from hessianlab.claims import trained
from hessianlab.claims.finding import Verdict
from hessianlab.claims.topics.trained_model import diffuse_attention_and_queries, gap_in_a_trained_model

START = "trained, 32 tokens: "


def recorded(monkeypatch: pytest.MonkeyPatch, intervals: dict[str, tuple[float, float, float]]) -> None:
    rows = {START + name: [*ends, 4, 0.0] for name, ends in intervals.items()}
    fresh = {"fresh, 32 tokens: log values over queries": [3.0, 2.0, 4.0, 4, 0.0]}
    known = {"study_atlas": {"config": {"model": "smollm2"}, "intervals": {**rows, **fresh}}} if intervals else {}
    monkeypatch.setattr(trained, "read_record", lambda path: known)


def near(factor: float) -> tuple[float, float, float]:
    return tuple(math.log(factor * by) for by in (1.0, 0.8, 1.25))


@pytest.mark.parametrize(
    ("mean", "first", "verdict"),
    [(500, 900, Verdict.HOLDS), (20, 700, Verdict.FAILS), (20, 30, Verdict.FAILS)],
)
def test_a_gap_of_two_orders(mean: float, first: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "log values over queries"
    recorded(monkeypatch, {name: near(mean), f"{name}, layer 0": near(first), f"{name}, layer 29": near(3.0)})
    found = gap_in_a_trained_model()
    assert found.verdict == verdict
    assert found.numbers["last"] == "3" and found.numbers["small"] == 1 and found.numbers["layers"] == 2


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((0.8, 0.5, 0.9), Verdict.HOLDS), ((-0.8, -0.9, -0.5), Verdict.NOT_SEEN), ((0.1, -0.4, 0.5), Verdict.OPEN)],
)
def test_entropy_and_queries(
    ends: tuple[float, float, float], verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, {"rank correlation of entropy and queries over layers": ends})
    assert diffuse_attention_and_queries().verdict == verdict


def test_nothing_recorded_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, {})
    assert gap_in_a_trained_model().verdict == Verdict.OPEN == diffuse_attention_and_queries().verdict

"""How intervals of recorded studies decide claims."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hessianlab.claims import trained
from hessianlab.claims.catalogue import all_claims
from hessianlab.claims.finding import Finding, Verdict
from hessianlab.claims.stored import topic_digest
from hessianlab.claims.trained import (
    Effect,
    StudyRecord,
    decided,
    read_record,
    write_record,
    write_replication,
)
from hessianlab.experiments.registry import STUDIES
from hessianlens.errors import InputError


def effect(low: float, high: float, least: float = 3.0, most: float = 5.0) -> Effect:
    return Effect("slower", (low + high) / 2, low, high, 6, 0.5, least, most)


def found(*effects: Effect, universal: bool = False, path: Path, **others: Effect) -> Finding:
    """With these effects under the study's own settings, and one effect under every other condition."""
    conditions = {name: {"intervals": {}} for name in others}
    config = {"d_model": 16, "layers": 1, "steps": 9}
    write_record("study", {"config": config, "preset": "quick", "conditions": conditions}, path)
    finding = decided(
        StudyRecord("study", path),
        lambda record, task: {"": [others[record.condition]] if record.condition else effects},
        {},
        universal=universal,
    )
    return finding.worded("{where}", "In {models} it is so: {where}.")


def test_inside_outside_and_across(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    inside, outside, across = effect(3.5, 4.5), effect(1.0, 2.0), effect(2.0, 4.0)
    assert (inside.state, outside.state, across.state) == (True, False, None)
    assert found(inside, path=path).verdict is Verdict.HOLDS
    assert found(outside, path=path).verdict is Verdict.NOT_SEEN
    assert found(outside, path=path, universal=True).verdict is Verdict.FAILS
    undecided = found(across, path=path)
    assert undecided.verdict is Verdict.OPEN and "reaches across" in undecided.undecided
    assert found(outside, across, path=path).verdict is Verdict.NOT_SEEN  # one is enough against it
    assert found(inside, across, path=path).verdict is Verdict.OPEN
    assert all(found(one, path=path).confirmed for one in (inside, outside, across))


def test_conditions_decide_symmetrically(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    inside, outside, across = effect(3.5, 4.5), effect(1.0, 2.0), effect(2.0, 4.0)
    mixed = found(inside, short=outside, wide=across, path=path)
    assert mixed.verdict is Verdict.HOLDS_IF and mixed.confirmed
    assert mixed.condition == "borne out on text (as set); contradicted on text (short); undecided on text (wide)"
    assert found(outside, short=inside, path=path).verdict is Verdict.HOLDS_IF
    assert found(inside, short=inside, wide=across, path=path).verdict is Verdict.HOLDS
    assert found(outside, short=outside, wide=across, path=path).verdict is Verdict.NOT_SEEN
    assert found(outside, short=outside, path=path, universal=True).verdict is Verdict.FAILS
    assert found(across, short=inside, path=path).verdict is Verdict.OPEN
    assert found(across, short=outside, path=path).verdict is Verdict.OPEN
    assert found(across, short=inside, wide=outside, path=path).verdict is Verdict.HOLDS_IF


def test_cases_are_decided_apart(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    inside, outside, across = effect(3.5, 4.5), effect(1.0, 2.0), effect(2.0, 4.0)
    write_record("study", {"config": {"d_model": 16, "layers": 1, "steps": 9}, "preset": "quick"}, path)

    def of(**cases: Effect) -> Finding:
        effects = {name: [one] for name, one in cases.items()}
        return decided(StudyRecord("study", path), lambda record, task: effects, {}).worded(
            "{where}", "{models}{where}"
        )

    both = of(plain=inside, normed=outside)
    assert both.verdict is Verdict.HOLDS_IF and both.confirmed
    assert both.condition == "borne out on text with plain (as set); contradicted on text with normed (as set)"
    assert of(plain=inside, normed=across).verdict is Verdict.HOLDS
    assert of(plain=across, normed=outside).verdict is Verdict.NOT_SEEN
    assert of(plain=across, normed=across).verdict is Verdict.OPEN
    assert "on text with plain: slower" in both.checks[0].what


def run_of(low: float, high: float, seed: int) -> dict[str, Any]:
    config = {"d_model": 16, "layers": 1, "steps": 9, "seed": seed, "tasks": ["characters"]}
    kept = {"created": "", "commit": "", "seconds": 1, "diverged": {}, "conditions": {}}
    return {"preset": "quick", "config": config, "intervals": {"it": made_up(low, high)}, **kept}


def test_a_run_with_other_seeds_has_to_agree(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(InputError, match="expected a recorded one first"):
        write_replication("study", run_of(3.5, 4.5, 7), path)
    write_record("study", run_of(3.5, 4.5, 0), path)
    with pytest.raises(InputError, match="got the recorded settings"):
        write_replication("study", run_of(1.0, 2.0, 0), path)

    def of() -> Finding:
        record = StudyRecord("study", path)
        return decided(record, lambda one, task: {"": [one.effect("it", "slower", 3.0, 5.0)]}, {})

    write_replication("study", run_of(1.0, 2.0, 7), path)
    wrong = of()
    assert wrong.verdict is Verdict.HOLDS and not wrong.confirmed
    assert wrong.numbers["where"] == "borne out on text (as set). Run again with seed 7: contradicted on text (as set)"
    write_replication("study", run_of(3.2, 4.0, 7), path)  # takes the place of the run with the same settings
    assert of().confirmed and str(of().support[0]).endswith("of 1 outcomes decided twice, opposite: 0 (wanted 0: yes)")
    write_replication("study", run_of(2.0, 4.0, 8), path)
    assert [one.changed for one in StudyRecord("study", path).replications()] == ["seed 7", "seed 8"]
    assert of().confirmed and "of 0 outcomes" in str(of().support[1])


def test_runs_beside_a_study_stay_as_long_as_its_settings_do(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record("study", run_of(3.5, 4.5, 0), path)
    write_replication("study", run_of(3.2, 4.0, 7), path)
    write_record("study", {**run_of(3.6, 4.4, 0), "conditions": {"300 steps": {"intervals": {}}}}, path)
    assert [one.changed for one in StudyRecord("study", path).replications()] == ["seed 7"]
    write_record("study", run_of(3.6, 4.4, 1), path)
    assert list(StudyRecord("study", path).replications()) == []


def test_what_is_not_recorded_decides_nothing(tmp_path: Path) -> None:
    recorded = StudyRecord("nosuch", tmp_path / "record.json")
    missing = recorded.effect("x", "it", least=1.0)
    assert missing.state is None and missing.shown == "not measured"
    finding = decided(recorded, lambda record, task: {"": [missing]}, {})
    assert finding.verdict is Verdict.OPEN and "was not measured" in finding.undecided
    assert recorded.formatted("x") == "(not measured)"


def test_runs_that_all_diverge_are_infinitely_behind(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record("study", {"config": {"seeds": 6}, "diverged": {"characters: row_sum": 6}, "intervals": {}}, path)
    recorded = StudyRecord("study", path)
    lost = recorded.relative("loss", "characters", "row_sum", "loss", 0.05)
    assert lost.state is True and lost.mean == math.inf and "6 of 6 runs diverged" in lost.what
    assert recorded.relative("accuracy", "characters", "row_sum", "right", -0.15, -0.05).state is False
    assert recorded.relative("accuracy", "characters", "linear", "right").mean is None


def test_runs_that_diverge_are_counted_among_those_of_their_condition(tmp_path: Path) -> None:
    """Five of six are all but one, where five of the study's own ten are not."""
    path, found = tmp_path / "record.json", {"diverged": {"characters: row_sum": 5}, "intervals": {}}
    conditions = {"six seeds": {**found, "changes": {"seeds": 6}}, "300 steps": {**found, "changes": {"steps": 300}}}
    write_record("study", {**found, "config": {"seeds": 10}, "conditions": conditions}, path)
    lost = [one.relative("loss", "characters", "row_sum", "loss") for one in StudyRecord("study", path).conditions()]
    assert [one.mean for one in lost] == [None, math.inf, None]
    assert "5 of 6 runs diverged" in lost[1].what and lost[1].seeds == 6


def test_records_of_other_studies_stay(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record("b", {"x": 1}, path)
    write_record("a", {"x": 2}, path)
    assert list(json.loads(path.read_text())) == ["a", "b"] and read_record(path)["b"] == {"x": 1}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_recorded_whole(name: str) -> None:
    recorded = StudyRecord(name)
    trained_here = name != "study_atlas"
    assert ("of width" if trained_here else "smollm2") in recorded.models and "preset" in recorded.models
    assert read_record()[name]["protocol"], "what was stated before the run is printed with every result"
    assert recorded.sentences and all(sentence.endswith(".") for sentence in recorded.sentences)
    assert recorded.chart is not None and recorded.chart.panels and recorded.chart.caption.endswith(".")
    assert trained_here == any(len(one) == 6 for one in read_record()[name]["intervals"].values()), "effect sizes"


def made_up(low: float, high: float) -> list[float]:
    return [(low + high) / 2, low, high, 6, 0.1]


@pytest.mark.parametrize(
    ("id", "study", "intervals", "wanted"),
    [
        ("C19", "study_scaling", {"characters: log slowdown, unscaled minus scaled": (1.2, 1.5)}, "holds"),
        (
            "C19",
            "study_scaling",
            {"characters: log slowdown, unscaled minus scaled": (0.0, 0.5)},
            "not seen at this size",
        ),
        ("C20", "study_scaling", {"characters: loss, unscaled minus scaled": (0.1, 0.18)}, "holds"),
        ("C20", "study_scaling", {"characters: loss, unscaled minus scaled": (-0.1, 0.18)}, "open"),
        (
            "C42",
            "study_temperature",
            {"characters: log temperature, first layer minus last": (-0.3, -0.1)},
            "not seen at this size",
        ),
    ],
)
def test_a_claim_follows_the_record(
    id: str, study: str, intervals: Any, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    numbers = {name: made_up(*ends) for name, ends in intervals.items()}
    config = {"d_model": 16, "layers": 1, "steps": 300, "seeds": 6}
    write_record(study, {"config": config, "preset": "quick", "intervals": numbers}, path)
    monkeypatch.setattr(trained, "read_record", lambda _=None: json.loads(path.read_text()))
    (claim,) = (one for one in all_claims() if one.id == id)
    assert str(claim.examine().verdict) == wanted


def test_a_new_record_is_a_new_test(tmp_path: Path) -> None:
    before = topic_digest("training")
    assert before != "none" and before != topic_digest("softmax division")

"""Every study keeps the rules of studies, and its words and pictures work on its own results."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hessianlab.experiments.registry import EXPERIMENTS, STUDIES, STUDY, registry_of
from hessianlab.presentations import findings_of, pictures_of
from hessianlab.report.recorded import SHOWN_PANELS
from hessianlab.results import Chart, Result
from hessianlab.runner import configure
from hessianlab.store import open_store
from hessianlab.studies.presentation.drawing import draw_chart
from hessianlab.studies.presentation.findings import StudyFindings
from hessianlab.studies.training_study import Study, chosen_conditions
from hessianlens.errors import InputError
from tests.hessianlab.runner.test_interruptions import stored, wait_until

SMALL = {
    "steps": 4,
    "d_model": 4,
    "batch": 2,
    "rates": 2,
    "tuning_seeds": 1,
    "seeds": 5,
    "checkpoints": 2,
    "validation": 8,
    "digits": 1,
    "length": 6,
    "pairs": 2,
}
DESIGN = {
    "activation": ("softmax", "linear"),
    "norm": ("none",),
    "qk": ("dual",),
    "heads": (1,),
    "d_model": 2,
    "sequences": 2,
    "digits": 1,
    "repeats": 2,
}
LEFT_OUT = {
    "study_exponents": ("softmax, pre-norm",),
    "study_optimisers": tuple(
        f"{attention}, {norm}, {optimiser}"
        for attention in ("softmax", "sigmoid", "linear")
        for norm in ("no norm", "pre-norm")
        for optimiser in ("SGD", "Adam")
        if (attention, norm) not in (("softmax", "no norm"), ("sigmoid", "no norm"))
    ),
}
ASKED = {
    "study_activations": ("loss",),
    "study_scaling": ("loss", "entropy of attention"),
    "study_temperature": ("loss", "temperature"),
    "study_query_key": ("loss",),
    "study_optimisers": ("loss of SGD minus loss of Adam", "largest over smallest block"),
    "study_block_rates": ("loss",),
    "study_exponents": ("power", "value block over query block"),
    "study_design": ("largest / smallest block", "negative share"),
}
"""Quantities that the question of a study asks for, and that its chart must show among the first panels."""

SHOWN_HERE = [name for name in STUDIES if name != "study_atlas"]
"""The atlas has arms neither of training nor of design: test_atlas has its words and pictures."""

TRAINED = [name for name in SHOWN_HERE if name != "study_design"]


@cache
def small_result(name: str) -> Result:
    experiment = STUDIES[name]
    changes: dict[str, Any] = DESIGN if name == "study_design" else dict(SMALL)
    if name in ("study_optimisers", "study_exponents"):
        changes["d_model"] = 2
    if name == "study_exponents":
        changes["curvatures"] = 1
    if name == "study_activations":
        changes["tasks"] = ("recall",)
    config = experiment.preset("quick", changes)
    # curvature takes most of the time; a study also reads a result that lacks some of its arms
    cells = [cell for cell in experiment.cells(config) if cell.get("arm") not in LEFT_OUT.get(name, ())]
    return experiment.result(config, [experiment.finish(cell) for cell in cells])


def table_of(result: Result) -> list[dict[str, str]]:
    findings = findings_of(result)
    assert isinstance(findings, StudyFindings)
    return findings.table(result)


def test_names() -> None:
    wanted = (
        "activations",
        "atlas",
        "block_rates",
        "design",
        "exponents",
        "optimisers",
        "query_key",
        "scaling",
        "temperature",
    )
    assert tuple(STUDIES) == tuple(STUDY + name for name in wanted)
    assert not set(STUDIES) & set(EXPERIMENTS)
    assert all(STUDIES[name].name == name and registry_of(name) is STUDIES for name in STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_plans(name: str) -> None:
    experiment = STUDIES[name]
    assert tuple(experiment.presets) == ("quick", "full") and experiment.question.endswith("?")
    for config in experiment.presets.values():
        assert experiment.statement(config) and all(line.endswith(".") for line in experiment.statement(config))
        cells = experiment.cells(config)
        written = [json.dumps(cell, sort_keys=True) for cell in cells]
        assert len(set(written)) == len(written) > 1
        assert [json.loads(text) for text in written] == [dict(cell) for cell in cells]


@pytest.mark.parametrize("name", TRAINED)
def test_every_arm_gets_the_same_and_is_compared(name: str) -> None:
    experiment = STUDIES[name]
    assert isinstance(experiment, Study)
    compared = {arm for comparison in experiment.comparisons for arm in comparison.arms}
    assert compared == {arm.name for arm in experiment.arms}
    assert len(experiment.hypothesis) > 40
    for config in experiment.presets.values():
        assert config.seeds >= 5
        assert any("Stopping rule" in line for line in experiment.statement(config))
        own = {"task", "arm", *experiment.arms[0].parameters()}
        for condition in chosen_conditions(config, experiment.conditions):
            cells = [cell for cell in experiment.cells(config) if cell["condition"] == condition.name]
            shared = [
                {k: v for k, v in cell.items() if k not in own | dict(condition.changes).keys()} for cell in cells
            ]
            assert cells and all(one == shared[0] for one in shared)
            assert all(cell[name] == value for cell in cells for name, value in condition.changes)


@pytest.mark.long
@pytest.mark.parametrize("name", SHOWN_HERE)
def test_words_and_pictures(name: str) -> None:
    result = small_result(name)
    findings = findings_of(result)
    sentences = findings.sentences(result)
    assert sentences and all(sentence.endswith(".") and "nan" not in sentence for sentence in sentences)
    pictures = pictures_of(result)
    assert len({picture.name for picture in pictures}) == len(pictures) > 1
    assert all(picture.caption.endswith(".") for picture in pictures)
    assert len(table_of(result)) == (2 if name == "study_design" else 0)
    assert isinstance(findings, StudyFindings)
    numbers = json.loads(json.dumps(findings.in_record(result, {})))
    assert numbers["preset"] == "custom" and numbers["sentences"] == sentences
    assert {len(row) for row in numbers["intervals"].values()} <= {5, 6}, "as FIELDS has it, and an effect size"
    assert any(len(row) == 6 for row in numbers["intervals"].values())
    chart = Chart.of(numbers["chart"])
    assert chart.caption.endswith(".") and all(panel.series for panel in chart.panels)
    assert len(draw_chart(chart).axes) >= len(chart.panels)
    shown = [
        f"{panel.title} {chart.y_label}" for panel in chart.panels[:SHOWN_PANELS] if any(s.x for s in panel.series)
    ]
    for quantity in ASKED.get(name, ()):
        assert any(quantity in text for text in shown), f"{name} asks for {quantity}, and its chart shows {shown}"


@pytest.mark.long
def test_before_training_powers_are_those_of_theory() -> None:
    from hessianlab.studies.presentation.growth_exponents import SERIES, exponents, ratios

    result = small_result("study_exponents")
    for arm, wanted in {"softmax": (6, 5, 2), "linear": (6, None, 6)}.items():
        for series, power in zip(SERIES, wanted, strict=True):
            found = exponents(result, "addition", arm, series, "small", 0)
            assert found == ({} if power is None else {seed: pytest.approx(power, abs=0.02) for seed in range(5)})
    assert len(ratios(result, "addition", "softmax", 0)) == 5


@pytest.mark.long
def test_what_is_printed_of_a_studied_design() -> None:
    result = small_result("study_design")
    table = table_of(result)
    softmax = next(line for line in table if line["activation"] == "softmax" and line["norm"] == "none")
    assert softmax["power q ggn"].startswith("6 ±") and softmax["power v ggn"].startswith("2 ±")


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("study_scaling", "seeds=3", "seeds: got 3"),
        ("study_scaling", "tasks=chess", "tasks: got 'chess'"),
        ("study_design", "norm=both", "norm: got 'both'"),
        ("study_design", "heads=3", "heads: got 3"),
        ("study_design", "attention=nosuch", "attention: got 'nosuch', expected package.module:Class"),
        ("study_design", "attention=nosuch.module:Class", "cannot be imported"),
        ("study_design", "attention=math:pi", "has no source file"),
    ],
)
def test_what_cannot_be_studied_is_refused(name: str, setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        (plan,) = configure([STUDIES[name]], "quick", [setting])
        plan.cells  # noqa: B018


OWN = """
import torch

class Mine(torch.nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.query, self.value = (torch.nn.Linear(d_model, d_model, bias=False) for _ in range(2))

    def forward(self, x):
        scores = self.query(x) @ x.transpose(-1, -2)
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ self.value(x)

class Wrong(Mine):
    def forward(self, x):
        return super().forward(x)[..., :1]
"""


@pytest.mark.long
def test_an_attention_of_the_users_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_attention_of_a_test.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    design, few = STUDIES["study_design"], {**DESIGN, "activation": ("softmax",)}
    config = design.preset("quick", {**few, "attention": "own_attention_of_a_test:Mine"})
    result = design.run(config)
    table = table_of(result)
    assert {line["activation"] for line in table} == {"softmax", "own"}
    own = next(line for line in table if line["activation"] == "own")
    assert own["entropy"] == "–" and own["largest / smallest block"] != "–"
    assert len(pictures_of(result)) == 2
    wrong = design.preset("quick", {**few, "attention": "own_attention_of_a_test:Wrong"})
    with pytest.raises(InputError, match=r"Wrong returned \(2, 6, 1\)"):
        design.run(wrong)


FEW = {**SMALL, "steps": 40, "d_model": 2, "checkpoints": 1, "tasks": "recall,addition"}


@pytest.mark.long
def test_a_killed_study_continues_and_any_number_of_jobs_gives_the_same_bytes(tmp_path: Path) -> None:
    from hessianlab.runner import run

    settings = [f"{name}={value}" for name, value in FEW.items()]
    (plan,) = configure([STUDIES["study_scaling"]], "quick", settings)
    store = tmp_path / "kept.sqlite"
    asked = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "hessianlens", "study", "scaling", *asked, "--jobs", "1", "--store", str(store)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: stored(store) > 0)
    finally:
        child.kill()
        child.wait()
    kept = stored(store)
    assert 0 < kept < len(plan.cells) == 4, "killed on the way"
    states: list[Any] = []
    with open_store(store) as opened:
        (resumed,) = run([plan], opened, 2, on_progress=states.append)
    assert states[-1].tallies[0].stored == kept
    alone = plan.experiment.run(plan.config)
    assert json.dumps(resumed.rows()) == json.dumps(alone.rows())


def test_a_report_tells_the_studies_that_a_store_has() -> None:
    from hessianlab.report import render_labbook

    page = render_labbook([small_result("study_scaling")], None, None, "hessianlens report")
    assert "Scaled or unscaled scores, in training" in page and "hessianlens study scaling --preset quick" in page
    assert "paired over seeds" in page

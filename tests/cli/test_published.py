"""`hessianlens reproduce` against published means, here made up so that every difference is known."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hessianlab.growth.reference import VARIABLE
from hessianlab.growth.series import growth_series
from hessianlab.store import last_complete_runs, load_run, open_store
from hessianlens.cli import app

SMALL = ("--set", "layers=1", "--set", "points=4", "--set", "repeats=2", "--jobs", "1")
HEADER = (
    "model,norm,num_layers,residual_scaling,linear_attention,loss,layer,block,part,sigma,mean,sem,n,n_zero,n_nonfinite"
)
DIFFERENCES = (0.0, 1.0, -2.5, 4.0)
"""Ours less published at each sigma, in standard errors of both."""

AGREEMENT = "Of 4 published points 50% lie within two and 75% within three standard errors."


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")


def reproduce(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ("reproduce", *arguments))
    assert done.exit_code == 0, done.output
    return done


def made_up() -> Path:
    """A file of published means for the run in the store, apart by `DIFFERENCES`."""
    with open_store("hessianlens.sqlite", readonly=True) as store:
        (series,) = growth_series(load_run(store, last_complete_runs(store)["fig8"])).values()
    lines = [HEADER]
    for sigma, mean, error, z in zip(series.sigma, series.mean, series.stderr, DIFFERENCES, strict=True):
        sem = 0.01 * mean
        theirs = mean - z * math.hypot(error, sem)
        lines.append(f"mlp,none,1,,,mse,0,mlp,full,{sigma:.17g},{theirs:.17g},{sem:.17g},20,0,0")
    path = Path("growth.csv")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_ratios_and_shares_of_a_figure_that_was_published() -> None:
    plain = reproduce("fig8", "--preset", "paper", *SMALL)
    assert "published" not in plain.stdout
    outcome = json.loads(reproduce("fig8", "--preset", "paper", *SMALL, "--json").stdout)
    assert outcome["reference"] is None and outcome["experiments"][0]["published"] is None
    arguments = ("fig8", "--preset", "paper", *SMALL, "--reference", str(made_up()))

    outcome = json.loads(reproduce(*arguments, "--json").stdout)
    assert outcome["reference"] == "growth.csv"
    found = outcome["experiments"][0]["published"]
    shares = {"points": 4, "left_out": 0, "within_2": 0.5, "within_3": 0.75}
    assert {name: found[name] for name in shares} == shares
    (series,) = found["series"]
    where = {"grid": 0, "depth": 1, "layer": 0, "block": "mlp", "part": "full"}
    assert {name: series[name] for name in (*where, *shares)} == {**where, **shares}
    assert series["median_z"] == pytest.approx(1.75, rel=1e-6)
    assert series["ratio"] > 1 and series["ratio_error"] > 0

    lines = reproduce(*arguments).stdout.splitlines()
    start = lines.index("fig8 against the published means (growth.csv)")
    table = lines[start + 1 : lines.index(AGREEMENT)]
    assert "ours/published" in "".join(table)
    row = table[-1]
    assert row.startswith("own block, full, layer 1 of 1") and row.split()[-4:] == ["4", "50%", "75%", "0"]
    ratio, error = (float(side.split()[at]) for side, at in zip(row.split(" ± "), (-1, 0), strict=True))
    assert (ratio, error) == pytest.approx((series["ratio"], series["ratio_error"]), abs=1e-3)

    other = reproduce("fig8", *SMALL, "--set", "d_model=4", "--reference", "growth.csv")
    assert "Not compared with published means: fig8 (other size or batch than published" in other.stdout

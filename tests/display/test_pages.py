"""Pages about a layer and about a model, in a real browser; and cells of a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import hessianlens as hl
from hessianlens.cli import app
from tests.display.registry import SHOWN, hessian, measured, watched


@pytest.mark.long
def test_the_page_of_a_run_says_everything(pages: dict[str, Path]) -> None:
    text = pages["run"].read_text(encoding="utf-8")
    for words in (
        "The edge of stability",
        "Curvature",
        "Attention",
        "Cost and limitations",
        "below the edge",
        "20 measurements",
    ):
        assert words in text
    assert text.count("no stability threshold") == 1 and "2 times from step 1 to step 21" in text
    assert text.count("<svg") == 6 and "<script" not in text and "src=" not in text


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cells = folder / "cells.html"
    shown = "".join(make()._repr_html_() for make in SHOWN.values())
    cells.write_text(f"<!DOCTYPE html><meta charset='utf-8'><body>{shown}</body>", encoding="utf-8")
    return {
        "layer": hessian().page(folder / "layer.html"),
        "model": measured().page(folder / "model.html", before=measured(), budget=20, progress=False),
        "run": watched().page(folder / "run.html", "A run with a name that is rather long for a telephone"),
        "cells": cells,
    }


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", ["layer", "model", "run", "cells"])
def test_in_a_browser(pages: dict[str, Path], page, name: str, width: int, dark: bool) -> None:
    page.open(pages[name], width=width, dark=dark)
    assert page.console_errors() == [] and page.outside_requests() == []
    assert page.overflow() <= 0
    assert page.smallest_figure_text() >= 12
    if name != "cells":
        ground = page.run("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") is not dark


def test_the_model_page_says_everything(pages: dict[str, Path]) -> None:
    text = pages["model"].read_text(encoding="utf-8")
    for heading in (
        "Measurement",
        "Before and after",
        "Block norms",
        "Curvature against gradients and weights",
        "Spectra",
        "Block heterogeneity",
        "Attention heads",
        "Limitations",
        "How to reproduce",
    ):
        assert heading in text
    assert "the sharpest" in text.lower() and "the flattest" in text.lower()
    assert text.count("<svg") > 10 and "src=" not in text and "<script" not in text


def test_the_layer_page_has_pairs_and_attention(pages: dict[str, Path]) -> None:
    text = pages["layer"].read_text(encoding="utf-8")
    assert "Query-key pairs" in text and "Attention maps" in text and "<image" in text


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(hl.InputError, match="expected a file in a folder that exists"):
        hessian().page(tmp_path / "no" / "layer.html")
    with pytest.raises(hl.InputError, match="page: cannot write"):
        measured().page(tmp_path / "no" / "model.html")


@pytest.mark.long
def test_the_command_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    model = "toy:layers=1,d_model=4,d_mlp=8,digits=1"
    found = CliRunner().invoke(
        app, ["inspect", model, "--sequences", "2", "--probes", "2", "--blocks", "layer0.attn.?", "--out", str(page)]
    )
    assert found.exit_code == 0, found.output
    assert f"Page: {page}" in found.output
    text = page.read_text(encoding="utf-8")
    assert f"hessianlens inspect {model}" in text and "random weights" in text


def test_the_command_refuses_a_page_it_cannot_write(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["inspect", "toy", "--out", str(tmp_path / "no" / "page.html")])
    assert found.exit_code == 2 and "out: cannot write" in found.output

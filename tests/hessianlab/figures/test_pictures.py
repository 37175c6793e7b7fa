"""Every picture is drawn from a result alone, is labelled, and is written as the same bytes every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from hessianlab.plots.picture import save
from hessianlab.presentations import findings_of, pictures_of
from hessianlab.wording import scientific
from hessianlens.errors import InputError
from tests.hessianlab.figures.small import SMALL, small_result


def drawn(name: str) -> dict[str, Figure]:
    return {picture.name: picture.figure for picture in pictures_of(small_result(name))}


def texts(figure: Figure) -> str:
    figure.draw_without_rendering()
    return " ".join(text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text")))


@pytest.mark.expensive
@pytest.mark.parametrize("name", SMALL)
def test_every_picture_is_drawn_and_labelled(name: str) -> None:
    pictures = drawn(name)
    assert pictures and all(picture.caption.endswith(".") for picture in pictures_of(small_result(name)))
    for figure in pictures.values():
        assert texts(figure).strip()
        for axes in figure.axes:
            if axes.axison and axes.get_subplotspec() is not None and axes.get_subplotspec().is_last_row():
                named = all(label.get_text().isalpha() for label in axes.get_xticklabels())  # a table says it itself
                assert axes.get_xlabel() or named, (name, axes.get_title())


def test_units_and_numbers_are_in_the_pictures() -> None:
    assert "loss / weight²" in texts(drawn("fig1")["whole"])
    table = texts(drawn("table1")["table"])
    assert "as printed, 6 blocks" in table and "not as printed" not in table
    exponents = texts(drawn("activation_growth")["exponents"])
    assert "6.00" in exponents


def test_a_map_shows_the_stored_numbers() -> None:
    result = small_result("fig1")
    axes = drawn("fig1")["attention"].axes[0]
    (image,) = axes.images
    stored = result.cells[0].measurement.arrays["attention"]
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), -np.inf), stored)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Q", "K", "V", "O"]


def test_the_stack_is_drawn_twice_and_its_powers_are_counted() -> None:
    result = small_result("fig2")
    stack = result.cells[0].measurement.arrays["stack"]
    left, right = (axes.images[0].get_array() for axes in drawn("fig2")["stack"].axes[:2])
    L, d, p, _ = stack.shape
    assert left.shape == (L * p, d * p) and right.shape == (L * d * p, p)
    np.testing.assert_allclose(10.0 ** left[p : 2 * p, :p].filled(-np.inf), np.abs(stack[1, 0]))
    np.testing.assert_allclose(10.0 ** right[p : 2 * p].filled(-np.inf), np.abs(stack[0, 1]))
    sentences = findings_of(result).sentences(result)
    assert "The block VV is zero" in sentences[2] and "40 of 40 measured powers" in sentences[2]
    assert max(row["gap"] for row in result.rows() if row["block"] == "all") < 1e-13


def test_ranks_are_drawn_as_shares_of_the_parameters() -> None:
    result = small_result("rank_fraction")
    axes = drawn("rank_fraction")["ranks"].axes[0]
    (line,) = [line for line in axes.lines if line.get_label() == "measured, L = 6"]
    rows = [row for row in result.rows() if row["length"] == 6]
    np.testing.assert_allclose(line.get_ydata(), [row["rank"] / row["parameters"] for row in rows])


@pytest.mark.long
def test_saved_files_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    def files(folder: str) -> list[bytes]:
        figure = drawn("fig4")["histogram"]
        paths = save(figure, tmp_path / folder / "deep", "fig4-histogram")
        assert [path.suffix for path in paths] == [".png", ".svg", ".pdf"]
        return [path.read_bytes() for path in paths]

    first, second = files("one"), files("two")
    assert first == second
    assert first[0].startswith(b"\x89PNG") and b"<svg" in first[1] and first[2].startswith(b"%PDF")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(InputError, match="cannot write"):
        save(Figure(), taken / "inside", "name")


@pytest.mark.parametrize("name", SMALL)
def test_findings_are_sentences_with_numbers(name: str) -> None:
    sentences = findings_of(small_result(name)).sentences(small_result(name))
    assert 1 <= len(sentences) <= 3
    for sentence in sentences:
        assert sentence.endswith(".") and any(c.isdigit() for c in sentence) and "nan" not in sentence


def test_findings_follow_the_numbers() -> None:
    result = small_result("fig4")
    rows = {(r["attention"], r["seed"], r["block"]): r["median"] for r in result.rows() if r["part"] == "full"}
    ratios = [rows["softmax", seed, "value"] / rows["softmax", seed, "query"] for seed in (0, 1)]
    assert f"{np.sqrt(ratios[0] * ratios[1]):.3g}" in findings_of(result).sentences(result)[0].replace(",", "")


def test_scientific_text() -> None:
    assert scientific(12345.0) == "1.2 × 10⁴" and scientific(-2e-3, 0) == "-2 × 10⁻³"

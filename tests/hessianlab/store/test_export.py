"""Exported tables hold the very numbers of the store, and say where they come from."""

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from hessianlab.results import FinishedCell, Measurement
from hessianlab.store import Store, finish_run, last_complete_runs, open_store, start_run
from hessianlab.store.export import export_run
from hessianlens.errors import InputError
from tests.hessianlab.runner.toys import ToyConfig
from tests.hessianlab.store.cells import CODE, PROVENANCE

ROWS = [
    ({"block": "query", "value": 0.1 + 0.2, "layer": 0, "mixed": 1},),
    ({"block": 'a, "b"\nc', "value": -math.inf, "layer": None, "mixed": "one"}, {"value": math.nan, "extra": True}),
]


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "cells.sqlite") as store:
        number = start_run(store, "toy", "quick", ToyConfig(), CODE, PROVENANCE)
        for position, rows in enumerate(ROWS):
            arrays = {"map": np.array([[math.nan, 1 / 3]], dtype=np.float32)} if position else {}
            store.put("toy", FinishedCell({"sigma": position / 7}, Measurement(rows, arrays), 0.5), CODE, PROVENANCE)
        finish_run(store, number, "toy", [{"sigma": 0.0}, {"sigma": 1 / 7}], CODE)
        yield store


def export(store: Store, form: str, folder: Path) -> dict[str, Path]:
    files = export_run(store, last_complete_runs(store)["toy"], form, folder)
    assert sorted(files) == sorted(folder.iterdir())
    return {file.name.partition(".")[2]: file for file in files}


def check_description(about: dict) -> None:
    assert about["experiment"] == "toy" and about["config"]["sizes"] == [40, 80]
    assert about["provenance"]["commit"] == "c0ffee" and about["code"]["digest"] == CODE.digest
    assert [about["provenances"][cell["provenance"]]["commit"] for cell in about["cells"]] == ["c0ffee"] * 2
    assert [cell["parameters"] for cell in about["cells"]] == [{"sigma": 0.0}, {"sigma": 1 / 7}]


def test_csv(store: Store, tmp_path: Path) -> None:
    files = export(store, "csv", tmp_path / "out")
    with files["csv"].open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["cell_number", "sigma", "block", "value", "layer", "mixed", "extra"]
    assert [row["cell_number"] for row in rows] == ["0", "1", "1"]
    assert float(rows[0]["value"]) == 0.1 + 0.2 and float(rows[1]["sigma"]) == 1 / 7
    assert float(rows[1]["value"]) == -math.inf and math.isnan(float(rows[2]["value"]))
    assert rows[1]["block"] == 'a, "b"\nc' and rows[1]["layer"] == "" and rows[2]["extra"] == "True"
    check_description(json.loads(files["provenance.json"].read_text()))


def test_parquet(store: Store, tmp_path: Path) -> None:
    files = export(store, "parquet", tmp_path / "out")
    table = parquet.read_table(files["parquet"])
    assert table.column("value").to_pylist()[:2] == [0.1 + 0.2, -math.inf]
    assert math.isnan(table.column("value").to_pylist()[2])
    assert table.column("layer").to_pylist() == [0, None, None]
    assert table.column("mixed").to_pylist() == ["1", "one", None]
    assert [str(table.schema.field(name).type) for name in ("cell_number", "sigma", "extra")] == [
        "int64",
        "double",
        "bool",
    ]
    check_description(json.loads(table.schema.metadata[b"hessianlens"]))


def test_json(store: Store, tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    files = export(store, "json", tmp_path / "out")
    content = json.loads(files["json"].read_text(), parse_constant=refuse)
    assert [row["value"] for row in content["rows"]] == [0.1 + 0.2, "-Infinity", "NaN"]
    check_description(content)


def test_arrays_go_beside_the_table(store: Store, tmp_path: Path) -> None:
    files = export(store, "csv", tmp_path / "out")
    with np.load(files["npz"]) as archive:
        assert archive.files == ["1/map"]
        assert archive["1/map"].dtype == np.float32
        np.testing.assert_array_equal(archive["1/map"], np.array([[math.nan, 1 / 3]], dtype=np.float32))


def test_refusals(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"format: got 'xlsx', expected one of 'csv', 'parquet', 'json'"):
        export(store, "xlsx", tmp_path / "out")
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"cannot be written.*--out"):
        export(store, "csv", tmp_path / "taken")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'hessianlens\[parquet\]'"):
        export(store, "parquet", tmp_path / "out")

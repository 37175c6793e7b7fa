"""Cells come back bit by bit, only to the code that measured them, and only from a sound file."""

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from hessianlab.results import FinishedCell, Measurement, Row
from hessianlab.store import Store, cell_key, leftovers, open_store, prune
from hessianlab.store.database import VERSION
from hessianlens.errors import InputError
from tests.hessianlab.store.cells import CODE, NEWER, OTHER, PROVENANCE, cell

ARRAYS = {
    "float64": np.array([0.1, math.nan, math.inf, -math.inf, -0.0, 5e-324, np.nextafter(1, 2)]),
    "float32": np.array([[1 / 3, np.nan]], dtype=np.float32),
    "float16": np.array([0.1], dtype=np.float16),
    "int8": np.array([-3], dtype=np.int8),
    "uint64": np.array([2**64 - 1], dtype=np.uint64),
    "complex": np.array([1 + 2j]),
    "truth": np.array([True, False]),
    "text": np.array(["query", "é"]),
    "big-endian": np.arange(3, dtype=">f8"),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "nan payload": np.array([0x7FF8000000000123], dtype=np.uint64).view(np.float64),
    "file": np.ones(2),
    "allow_pickle": np.ones(2),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cells.sqlite"


def put(store: Store, cell: FinishedCell, code=CODE) -> None:
    store.put("toy", cell, code, PROVENANCE)


def test_arrays_come_back_bit_by_bit(path: Path) -> None:
    with open_store(path) as store:
        put(store, FinishedCell({"a": 1}, Measurement((), ARRAYS), 1.0))
    with open_store(path, readonly=True) as store:
        found = store.get("toy", {"a": 1}, CODE)
    assert found is not None and list(found.measurement.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        back = found.measurement.arrays[name]
        assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def test_rows_come_back_bit_by_bit(path: Path) -> None:
    row: Row = {
        "f": 0.1 + 0.2,
        "tiny": 5e-324,
        "minus": -0.0,
        "inf": -math.inf,
        "i": 2**70,
        "b": True,
        "n": None,
        "s": "ü",
    }
    with open_store(path) as store:
        put(store, FinishedCell({"z": 1, "a": 0.1}, Measurement((row, {"nan": math.nan})), 0.25))
        found = store.get("toy", {"a": 0.1, "z": 1}, CODE)
    assert found is not None and found.seconds == 0.25
    assert [repr(r) for r in found.measurement.rows] == [repr(row), "{'nan': nan}"]
    assert list(found.parameters) == ["z", "a"]


@pytest.mark.parametrize(
    "measurement",
    [Measurement(({"v": np.int64(1)},)), Measurement((), {"v": np.array([object()])}), Measurement((), {"v": [1]})],
)
def test_what_would_not_come_back_is_refused(path: Path, measurement: Measurement) -> None:
    with open_store(path) as store, pytest.raises(InputError, match=r"toy: got .*'v'"):
        put(store, FinishedCell({"a": 1}, measurement, 1.0))


def test_keys_tell_everything_apart_that_decides_a_number() -> None:
    keys = [
        cell_key(name, parameters, code)
        for name in ("toy", "other")
        for parameters in ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None})
        for code in (CODE, OTHER, NEWER)
    ]
    assert len(set(keys)) == len(keys)
    with pytest.raises(InputError, match=r"got list for 'a', expected"):
        cell_key("toy", {"a": [1]}, CODE)  # type: ignore[dict-item]


def test_other_code_and_other_versions_find_nothing(path: Path) -> None:
    with open_store(path) as store:
        put(store, cell(1))
        assert store.get("toy", {"number": 1}, CODE) is not None
        assert store.get("toy", {"number": 1}, OTHER) is None
        assert store.get("toy", {"number": 1}, NEWER) is None
        assert store.get("other", {"number": 1}, CODE) is None


def test_cells_of_other_code_are_told_and_pruned(path: Path) -> None:
    with open_store(path) as store:
        for number in range(3):
            put(store, cell(number))
        put(store, cell(0), OTHER)
        put(store, cell(0), NEWER)
        told = [str(leftover) for leftover in leftovers(store, {"toy": OTHER})]
        assert told == [
            f"{count} cells of other code (digest aaaaaaaaaaaa, numpy 2, torch {version}, commit c0ffee) "
            "are in the store and are not used"
            for count, version in ((3, 2), (1, 3))
        ]
        assert leftovers(store, {"unknown": OTHER}) == []
        assert prune(store, {"toy": OTHER}) == 4
        assert leftovers(store, {"toy": OTHER}) == []
        assert store.get("toy", {"number": 0}, OTHER) is not None
        assert store.query("SELECT count(*) FROM codes") == [(1,)]


def test_a_cell_is_in_the_file_as_soon_as_put_returns(path: Path) -> None:
    with open_store(path) as writer:
        put(writer, cell(1))
        with open_store(path, readonly=True) as reader:
            assert reader.get("toy", {"number": 1}, CODE) is not None


def test_a_closed_store_is_one_plain_file(path: Path) -> None:
    with open_store(path) as store:
        put(store, cell(1))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert path.read_bytes()[18:20] == b"\x01\x01"  # SQLite's header: read and written without a log beside it


def test_the_same_cell_twice_is_one_cell(path: Path) -> None:
    with open_store(path) as store:
        put(store, cell(1))
        put(store, cell(1))
        assert store.query("SELECT count(*) FROM cells") == [(1,)]


def test_a_changed_byte_is_noticed(path: Path) -> None:
    with open_store(path) as store:
        put(store, cell(1))
        (rows,) = store.query("SELECT rows FROM cells")[0]
        changed = json.dumps([{**row, "value": 7.0} for row in json.loads(rows)])
        store.query("UPDATE cells SET rows = ?", (changed,))
        with pytest.raises(InputError, match=r"a cell of 'toy' in .* is not as it was written"):
            store.get("toy", {"number": 1}, CODE)


def test_a_torn_file_is_refused(path: Path) -> None:
    with open_store(path) as store:
        for number in range(40):
            put(store, cell(number))
    content = bytearray(path.read_bytes())
    content[4096 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4096)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"(malformed|not as it was written).*damaged"), open_store(path) as store:
        for number in range(40):
            store.get("toy", {"number": number}, CODE)


def test_what_is_not_a_store_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("name,value\n" * 200)
    with pytest.raises(InputError, match=r"not a database.*name another file"):
        open_store(path)
    path.unlink()
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE mine (a)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"another program"):
        open_store(path)
    assert path.read_bytes() == before


def test_another_schema_version_is_refused(path: Path) -> None:
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(InputError, match=rf"schema version {VERSION + 1}, expected {VERSION}"):
        open_store(path)


def test_places_that_cannot_hold_a_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got the directory"):
        open_store(tmp_path)
    with pytest.raises(InputError, match=r"no directory .*missing; make it first"):
        open_store(tmp_path / "missing" / "cells.sqlite")
    with pytest.raises(InputError, match=r"does not exist; run `hessianlens reproduce`"):
        open_store(tmp_path / "cells.sqlite", readonly=True)


def test_a_store_opened_for_reading_refuses_to_write(path: Path) -> None:
    open_store(path).close()
    with open_store(path, readonly=True) as store, pytest.raises(InputError, match=r"readonly.*may write"):
        put(store, cell(1))


def test_a_locked_store_says_so(path: Path) -> None:
    refused = pytest.raises(InputError, match=r"locked.*another process is writing")
    with open_store(path) as first, open_store(path, wait=0.05) as second, first.transaction(), refused:
        put(second, cell(1))


def test_a_failed_transaction_leaves_nothing(path: Path) -> None:
    with open_store(path) as store:
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.code_id(CODE)
            _ = 1 / 0
        assert store.query("SELECT count(*) FROM codes") == [(0,)]
        put(store, cell(1))

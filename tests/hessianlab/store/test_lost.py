"""A store that is deleted or replaced during a run ends it, and what it held is saved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hessianlab.runner import Plan, Progress, run
from hessianlab.store import StoreLost, open_store
from hessianlens.errors import InputError
from tests.hessianlab.runner.test_run import fingerprint
from tests.hessianlab.runner.toys import SPECTRUM, ToyConfig

CONFIG = ToyConfig(sizes=(20,), repeats=6)


def delete(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    open_store(other).close()
    os.replace(other, path)


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def overwrite(path: Path) -> None:
    """In place: the same file, with other contents."""
    other = path.with_name("other")
    open_store(other).close()
    path.write_bytes(other.read_bytes())


LOSSES: list[Callable[[Path], None]] = [delete, replace, move]


def lose_after(count: int, lose: Callable[[Path], None], path: Path) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.tallies[0].new == count:
            lose(path)

    return on_progress


@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("count", [2, 6])
def test_what_was_measured_is_saved_and_the_run_can_go_on(
    lose: Callable[[Path], None], count: int, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "cells.sqlite"
    refused = pytest.raises(
        StoreLost, match=r"was deleted or replaced during the run; the \d cells it held are kept in"
    )
    with open_store(path) as store, refused:
        run([Plan(SPECTRUM, CONFIG)], store, on_progress=lose_after(count, lose, path))
    saved = folder / "cells.rescued.sqlite"
    assert len(list(folder.glob("cells.rescued*"))) == 1
    with open_store(saved) as store:
        ((kept,),) = store.query("SELECT count(*) FROM cells")
        assert kept == count
        (result,) = run([Plan(SPECTRUM, CONFIG)], store)
    assert fingerprint(result) == fingerprint(SPECTRUM.run(CONFIG))


@pytest.mark.parametrize("count", [2, 6])
def test_a_file_that_is_overwritten_is_noticed_or_mended(count: int, tmp_path: Path) -> None:
    """SQLite may have all of it in its log still, and then writes it anew."""
    path = tmp_path / "cells.sqlite"
    try:
        with open_store(path) as store:
            run([Plan(SPECTRUM, CONFIG)], store, on_progress=lose_after(count, overwrite, path))
    except InputError as error:
        assert "cells" in str(error)
    else:
        with open_store(path, readonly=True) as store:
            assert store.query("SELECT count(*) FROM cells") == [(6,)]


def test_a_folder_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with open_store(folder / "cells.sqlite") as store, pytest.raises(StoreLost, match=r"2 cells .*elsewhere/cells"):
        run([Plan(SPECTRUM, CONFIG)], store, on_progress=lose_after(2, lambda _: shutil.rmtree(folder), folder))
    with open_store(elsewhere / "cells.rescued.sqlite", readonly=True) as store:
        assert store.query("SELECT count(*) FROM cells") == [(2,)]

"""Pages are written whole or not at all, and results say where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hessianlens as hl
from hessianlab import results as results
from hessianlab.pages import FILE_NAME, write_page
from hessianlab.results import collect
from hessianlens.errors import InputError
from hessianlens.files import check_directory


def test_page_is_written_whole_with_its_directory(tmp_path: Path) -> None:
    target = write_page(tmp_path / "new" / "place", "<p>é</p>")
    assert target.name == FILE_NAME and target.read_text(encoding="utf-8") == "<p>é</p>"
    assert [path.name for path in target.parent.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("moment", ["pathlib.Path.write_bytes", "hessianlens.files.os.replace"])
def test_interrupted_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    write_page(tmp_path, "before")

    def interrupted(place: Any, *arguments: Any) -> None:
        if moment.endswith("write_bytes"):
            place.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_page(tmp_path, "after")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).read_text() == "before"


def test_unwritable_places_are_named_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(InputError, match="is a file; give a directory"):
            check_directory(place)
        with pytest.raises(InputError, match="out: cannot write"):
            write_page(place, "")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="no permission"):
        check_directory(tmp_path / "new")


def test_provenance_names_no_foreign_commit(tmp_path: Path) -> None:
    assert results._commit(tmp_path) is None
    provenance = collect()
    assert provenance.version == hl.__version__
    assert provenance.libraries["torch"].startswith(torch.__version__.split("+")[0])

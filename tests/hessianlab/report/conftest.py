"""The page that several tests look at, built once."""

from pathlib import Path

import pytest

from hessianlab.claims.catalogue import find
from hessianlab.claims.ledger import run
from hessianlab.report import render_labbook
from tests.hessianlab.figures.small import SMALL
from tests.hessianlab.report.results import CLAIMS, NAMES, result


@pytest.fixture(scope="session")
def report() -> str:
    """A page with a few small figures, those with frames too, and some claims."""
    framed = [name for name in ("temperature_path",) if name in SMALL]
    return render_labbook([result(name) for name in (*NAMES, *framed)], run(find(CLAIMS)))


@pytest.fixture(scope="session")
def report_file(report: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same page as a file."""
    file = tmp_path_factory.mktemp("report") / "index.html"
    file.write_text(report, encoding="utf-8")
    return file

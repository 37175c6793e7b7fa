"""The report: results in, two self-contained pages out, the story and the lab book. It reads results only."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlab.claims.ledger import Ledger
from hessianlab.growth.reference import Reference
from hessianlab.pages import FILE_NAME, LABBOOK
from hessianlab.report.contents import contents_of
from hessianlab.report.labbook import render_labbook
from hessianlab.report.story import render_story
from hessianlab.results import Result

__all__ = ["render_labbook", "render_pages", "render_story"]


def render_pages(
    results: Sequence[Result],
    ledger: Ledger | None = None,
    reference: Reference | None = None,
    command: str = "hessianlens report",
) -> dict[str, str]:
    """Both pages by their file names; arguments as for `render_labbook`."""
    contents = contents_of(results, ledger)
    labbook = render_labbook(results, ledger, reference, command, contents)
    return {FILE_NAME: render_story(contents, labbook, command), LABBOOK: labbook}

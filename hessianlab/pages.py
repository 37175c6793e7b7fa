"""Pages: fill a template into one self-contained page in the common style, and write it whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessianlab.wording import number, percent
from hessianlens.errors import InputError, needs_extra
from hessianlens.files import write_whole

with needs_extra("lab", "a page"):
    from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

FILE_NAME = "index.html"


def write_page(directory: Path, html: str) -> Path:
    """Write the page whole or not at all: under another name first, then renamed.

    Args:
        directory: Made if it does not exist.
        html: The page.

    Returns:
        The file written.

    Raises:
        InputError: If the directory or the file cannot be written.
    """
    target = directory / FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(target, html)
    except OSError as error:
        raise InputError(f"out: cannot write {target}: {error.strerror or error}; give another directory.") from error
    return target


def render_template(template: Path, **values: Any) -> str:
    """The page; the template may include the common ``page.css.jinja`` and use the filters number, percent and typeset.

    A name that the template uses and `values` does not give is an error, and every text is escaped unless it is
    `markupsafe.Markup`.
    """
    from hessianlab.typesetting import typeset
    from hessianlens.display import page_style

    environment = Environment(
        loader=ChoiceLoader([DictLoader({"page.css.jinja": page_style()}), FileSystemLoader(template.parent)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "typeset": typeset}
    return environment.get_template(template.name).render(**values)

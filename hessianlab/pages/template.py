"""Fill a template into one self-contained page in the common style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessianlab.wording import number, percent
from hessianlens.errors import needs_extra
from hessianlens.showing.document import page_style


def render_template(template: Path, **values: Any) -> str:
    """The page; the template may include the common ``page.css.jinja`` and use the filters number, percent and typeset.

    A name that the template uses and `values` does not give is an error, and every text is escaped unless it is
    `markupsafe.Markup`.
    """
    with needs_extra("lab", "a page"):
        from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader, StrictUndefined

        from hessianlab.pages.typesetting import typeset
    environment = Environment(
        loader=ChoiceLoader([DictLoader({"page.css.jinja": page_style()}), FileSystemLoader(template.parent)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "typeset": typeset}
    return environment.get_template(template.name).render(**values)

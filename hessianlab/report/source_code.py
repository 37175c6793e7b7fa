"""Links to lines of code: at the project's public address if it has one, else in the checkout beside the page."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

BESIDE = ".."
"""From the folder that `make report` writes into, the checkout."""


def code_address(location: str) -> str:
    """Where ``file:line`` can be read.

    >>> code_address("hessianlab/claims/check.py:12").endswith("/hessianlab/claims/check.py#L12")
    True
    """
    path, _, line = location.partition(":")
    return f"{_root()}/{path}" + (f"#L{line}" if line else "")


@cache
def _root() -> str:
    try:
        named = metadata("hessianlens").get_all("Project-URL") or []
    except PackageNotFoundError:
        named = []
    addresses = dict(entry.split(", ", 1) for entry in named if ", " in entry)
    return f"{addresses['Source'].rstrip('/')}/blob/main" if "Source" in addresses else BESIDE

"""The tests; `shapes` is named in pyproject.toml, which asks for it before any other module is imported."""

from tests import shapes as shapes

"""Before hessianlens is imported."""

from tests.shapes import install

install("hessianlens")

pytest_plugins = ["tests.browser"]

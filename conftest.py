"""Before hessianlens is imported."""

from tests.shapes import install

install("hessianlens")

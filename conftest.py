"""Before hessianlens and hessianlab are imported."""

from tests.shapes import install

install("hessianlens")
install("hessianlab")

pytest_plugins = ["tests.browser", "tests.tiers"]

collect_ignore = ["docs/conf.py"]

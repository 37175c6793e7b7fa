"""Pictures of results: every function takes numbers and returns a matplotlib figure or SVG; nothing here measures."""

from hessianlens.errors import needs_extra

with needs_extra("", "a picture"):
    import matplotlib  # noqa: F401

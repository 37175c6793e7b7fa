"""The names of this package and the files they come from."""

from .template import render_template
from .writing import check_directory, write_page

__all__ = ["check_directory", "render_template", "write_page"]

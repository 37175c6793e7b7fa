"""What every HTML page shares: the style sheet, the wording of numbers, and writing a file whole or not at all."""

from hessianlens.lab.pages.template import render_template
from hessianlens.lab.pages.writing import check_directory, write_page

__all__ = ["check_directory", "render_template", "write_page"]

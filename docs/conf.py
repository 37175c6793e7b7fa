"""How Sphinx builds the site: `make docs`. Nothing is fetched while it is built, and nothing when it is read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

from docutils import nodes  # noqa: E402
from generate import write_pages  # noqa: E402
from sphinx_gallery.sorting import ExplicitOrder  # noqa: E402
from sphinxcontrib import katex  # noqa: E402

import hessianlens  # noqa: E402

write_pages(DOCS)

project = "hessianlens"
author = "the hessianlens developers"
copyright = author
version = release = hessianlens.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.katex",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "generate"]
nitpicky = False
default_role = "code"

# --- Markdown
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

# --- Formulas: rendered while the site is built where Node.js is at hand, otherwise by the page, from the same files
katex_css_path = "katex/katex.min.css"
katex_prerender = shutil.which("node") is not None
# By its port, not its socket file: the file is there before the server listens, and a refused connection there ends the
# build and leaves the server behind. On a busy machine it also needs more than its five seconds.
katex.KaTeXServer.start_server_process = katex.KaTeXServer.start_network_socket
katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 60.0

# --- Docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False


def without_trailing_lines(app: object, document: nodes.document) -> None:
    """Code blocks end with their last line: the blank line before a closing fence is for doctest alone."""
    for block in document.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()  # Sphinx highlights a block only where both are the same
        block.children = [nodes.Text(block.rawsource)]


def setup(app) -> None:
    """What Sphinx calls."""
    app.connect("doctree-read", without_trailing_lines)


# --- Gallery
ORDER = """tour softmax_sigmoid own_module exact_estimated gpt2_heads llama spectrum block_pairs kronecker_fit
own_attention own_activation layer_norm one_matrix_or_two training edge_of_stability update attention_health
before_after long_context trained_model claim cluster"""
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "doc_module": ("hessianlens",),
    "filename_pattern": r"/plot_\w+\.py",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 60,
    "abort_on_example_error": True,
    "within_subsection_order": ExplicitOrder([f"plot_{name}.py" for name in ORDER.split()] + ["*"]),
    "matplotlib_animations": False,
}

# --- Appearance
html_theme = "furo"
html_title = f"hessianlens {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "search_scorer.js")
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/hessianlens/hessianlens/",
    "source_branch": "main",
    "source_directory": "docs/",
}

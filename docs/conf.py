"""How Sphinx builds the site. `scripts/build_site.py` puts its pages together and calls it; `make site` calls that."""

import re
from typing import cast

from sphinx.application import Sphinx

import hitherto

project = "hitherto"
author = "the maintainers of hitherto"
version = release = hitherto.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"hitherto {release}"
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 4  # the pages link to headings as GitHub names them
myst_links_external_new_tab = False

# Fences without a word behind them are commands and what they print.
highlight_language = "none"
suppress_warnings = [
    "misc.highlighting_failure",  # JSON and Python with an ellipsis in it
    "ref.python",  # the builtin `type` in an annotation, and fields of that name
]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": True}
python_use_unqualified_type_names = True


def _to_rst(*event: object) -> None:
    """Docstrings write code as Markdown does: `so`, and in lines that are indented below an empty one."""
    lines = cast("list[str]", event[-1])
    rst: list[str] = []
    for line in lines:
        if line.startswith("    ") and rst and not rst[-1] and not _indented(rst):
            rst += ["::", ""]
        rst.append(line if line.startswith("    ") else re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line))
    lines[:] = rst


def _indented(lines: list[str]) -> bool:
    """Whether the last line that says something is indented."""
    return next((line for line in reversed(lines) if line), "").startswith("    ")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _to_rst)

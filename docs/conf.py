"""Settings of the site: `make docs` builds it. Nothing is fetched, neither by the build nor by a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from descend.machine import __version__  # noqa: E402
from tools import site_extension  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "descend"
author = "The descend authors"
copyright = author  # noqa: A001  # Sphinx's name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"descend {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it fetches pages, which a browser refuses to files
exclude_patterns = ["drawings"]
smartquotes_action = "D"  # dashes alone; quotation marks stay as they are

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "fieldlist"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
suppress_warnings = [
    "ref.python",  # a type in a signature whose short name several objects have, such as Adam
    "myst.xref_ambiguous",
]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    return site_extension.setup(app, DOCS)

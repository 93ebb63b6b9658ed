"""How Sphinx makes the site: `make docs`.

The source folder is the whole checkout, of which the pages below are taken, so that a link between
two of them is the same on the site, on GitHub and in an editor.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from nbdist import __version__  # noqa: E402 (found by the line above)

project = "nbdist"
author = copyright = "The nbdist developers"  # noqa: A001 (Sphinx calls it so)
version = release = __version__

extensions = [
    "made_from_code",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
root_doc = "docs/index"
FOLDERS = ("benchmarks", "docs", "notebooks")
include_patterns = ["docs/**", "benchmarks/*.md", "notebooks/*.ipynb", "*.md"]
exclude_patterns = [
    *(p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in FOLDERS),
    "**/.ipynb_checkpoints",
]

# The tests run the notebooks, and the quickstart's stored outputs are compared with its code there.
nb_execution_mode = "off"
myst_enable_extensions = ["attrs_block", "deflist"]
myst_heading_anchors = 4
suppress_warnings = [
    "misc.highlighting_failure",  # a line that begins with ! is no Python
    "mystnb.unknown_mime_type",  # for JupyterLab; the picture beside it is shown
]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# What is documented of modules that build on these needs only their names.
autodoc_mock_imports = [
    "accelerate",
    "keras",
    "lightning",
    "tensorflow",
    "torch",
    "torchao",
    "transformers",
]
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = "nbdist"
html_extra_path = ["site"]
html_theme_options = {
    "github_url": "https://github.com/nbdist/nbdist",
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
}
html_show_sourcelink = False
html_copy_source = False

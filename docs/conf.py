"""Sphinx: make docs builds the site in docs/_build.

From these pages, the public names, and the help and schemas in the code (`reference.py`).
"""

import sys
from pathlib import Path

from litbench import __version__

sys.path.insert(0, str(Path(__file__).parent))
import reference

reference.write(Path(__file__).parent / "reference")

project = "LitBench"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"LitBench {release}"
exclude_patterns = ["_build"]
# Anchors of headings as on GitHub, so that links work in both places.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
# Files of the repository outside docs/ are shown on the repository's pages only.
suppress_warnings = ["myst.xref_missing"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"

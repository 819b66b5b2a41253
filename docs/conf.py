"""Settings of the site, for Sphinx. ``python3 run.py docs`` builds the site."""

from __future__ import annotations

import sys
from pathlib import Path

from ddp_rnic import __version__

sys.path.insert(0, str(Path(__file__).with_name("_ext")))

project = "ddp-rnic"
author = "ddp-rnic contributors"
copyright = "ddp-rnic contributors, BSD-2-Clause"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "drawings",
    "tables",
    "rooms",
    "generated",
]
exclude_patterns = ["_build", "_ext"]
# Only what the project's own pages name is looked up; other projects' pages are not fetched.
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
smartquotes = False
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Members", "params_style")]
# Type hints name classes by their last part, which several modules may share.
suppress_warnings = ["ref.python"]
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries = False

html_theme = "furo"
html_title = "ddp-rnic"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["sentences.js"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

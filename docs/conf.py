"""Settings of the docs site: `make docs` writes it to build/docs.

The source folder is the root of the repository, so that a link such as `../results/ml-1m.md` leads to the same page on
the site, on a code host and in an editor.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from recbole_lisa import __version__  # noqa: E402 - needs the path above

project = "recbole-lisa"
author = "the recbole-lisa maintainers"
release = version = __version__

root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**.md", "CHANGELOG.md"]
exclude_patterns = ["build", "saved", "dataset", "log", "log_tensorboard", "tests", "recbole_lisa", ".*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]

# Links to headings (`page.md#heading`) are checked down to the third level.
myst_heading_anchors = 3

# A name between single backticks is code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"recbole-lisa {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

"""How the documentation is built: MyST pages, and the API from its docstrings."""

import loanasync

project = "loanasync"
author = "The loanasync authors"
release = loanasync.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css", "notebooks.css"]
html_title = f"loanasync {release}"
default_role = "code"
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Notebooks are run with each build, and one that fails fails it. Their pages ask nobody else for scripts.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

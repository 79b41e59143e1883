"""Sphinx configuration: MyST pages, and the API reference from docstrings."""

import re
from typing import Any

from sphinx.application import Sphinx

import loanasync

project = "loanasync"
author = "The loanasync authors"
release = loanasync.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "tasklist"]
myst_enable_checkboxes = True
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css", "notebooks.css"]
html_favicon = "_static/mark.svg"
html_logo = "_static/mark.svg"
html_title = f"loanasync {release}"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
default_role = "code"
highlight_language = "none"
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Each build runs the notebooks, and fails if one fails. Their pages load no scripts from other hosts.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

# References to names of other packages cannot be resolved: their inventories are on the network. The listed
# names of loanasync are type aliases or internal classes without an entry in the API reference.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!loanasync\b)[a-z_]+\..*|AnyValue|AsyncBroker|AsyncTaskiqDecoratedTask|ReadableSpan"),
    (r"py:.*", r"Decision|JSON|Progress|RowLike|Trust"),
    (r"py:.*", r"loanasync\.(\w+\.)*(Approve|Computed|NoResponse|PostgresConnection|PostgresPool|Response)"),
]


# A paragraph of the specification, such as "spec §2.1"; not one of an RFC.
CITATION = re.compile(r"(?<!RFC \d{4} )((?:[Ss]pec )?§(\d)(?:\.(\d))?)(?![.\d]*\d)")


def link_citations(*event: object) -> None:
    """Link each citation in a docstring to its paragraph in docs/reference/service.md."""
    lines: Any = event[-1]
    lines[:] = [CITATION.sub(_link, line) for line in lines]


def _link(found: re.Match[str]) -> str:
    text, *numbers = found.groups()
    return f":ref:`{text} <spec-{'-'.join(filter(None, numbers))}>`"


def setup(app: Sphinx) -> None:
    """Connect the handlers of this file."""
    app.connect("autodoc-process-docstring", link_citations)

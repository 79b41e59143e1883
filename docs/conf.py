"""Sphinx configuration: MyST pages, and the API reference from docstrings."""

import re
from pathlib import Path
from types import MemberDescriptorType

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

import loanasync

loanasync.LoanClient  # noqa: B018  (loads all names, whose types then have their public module)

project = "loanasync"
author = "The loanasync authors"
version = release = loanasync.__version__
# The address of the repository, for links from a page to its source and to an editor, such as
# "https://example.com/shop/loanasync". Empty: pages have no such links.
repository = ""
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
html_theme_options = (
    {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}
    if repository
    else {}
)
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
default_role = "code"
highlight_language = "none"
myst_heading_anchors = 3
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = False  # the source of an attrs class has no defaults
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
    (r"py:.*", r"(?!loanasync\b)[a-z_]+\..*"),
    (r"py:.*", r"AnyValue|AsyncBroker|AsyncTaskiqDecoratedTask|DataFrame"),
    (r"py:.*", r"MeterProvider|ReadableSpan|TracerProvider"),
    (r"py:.*", r"AuthToken|Decision|JSON|Progress|Propagate|RowLike|Trust"),
    (r"py:.*", r"loanasync\.(\w+\.)*(Computed|NoResponse|Response)"),
    (
        r"py:.*",
        r"(loanasync\.(\w+\.)*)?(BulkOptions|ClientOptions|Header|HeaderChangedError|Headings|Records|Store|Turns)",
    ),
]


# A paragraph of the specification, such as "spec §2.1"; not one of an RFC.
CITATION = re.compile(r"(?<!RFC \d{4} )((?:[Ss]pec )?§\d(?:\.\d)?)(?![.\d]*\d)")


class CitationLinks(SphinxTransform):
    """Link each citation in pages and docstrings to its paragraph in docs/reference/service.md."""

    default_priority = 500
    excluded = (nodes.FixedTextElement, nodes.literal, nodes.raw, nodes.reference, nodes.title, pending_xref)

    def apply(self, **_: object) -> None:
        """Replace the texts that contain a citation."""
        if self.env.docname == "reference/service":
            return
        for text in list(self.document.findall(nodes.Text)):
            if "§" in text and not self._is_excluded(text):
                parts = CITATION.split(text)
                text.parent.replace(text, [self._part(part) for part in parts if part])

    def _is_excluded(self, node: nodes.Node) -> bool:
        while node.parent is not None:
            node = node.parent
            if isinstance(node, self.excluded):
                return True
        return False

    def _part(self, part: str) -> nodes.Node:
        if not CITATION.fullmatch(part):
            return nodes.Text(part)
        target = "spec-" + part.rpartition("§")[2].replace(".", "-")
        kind = {"refdomain": "std", "reftype": "ref", "refexplicit": True, "refwarn": True}
        return pending_xref("", nodes.inline("", part), refdoc=self.env.docname, reftarget=target, **kind)


# Sphinx does not search for numbers: it removes them from a query.
NUMBERS = re.compile(r"\s*\|\|\s*queryTerm\.match\(/\^\\d\+\$/\)")


def search_numbers(app: Sphinx, error: Exception | None) -> None:
    """Make the site's search find numbers, such as the status 403."""
    script = Path(app.outdir) / "_static" / "searchtools.js"
    if error is None:
        changed, places = NUMBERS.subn("", script.read_text(encoding="utf-8"))
        if places != 1:
            raise ExtensionError("searchtools.js has changed: adapt NUMBERS in docs/conf.py")
        script.write_text(changed, encoding="utf-8")


def skip_member(_: Sphinx, __: str, ___: str, member: object, *____: object) -> bool | None:
    """Skip the attributes of attrs classes: the section "Args" of the class describes them."""
    return True if isinstance(member, MemberDescriptorType) else None


def setup(app: Sphinx) -> None:
    """Register the functions of this file."""
    app.add_transform(CitationLinks)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("build-finished", search_numbers)

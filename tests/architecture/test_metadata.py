"""Metadata of the package, as a package index shows it."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)[^)]*\)")


def relative_links(text: str) -> set[str]:
    return {target for target in LINK.findall(text) if not target.startswith("https://")}


def test_description_has_no_relative_link() -> None:
    description = metadata("loanasync").get_payload()  # type: ignore[attr-defined]  # it is an email.message.Message
    assert isinstance(description, str)
    assert "loanasync" in description
    assert relative_links(description) == set()


def test_description_names_the_path_of_each_linked_page() -> None:
    """The test reads the README: the description of an editable installation may be older."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["metadata"][
        "hooks"
    ]
    [substitution] = settings["fancy-pypi-readme"]["substitutions"]
    readme = (ROOT / "README.md").read_text("utf-8")
    description = re.sub(substitution["pattern"], substitution["replacement"], readme)
    assert relative_links(readme)
    assert relative_links(description) == set()
    assert {path for path in relative_links(readme) if f"(`{path}`)" not in description} == set()


def test_project_has_no_urls() -> None:
    """The project has no known address, so any address would be wrong."""
    assert metadata("loanasync").get_all("Project-URL") is None
    assert metadata("loanasync").get_all("Home-page") is None

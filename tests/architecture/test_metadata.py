"""Metadata of the installed package, as a package index shows it."""

import re
from importlib.metadata import metadata
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)[^)]*\)")


def description() -> str:
    found = metadata("loanasync").get_payload()  # type: ignore[attr-defined]  # it is an email.message.Message
    assert isinstance(found, str)
    return found


def test_description_has_no_relative_link() -> None:
    assert "loanasync" in description()
    assert [target for target in LINK.findall(description()) if not target.startswith("https://")] == []


def test_description_names_the_path_of_each_linked_page() -> None:
    paths = {
        target for target in LINK.findall(README.read_text("utf-8")) if not target.startswith("https://")
    }
    assert paths
    assert {path for path in paths if f"(`{path}`)" not in description()} == set()


def test_project_has_no_urls() -> None:
    """Nothing is known to be published; a made-up address would lead somewhere else."""
    assert metadata("loanasync").get_all("Project-URL") is None
    assert metadata("loanasync").get_all("Home-page") is None

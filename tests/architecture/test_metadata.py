"""Metadata of the package, as a package index shows it."""

import ast
import re
import tomllib
from importlib.metadata import metadata, packages_distributions, requires
from pathlib import Path

from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def with_dependencies(*requirements: str) -> set[str]:
    """Return the names of these packages, and of all that they install."""
    found: set[tuple[str, str]] = set()
    pending = [Requirement(each) for each in requirements]
    while pending:
        each = pending.pop()
        for extra in {"", *each.extras}:
            if (each.name, extra) not in found:
                found.add((each.name, extra))
                needed = map(Requirement, requires(each.name) or ())
                pending += [
                    one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})
                ]
    return {canonicalize_name(name) for name, _ in found}


def test_unit_tests_import_only_packages_that_their_session_installs() -> None:
    """The gate does not run `nox -s unit`: in its environments, the tests find the packages of all groups."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = ",".join(metadata("loanasync").get_all("Provides-Extra") or ())
    group = resolve_dependency_groups(project["dependency-groups"], "unit")
    installed = with_dependencies(f"loanasync[{extras}]", *group)
    of_module = packages_distributions()
    for file in (ROOT / "tests" / "unit").rglob("*.py"):
        nodes = [*ast.walk(ast.parse(file.read_text("utf-8")))]
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        packages = {name.partition(".")[0] for name in names} & of_module.keys()
        assert [
            each for each in packages if not {*map(canonicalize_name, of_module[each])} & installed
        ] == [], file

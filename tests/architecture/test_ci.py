"""The files for CI services, CONTRIBUTING.md and the settings of mutants name what exists."""

import re
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from mutation.mutants import explained, is_in_code

ROOT = Path(__file__).parents[2]
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def pyproject() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pythons() -> list[str]:
    [found] = re.findall(r"^PYTHONS = \[(.+)\]", NOXFILE, re.MULTILINE)
    return re.findall(r'"(.+?)"', found)


def sessions() -> set[str]:
    """Return the names of all sessions; a session with several Pythons has a name for each."""
    found = re.findall(r"^@nox\.session(.*)\ndef (\w+)\(", NOXFILE, re.MULTILINE)
    assert len(found) == NOXFILE.count("@nox.session")
    one = {name for options, name in found if "PYTHONS" not in options}
    several = {f"{name}-{python}" for options, name in found if "PYTHONS" in options for python in pythons()}
    return one | several


def sessions_of_workflow(workflow: Any) -> set[str]:
    """Return the sessions that the jobs run, with each value of their matrix."""
    found: set[str] = set()
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        commands = [step["run"] for step in job["steps"] if step.get("run", "").startswith("nox ")]
        assert commands
        for name in (each.partition("-s ")[2] for each in commands):
            [placeholder] = re.findall(r"\$\{\{ matrix\.(\w+) \}\}", name) or [None]
            added = [each[placeholder] for each in matrix.get("include", []) if placeholder]
            values = matrix[placeholder] + added if placeholder else [""]
            found |= {re.sub(r"\$\{\{.*\}\}", value, name) for value in values}
    return found


def sessions_of_gate() -> set[str]:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "grep -E '^python3 -m venv .* -s tests$' README.md" in gate
    assert re.search(r"^python3 -m venv .* -s tests$", readme, re.MULTILINE)
    lines = re.findall(r"^ +\.nox/gate/bin/nox .*-s ([a-z ]+)", gate, re.MULTILINE)
    [needed] = re.findall(r"^for python in (.+); do$", gate, re.MULTILINE)
    tests = {each.replace("python", "tests-") for each in needed.split()}
    return tests | {name for line in lines for name in line.split()}


def sessions_of_nightly() -> set[str]:
    """Return the sessions of `nox -s nightly`."""
    [listed] = re.findall(r"^NIGHTLY = \[\n(.+?)^\]", NOXFILE, re.MULTILINE | re.DOTALL)
    assert '(f"full-{python}" for python in PYTHONS)' in listed
    return {f"full-{python}" for python in pythons()} | set(re.findall(r'"([a-z]+)"', listed))


def test_workflow_runs_the_sessions_of_the_gate() -> None:
    found = sessions_of_workflow(read(".github/workflows/ci.yml"))
    assert found == sessions_of_gate()
    assert found <= sessions()


def test_nightly_workflow_runs_the_scheduled_sessions() -> None:
    found = sessions_of_workflow(read(".github/workflows/nightly.yml"))
    assert found == sessions_of_nightly()
    assert found <= sessions()


@pytest.mark.parametrize("name", ["ci", "nightly"])
def test_workflow_uses_official_actions_by_version(name: str) -> None:
    jobs = read(f".github/workflows/{name}.yml")["jobs"].values()
    actions = {step["uses"] for job in jobs for step in job["steps"] if "uses" in step}
    assert {action.split("@")[0] for action in actions} == {"actions/checkout", "actions/setup-python"}
    assert all(re.fullmatch(r"[\w/-]+@v\d+", action) for action in actions)


def test_hooks_of_pre_commit_are_local() -> None:
    [repository] = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}


def test_read_the_docs_installs_what_the_docs_session_installs() -> None:
    config = read(".readthedocs.yaml")
    assert (ROOT / config["sphinx"]["configuration"]).is_file()
    command = config["build"]["jobs"]["install"][-1]
    [extras] = re.findall(r"'(\.\[.+\])'", command)
    assert f'install(session, "docs", "{extras}")' in NOXFILE
    assert command.endswith("--group docs")
    assert "docs" in pyproject()["dependency-groups"]


def test_contributing_lists_every_nox_session() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", text.partition("### Nox sessions")[2], re.MULTILINE)
    cells = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    names = {name.partition("-")[0] for name in sessions()}
    assert {name for name in cells if name in names} == names


def test_noxfile_names_the_needed_python_if_it_runs_with_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    monkeypatch.setitem(sys.modules, "nox", MagicMock())
    with pytest.raises(SystemExit, match=r"loanasync needs Python 3\.11 or later"):
        runpy.run_path(str(ROOT / "noxfile.py"))


def test_mutation_settings_name_existing_modules_and_tests() -> None:
    """`nox -s mutants` runs at night."""
    settings = pyproject()["tool"]["mutmut"]
    assert [pattern for pattern in settings["only_mutate"] if not [*ROOT.glob(pattern)]] == []
    options = (each.partition("=")[2] for each in settings["pytest_add_cli_args"] if "--deselect" in each)
    for each in (*settings["pytest_add_cli_args_test_selection"], *options):
        file, _, test = each.partition("::")
        assert (ROOT / file).exists(), each
        if test:
            assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), each


def test_explained_changes_are_in_the_code() -> None:
    assert [str(change) for change in explained() if not is_in_code(change)] == []

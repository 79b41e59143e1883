"""The settings of `nox -s mutants`, which runs at night, name files, tests and code that exist."""

import tomllib

from architecture.test_ci import ROOT
from mutation.mutants import explained, is_in_code

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]


def test_mutation_settings_name_existing_modules_and_tests() -> None:
    assert [pattern for pattern in SETTINGS["only_mutate"] if not [*ROOT.glob(pattern)]] == []
    options = (each.partition("=")[2] for each in SETTINGS["pytest_add_cli_args"] if "--deselect" in each)
    for each in (*SETTINGS["pytest_add_cli_args_test_selection"], *options):
        file, _, test = each.partition("::")
        assert (ROOT / file).exists(), each
        if test:
            assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), each


def test_explained_changes_are_in_the_code() -> None:
    assert [str(change) for change in explained() if not is_in_code(change)] == []

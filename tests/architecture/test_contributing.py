"""CONTRIBUTING.md lists the nox sessions, which need a recent Python."""

import re
import runpy
import sys
from unittest.mock import MagicMock

import pytest

from architecture.test_ci import ROOT, sessions

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_contributing_lists_every_nox_session() -> None:
    rows = re.findall(r"^\| (`.+?) \|", TEXT.partition("### Nox sessions")[2], re.MULTILINE)
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

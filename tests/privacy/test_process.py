"""Tests of a separate process: it writes no files, and its output at exit has no personal data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.privacy.scanner import Captured, leaks

TESTS = Path(__file__).parent.parent


def run(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    # -B: the interpreter would write bytecode.
    command = [sys.executable, "-B", *python, str(TESTS / "support" / "privacy" / "process.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def test_exported_journal_is_the_only_file_written(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    assert json.loads(run("disk", str(file)).stdout) == [str(file)]
    written = Captured(journal=[file.read_text(encoding="utf-8")])
    assert leaks(written) == []


@pytest.mark.parametrize("development", [True, pytest.param(False, marks=pytest.mark.scheduled)])
def test_warnings_of_unclosed_clients_have_no_personal_data(*, development: bool) -> None:
    result = run("unclosed", python=("-X", "dev") if development else ("-W", "always"))
    for expected in (
        "unclosed LoanClient, created here",
        "Task was destroyed",
        "failed: approve failed with status",
    ):
        assert expected in result.stderr
    assert leaks(Captured(output=[result.stdout, result.stderr])) == []

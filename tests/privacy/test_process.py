"""A process writes nothing to disk that nobody asked for, and its last words name nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.privacy.scanner import Seen, leaks

TESTS = Path(__file__).parent.parent


def run(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    # -B: the interpreter itself would write its bytecode.
    command = [sys.executable, "-B", *python, str(TESTS / "support" / "privacy" / "process.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def test_good_and_bad_calls_write_nothing_to_disk() -> None:
    assert json.loads(run("disk").stdout) == []


def test_what_is_asked_for_is_written_and_noted(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    assert json.loads(run("disk", str(file)).stdout) == [str(file)]
    written = Seen(journal=[file.read_text(encoding="utf-8")])
    assert leaks(written) == []


@pytest.mark.parametrize("development", [True, False])
def test_clients_that_are_forgotten_are_told_of_without_anybodys_name(*, development: bool) -> None:
    said = run("forget", python=("-X", "dev") if development else ("-W", "always"))
    for expected in (
        "LoanClient made here was left open",
        "Task was destroyed",
        "failed: approve was answered",
    ):
        assert expected in said.stderr
    assert leaks(Seen(output=[said.stdout, said.stderr])) == []

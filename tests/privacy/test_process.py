"""Tests of a separate process: it writes no files, and its output at exit has no personal data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.privacy.scanner import Captured, leaks

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "options", [("-X", "dev"), pytest.param(("-W", "always"), marks=pytest.mark.scheduled)], ids="".join
)
def test_process_writes_only_the_journal_and_no_personal_data(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "journal.jsonl"
    script = TESTS / "support" / "privacy" / "process.py"
    command = [sys.executable, "-B", *options, str(script), str(file)]  # -B: no bytecode
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == [str(file)]
    for expected in (
        "unclosed LoanClient, created here",
        "Task was destroyed",
        "failed: approve failed with status",
    ):
        assert expected in done.stderr
    journal = file.read_text(encoding="utf-8")
    assert journal
    assert leaks(Captured(journal=[journal], output=[done.stdout, done.stderr])) == []

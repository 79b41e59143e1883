"""``approve-many`` on a full disk: the failure is reported, and no result is lost."""

import json
import re
import tempfile
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, run_process, small_files, statuses, write
from support.ledger_file import create_at

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")


def test_results_of_a_job_in_memory_go_to_another_file(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(5)]
    create(served, rows)
    file, ledger = write(tmp_path / "rows.jsonl", rows), tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    done = run(served, "approve-many", file, "-o", "/dev/full", "--ledger", ledger)
    assert done.returncode == 1, "not the code of an interruption"
    assert "/dev/full cannot be written (No space left on device)\n" in done.stderr
    found = re.search(r"the results that are in no other file are in (\S+)\n", done.stderr)
    assert found, done.stderr
    kept = Path(found[1])
    try:
        assert statuses(kept) == {row["fiscal_code"]: "approved" for row in rows}
        assert kept.stat().st_mode & 0o077 == 0
    finally:
        kept.unlink()


def test_results_that_cannot_be_written_are_exported_later(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved", id="x" * 50_000) for _ in range(20)]
    create(served, rows)
    file, out, ledger = (
        write(tmp_path / "rows.jsonl", rows),
        tmp_path / "out.jsonl",
        tmp_path / "decisions.db",
    )
    create_at(ledger, served.base_url)
    command = ("approve-many", file, "-o", out, "--ledger", ledger)
    with small_files(500_000):  # the write-ahead log of the job is larger, too
        done = run(served, *command)
    assert done.returncode in (1, 2), done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")], (
        "no part of a file is left"
    )
    assert run(served, *command).returncode == 0
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert len(served.journal.calls(operation="approve")) == 20


def test_results_alone_that_cannot_be_written_are_in_the_job(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved", id="x" * 50_000) for _ in range(3)]
    create(served, rows)
    file, folder = write(tmp_path / "rows.jsonl", rows), tmp_path / "folder"
    folder.mkdir()
    out = folder / "out.jsonl"
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    written = out.read_bytes()
    with small_files(100_000):  # the job can be read
        done = run(served, "export", f"{out}.ledger", "-o", folder / "again.jsonl")
    assert (done.returncode, "again.jsonl" in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["out.jsonl", "out.jsonl.ledger"]
    assert run(served, "export", f"{out}.ledger").returncode == 0
    assert out.read_bytes() == written


# At 100,000 bytes, the run has begun; a process shows that nothing fails when it ends.
@pytest.mark.parametrize("most", [0, 100, 20_000, 100_000, 200_000])
@pytest.mark.parametrize("has_folder", [False, True])
def test_job_on_a_full_disk_loses_no_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, most: int, *, has_folder: bool
) -> None:
    """Without a folder for the decisions that the ledger lacks, they are in the results or on the screen."""
    rows = [make_row("approved") for _ in range(60)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    folder = tmp_path if has_folder else tmp_path / "nowhere"
    for name in ("XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    command = ("approve-many", file, "-o", out, "--concurrency", "2")
    with small_files(most):
        done = run_process(served, *command, measured=False)
    calls = {call.fiscal_code for call in served.journal.calls(operation="approve")}
    assert len(calls) < 60
    assert done.returncode == (1 if calls else 2), done.stderr
    if calls:
        printed = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"line"')]
        kept = [line for path in tmp_path.glob("loanasync-results-*") for line in read(path)]
        lines = (*printed, *kept, *(read(out) if out.exists() else ()))
        shown = {line["fiscal_code"] for line in lines if line["status"] == "approved"}
        run(served, "ledger", "import-orphans", "--ledger", f"{out}.ledger")
        run(served, "export", f"{out}.ledger")
        assert shown | {code for code, status in statuses(out).items() if status == "approved"} == calls
    again = run(served, *command)
    assert again.returncode == (0 if has_folder else again.returncode), again.stderr
    assert statuses(out).keys() == {row["fiscal_code"] for row in rows}
    assert len(served.journal.calls(operation="approve")) == 60, "no customer is requested twice"

"""``approve-many`` on a full disk: the failure is reported, and no result is lost."""

import json
import re
import tempfile
from pathlib import Path

import pytest

from loanasync.cli.approve_many.final_lines import keep_final_lines
from loanasync.cli.approve_many.results import Format
from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, run_process, small_files, statuses, write
from support.ledger_file import create_at

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")


def test_results_on_a_full_disk_go_to_a_fallback_file(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(50)]
    create(served, rows)
    file, ledger = write(tmp_path / "rows.jsonl", rows), tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    done = run(
        served,
        "approve-many",
        file,
        "-o",
        "/dev/full",
        "--ledger",
        ledger,
        "--concurrency",
        "3",
        "--dead-letters",
        tmp_path / "d",
    )
    assert done.returncode == 130
    found = re.search(
        r"/dev/full cannot be written \(No space left on device\): later results are in (\S+),", done.stderr
    )
    assert found, done.stderr
    kept = Path(found[1])
    try:
        calls = served.journal.calls(operation="approve")
        assert 0 < len(calls) < 50, "the run has stopped"
        assert statuses(kept) == {call.fiscal_code: "approved" for call in calls}
        assert kept.stat().st_mode & 0o077 == 0
    finally:
        kept.unlink()


# Bytes of a row's id. It makes the results reach the limit before the ledger, which needs 4 kB per row.
LONG = 400_000


@pytest.mark.parametrize(("folder", "most"), [("elsewhere", 1_000_000), ("nowhere", 300_000)])
def test_results_at_a_size_limit_have_complete_lines_and_none_is_lost(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, folder: str, most: int
) -> None:
    rows = [make_row("approved", id="x" * LONG) for _ in range(20)]
    create(served, rows)
    file, out, other = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl", tmp_path / folder
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    command = ("approve-many", file, "-o", out, "--concurrency", "2")
    with small_files(most):
        done = run(served, *command)
    assert done.returncode == 130
    assert "File too large" in done.stderr
    in_place = statuses(out)
    moved = [line for path in other.iterdir() for line in path.read_text().splitlines()]
    printed = [line for line in done.stderr.splitlines() if line.startswith('{"line"')]
    assert bool(moved) == (folder == "elsewhere")
    assert bool(printed) == (folder == "nowhere")
    rest = {row["fiscal_code"]: row["status"] for row in map(json.loads, [*moved, *printed])}
    calls = {call.fiscal_code: "approved" for call in served.journal.calls(operation="approve")}
    assert in_place | rest == calls
    assert len(calls) < 20
    with out.open("a", encoding="utf-8") as results:
        results.writelines(f"{line}\n" for line in (*moved, *printed))
    assert run(served, *command).returncode == 0, "resumes after the advice was followed"
    assert len(read(out)) == len(served.journal.calls(operation="approve")) == 20


# At 100,000 bytes, the run has begun; a process shows that nothing fails when it ends.
@pytest.mark.parametrize(("most", "code"), [(0, 2), (100, 2), (20_000, 2), (100_000, 130)])
def test_ledger_on_a_full_disk_stops_the_run(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, most: int, code: int
) -> None:
    rows = [make_row("approved") for _ in range(60)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = ("approve-many", file, "-o", out, "--concurrency", "2")
    with small_files(most):
        done = run_process(served, *command, measured=False) if code == 130 else run(served, *command)
    assert done.returncode == code, done.stderr
    calls = served.journal.calls(operation="approve")
    assert (len(calls) == 0) == (code == 2)
    assert len(calls) < 60
    again = run(served, *command)
    assert again.returncode == 0, again.stderr
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert len(served.journal.calls(operation="approve")) == 60, "no customer is requested twice"


def test_results_that_cannot_be_replaced_leave_no_other_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    write(out, [{"line": 1, "status": "error", "outcome": "not_sent", "id": "x" * 100}] * 2)
    text = out.read_text(encoding="utf-8")
    with small_files(100), pytest.raises(OSError, match="File too large"):
        keep_final_lines(str(out), Format(), 1)
    assert [*tmp_path.iterdir()] == [out]
    assert out.read_text(encoding="utf-8") == text


def test_results_with_a_fallback_file_keep_all_lines(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that could not be written may end in the middle of a line."""
    rows = [make_row("forbidden", id="x" * LONG) for _ in range(3)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = ("approve-many", file, "-o", out, "--concurrency", "1")
    assert run(served, *command).returncode == 1
    with small_files(5 * LONG):
        assert run(served, *command).returncode == 130
    assert len(read(out)) == 4, "one of them is superseded"

"""``approve-many`` with unusual files: one file for two purposes, pipes, full disks, closed outputs."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loanasync import cli
from loanasync.cli.app import app
from loanasync.sandbox import Sandbox
from support.cli import PLAIN, create, make_row, meanwhile, read, run, run_process, start, statuses, write
from support.ledger_file import create_at


@pytest.mark.parametrize(
    "named",
    [
        ("-o", "rows.jsonl"),
        ("-o", "out.jsonl", "--rejected", "rows.jsonl"),
        ("-o", "out.jsonl", "--rejected", "./folder/../rows.jsonl"),
        ("-o", "out.jsonl", "--rejected", "link.jsonl"),
        ("-o", "out.jsonl", "--rejected", "out.jsonl"),
        ("-o", "out.jsonl", "--report", "out.jsonl"),
        ("-o", "out.jsonl", "--report", "out.jsonl.ledger"),
        ("-o", "out.jsonl", "--ledger", "out.jsonl.ledger"),
        ("-o", "out.jsonl", "--report", "rows.jsonl"),
        ("-o", "out.jsonl", "--ledger", "out.jsonl"),
        ("-o", "out.jsonl", "--ledger", "sqlite:///out.jsonl"),
        ("-o", "out.jsonl", "--ledger", "rows.jsonl"),
        ("-o", "-", "--rejected", "-"),
    ],
    ids=" ".join,
)
def test_file_used_for_two_purposes_is_refused_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    file = write(tmp_path / "rows.jsonl", [make_row("approved")])
    (tmp_path / "link.jsonl").symlink_to(file)
    before, files = file.read_bytes(), sorted(tmp_path.iterdir())
    done = CliRunner(env=PLAIN).invoke(app, ["approve-many", "rows.jsonl", *named])
    assert done.exit_code == 2
    assert "is used for two purposes; name" in done.stderr
    assert str(tmp_path) not in done.stderr, "the names that the user gave"
    assert file.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--deadline", "0"), "must be a number of seconds greater than 0"),
        (("--deadline", "nan"), "must be a number of seconds greater than 0"),
        (("--rate", "0"), "must be a number of calls per second greater than 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_option_value_sends_nothing(
    tmp_path: Path, served: Sandbox, option: tuple[str, ...], message: str
) -> None:
    rows = [make_row("approved")]
    create(served, rows)
    file = write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", file, "-o", tmp_path / "out.jsonl", *option)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert served.journal.calls(operation="approve") == []


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_rows_from_a_named_pipe_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    with meanwhile(lambda: True, lambda: write(pipe, [make_row("approved") for _ in range(3)])):
        done = run(None, "approve-many", pipe, "--validate-only")
    assert (done.returncode, done.stderr) == (0, "3 rows: 3 valid, 0 invalid\n")


def test_rows_from_closed_standard_input_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python does if the file is closed
    monkeypatch.setattr(sys, "argv", ["loanasync", "approve-many", "-", "--validate-only"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = "standard input: closed; pipe the rows in, or name a file\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "nowhere/out.jsonl"), "nowhere/out.jsonl: the folder nowhere does not exist"),
        (("-o", "rows.jsonl/out.jsonl"), "rows.jsonl/out.jsonl: the folder rows.jsonl is a file"),
        (("-o", "folder"), "folder: this is a directory; name a file"),
        (("-o", "taken"), "taken.ledger cannot be read: it must be a file of this user on a local disk"),
        (("-o", "out", "--report", "nowhere/r.json"), "nowhere/r.json: the folder nowhere does not exist"),
        (("-o", "out", "--report", "folder"), "folder: this is a directory; name a file"),
        (("-o", "out", "--rejected", "nowhere/d"), "nowhere/d: the folder nowhere does not exist"),
        (("-o", "out", "--rejected", "folder"), "folder: this is a directory; name a file"),
        (("-o", "out", "--ledger", "nowhere/l.db"), "ledger: the folder nowhere does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_file_that_cannot_be_written_is_named_as_the_user_did(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "taken.ledger"):
        (tmp_path / folder).mkdir()
    rows = [make_row("approved")]
    create(served, rows)
    write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", "rows.jsonl", *options)
    assert (done.returncode, done.stderr) == (2, f"{message}\n")
    assert served.journal.calls(operation="approve") == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "rows.jsonl", "taken.ledger"]


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="a folder in which nobody can create a file")
@pytest.mark.parametrize("option", ["-o", "--report", "--rejected"])
def test_file_without_permission_is_named_as_the_user_did(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", [make_row("approved")])
    done = run(served, "approve-many", "rows.jsonl", "-o", "out.jsonl", option, "/sys/file")
    assert done.returncode == 2
    assert done.stderr.startswith("/sys/file: ")
    assert done.stderr.endswith(("(Permission denied)\n", "(Read-only file system)\n"))
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_report_write_failure_is_reported_and_exits_with_1(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("refused")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--report", "/dev/full")
    assert done.returncode == 1
    assert (
        "/dev/full could not be written (No space left on device); the results are not affected"
        in done.stderr
    )
    assert sorted(statuses(out).values()) == ["approved", "refused"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_rejected_rows_write_failure_is_reported(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("forbidden")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--rejected", "/dev/full")
    assert done.returncode == 1
    assert (
        "/dev/full could not be written (No space left on device); the results are not affected"
        in done.stderr
    )
    assert list(statuses(out).values()) == ["error"]


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_results_for_a_closed_pipe_go_to_another_file(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = [make_row("slow50") for _ in range(30)]
    create(served, rows)
    file, ledger = write(tmp_path / "rows.jsonl", rows), tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    process = start(served, "approve-many", file, "-o", "-", "--ledger", ledger)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    with process:
        _, output = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "standard output cannot be written (Broken pipe)" in output
    (kept,) = tmp_path.glob("loanasync-results-*")
    assert statuses(kept) == {row["fiscal_code"]: "approved" for row in rows}


def test_rows_added_after_the_plan_are_not_sent(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("slow50") for _ in range(10)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    added = file.read_text(encoding="utf-8") + json.dumps(make_row("approved")) + '\n{"fiscal_code": "TSTX'
    with meanwhile(
        lambda: len(served.journal.calls(operation="approve")) >= 2,
        lambda: file.write_text(added, encoding="utf-8"),
    ):
        done = run(served, "approve-many", file, "-o", out, "--concurrency", "1")
    assert done.returncode == 0, done.stderr
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert len(read(out)) == 10


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_run_with_closed_standard_error_succeeds(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run_process(served, "approve-many", file, "-o", out, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stderr) == (0, "")
    assert list(statuses(out).values()) == ["approved"]

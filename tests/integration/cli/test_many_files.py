"""``approve-many`` with unusual files: one file for two purposes, pipes, full disks, closed outputs."""

import errno
import json
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from loanasync import cli
from loanasync.cli.approve_many.job import Job
from loanasync.cli.files import _replace
from loanasync.sandbox import Sandbox
from support.cli import Bulk, make_row, meanwhile, read, run, run_process, small_files, statuses, write
from support.ledger_file import create_at

posix = pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
has_sys = pytest.mark.skipif(not Path("/sys").is_dir(), reason="nobody can create a file there")
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")


@pytest.mark.parametrize(
    "named",
    [
        ("approve-many", "rows.jsonl", "-o", "rows.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--rejected", "./folder/../rows.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--rejected", "link.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--report", "hard.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--rejected", "out.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--report", "out.jsonl.ledger"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--ledger", "out.jsonl.ledger"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--ledger", "sqlite:///out.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--ledger", "rows.jsonl"),
        ("approve-many", "rows.jsonl", "-o", "-", "--rejected", "-"),
        ("approve-many", "rows.jsonl", "-o", "out.jsonl", "--mapping", "m.toml", "--report", "m.toml"),
        ("export", "out.jsonl.ledger", "--rejected", "out.jsonl"),
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
    (tmp_path / "hard.jsonl").hardlink_to(file)
    before, files = file.read_bytes(), sorted(tmp_path.iterdir())
    done = run(None, *named)
    assert (done.returncode, "is used for two purposes; name" in done.stderr) == (2, True)
    assert str(tmp_path) not in done.stderr, "the names that the user gave"
    names = re.findall("'([^']+)'", done.stderr)
    assert len(names) == len({*names}), "two names, or the one that was given twice"
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == (before, files)


@pytest.mark.parametrize("name", ["rows.jsonl", "decisions.db", "mapping.toml"])
@pytest.mark.parametrize("option", ["-o", "--rejected"])
def test_export_does_not_overwrite_what_the_job_reads(
    tmp_path: Path, served: Sandbox, option: str, name: str
) -> None:
    create_at(ledger := tmp_path / "decisions.db", served.base_url)
    bulk, mapping = Bulk(tmp_path, served, "approved", ledger=ledger), tmp_path / "mapping.toml"
    mapping.write_text("", encoding="utf-8")
    assert bulk.run("--mapping", mapping)[0] == 0
    before = (tmp_path / name).read_bytes()
    code, output = bulk.export(option, tmp_path / name)
    assert (code, "is used for two purposes" in output) == (2, True), output
    assert (tmp_path / name).read_bytes() == before


@posix
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
        (("-o", "fold", "--rejected", "folder"), "folder: this is a directory; name a file"),
        (("-o", "out", "--ledger", "nowhere/l.db"), "ledger: the folder nowhere does not exist"),
        *(
            pytest.param(("-o", "out", option, "/sys/file"), message, marks=has_sys)
            for option, message in (
                ("-o", "the ledger /sys/file.ledger cannot be created: make its folder writable"),
                *((option, "/sys/file: ") for option in ("--report", "--rejected")),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_run_that_cannot_write_a_file_sends_nothing_and_leaves_no_file(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "taken.ledger"):
        (tmp_path / folder).mkdir()
    bulk = Bulk(tmp_path, served, "approved")
    done = run(served, "approve-many", "rows.jsonl", *options)
    assert (done.returncode, done.stderr.startswith(message), bulk.calls) == (2, True, 0)
    assert done.stderr.count("\n") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "rows.jsonl", "taken.ledger"]
    assert (bulk.run()[0], bulk.calls) == (0, 1)


@pytest.mark.parametrize("options", [(), ("--sandbox",)])
def test_run_with_invalid_rows_sends_nothing_and_leaves_no_file(
    tmp_path: Path, served: Sandbox, options: tuple[str, ...]
) -> None:
    bulk = Bulk(tmp_path, served, "approved", make_row("approved", amount=1))
    assert (bulk.run(*options)[0], bulk.calls, [*tmp_path.iterdir()]) == (2, 0, [bulk.file])


@full
@pytest.mark.parametrize(("option", "tag"), [("--report", "approved"), ("--rejected", "forbidden")])
def test_report_or_rejected_write_failure_is_reported(
    tmp_path: Path, served: Sandbox, option: str, tag: str
) -> None:
    bulk = Bulk(tmp_path, served, tag)
    code, output = bulk.run(option, "/dev/full")
    message = "/dev/full could not be written (No space left on device); the results are not affected"
    assert (code, message in output, len(bulk.statuses)) == (1, True, 1)


@posix
@pytest.mark.parametrize("out", ["-", pytest.param("/dev/full", marks=full)])
def test_results_that_only_memory_has_go_to_another_file(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ledger = tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    bulk = Bulk(tmp_path, served, *["approved"] * 5, ledger=ledger)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = run_process(served, *bulk.command(out=out), preexec_fn=lambda: os.dup2(write_end, 1))
    os.close(write_end)
    name, reason = ("standard output", "Broken pipe") if out == "-" else (out, "No space left on device")
    assert (done.returncode, f"{name} cannot be written ({reason})\n" in done.stderr) == (1, True)
    [kept] = re.findall(r"the results that are in no other file are in (\S+)\n", done.stderr)
    assert statuses(Path(kept)) == dict.fromkeys(bulk.codes, "approved")
    assert Path(kept).stat().st_mode & 0o077 == 0


def full_disk(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_results_that_are_in_no_file_go_to_another_one(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the job nor the results can be written."""

    def replace(target: Path, content: Iterable[bytes]) -> None:
        if target.name == "out.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        _replace(target, content)

    monkeypatch.setattr("loanasync.cli.approve_many.job.Job.finish", full_disk)
    monkeypatch.setattr("loanasync.cli.files._replace", replace)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bulk = Bulk(tmp_path, served, *["slow100"] * 9)
    code, output = bulk.run("--concurrency", "1")
    [kept] = re.findall(r"the results that are in no other file are in (\S+)\n", output)
    assert (code, statuses(Path(kept))) == (1, dict.fromkeys(bulk.requests, "approved"))
    reason = "out.jsonl.ledger cannot be written (database or disk is full); run the same command to resume"
    assert (bulk.calls < 9, reason in output) == (True, True)
    assert f"free some space, then run: loanasync export {bulk.job}" in output


def test_result_that_the_job_lacks_replaces_an_earlier_one(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "forbidden")
    assert (bulk.run()[0], bulk.statuses) == (1, ["error"])
    write(bulk.file, [bulk.rows[0] | {"email": "anna+approved@example.com"}])
    with monkeypatch.context() as patch:
        patch.setattr("loanasync.cli.approve_many.job.Job.finish", full_disk)
        bulk.run()
    assert bulk.statuses == ["approved"]


def test_results_are_written_to_the_job_when_the_disk_has_space_again(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, failures = Job.finish, [full_disk]

    def fail_once(*arguments: Any) -> None:
        (failures.pop() if failures else finish)(*arguments)

    monkeypatch.setattr("loanasync.cli.approve_many.job.Job.finish", fail_once)
    bulk = Bulk(tmp_path, served, "slow400", "slow1500", "slow1500", "approved")
    code, output = bulk.run("--deadline", "1", "--concurrency", "2")
    reason = f"{bulk.job} cannot be written (database or disk is full); run the same command to resume\n"
    assert (code, failures, reason in output) == (1, [], True), "the first reason to stop"
    assert ("--deadline" in output, "no other file" in output) == (False, False)
    bulk.out.unlink()
    assert (bulk.export()[0], bulk.statuses) == (1, ["approved"] * 3)


def test_rows_added_after_the_plan_are_not_sent(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["slow50"] * 10)
    added = bulk.file.read_text() + json.dumps(make_row("approved")) + '\n{"fiscal_code": "TSTX'
    with meanwhile(lambda: bulk.calls >= 2, lambda: bulk.file.write_text(added)):
        code, output = bulk.run("--concurrency", "1")
    assert (code, bulk.statuses, bulk.calls) == (0, ["approved"] * 10, 10), output


@posix
def test_run_with_closed_standard_error_succeeds(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    done = run_process(served, *bulk.command(), preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stderr, bulk.statuses) == (0, "", ["approved"])


@posix
def test_results_through_a_link_are_in_its_target(tmp_path: Path, served: Sandbox) -> None:
    bulk, target = Bulk(tmp_path, served, "approved"), tmp_path / "target.jsonl"
    target.touch()
    target.chmod(0o640)
    bulk.out.symlink_to(target)
    assert (bulk.run()[0], bulk.out.is_symlink(), statuses(target)) == (0, True, {bulk.codes[0]: "approved"})
    assert target.stat().st_mode & 0o777 == 0o640, "as its user has chosen"


@full
def test_results_on_a_full_disk_are_exported_later(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *[make_row("approved", id="x" * 50_000) for _ in range(3)])
    assert bulk.run()[0] == 0
    written, files = bulk.out.read_bytes(), {*tmp_path.iterdir()}
    with small_files(100_000):  # the job can be read
        code, output = bulk.export("-o", tmp_path / "again.jsonl")
    assert (code, "again.jsonl" in output, {*tmp_path.iterdir()}) == (2, True, files)
    bulk.out.unlink()
    assert (bulk.export()[0], bulk.out.read_bytes()) == (0, written)


# At 100,000 bytes, the run has begun; a process shows that nothing fails when it ends.
@full
@pytest.mark.parametrize(
    ("most", "has_folder"),
    [(0, False), (20_000, False), *((most, each) for most in (100_000, 200_000) for each in (False, True))],
)
def test_job_on_a_full_disk_loses_no_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, most: int, *, has_folder: bool
) -> None:
    """Without a folder for the decisions that the ledger lacks, they are in the results or on the screen."""
    folder = tmp_path if has_folder else tmp_path / "nowhere"
    for name in ("XDG_STATE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    bulk = Bulk(tmp_path, served, *["approved"] * 60)
    with small_files(most):
        done = run_process(served, *bulk.command("--concurrency", "2"), measured=False)
    calls = {*bulk.requests}
    assert (done.returncode, len(calls) < 60) == (1 if calls else 2, True), done.stderr
    if calls:
        printed = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"line"')]
        kept = [line for path in tmp_path.glob("loanasync-results-*") for line in read(path)]
        lines = (*printed, *kept, *(read(bulk.out) if bulk.out.exists() else ()))
        shown = {line["fiscal_code"] for line in lines if line["status"] == "approved"}
        run(served, "ledger", "sweep", "--ledger", bulk.job)
        bulk.export()
        exported = {code for code, status in statuses(bulk.out).items() if status == "approved"}
        assert shown | exported == calls
    code, output = bulk.run("--concurrency", "2")
    assert code == (0 if has_folder else code), output
    assert statuses(bulk.out).keys() == {*bulk.codes}
    assert bulk.calls == 60, "no customer is requested twice"


@pytest.mark.skipif(sys.platform != "linux", reason="any bytes are a file name on Linux")
def test_folder_whose_name_is_not_utf_8_is_used(tmp_path: Path, served: Sandbox) -> None:
    folder = tmp_path / os.fsdecode(b"caff\xe9")
    folder.mkdir()
    bulk = Bulk(folder, served, "approved", "refused")
    assert bulk.run()[0] == 0
    bulk.out.unlink()
    assert bulk.export()[0] == 0
    assert [line["fiscal_code"] for line in read(bulk.out)] == bulk.codes

"""``approve-many`` with unusual files: one file for two purposes, pipes, full disks, closed outputs."""

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from loanasync import cli
from loanasync.cli.approve_many.files import _replace
from loanasync.sandbox import Sandbox
from support.cli import (
    Bulk,
    make_row,
    meanwhile,
    name_service,
    read,
    run,
    run_process,
    small_files,
    start,
    statuses,
    write,
)

posix = pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
has_sys = pytest.mark.skipif(not Path("/sys").is_dir(), reason="nobody can create a file there")
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")


@pytest.mark.parametrize(
    "named",
    [
        ("-o", "rows.jsonl"),
        ("-o", "out.jsonl", "--rejected", "./folder/../rows.jsonl"),
        ("-o", "out.jsonl", "--rejected", "link.jsonl"),
        ("-o", "hard.jsonl"),
        ("-o", "out.jsonl", "--rejected", "out.jsonl"),
        ("-o", "out.jsonl", "--rejected", "out.jsonl.ledger"),
        ("-o", "out.jsonl", "--ledger", "out.jsonl.ledger"),
        ("-o", "out.jsonl", "--ledger", "sqlite:///out.jsonl"),
        ("-o", "out.jsonl", "--ledger", "rows.jsonl"),
        ("-o", "-", "--rejected", "-"),
        ("-o", "m.toml", "--mapping", "m.toml"),
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
    done = run(None, "approve-many", "rows.jsonl", *named)
    assert (done.returncode, "is used for two purposes; name" in done.stderr) == (2, True)
    assert str(tmp_path) not in done.stderr, "the names that the user gave"
    names = re.findall("'([^']+)'", done.stderr)
    assert len(names) == len({*names}), "two names, or the one that was given twice"
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == (before, files)


@posix
def test_rows_from_a_named_pipe_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_service(monkeypatch)
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    with meanwhile(lambda: True, lambda: write(pipe, [make_row("approved") for _ in range(3)])):
        done = run(None, "approve-many", pipe, "--dry-run")
    assert (done.returncode, "new" in done.stderr) == (0, True)


def test_rows_from_closed_standard_input_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python does if the file is closed
    monkeypatch.setattr(sys, "argv", ["loanasync", "approve-many", "-", "--dry-run"])
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
        (("-o", "taken"), "taken: taken.ledger cannot be written"),
        (("-o", "out", "--rejected", "nowhere/d"), "nowhere/d: the folder nowhere does not exist"),
        (("-o", "out", "--rejected", "folder"), "folder: this is a directory; name a file"),
        (("-o", "fold", "--rejected", "folder"), "folder: this is a directory; name a file"),
        (("-o", "out", "--ledger", "nowhere/l.db"), "ledger: the folder nowhere does not exist"),
        pytest.param(("-o", "/sys/file"), "/sys/file: /sys/file.ledger cannot be written", marks=has_sys),
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
    assert (done.returncode, done.stderr.startswith(message), bulk.calls) == (2, True, 0), done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "rows.jsonl", "taken.ledger"]
    assert (bulk.run()[0], bulk.calls) == (0, 1)


@full
def test_write_failure_is_reported_and_keeps_the_ledger(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "invalid.city")
    code, output = bulk.run("--rejected", "/dev/full")
    message = "/dev/full could not be written (No space left on device); the results are not"
    assert (code, message in output, bulk.statuses) == (1, True, ["approved", "rejected"])
    write(bulk.file, bulk.rows[:1])
    code, output = bulk.run(out="/dev/full")
    message = "/dev/full cannot be written (No space left on device), and is unchanged. The ledger has the"
    assert (code, message in output, bulk.requests.count(bulk.codes[0])) == (1, True, 1)


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


def test_run_removes_only_drafts_of_its_own_results(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused")
    own, pattern, other, orders = (
        tmp_path / f"{name}.part"
        for name in ("out.abcd_123", "day [1].abcd_123", "out.jsonl.abcd_123", "out.orders")
    )
    for each in (own, pattern, other, orders):
        each.touch()
    for name in ("out", "day [1]"):
        assert bulk.run(out=tmp_path / name)[0] == 0
    assert {*tmp_path.glob("*.part")} == {other, orders}, "of another run, and of the user"
    assert (bulk.run()[0], [*tmp_path.glob("*.part")]) == (0, [orders])
    before = bulk.out.read_bytes()

    def fail(target: Path, content: Iterable[bytes]) -> None:
        def broken() -> Iterable[bytes]:
            yield next(iter(content))
            raise ZeroDivisionError

        _replace(target, broken())

    monkeypatch.setattr("loanasync.cli.approve_many.files._replace", fail)
    with pytest.raises(ZeroDivisionError):
        bulk.run()
    assert (bulk.out.read_bytes(), [*tmp_path.glob("*.part")]) == (before, [orders])


@full
@pytest.mark.parametrize(
    ("most", "has_folder"),
    [
        *((0, False), (60_000, True), (120_000, False)),
        *(pytest.param(*each, marks=pytest.mark.scheduled) for each in ((60_000, False), (120_000, True))),
    ],
)
def test_ledger_on_a_full_disk_loses_no_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, most: int, *, has_folder: bool
) -> None:
    """Without a folder for the decisions that the ledger lacks, they are in the results or on the screen."""
    folder = tmp_path if has_folder else tmp_path / "nowhere"
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    bulk = Bulk(tmp_path, served, *["approved"] * 60)
    with small_files(most):
        process = start(served, *bulk.command("--concurrency", "2"))
    assert process.stderr is not None
    printed: list[str] = []
    for line in process.stderr:
        printed.append(line)
        if line.startswith("paused: "):  # until the disk has space, at most for an hour
            process.send_signal(signal.SIGINT)
    calls = {*bulk.requests}
    assert (process.wait(60), len(calls) < 60) == (130 if calls else 2, True), printed
    if calls:
        rows = [json.loads(line) for line in printed if line.startswith('{"line"')]
        rows += read(bulk.out) if bulk.out.exists() else []
        shown = {row["fiscal_code"] for row in rows if row["status"] == "approved"}
        run(served, "ledger", "--ledger", bulk.ledger, "sweep")
        assert bulk.run("--concurrency", "2")[0] in (0, 3)
        kept = {code for code, status in statuses(bulk.out).items() if status == "approved"}
        assert shown | kept >= calls
    assert bulk.run("--concurrency", "2")[0] in (0, 3)
    assert statuses(bulk.out).keys() == {*bulk.codes}
    assert bulk.calls == 60, "no customer is requested twice"


@pytest.mark.skipif(sys.platform != "linux", reason="any bytes are a file name on Linux")
def test_folder_whose_name_is_not_utf_8_is_used(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"caff\xe9")
    folder.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    bulk = Bulk(folder, served, "approved", "refused")
    for _ in range(2):
        assert bulk.run()[0] == 0

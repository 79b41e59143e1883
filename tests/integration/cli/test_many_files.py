"""Files that are not what they should be: nothing is written over, nothing is lost, and it is said."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Sandbox
from support.cli import PLAIN, begin, create, member, read, run, run_process, statuses, wait_for, write


@pytest.mark.parametrize(
    "named",
    [
        ("-o", "rows.jsonl"),
        ("-o", "out.jsonl", "--dead-letters", "rows.jsonl"),
        ("-o", "out.jsonl", "--dead-letters", "./folder/../rows.jsonl"),
        ("-o", "out.jsonl", "--dead-letters", "link.jsonl"),
        ("-o", "out.jsonl", "--dead-letters", "out.jsonl"),
        ("-o", "out.jsonl", "--report", "out.jsonl"),
        ("-o", "out.jsonl", "--report", "out.jsonl.resume"),
        ("-o", "out.jsonl", "--ledger", "out.jsonl.ledger"),
        ("-o", "out.jsonl", "--report", "rows.jsonl"),
        ("-o", "out.jsonl", "--ledger", "out.jsonl"),
        ("-o", "out.jsonl", "--ledger", "sqlite:///out.jsonl"),
        ("-o", "out.jsonl", "--ledger", "rows.jsonl"),
        ("-o", "-", "--dead-letters", "-"),
    ],
    ids=" ".join,
)
def test_a_file_that_is_named_for_two_things_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    file = write(tmp_path / "rows.jsonl", [member("approved")])
    (tmp_path / "link.jsonl").symlink_to(file)
    before, files = file.read_bytes(), sorted(tmp_path.iterdir())
    done = CliRunner(env=PLAIN).invoke(app, ["approve-many", "rows.jsonl", *named])
    assert done.exit_code == 2
    assert "is used for two purposes; name" in done.stderr
    assert file.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("--deadline", "0"), "must be a number of seconds above 0"),
        (("--deadline", "nan"), "must be a number of seconds above 0"),
        (("--rate", "0"), "rate: must be None or a number above 0 (calls per second)"),
        (("--encoding", "utf-9"), "unknown text encoding 'utf-9'"),
        (("--encoding", "base64"), "unknown text encoding 'base64'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_an_option_that_cannot_be_sends_nothing(
    tmp_path: Path, served: Sandbox, option: tuple[str, ...], told: str
) -> None:
    rows = [member("approved")]
    create(served, rows)
    file = write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", file, "-o", tmp_path / "out.jsonl", *option)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert served.journal.calls(operation="approve") == []


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_named_pipe_is_a_file_too_and_a_closed_one_says_so() -> None:
    given = "".join(json.dumps(member("approved")) + "\n" for _ in range(3))
    done = run_process(None, "approve-many", "/dev/stdin", "--validate-only", given=given)
    assert (done.returncode, done.stderr) == (0, "3 rows: 3 valid, 0 invalid\n")
    closed = run_process(None, "approve-many", "-", "--validate-only", preexec_fn=lambda: os.close(0))
    assert (closed.returncode, closed.stderr) == (
        2,
        "standard input: closed; pipe the rows in, or name a file\n",
    )


def test_a_report_that_cannot_be_written_is_told_of_and_is_no_reason_to_say_that_nothing_was_sent(
    tmp_path: Path, served: Sandbox
) -> None:
    rows = [member("approved"), member("refused")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--report", tmp_path / "nowhere" / "report.json")
    assert done.returncode == 1
    assert "could not be written (No such file or directory); the results are not affected" in done.stderr
    assert sorted(statuses(out).values()) == ["approved", "refused"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_dead_letters_that_a_full_disk_does_not_take_are_told_of(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("forbidden")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--dead-letters", "/dev/full")
    assert done.returncode == 1
    assert "some dead letters could not be written to /dev/full (No space left on device)" in done.stderr
    assert list(statuses(out).values()) == ["error"]


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_results_whose_reader_goes_away_are_elsewhere_and_no_more_is_sent(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rows = [member("slow50") for _ in range(30)]
    create(served, rows)
    file = write(tmp_path / "rows.jsonl", rows)
    process = begin(served, "approve-many", file, "-o", "-", "--concurrency", "2")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 130
    assert "standard output cannot be written (Broken pipe): later results are in" in told
    assert told.endswith(".jsonl\n"), "nothing can be added to it, and without a ledger nobody remembers it"
    (kept,) = tmp_path.glob("loanasync-results-*")
    calls = {call.fiscal_code for call in served.journal.calls(operation="approve")}
    read_by_nobody = calls - statuses(kept).keys() - {first["fiscal_code"]}
    assert len(read_by_nobody) <= 3, "in the pipe, when it was closed"
    assert len(calls) < 30


def test_a_file_that_grows_meanwhile_is_asked_for_as_it_was_looked_at(
    tmp_path: Path, served: Sandbox
) -> None:
    rows = [member("slow50") for _ in range(10)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    process = begin(served, "approve-many", file, "-o", out, "--concurrency", "1")
    wait_for(lambda: len(served.journal.calls(operation="approve")) >= 2)
    with file.open("a", encoding="utf-8") as more:
        more.write(json.dumps(member("approved")) + '\n{"fiscal_code": "TSTX')
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert len(read(out)) == 10


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_who_speaks_to_nobody_does_its_work(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run_process(served, "approve-many", file, "-o", out, preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stderr) == (0, "")
    assert list(statuses(out).values()) == ["approved"]

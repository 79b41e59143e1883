"""Resume of ``approve-many`` without ``--ledger``, from the ledger beside the results."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, environment, make_row, read, run, service, start, statuses, wait_for, write
from support.ledger_file import change, create_at, listed, run_ledger

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


class Run:
    """A file of rows, its results, and the files beside them."""

    def __init__(self, folder: Path, sandbox: Sandbox, *tags: str) -> None:
        self.rows = [make_row(tag) for tag in tags]
        create(sandbox, self.rows)
        self.sandbox = sandbox
        self.out = folder / "out.jsonl"
        self.ledger = folder / "out.jsonl.ledger"
        self.resume = folder / "out.jsonl.resume"
        self.command: tuple[str | Path, ...] = (
            "approve-many",
            write(folder / "rows.jsonl", self.rows),
            "-o",
            self.out,
        )

    def run(self) -> tuple[int, str]:
        done = run(self.sandbox, *self.command)
        return done.returncode, done.stderr

    @property
    def requested(self) -> int:
        return len(self.sandbox.journal.calls(operation="approve"))


def test_resume_after_token_change_requests_no_customer_again(tmp_path: Path, served: Sandbox) -> None:
    bulk = Run(tmp_path, served, "approved", "refused", "resetafter")
    assert bulk.run()[0] == 3
    bulk.out.unlink()
    changed = {**service(served), "LOANASYNC_AUTH_TOKEN": "new"}
    with mock.patch("support.cli.service", return_value=changed):
        assert bulk.run()[0] == 3
    assert bulk.requested == 3
    codes = [row["fiscal_code"] for row in bulk.rows]
    assert statuses(bulk.out) == dict(zip(codes, ("approved", "refused", "unknown"), strict=True))


def test_resume_file_is_for_its_owner_and_has_no_secret(tmp_path: Path, served: Sandbox) -> None:
    bulk = Run(tmp_path, served, "approved")
    bulk.run()
    members = json.loads(bulk.resume.read_text(encoding="utf-8"))
    assert members.keys() == {"format", "service", "ledger", "ledger_id", "begun"}
    assert served.auth_token not in bulk.resume.read_text(encoding="utf-8")
    if os.name == "posix":
        assert bulk.resume.stat().st_mode & 0o777 == 0o600
    (tmp_path / "other").mkdir()
    other = Run(tmp_path / "other", served, "approved")
    other.run()
    assert json.loads(other.resume.read_text(encoding="utf-8"))["ledger_id"] != members["ledger_id"]


@pytest.mark.parametrize("file", ["ledger", "resume"])
@pytest.mark.parametrize("keeps_results", [True, False])
def test_resume_with_a_file_of_other_results_is_refused(
    tmp_path: Path, served: Sandbox, file: str, *, keeps_results: bool
) -> None:
    """Only the ledger knows a customer who was in flight when a run was killed."""
    (tmp_path / "other").mkdir()
    other = Run(tmp_path / "other", served, "approved")
    bulk = Run(tmp_path, served, "approved", "refused")
    assert (other.run()[0], bulk.run()[0]) == (0, 0)
    lines = bulk.out.read_text(encoding="utf-8").splitlines(keepends=True)
    bulk.out.write_text(lines[0] if keeps_results else "", encoding="utf-8")
    own = (tmp_path / f"out.jsonl.{file}").read_bytes()
    (tmp_path / f"out.jsonl.{file}").write_bytes((tmp_path / "other" / f"out.jsonl.{file}").read_bytes())
    code, output = bulk.run()
    assert code == 2
    assert "so one of them belongs to other results: restore the right file" in output
    (tmp_path / f"out.jsonl.{file}").write_bytes(own)
    assert bulk.run()[0] == 0
    assert bulk.requested == 3


@pytest.mark.parametrize("keeps_results", [True, False])
def test_resume_with_other_rows_sends_them(tmp_path: Path, served: Sandbox, *, keeps_results: bool) -> None:
    bulk = Run(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    if not keeps_results:
        bulk.out.unlink()
    bulk.rows = [make_row("approved")]
    create(served, bulk.rows)
    write(tmp_path / "rows.jsonl", bulk.rows)
    assert (bulk.run()[0], bulk.requested) == (0, 2)


@pytest.mark.parametrize("left", [None, "", '{"service"', "{}\n", "[]\n", "half\n"])
@pytest.mark.parametrize("keeps_results", [True, False])
def test_resume_without_its_file_is_refused(
    tmp_path: Path, served: Sandbox, left: str | None, *, keeps_results: bool
) -> None:
    bulk = Run(tmp_path, served, "approved")
    bulk.run()
    resume = bulk.resume.read_text(encoding="utf-8")
    bulk.resume.unlink()
    if left is not None:
        bulk.resume.write_text(left, encoding="utf-8")
    if not keeps_results:
        bulk.out.unlink()
    for _ in range(2):
        code, output = bulk.run()
        assert code == 2
        assert f"{bulk.ledger} exists, but {bulk.resume} is missing or damaged: restore" in output
    assert (bulk.resume.read_text(encoding="utf-8") if bulk.resume.exists() else None) == left
    bulk.resume.write_text(resume, encoding="utf-8")
    assert bulk.run()[0] == 0
    assert bulk.requested == 1


@pytest.mark.parametrize("left", ["", '{"service": "'])
def test_resume_file_that_a_killed_run_left_incomplete_is_written_again(
    tmp_path: Path, served: Sandbox, left: str
) -> None:
    bulk = Run(tmp_path, served, "approved")
    bulk.resume.write_text(left, encoding="utf-8")
    assert [bulk.run()[0] for _ in range(2)] == [0, 0]
    assert (bulk.requested, json.loads(bulk.resume.read_text("utf-8"))["ledger"]) == (
        *(1, "beside the results"),
    )


def test_resume_file_with_the_end_of_a_longer_line_is_read(tmp_path: Path, served: Sandbox) -> None:
    """A run was killed after it wrote a shorter line, before it cut the file."""
    row = make_row("approved")
    create(served, [row])
    command = ("approve-many", write(tmp_path / "rows.jsonl", [row]), "-o", tmp_path / "out.jsonl")
    assert run(served, *command).returncode == 0
    with (tmp_path / "out.jsonl.resume").open("a") as file:
        file.write('secret": "0"}\n')
    assert run(served, *command).returncode == 0
    ledger = ("--ledger", tmp_path / "out.jsonl.ledger")
    customer = run(served, "ledger", "show", "--customer", *ledger, stdin=row["fiscal_code"] + "\n")
    assert (customer.returncode, "approved" in customer.stdout) == (0, True), customer.stderr


@pytest.mark.parametrize("keeps_results", [True, False])
@pytest.mark.parametrize("is_empty", [False, True])
def test_resume_without_its_ledger_is_refused(
    tmp_path: Path, served: Sandbox, *, is_empty: bool, keeps_results: bool
) -> None:
    bulk = Run(tmp_path, served, "approved")
    bulk.run()
    bulk.ledger.unlink()
    if not keeps_results:
        bulk.out.unlink()
    if is_empty:
        bulk.ledger.touch()
    code, output = bulk.run()
    assert (code, f"{bulk.ledger} is missing or empty" in output) == (2, True)
    assert bulk.ledger.exists() == is_empty
    assert bulk.requested == 1


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--ledger", "decisions.db"), ("--sandbox",)])
def test_resume_progress_file_of_0_1_0_is_refused(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Run(tmp_path, served, "approved")
    notes = tmp_path / "out.jsonl.asked"
    notes.write_text(f'{{"service": "x"}}\n{bulk.rows[0]["fiscal_code"]}\n', encoding="utf-8")
    done = run(served, *bulk.command, *options)
    assert done.returncode == 2
    assert f"{notes} is a progress file of version 0.1.0, which this version cannot read" in done.stderr
    assert (bulk.requested, bulk.out.exists(), bulk.resume.exists()) == (0, False, False)


def test_resume_results_that_were_removed_are_written_from_the_ledger(
    tmp_path: Path, served: Sandbox
) -> None:
    bulk = Run(tmp_path, served, "approved", "refused", "resetafter")
    bulk.run()
    first = {line["fiscal_code"]: line for line in read(bulk.out)}
    bulk.out.unlink()
    assert bulk.run()[0] == 3
    second = {line["fiscal_code"]: line for line in read(bulk.out)}
    assert (bulk.requested, second.keys()) == (3, first.keys())
    for code, line in second.items():
        for name in ("status", "redirect_url", "net_amount", "entry", "line"):
            assert line.get(name) == first[code].get(name)


def test_resume_reports_the_resolution_of_a_person(tmp_path: Path, served: Sandbox) -> None:
    bulk = Run(tmp_path, served, "reset")
    assert bulk.run()[0] == 3
    (line,) = read(bulk.out)
    run_ledger("resolve", bulk.ledger, line["entry"], "--as", "refused", "--note", "ticket 17")
    assert bulk.run()[0] == 0
    assert statuses(bulk.out) == {line["fiscal_code"]: "refused"}
    assert bulk.requested == 1


def test_resume_decision_that_only_the_results_have_stays_decided(tmp_path: Path, served: Sandbox) -> None:
    """The ledger could not take the decision, and the row was written to the results."""
    bulk = Run(tmp_path, served, "approved")
    bulk.run()
    before = bulk.out.read_bytes()
    for state in ("inflight", "unknown"):
        without_source = "document = json_remove(document, '$.source'), body = NULL"
        statement = f"UPDATE entries SET state = '{state}', {without_source}"  # noqa: S608  (constants)
        change(bulk.ledger, statement)
        assert bulk.run()[0] == 0
        assert (bulk.out.read_bytes(), bulk.requested) == (before, 1)


def test_resume_customer_in_other_spelling_is_recognised(tmp_path: Path, served: Sandbox) -> None:
    bulk = Run(tmp_path, served, "approved")
    (row,) = bulk.rows
    write(tmp_path / "rows.jsonl", [{**row, "fiscal_code": f" {row['fiscal_code'].lower()}"}])
    assert [bulk.run()[0] for _ in range(2)] == [0, 0]
    assert (bulk.requested, len(read(bulk.out))) == (1, 1)


INVALID = '{"fiscal_code": "TSTX"}\n'


@posix
@pytest.mark.parametrize(
    ("options", "variables", "added"),
    [
        *(((), {}, INVALID), (("--sandbox",), {}, INVALID), (("--ledger", "d.db"), {}, "")),
        (("--ledger", "d.db"), {"LOANASYNC_LEDGER_KEY": "short"}, ""),
        (("--ledger", "missing/d.db"), {}, ""),
        (("--dead-letters", "missing/dead.jsonl"), {}, ""),
    ],
)
def test_run_that_sends_nothing_leaves_no_file(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    variables: dict[str, str],
    added: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Run(tmp_path, served, "approved")
    rows = tmp_path / "rows.jsonl"
    valid = rows.read_text(encoding="utf-8")
    rows.write_text(valid + added, encoding="utf-8")
    elsewhere = {**service(served), "LOANASYNC_BASE_URL": "https://loans.example.com", **variables}
    with mock.patch("support.cli.service", return_value=elsewhere):
        done = run(served, *bulk.command, *options)
    assert (done.returncode, [*tmp_path.iterdir()]) == (2, [rows]), done.stderr
    rows.write_text(valid, encoding="utf-8")
    assert (bulk.run()[0], bulk.requested) == (0, 1)


@pytest.mark.parametrize("options", [(), ("--ledger", "d.db")])
def test_run_that_sends_nothing_keeps_the_file_of_an_earlier_run(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Run(tmp_path, served, "approved")
    create_at("d.db", served.base_url)
    bulk.command = (*bulk.command, *options)
    assert bulk.run()[0] == 0
    bulk.out.unlink()
    before = bulk.resume.read_bytes()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(rows.read_text(encoding="utf-8") + INVALID, encoding="utf-8")
    assert bulk.run()[0] == 2
    assert bulk.resume.read_bytes() == before


@posix
def test_resume_file_that_another_run_removes_is_created_again(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that sends nothing may remove the file after this run has opened it and before it is locked."""
    import fcntl  # noqa: PLC0415  (not on Windows)

    bulk = Run(tmp_path, served, "approved")
    flock = fcntl.flock
    locked: list[int] = []

    def remove_and_lock(file: int, operation: int) -> None:
        if not locked:
            bulk.resume.unlink()
        locked.append(file)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    assert bulk.run()[0] == 0
    assert len(locked) == 2
    bulk.out.unlink()
    assert (bulk.run()[0], bulk.requested) == (0, 1)


def test_resume_file_of_another_service_or_format_is_named(tmp_path: Path, served: Sandbox) -> None:
    bulk = Run(tmp_path, served, "approved")
    for members, message in (
        ('{"format": 4, "service": "other", "ledger": "", ', "was written for another service or shop"),
        ('{"format": 4, "service": "sandbox", "ledger": "other", ', "was begun with another ledger"),
        ('{"service": "sandbox", "ledger": "", ', "has the format of another version of loanasync"),
    ):
        file = f'{members}"begun": true}}\n'
        bulk.resume.write_text(file, encoding="utf-8")
        done = run(served, *bulk.command, "--sandbox")
        assert (done.returncode, f"{bulk.resume} {message}: " in done.stderr) == (2, True), done.stderr
        assert bulk.resume.read_text(encoding="utf-8") == file


@posix
def test_resume_after_kill_reports_requests_in_flight_as_unknown(tmp_path: Path, served: Sandbox) -> None:
    """The run that holds the lock need not wait for the leases: no other run can be active."""
    bulk = Run(tmp_path, served, "hangafter", "hangafter")
    process = start(served, *bulk.command)
    wait_for(lambda: bulk.requested == 2)
    code, output = bulk.run()
    lock = f"another run is writing to {bulk.out}: wait until it ends, then run this command again\n"
    assert (code, output, bulk.requested) == (2, lock, 2)
    process.kill()  # which releases the lock
    process.communicate()
    assert {each["state"] for each in listed(bulk.ledger)} == {"inflight"}
    for _ in range(2):
        assert bulk.run()[0] == 3
        assert set(statuses(bulk.out).values()) == {"unknown"}
        assert (len(read(bulk.out)), bulk.requested) == (2, 2)
    assert {each["note"] for each in listed(bulk.ledger)} == {"in progress when an earlier run ended"}


# Kills its own process before or after one call of a function, to simulate a crash at that point.
KILLER = """
import functools, importlib, inspect, os, signal, sys

module, name, when, number = sys.argv[1:5]
owner = importlib.import_module(module)
*parents, last = name.split(".")
for each in parents:
    owner = getattr(owner, each)
real, calls = getattr(owner, last), 0

def step(moment):
    global calls
    calls += moment == "before"
    if (moment, calls) == (when, int(number)):
        os.kill(os.getpid(), signal.SIGKILL)

if inspect.iscoroutinefunction(real):
    async def wrapped(*arguments, **named):
        step("before")
        result = await real(*arguments, **named)
        step("after")
        return result
else:
    def wrapped(*arguments, **named):
        step("before")
        result = real(*arguments, **named)
        step("after")
        return result

setattr(owner, last, functools.wraps(real)(wrapped))
sys.argv[1:] = sys.argv[5:]
from loanasync.cli import main
main()
"""
_SQLITE = "loanasync.ledger.sqlite SqliteLedger."
POINTS = [
    *(("loanasync.cli.approve_many.resume os.open", when, 1) for when in ("before", "after")),
    *(
        ("loanasync.cli.approve_many.resume os.fsync", when, number)
        for when in ("before", "after")
        for number in (1, 2)
    ),
    *((f"{_SQLITE}open", when, 1) for when in ("before", "after")),
    *((f"{_SQLITE}claim", when, 2) for when in ("before", "after")),
    *((f"{_SQLITE}settle", when, 2) for when in ("before", "after")),
    ("loanasync.cli.rows.append AppendFile.add", "after", 2),
    ("loanasync.cli.rows.append AppendFile.close", "before", 1),
]


@posix
@pytest.mark.parametrize(
    ("where", "when", "number"),
    [
        ("loanasync.cli.rows.append AppendFile.add", "before", 2),
        *(pytest.param(*each, marks=pytest.mark.scheduled) for each in POINTS),
    ],
)
def test_resume_after_kill_at_any_point_repeats_no_request(
    tmp_path: Path, served: Sandbox, where: str, when: str, number: int
) -> None:
    bulk = Run(tmp_path, served, "approved", "refused", "approved")
    command = (*bulk.command, "--concurrency", "1")
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, *where.split(), when, *map(str, (number, *command))],
        env=environment(served), check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # The outcome is unknown only if the request may have been sent and no decision was recorded.
    in_flight = (where, when) in ((f"{_SQLITE}claim", "after"), (f"{_SQLITE}settle", "before"))
    for _ in range(2):
        code, output = bulk.run()
        assert code == (3 if in_flight else 0), output
    found = statuses(bulk.out)
    assert found.keys() == {row["fiscal_code"] for row in bulk.rows}
    assert len(read(bulk.out)) == 3
    assert sorted(found.values()).count("unknown") == in_flight
    calls = [call.fiscal_code for call in served.journal.calls(operation="approve")]
    assert len(set(calls)) == len(calls)

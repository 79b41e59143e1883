"""The job file of ``approve-many``: after every kind of end, the same command asks each customer once."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loanasync import ConfigurationError
from loanasync.cli.approve_many.job import Job, Kind
from loanasync.cli.ledger.open import UnusableError
from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.cli import (
    Bulk,
    create,
    environment,
    make_row,
    meanwhile,
    read,
    run,
    service,
    start,
    statuses,
    table,
    wait_for,
    write,
)
from support.ledger_file import change, create_at, listed, run_ledger, using

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def make_shared(folder: Path, sandbox: Sandbox) -> Path:
    create_at(folder / "decisions.db", sandbox.base_url)
    return folder / "decisions.db"


@contextmanager
def setting(sandbox: Sandbox, **changed: str) -> Iterator[None]:
    """Change variables of the service for the commands of a block."""
    variables = service(sandbox) | {f"LOANASYNC_{name}": value for name, value in changed.items()}
    with mock.patch("support.cli.service", return_value=variables):
        yield


@pytest.fixture(params=["own ledger", "shared ledger"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, served: Sandbox) -> Path | None:
    """Return the ledger of a job; None for that in the job file."""
    return None if request.param == "own ledger" else make_shared(tmp_path, served)


def test_second_run_sends_nothing_and_writes_the_same_private_results(
    tmp_path: Path, served: Sandbox, ledger: Path | None
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter", "approved", ledger=ledger)
    assert (bulk.run()[0], bulk.calls) == (3, 4)
    assert bulk.statuses == ["approved", "refused", "unknown", "approved"]
    written = bulk.out.read_bytes()
    for remove in (False, True):  # the results are not read again
        if remove:
            bulk.out.unlink()
        code, output = bulk.run()
        assert (code, bulk.calls, bulk.out.read_bytes()) == (3, 4, written)
        assert table(output) == {
            "earlier": ("3", "1,350.00"), "unknown": ("1", "450.00"), "total": ("4", "1,800.00")
        }  # fmt: skip
    assert (bulk.export()[0], bulk.out.read_bytes()) == (3, written)
    with closing(Job(bulk.job)) as opened:
        assert [each["file"] for each in opened.members["inputs"]] == [str(bulk.file)]
    assert os.name != "posix" or not bulk.job.stat().st_mode & 0o077
    job = b"".join(path.read_bytes() for path in tmp_path.glob("out.jsonl.ledger*"))
    for row in bulk.rows:
        assert row["fiscal_code"].encode() in written
        assert not [text for text in (row["fiscal_code"], row["email"]) if text.encode() in job]
    bulk.file.unlink()
    assert bulk.export("-o", tmp_path / "again.jsonl")[0] == 3
    assert (tmp_path / "again.jsonl").read_bytes() == written, "the fiscal codes are in the results"
    without_codes = [{k: v for k, v in line.items() if k != "fiscal_code"} for line in read(bulk.out)]
    bulk.out.unlink()
    assert bulk.export()[0] == 3
    assert read(bulk.out) == without_codes, "the input is missing"


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.jsonl.gz"])
@pytest.mark.parametrize("uncoded", ["1 result", "2 results"])
def test_results_keep_the_fiscal_codes_of_an_input_that_is_gone(
    tmp_path: Path, served: Sandbox, out: str, uncoded: str
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", make_row("approved", amount=1), out=out)
    bulk.run("--skip-invalid")
    written, other = bulk.out.read_bytes(), tmp_path / "other.jsonl"
    bulk.file.unlink() if uncoded == "2 results" else write(bulk.file, bulk.rows[1:])
    assert (bulk.export()[0], bulk.out.read_bytes()) == (1, written)
    create(served, [row := make_row("approved")])
    assert run(served, "approve-many", write(tmp_path / "next.jsonl", [row]), "-o", bulk.out).returncode == 0
    assert bulk.export("-o", other)[0] == 1
    assert {*statuses(other)} == {*bulk.codes[:2], row["fiscal_code"]}
    other.unlink()
    bulk.out.unlink()
    code, output = bulk.export("-o", other)
    message = (
        f"{uncoded} without a fiscal code: {bulk.file} cannot be read or has changed; put the file back "
        f"under its name, then run: loanasync export {bulk.job}"
    )
    assert (code, message in output, len(statuses(other))) == (1, True, 3 - int(uncoded[0]))


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.jsonl.gz"])
def test_results_without_their_job_file_are_refused(tmp_path: Path, served: Sandbox, out: str) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter", out=out)
    bulk.run()
    kept, written = bulk.job.rename(tmp_path / "kept"), bulk.out.read_bytes()
    code, output = bulk.run()
    assert (code, bulk.calls, bulk.out.read_bytes()) == (2, 3, written)
    assert f"{out} exists and contains 2 decisions, but its job file {bulk.job} is missing or empty" in output
    assert bulk.run("--dry-run") == (2, output), "the plan says so, too"
    advice = "restore the job file. Another results file (-o) begins a new job, which "
    assert f"{advice}sends the requests of these customers again" in output
    shared = make_shared(tmp_path, served)
    assert f"{advice}reads their decisions from the ledger" in bulk.run("--ledger", shared)[1]
    kept.rename(bulk.job)
    assert (bulk.run()[0], bulk.calls) == (3, 3)


def test_damaged_or_truncated_job_file_sends_nothing(
    tmp_path: Path, served: Sandbox, ledger: Path | None
) -> None:
    bulk = Bulk(tmp_path, served, "approved", ledger=ledger)
    bulk.run()
    whole = bulk.job.read_bytes()
    for content in (b"", b"SQLite format 3\0" + bytes(50), b"no database" * 500, whole[:8192]):
        bulk.job.write_bytes(content)
        code, output = bulk.run()
        assert (code, bulk.calls, str(bulk.job) in output) == (2, 1, True), output
        assert bulk.job.read_bytes() == content
    bulk.job.write_bytes(whole)
    assert (bulk.run()[0], bulk.calls) == (0, 1)


def test_earlier_copy_of_the_job_file_sends_nothing(tmp_path: Path, served: Sandbox) -> None:
    """A restored copy lacks the customers of later runs."""
    bulk = Bulk(tmp_path, served, "approved", "approved")
    write(bulk.file, bulk.rows[:1])
    assert bulk.run()[0] == 0
    copy = bulk.job.read_bytes()
    write(bulk.file, bulk.rows)
    assert (bulk.run()[0], bulk.calls) == (0, 2)
    bulk.out.unlink()
    bulk.job.write_bytes(copy)
    for _ in range(2):
        code, output = bulk.run()
        assert (code, bulk.calls, "then run loanasync ledger confirm" in output) == (2, 2, True)
        assert f"the ledger {bulk.job} has lost writes" in output


def test_job_of_another_service_or_ledger_is_refused(tmp_path: Path, served: Sandbox) -> None:
    bulk, other, shared = (
        Bulk(tmp_path, served, "approved"),
        tmp_path / "other",
        make_shared(tmp_path, served),
    )
    bulk.run()
    assert bulk.run("--ledger", shared, out=other)[0] == 3, "already evaluated"
    for options, out, message in (
        (("--sandbox",), bulk.out, "contains results of another shop, or of a sandbox"),
        (("--ledger", shared), bulk.out, "was begun with another ledger"),
        ((), other, "was begun with another ledger"),
    ):
        code, output = bulk.run(*options, out=out)
        assert (code, message in output) == (2, True), output
    job, again = f"{other}.ledger", tmp_path / "again.jsonl"
    done = run(None, "export", job, "-o", again, "--ledger", bulk.job)
    assert (done.returncode, again.exists()) == (2, False)
    assert done.stderr.startswith(f"{job} was begun with another ledger: use the same --ledger")


def test_job_is_continued_after_its_service_has_moved(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "forbidden")
    assert bulk.run()[0] == 1
    address = served.base_url.replace("127.0.0.1", "localhost")
    with setting(served, BASE_URL=address):
        code, output = bulk.run()
        assert (code, "If the service has moved, run loanasync ledger confirm --service URL" in output) == (
            2,
            True,
        )
        assert run_ledger("confirm", bulk.job, "--service", address).exit_code == 0
        assert (bulk.run()[0], sorted(bulk.requests)) == (1, sorted([*bulk.codes, bulk.codes[1]]))


def test_dry_run_does_not_move_the_service_of_a_job(tmp_path: Path, served: Sandbox) -> None:
    bulk, nowhere = Bulk(tmp_path, served, "approved"), "http://127.0.0.1:9"
    with setting(served, BASE_URL=nowhere):
        assert bulk.run()[0] == 1
    assert bulk.run("--dry-run")[0] == 0
    assert using(bulk.job, lambda ledger: ledger.header()).service == nowhere
    assert (bulk.run()[0], bulk.calls) == (0, 1)


@pytest.mark.parametrize("is_written", [True, False])
def test_job_with_a_decision_is_not_continued_for_another_shop(
    tmp_path: Path, served: Sandbox, *, is_written: bool
) -> None:
    """A killed run may have written a decision to the ledger, and not to the row."""
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    if not is_written:
        with closing(sqlite3.connect(bulk.job)) as job, job:
            job.execute("UPDATE rows SET kind = 'to be sent', state = '', record = NULL")
    with setting(served, SHOP_ID="other"):
        code, output = bulk.run()
    assert (code, "contains results of another shop, or of a sandbox" in output, bulk.calls) == (2, True, 1)


def test_wrong_address_and_token_may_be_corrected(tmp_path: Path, served: Sandbox) -> None:
    """As long as no customer was evaluated, the job belongs to no service."""
    bulk = Bulk(tmp_path, served, *["approved"] * 40)
    for wrong in ({"BASE_URL": "http://127.0.0.1:9"}, {"AUTH_TOKEN": "wrong"}):
        with setting(served, **wrong):
            code, output = bulk.run()
        assert (code, "run the same command to resume" in output) == (1, True), output
    assert "the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN" in output
    assert len(bulk.requests) < 10
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved"] * 40)


@posix
def test_killed_run_is_continued_at_once_and_exported(
    tmp_path: Path, served: Sandbox, ledger: Path | None
) -> None:
    bulk = Bulk(tmp_path, served, *["approved"] * 6, "hangafter", "hangafter", "approved", ledger=ledger)
    process = start(served, *bulk.command("--concurrency", "2"))
    wait_for(lambda: bulk.calls == 8)
    message = f"another run is writing to {bulk.out}: wait until it ends, then run this command again\n"
    assert (bulk.run(), bulk.calls) == ((2, message), 8)
    assert bulk.run("--dry-run")[0] == 2
    if ledger is not None:
        _, output = bulk.run("--dry-run", out=tmp_path / "other.jsonl")
        assert table(output)["in progress elsewhere"] == ("2", "900.00")
    assert bulk.export()[0] == 3, "also while it runs"
    process.kill()  # which releases the lock, also while the process is a zombie
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    bulk.out.unlink()
    code, output = bulk.export()
    counts = {kind: number for kind, (number, _) in table(output).items()}
    assert (code, counts) == (3, {"approved": "6", "unknown": "2", "to be sent": "1", "total": "9"})
    known = ["approved"] * 6 + ["unknown"] * 2  # also those in flight
    assert bulk.statuses == known
    assert [line["fiscal_code"] for line in read(bulk.out)] == bulk.codes[:8]
    states = listed(bulk.ledger)
    assert (bulk.run("--dry-run")[0], listed(bulk.ledger)) == (0, states), "a plan writes nothing"
    # A later process with the number of the killed one does not hold the lock.
    number = f"json_set(value, '$.number', {os.getpid()})"
    change(bulk.job, f"UPDATE members SET value = {number} WHERE name = 'process'")  # noqa: S608  (a number)
    if ledger is not None:  # their leases expire
        change(ledger, "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'")
    for _ in range(2):
        assert bulk.run()[0] == 3
        assert (bulk.statuses, bulk.calls) == ([*known, "approved"], 9)
    process.communicate()
    notes = {each["note"] for each in listed(bulk.ledger) if each["state"] == "unknown"}
    assert notes == {"the lease expired" if ledger else "in progress when an earlier run ended"}


# Kills its own process before or after one call of a function, to simulate a crash at that point.
KILLER = """
import importlib, inspect, os, signal, sys

module, name, when, number = sys.argv[1:5]
*parents, last = name.split(".")
owner = importlib.import_module(module)
for each in parents:
    owner = getattr(owner, each)
real, calls = getattr(owner, last), 0

def step(moment):
    global calls
    calls += moment == "before"
    if (moment, calls) == (when, int(number)):
        os.kill(os.getpid(), signal.SIGKILL)

async def wrapped_async(*arguments, **named):
    step("before")
    result = await real(*arguments, **named)
    step("after")
    return result

def wrapped(*arguments, **named):
    step("before")
    result = real(*arguments, **named)
    step("after")
    return result

setattr(owner, last, wrapped_async if inspect.iscoroutinefunction(real) else wrapped)
sys.argv[1:] = sys.argv[5:]
from loanasync.cli import main
main()
"""
_SQLITE = "loanasync.ledger.sqlite SqliteLedger."
_JOB = "loanasync.cli.approve_many.job Job."
POINTS = [
    *((f"{_SQLITE}open", when, 1) for when in ("before", "after")),
    *((f"{_SQLITE}claim", when, 2) for when in ("before", "after")),
    (f"{_SQLITE}settle", "before", 2),
    *((f"{_JOB}{name}", when, 1) for name in ("begin", "finish", "close") for when in ("before", "after")),
]


@posix
@pytest.mark.parametrize(
    ("where", "when", "number"),
    [
        (f"{_SQLITE}settle", "after", 2),
        ("loanasync.cli.files os.fsync", "after", 1),
        *(pytest.param(*each, marks=pytest.mark.scheduled) for each in POINTS),
    ],
)
def test_kill_at_any_point_repeats_no_request(
    tmp_path: Path, served: Sandbox, where: str, when: str, number: int
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "approved")
    arguments = (*where.split(), when, number, *bulk.command("--concurrency", "1"))
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, *map(str, arguments)],
        env=environment(served), check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # The outcome is unknown only if the request may have been sent and no decision was recorded.
    in_flight = (where, when) in ((f"{_SQLITE}claim", "after"), (f"{_SQLITE}settle", "before"))
    codes = {bulk.run()[0], bulk.run()[0]}
    assert [line["line"] for line in read(bulk.out)] == [1, 2, 3]
    unknown = bulk.statuses.count("unknown")
    # The job is written in a thread, while requests are in flight.
    assert unknown == in_flight or (unknown == 1 and where == f"{_JOB}finish")
    assert codes == {3 if unknown else 0}
    assert 3 - unknown <= bulk.calls <= 3


@posix
def test_resumed_run_approves_before_it_creates_only_rows_that_had_begun(
    tmp_path: Path, served: Sandbox
) -> None:
    rows = [make_row(tag) for tag in ("forbidden", "approved", "approved")]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out, "--create", "--concurrency", "1")
    with setting(served, AUTH_TOKEN="wrong"):
        assert run(served, *command).returncode == 1
    served.journal.clear()

    point = ("loanasync.cli.approve_many.job", "Job.mark_created", "after", "2")
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, *point, *map(str, command)], env=environment(served), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert run(served, *command).returncode == 1
    calls = [
        [call.operation for call in served.journal.calls(fiscal_code=row["fiscal_code"])] for row in rows
    ]
    assert calls == [
        ["create_request", "approve", "approve"],
        ["approve", "create_request", "approve"],  # it was killed between the mark and the creation
        ["create_request", "approve"],
    ]


def test_creation_is_not_repeated_after_a_run_with_an_invalid_row(tmp_path: Path, served: Sandbox) -> None:
    row, file, out = make_row("forbidden"), tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    for changes in ({}, {"amount": 1}, {}):
        write(file, [row | changes])
        run(served, "approve-many", file, "-o", out, "--create", "--skip-invalid")
    assert [call.operation for call in served.journal.calls()] == ["create_request", "approve", "approve"]


def test_creation_is_not_repeated_after_a_release(tmp_path: Path, served: Sandbox) -> None:
    file, out = write(tmp_path / "rows.jsonl", [make_row("reset")]), tmp_path / "out.jsonl"
    for _ in range(2):
        run(served, "approve-many", file, "-o", out, "--create")
        run_ledger("resolve", f"{out}.ledger", read(out)[0]["entry"], "--as", "released", "--note", "x")
    assert [call.operation for call in served.journal.calls()] == ["create_request", "approve", "approve"]


def test_each_customer_on_the_line_of_another_one_is_created_once(tmp_path: Path, served: Sandbox) -> None:
    """If the service does not know a customer after the creation, no other creation is sent."""
    for tag, code in (("nouser", 1), ("forbidden", 1), ("approved", 0)):
        row = make_row(tag)
        file, out = write(tmp_path / "rows.jsonl", [row]), tmp_path / "out.jsonl"
        assert run(served, "approve-many", file, "-o", out, "--create").returncode == code
        calls = [call.operation for call in served.journal.calls(fiscal_code=row["fiscal_code"])]
        assert calls == ["create_request", "approve"]


@pytest.mark.parametrize(
    ("resolution", "status", "calls", "code"),
    [
        *(("approved", "approved", 1, 0), ("refused", "refused", 1, 0)),
        *(("released", "approved", 2, 0), ("held", "unknown", 1, 3)),
    ],
)
def test_resolution_of_a_person_is_exported(
    tmp_path: Path, served: Sandbox, ledger: Path | None, resolution: str, status: str, calls: int, code: int
) -> None:
    # Not evaluated, which the client cannot know.
    bulk = Bulk(tmp_path, served, "reset", ledger=ledger)
    assert bulk.run()[0] == 3
    entry = read(bulk.out)[0]["entry"]
    run_ledger("resolve", bulk.ledger, entry, "--as", resolution, "--note", "ticket 17")
    bulk.export()
    exported = bulk.out.read_bytes()
    bulk.export()
    assert bulk.out.read_bytes() == exported, "it has the time of the resolution"
    assert bulk.statuses == [resolution if resolution in ("approved", "refused") else "unknown"]
    if resolution == "approved":
        assert "where to send the customer" in read(bulk.out)[0]["message"]
    for _ in range(2):
        assert bulk.run()[0] == code
        (line,) = read(bulk.out)
        assert line["status"] == status
        if resolution == "approved":
            assert (line["amount"], "where to send the customer" in line["message"]) == (45_000, True)
    assert len(bulk.requests) == calls


def test_resolution_of_an_order_is_exported(tmp_path: Path, served: Sandbox) -> None:
    ledger = tmp_path / "decisions.db"
    create_at(ledger, served.base_url)
    bulk = Bulk(tmp_path, served, make_row("reset", order_id="A1"), ledger=ledger)
    bulk.run()
    run_ledger("resolve", ledger, read(bulk.out)[0]["entry"], "--as", "refused", "--note", "ticket 17")
    assert (bulk.export()[0], bulk.statuses) == (0, ["refused"])


@pytest.mark.parametrize("state", ["refused", "unknown", "held", "released"])
def test_corrected_or_withdrawn_resolution_leaves_the_results(
    tmp_path: Path, served: Sandbox, ledger: Path | None, state: str
) -> None:
    bulk = Bulk(tmp_path, served, "resetafter", ledger=ledger)
    assert bulk.run()[0] == 3
    entry = read(bulk.out)[0]["entry"]
    for stated, code in (("approved", 0), (state, {"refused": 0, "released": 1}.get(state, 3))):
        run_ledger("resolve", bulk.ledger, entry, "--as", stated, "--note", "x")
        shown = [] if stated == "released" else ["unknown" if code else stated]
        assert (bulk.export()[0], bulk.statuses) == (code, shown)
        if stated != "released":  # it would be sent
            assert (bulk.run()[0], bulk.statuses, bulk.calls) == (code, shown, 1)


def test_rows_of_two_inputs_with_the_same_lines_and_ids_are_kept(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row(tag, id="7") for tag in ("forbidden", "approved")]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    for number, row in enumerate(rows):
        run(served, "approve-many", write(tmp_path / f"{number}.jsonl", [row]), "-o", out)
    assert [*statuses(out).values()] == ["error", "approved"]


def test_export_from_another_folder_finds_the_input(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk, mapping = Bulk(tmp_path, served, "approved"), tmp_path / "mapping.toml"
    mapping.write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = ("-o", "out.jsonl", "--mapping", "mapping.toml")
    assert run(served, "approve-many", "rows.jsonl", *options).returncode == 0
    written = bulk.out.read_bytes()
    bulk.out.unlink()
    monkeypatch.chdir("/")
    assert (bulk.export()[0], bulk.out.read_bytes()) == (0, written)


def test_corrected_rows_replace_those_that_were_not_evaluated(tmp_path: Path, served: Sandbox) -> None:
    """In the same file or in the file of rejected rows. A decision stays, also if its row is removed."""
    bulk = Bulk(tmp_path, served, "approved", "invalid.city", "forbidden", make_row("approved", amount=1))
    rejected = tmp_path / "rejected.jsonl"
    assert bulk.run("--skip-invalid", "--rejected", rejected)[0] == 1
    assert bulk.statuses == ["approved", "rejected", "error", "rejected"]
    wrong = read(rejected)
    assert [row["loanasync_line"] for row in wrong] == [2, 3, 4]
    corrected = [{**row, "email": "anna+approved@example.com", "amount": 45_000} for row in wrong]
    fixed = write(tmp_path / "fixed.jsonl", corrected[::2])
    done = run(served, "approve-many", fixed, "-o", bulk.out)
    assert done.returncode == 0, done.stderr
    assert bulk.statuses == ["approved", "approved", "error", "approved"]
    codes = [line["fiscal_code"] for line in read(bulk.out)]
    assert codes == bulk.codes, "also of the rows in the first file"
    other_spelling = {**bulk.rows[1], "fiscal_code": f" {bulk.codes[1].lower()}"}
    write(bulk.file, [other_spelling])  # all others are removed
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved"] * 3)
    assert len(bulk.requests) == 3 + 2 + 0


@pytest.mark.parametrize("first", ["forbidden", "refused"])
def test_row_that_is_inserted_above_another_comes_first_in_the_results(
    tmp_path: Path, served: Sandbox, first: str
) -> None:
    """The new row takes the line of a row that is sent again, and both stay in the job."""
    bulk = Bulk(tmp_path, served, first)
    bulk.run()
    new = Bulk(tmp_path, served, "approved")
    write(bulk.file, [*new.rows, {**bulk.rows[0], "email": "anna+refused@example.com"}])
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved", "refused"])
    assert [line["fiscal_code"] for line in read(bulk.out)] == new.codes + bulk.codes


def test_second_of_two_first_runs_that_begin_together_is_refused(tmp_path: Path) -> None:
    """Neither found a job file, and the first one has ended when the second one begins."""
    file = tmp_path / "out.jsonl.ledger"
    first, second = Job(file), Job(file)
    first.plan(None, 1, "1", "key", "rows.jsonl", Kind.TO_BE_SENT, 45_000, "", None)
    first.begin(file, "rows.jsonl", {})
    first.close()
    with closing(second), pytest.raises(UnusableError, match="another run has begun"):
        second.begin(file, "rows.jsonl", {})


def test_job_of_a_sandbox_is_continued_with_the_next_sandbox(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused")
    for number in (1, 2):
        write(bulk.file, bulk.rows[:number])
        code, output = bulk.run("--sandbox")
        assert (code, bulk.statuses) == (0, ["approved", "refused"][:number]), output


def test_rows_of_one_customer_are_distinguished_by_their_order(
    tmp_path: Path, served: Sandbox, ledger: Path | None
) -> None:
    """The service evaluates a customer once, so the second response has no decision."""
    spring = make_row("approved", order_id="spring")
    bulk = Bulk(tmp_path, served, spring, {**spring, "order_id": "autumn"}, ledger=ledger)
    for _ in range(2):
        assert (bulk.run("--concurrency", "1")[0], bulk.statuses) == (3, ["approved", "unknown"])
        assert [line["fiscal_code"] for line in read(bulk.out)] == bulk.codes
    assert len(bulk.requests) == 2


def test_job_without_a_decision_may_change_its_shop_beside_others(tmp_path: Path, served: Sandbox) -> None:
    ledger, other = make_shared(tmp_path, served), tmp_path / "other"
    other.mkdir()
    assert Bulk(other, served, "approved", ledger=ledger).run()[0] == 0
    bulk = Bulk(tmp_path, served, "approved", ledger=ledger)
    with setting(served, SHOP_ID="another-shop"):
        assert bulk.run()[0] == 1
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved"])


def test_two_jobs_on_one_ledger_ask_each_customer_once(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["slow500"] * 6, ledger=make_shared(tmp_path, served))
    first = start(served, *bulk.command())
    wait_for(lambda: bulk.calls >= 4)
    other, third = tmp_path / "other.jsonl", tmp_path / "third.jsonl"
    code, output = bulk.run(out=other)
    first.communicate(timeout=60)
    assert (first.returncode, code, bulk.calls) == (0, 0, 6), output
    assert statuses(other) == statuses(bulk.out)
    assert "claimed by another process, which may have died" in output
    _, output = bulk.run(out=tmp_path / "fourth.jsonl")
    assert table(output) == {"from the ledger": ("6", "2,700.00"), "total": ("6", "2,700.00")}
    write(bulk.file, [{**bulk.rows[0], "amount": 90_000}])
    for is_purged in (False, True):
        if is_purged:
            change(Path(str(bulk.ledger)), "DELETE FROM entries")
        code, _ = bulk.run(out=third)
        (line,) = read(third)
        assert (code, line["error"], line["outcome"]) == (1, "PayloadMismatchError", "approved")
    assert bulk.calls == 6


def test_ledger_failure_stops_the_run_and_keeps_every_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ledger = make_shared(tmp_path, served)
    # The first request is still in progress when the table is removed.
    bulk = Bulk(tmp_path, served, "slow3000", *["slow100"] * 39, ledger=ledger)
    rename = partial(change, ledger, "ALTER TABLE entries RENAME TO away")
    with meanwhile(lambda: bulk.calls >= 4, rename):
        code, errors = bulk.run("--concurrency", "2")
    assert code == 1
    assert "the ledger is not available (OperationalError); run the same command to resume" in errors
    assert "When the ledger works again, run: loanasync ledger sweep (with the same --led" in errors
    assert bulk.calls < 40
    found = {code: status for code, status in statuses(bulk.out).items() if status != "error"}
    assert found == dict.fromkeys(bulk.requests, "approved")
    change(ledger, "ALTER TABLE away RENAME TO entries")
    assert run_ledger("sweep", ledger).exit_code == 0
    assert [each["state"] for each in listed(ledger)] == ["approved"] * bulk.calls
    assert bulk.run()[0] == 0
    assert (bulk.calls, bulk.statuses) == (40, ["approved"] * 40)


def test_export_without_its_ledger_writes_nothing(tmp_path: Path, served: Sandbox) -> None:
    ledger = make_shared(tmp_path, served)
    bulk = Bulk(tmp_path, served, "approved", ledger=ledger)
    bulk.run()
    change(ledger, "ALTER TABLE entries RENAME TO away")
    code, errors = bulk.export("-o", tmp_path / "again.jsonl")
    assert (code, (tmp_path / "again.jsonl").exists()) == (2, False)
    assert errors.startswith("the ledger is not available (OperationalError): check --ledger")


def test_configuration_error_of_a_row_stops_the_run(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, claimed = SqliteLedger.claim, list[str]()

    async def claim_three(self: SqliteLedger, key: str, **arguments: Any) -> Any:
        claimed.append(key)
        if len(claimed) > 3:
            raise ConfigurationError("ledger", "has no option driver")
        return await claim(self, key, **arguments)

    monkeypatch.setattr(SqliteLedger, "claim", claim_three)
    bulk = Bulk(tmp_path, served, *["approved"] * 12)
    code, errors = bulk.run("--concurrency", "1")
    assert (code, "has no option driver" in errors, len(claimed)) == (1, True, 4)
    monkeypatch.undo()
    assert (bulk.run()[0], bulk.calls) == (0, 12)


def test_job_may_begin_in_a_ledger_without_rows(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    create_at(bulk.job, served.base_url)
    assert (bulk.run()[0], bulk.export()[0], bulk.run()[0], bulk.calls) == (0, 0, 0, 1)


@pytest.mark.parametrize("state", ["inflight", "unknown"])
def test_decision_that_the_ledger_lacks_stays_decided(tmp_path: Path, served: Sandbox, state: str) -> None:
    """The ledger could not take the decision, and the job has it."""
    bulk = Bulk(tmp_path, served, "approved")
    bulk.run()
    before = bulk.out.read_bytes()
    without_source = "document = json_remove(document, '$.source'), body = NULL"
    change(bulk.job, f"UPDATE entries SET state = '{state}', {without_source}")  # noqa: S608  (constants)
    for action in (bulk.run, bulk.export):
        assert action()[0] == 0
        assert (bulk.out.read_bytes(), bulk.calls) == (before, 1)


@pytest.mark.parametrize("name", ["missing.ledger", "rows.jsonl", "empty.db"])
def test_export_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    create_at(tmp_path / "empty.db")
    write(tmp_path / "rows.jsonl", [make_row("approved")])
    done = run(None, "export", tmp_path / name, "-o", tmp_path / "new.jsonl")
    assert (done.returncode, name in done.stderr, (tmp_path / "new.jsonl").exists()) == (2, True, False)

"""The job file of ``approve-many``: after every kind of end, the same command asks each customer once."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loanasync import ConfigurationError
from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from support.cli import (
    create,
    environment,
    make_row,
    meanwhile,
    read,
    run,
    start,
    statuses,
    table,
    wait_for,
    write,
)
from support.ledger_file import change, create_at, listed, run_ledger

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


class Bulk:
    """A file of rows for a sandbox that knows their customers, and the command that requests them."""

    def __init__(self, folder: Path, sandbox: Sandbox, *tags: str, shares: bool = False) -> None:
        self.folder, self.sandbox = folder, sandbox
        self.rows = [make_row(tag) for tag in tags]
        create(sandbox, self.rows)
        self.file = write(folder / "rows.jsonl", self.rows)
        self.out, self.job = folder / "out.jsonl", folder / "out.jsonl.ledger"
        self.ledger = folder / "decisions.db" if shares else self.job
        self.options: tuple[object, ...] = ("--ledger", self.ledger) if shares else ()
        if shares:
            create_at(self.ledger, sandbox.base_url)

    def command(self, *options: object, out: object = None) -> tuple[object, ...]:
        return ("approve-many", self.file, "-o", out or self.out, *self.options, *options)

    def run(self, *options: object, out: object = None) -> tuple[int, str]:
        done = run(self.sandbox, *self.command(*options, out=out))
        return done.returncode, done.stderr

    def export(self, *options: object) -> tuple[int, str]:
        done = run(None, "export", self.job, *self.options, *options)
        return done.returncode, done.stderr

    @property
    def calls(self) -> int:
        """Number of requests, of which no customer may have had two."""
        codes = [call.fiscal_code for call in self.sandbox.journal.calls(operation="approve")]
        assert len(set(codes)) == len(codes)
        return len(codes)

    @property
    def statuses(self) -> list[str]:
        return [line["status"] for line in read(self.out)]


@pytest.fixture(params=[False, True], ids=["own ledger", "shared ledger"])
def shares(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_second_run_sends_nothing_and_writes_the_same_results(
    tmp_path: Path, served: Sandbox, *, shares: bool
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter", "approved", shares=shares)
    assert (bulk.run()[0], bulk.calls) == (3, 4)
    assert bulk.statuses == ["approved", "refused", "unknown", "approved"]
    written = bulk.out.read_bytes()
    for remove in (False, True):  # the results are not read again
        if remove:
            bulk.out.unlink()
        code, output = bulk.run()
        assert (code, bulk.calls, bulk.out.read_bytes()) == (3, 4, written)
        assert table(output) == {
            "earlier": ("3", "1,350.00"),
            "unknown": ("1", "450.00"),
            "total": ("4", "1,800.00"),
        }
    assert bulk.export()[0] == 0
    assert bulk.out.read_bytes() == written


def test_job_file_is_private_and_has_no_fiscal_code(tmp_path: Path, served: Sandbox, *, shares: bool) -> None:
    bulk = Bulk(tmp_path, served, "approved", "resetafter", "forbidden", shares=shares)
    bulk.run()
    content = b"".join(path.read_bytes() for path in tmp_path.glob("out.jsonl.ledger*"))
    for row in bulk.rows:
        assert row["fiscal_code"] in bulk.out.read_text(encoding="utf-8")
        assert row["fiscal_code"].encode() not in content
        assert row["email"].encode() not in content
    if os.name == "posix":
        assert {path.stat().st_mode & 0o077 for path in (bulk.out, bulk.job)} == {0}


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.jsonl.gz"])
def test_results_without_their_job_file_are_refused(tmp_path: Path, served: Sandbox, out: str) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter")
    bulk.run(out=tmp_path / out)
    job = tmp_path / f"{out}.ledger"
    kept = job.rename(tmp_path / "kept")
    written = (tmp_path / out).read_bytes()
    code, output = bulk.run(out=tmp_path / out)
    assert (code, bulk.calls, (tmp_path / out).read_bytes()) == (2, 3, written)
    assert f"{out} exists and contains 2 decisions, but its job file {job} is missing or empty" in output
    kept.rename(job)
    assert (bulk.run(out=tmp_path / out)[0], bulk.calls) == (3, 3)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + bytes(50), b"no database" * 500])
def test_damaged_job_file_sends_nothing(
    tmp_path: Path, served: Sandbox, content: bytes, *, shares: bool
) -> None:
    bulk = Bulk(tmp_path, served, "approved", shares=shares)
    bulk.run()
    bulk.job.write_bytes(content)
    code, output = bulk.run()
    assert (code, bulk.calls, str(bulk.job) in output) == (2, 1, True), output
    assert bulk.job.read_bytes() == content


def test_job_of_another_service_or_ledger_is_refused(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    bulk.run()
    code, output = bulk.run("--sandbox")
    assert (code, "contains results of another service or shop" in output) == (2, True), output
    create_at(tmp_path / "decisions.db", served.base_url)
    code, output = bulk.run("--ledger", tmp_path / "decisions.db")
    assert (code, "was begun with another ledger" in output) == (2, True), output
    assert bulk.run("--ledger", tmp_path / "decisions.db", out=tmp_path / "other")[0] == 3, (
        "already evaluated"
    )
    code, output = bulk.run(out=tmp_path / "other")
    assert (code, "was begun with another ledger" in output) == (2, True), output


def test_wrong_address_and_token_may_be_corrected(tmp_path: Path, served: Sandbox) -> None:
    """As long as no customer was evaluated, the job belongs to no service."""
    bulk = Bulk(tmp_path, served, *["approved"] * 40)
    for name, value, code in (("BASE_URL", "http://127.0.0.1:9", 1), ("AUTH_TOKEN", "wrong", 1)):
        changed = {**environment(served), f"LOANASYNC_{name}": value}
        done = subprocess.run(
            [sys.executable, "-m", "loanasync", *map(str, bulk.command())],
            env=changed, check=False, capture_output=True, encoding="utf-8",
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "run the same command to resume" in done.stderr
    assert "the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN" in done.stderr
    assert len(served.journal.calls(operation="approve")) < 10
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved"] * 40)


@posix
def test_killed_run_is_continued_at_once_and_exported(
    tmp_path: Path, served: Sandbox, *, shares: bool
) -> None:
    bulk = Bulk(tmp_path, served, *["approved"] * 6, "hangafter", "hangafter", "approved", shares=shares)
    process = start(served, *bulk.command("--concurrency", "2"))
    wait_for(lambda: bulk.calls == 8)
    code, output = bulk.run()
    assert (code, bulk.calls) == (2, 8)
    assert output == (
        f"another run is writing to {bulk.out}: wait until it ends, then run this command again\n"
    )
    assert bulk.run("--dry-run")[0] == 2
    if shares:
        _, output = bulk.run("--dry-run", out=tmp_path / "other.jsonl")
        assert table(output)["in progress elsewhere"] == ("2", "900.00")
    assert bulk.export()[0] == 0, "also while it runs"
    process.kill()  # which releases the lock
    process.communicate()
    bulk.out.unlink()
    assert bulk.export()[0] == 0
    known = ["approved"] * 6 + ["unknown"] * 2  # also those in flight
    assert bulk.statuses == known
    assert [line["fiscal_code"] for line in read(bulk.out)] == [row["fiscal_code"] for row in bulk.rows[:8]]
    if shares:
        change(
            bulk.ledger, "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'"
        )  # their leases expire
    for _ in range(2):
        assert bulk.run()[0] == 3
        assert (bulk.statuses, bulk.calls) == ([*known, "approved"], 9)


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
_JOB = "loanasync.cli.approve_many.job Job."
POINTS = [
    *((f"{_SQLITE}open", when, 1) for when in ("before", "after")),
    *((f"{_SQLITE}claim", when, 2) for when in ("before", "after")),
    (f"{_SQLITE}settle", "before", 2),
    *((f"{_JOB}{name}", when, 1) for name in ("begin", "finish", "close") for when in ("before", "after")),
    ("loanasync.cli.files os.fsync", "after", 1),
]


@posix
@pytest.mark.parametrize(
    ("where", "when", "number"),
    [
        (f"{_SQLITE}settle", "after", 2),
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


@pytest.mark.parametrize(
    ("resolution", "status", "calls", "code"),
    [
        *(("approved", "approved", 1, 0), ("refused", "refused", 1, 0)),
        *(("released", "approved", 2, 0), ("held", "unknown", 1, 3)),
    ],
)
def test_resolution_of_a_person_is_exported(
    tmp_path: Path, served: Sandbox, resolution: str, status: str, calls: int, code: int, *, shares: bool
) -> None:
    bulk = Bulk(tmp_path, served, "reset", shares=shares)  # not evaluated, which the client cannot know
    assert bulk.run()[0] == 3
    (line,) = read(bulk.out)
    run_ledger("resolve", bulk.ledger, line["entry"], "--as", resolution, "--note", "ticket 17")
    bulk.export()
    (exported,) = read(bulk.out)
    assert exported["status"] == (resolution if resolution in ("approved", "refused") else "unknown")
    for _ in range(2):
        assert bulk.run()[0] == code
        (line,) = read(bulk.out)
        assert line["status"] == status
        if resolution == "approved":
            assert (line["amount"], "where to send the customer" in line["message"]) == (45_000, True)
    assert len(served.journal.calls(operation="approve")) == calls


def test_corrected_rows_replace_those_that_were_not_evaluated(tmp_path: Path, served: Sandbox) -> None:
    """In the same file or in the file of rejected rows. A decision stays, also if its row is removed."""
    bulk = Bulk(tmp_path, served, "approved", "invalid.city", "forbidden", "approved")
    rejected = tmp_path / "rejected.jsonl"
    bulk.rows[3]["amount"] = 1
    write(bulk.file, bulk.rows)
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
    assert codes == [row["fiscal_code"] for row in bulk.rows], "also of the rows in the first file"
    write(bulk.file, bulk.rows[1:2])  # all others are removed
    assert bulk.run()[0] == 0
    assert bulk.statuses == ["approved"] * 3
    assert len(served.journal.calls(operation="approve")) == 3 + 2 + 0


def test_two_jobs_on_one_ledger_ask_each_customer_once(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["slow500"] * 6, shares=True)
    first = start(served, *bulk.command())
    wait_for(lambda: bulk.calls >= 4)
    other = tmp_path / "other.jsonl"
    code, output = bulk.run(out=other)
    first.communicate(timeout=60)
    assert (first.returncode, code, bulk.calls) == (0, 0, 6), output
    assert statuses(other) == statuses(bulk.out)
    write(bulk.file, [{**bulk.rows[0], "amount": 90_000}])
    for _ in range(2):
        code, _ = bulk.run(out=tmp_path / "third.jsonl")
        (line,) = read(tmp_path / "third.jsonl")
        assert (code, line["error"], line["outcome"]) == (1, "PayloadMismatchError", "approved")
    assert bulk.calls == 6


def test_ledger_failure_stops_the_run_and_keeps_every_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # The first request is still in progress when the table is removed.
    bulk = Bulk(tmp_path, served, "slow3000", *["slow100"] * 39, shares=True)
    rename = partial(change, bulk.ledger, "ALTER TABLE entries RENAME TO away")
    with meanwhile(lambda: bulk.calls >= 4, rename):
        code, errors = bulk.run("--concurrency", "2")
    assert code == 1
    assert "the ledger is not available (OperationalError); run the same command to resume" in errors
    assert "When the ledger works again, run: loanasync ledger import-orphans (with the same --led" in errors
    calls = {call.fiscal_code: "approved" for call in served.journal.calls(operation="approve")}
    assert len(calls) < 40
    found = {code: status for code, status in statuses(bulk.out).items() if status != "error"}
    assert found == calls
    change(bulk.ledger, "ALTER TABLE away RENAME TO entries")
    assert run_ledger("import-orphans", bulk.ledger).exit_code == 0
    assert [each["state"] for each in listed(bulk.ledger)] == ["approved"] * len(calls)
    assert bulk.run()[0] == 0
    assert (bulk.calls, bulk.statuses) == (40, ["approved"] * 40)


def test_configuration_error_of_a_row_stops_the_run(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = SqliteLedger.claim
    claimed = []

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


@pytest.mark.parametrize("state", ["inflight", "unknown"])
def test_decision_that_the_ledger_lacks_stays_decided(tmp_path: Path, served: Sandbox, state: str) -> None:
    """The ledger could not take the decision, and the job has it."""
    bulk = Bulk(tmp_path, served, "approved")
    bulk.run()
    before = bulk.out.read_bytes()
    without_source = "document = json_remove(document, '$.source'), body = NULL"
    change(bulk.ledger, f"UPDATE entries SET state = '{state}', {without_source}")  # noqa: S608  (constants)
    for action in (bulk.run, bulk.export):
        assert action()[0] == 0
        assert (bulk.out.read_bytes(), bulk.calls) == (before, 1)


def test_customer_in_other_spelling_is_recognised(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    write(bulk.file, [{**bulk.rows[0], "fiscal_code": f" {bulk.rows[0]['fiscal_code'].lower()}"}])
    assert (bulk.run()[0], bulk.calls, len(read(bulk.out))) == (0, 1, 1)


@posix
@pytest.mark.parametrize(
    ("options", "added"),
    [
        *(((), True), (("--sandbox",), True), (("--ledger", "missing.db"), False)),
        (("--rejected", "missing/rejected.jsonl"), False),
    ],
)
def test_run_that_sends_nothing_leaves_no_file(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    *,
    added: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Bulk(tmp_path, served, "approved")
    valid = bulk.file.read_text(encoding="utf-8")
    bulk.file.write_text(valid + '{"fiscal_code": "TSTX"}\n' * added, encoding="utf-8")
    code, output = bulk.run(*options)
    assert (code, [*tmp_path.iterdir()]) == (2, [bulk.file]), output
    bulk.file.write_text(valid, encoding="utf-8")
    assert (bulk.run()[0], bulk.calls) == (0, 1)


def test_rows_of_a_missing_input_are_exported_without_fiscal_codes(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    bulk.run()
    [before] = read(bulk.out)
    bulk.file.unlink()
    assert bulk.export("-o", tmp_path / "again.jsonl")[0] == 0
    del before["fiscal_code"]
    assert read(tmp_path / "again.jsonl") == [before]


@pytest.mark.parametrize("name", ["missing.ledger", "rows.jsonl", "empty.db"])
def test_export_of_something_else_is_refused(tmp_path: Path, served: Sandbox, name: str) -> None:
    Bulk(tmp_path, served, "approved")
    create_at(tmp_path / "empty.db", served.base_url)
    done = run(None, "export", tmp_path / name, "-o", tmp_path / "new.jsonl")
    assert (done.returncode, name in done.stderr, (tmp_path / "new.jsonl").exists()) == (2, True, False)

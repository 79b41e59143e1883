"""The ledger as the only memory of ``approve-many``: other results, corrected rows, kills and other runs."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loanasync import LedgerUnavailableError, LoanClient
from loanasync.ledger import Settlement, State
from loanasync.sandbox import Sandbox
from support.cli import Bulk, create, environment, make_row, planned, read, run, start, table, wait_for, write
from support.ledger_file import change, create_at, listed, run_ledger

posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def test_other_results_file_machine_or_service_ask_nobody_again(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", "resetafter")
    assert bulk.run()[0] == 3
    kept = ("line", "status", "fiscal_code", "redirect_url", "amount_cents", "entry")
    first = [[line[name] for name in kept] for line in read(bulk.out)]
    for out in (bulk.out, tmp_path / "again.jsonl"):
        code, output = bulk.run(out=out)
        assert (code, table(output)["approved"][:2], bulk.calls) == (3, (1, 0), 3)
        assert [[line[name] for name in kept] for line in read(out)] == first
    other = write(tmp_path / "other.jsonl", [make_row("approved"), *reversed(bulk.rows)])
    create(served, read(other)[:1])
    assert run(served, "approve-many", other, "-o", tmp_path / "other.out").returncode == 3
    assert [line["status"] for line in read(tmp_path / "other.out")] == [
        "approved", "unknown", "refused", "approved"
    ]  # fmt: skip
    [entry] = [line["entry"] for line in read(bulk.out) if line["status"] == "unknown"]
    resolved = run_ledger("resolve", bulk.ledger, entry, "--as", "approved", "--note", "ticket 1")
    assert resolved.exit_code == 0
    # The folder of state is moved with the results, for example to another machine.
    shutil.move(tmp_path / "loanasync", tmp_path / "moved" / "loanasync")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "moved"))
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (0, ["approved", "refused", "approved"], 4)
    with Sandbox.in_thread() as service:  # it has another default ledger
        create(service, bulk.rows)
        assert run(service, "approve-many", bulk.file, "-o", tmp_path / "service").returncode == 3
        assert len(service.journal.calls(operation="approve")) == 3


def test_file_of_the_ledger_is_refused_as_output(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    for options in ((), ("--ledger", bulk.ledger)):
        for suffix in ("", "-wal", "-shm"):
            file = f"{bulk.ledger}{suffix}"
            for written in (("-o", file), ("-o", tmp_path / "new", "--rejected", file)):
                done = run(served, "approve-many", bulk.file, *written, *options)
                assert (done.returncode, "is used for two purposes" in done.stderr) == (2, True)
    assert (bulk.run()[0], bulk.calls) == (0, 1), "the ledger is unchanged"


def test_changed_and_repeated_rows_take_no_decision_of_another(tmp_path: Path, served: Sandbox) -> None:
    wrong, rejected = make_row("approved", amount=1), tmp_path / "rejected.jsonl"
    bulk = Bulk(tmp_path, served, "approved", wrong, "refused")
    for row, expected in ((wrong, "rejected"), ({**wrong, "amount": 45_000}, "approved")):
        write(bulk.file, [bulk.rows[0], row, bulk.rows[2], {**row, "amount": 45_000}])
        assert bulk.run("--skip-invalid")[0] == 1
        assert bulk.statuses == ["approved", expected, "refused", "rejected"]
        assert "duplicate of line 2" in read(bulk.out)[3]["message"], "also after the correction"
    write(bulk.file, [{**row, "amount": 60_000} for row in bulk.rows])
    code, output = bulk.run("--rejected", rejected)
    assert (code, bulk.calls, table(output)["failed"]) == (1, 3, (3, 0, "1,800.00"))
    assert [(line["status"], line["error"]) for line in read(bulk.out)] == [
        ("failed", "PayloadMismatchError")
    ] * 3
    assert ["other data" in row["loanasync_reason"] for row in read(rejected)] == [True] * 3
    rows = [make_row("approved"), {**wrong, "amount": 45_000}, bulk.rows[2]]  # another customer on line 1
    create(served, rows[:1])
    write(bulk.file, rows)
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (0, ["approved", "approved", "refused"], 4)
    assert [line["fiscal_code"] for line in read(bulk.out)] == [row["fiscal_code"] for row in rows]


def test_each_row_needs_its_order_unless_customers_have_one_approval(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved", order_id=None) for _ in range(2)]
    bulk = Bulk(tmp_path, served, *rows)
    code, output = bulk.run()
    assert (code, "order_id: is required" in output, bulk.calls) == (2, True, 0)
    assert "pass --one-per-customer" in output
    header = tmp_path / "rows.csv"
    header.write_text(",".join(rows[0]) + "\n" + ",".join(map(str, rows[0].values())), encoding="utf-8")
    done = run(served, "approve-many", header, "-o", bulk.out)
    assert (done.returncode, "pass --one-per-customer" in done.stderr) == (2, True)
    assert (bulk.run("--one-per-customer")[0], bulk.calls) == (0, 2)
    write(bulk.file, [{**row, "order_id": "A-1"} for row in rows])
    code, output = bulk.run("--one-per-customer")
    assert (code, "the rows have orders: leave it out" in output) == (2, True)
    write(bulk.file, [{**rows[0], "order_id": "A-1"}, rows[1]])
    code, output = bulk.run()
    assert (code, "order_id: is required" in output) == (2, True)
    assert "pass --one-per-customer" not in output, "which refuses the other row"


def test_results_of_another_ledger_are_refused(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in another container, or of another account: they would ask each customer again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of Anna"))
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    line = Path(f"{bulk.out}.ledger").read_text(encoding="utf-8")
    assert line.rstrip("\n").partition(" ")[2] == str(bulk.ledger)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    for option in ((), ("--dry-run",)):
        code, output = bulk.run(*option)
        assert (code, f"was written with the ledger {bulk.ledger}" in output) == (2, True), output
    assert not [*(tmp_path / "other").rglob("*.db")], "no ledger is created"
    assert (bulk.run("--ledger", bulk.ledger)[0], bulk.calls) == (0, 1)
    create_at(other := tmp_path / "other.db", served.base_url)
    assert "pass --ledger" in bulk.run("--ledger", other)[1]
    Path(f"{bulk.out}.ledger").unlink()
    code, output = bulk.run()
    assert (code, f"{bulk.out}.ledger is missing, so its ledger is not known" in output) == (2, True)
    assert [*tmp_path.glob("*.ledger")] == []
    assert bulk.calls == 1


def test_run_without_a_usable_state_folder_says_pass_ledger(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    code, output = bulk.run()
    assert (code, output.count("pass --ledger"), bulk.calls) == (2, 1, 0)
    monkeypatch.setattr(Path, "expanduser", lambda _: (_ for _ in ()).throw(RuntimeError))
    assert "there is no home directory): pass --ledger" in bulk.run()[1]


@posix
def test_killed_run_is_continued_and_its_rows_in_flight_are_looked_up(
    tmp_path: Path, served: Sandbox
) -> None:
    bulk = Bulk(tmp_path, served, *["approved"] * 6, "hangafter", "hangafter", "approved")
    process = start(served, *bulk.command("--concurrency", "2"))
    wait_for(lambda: bulk.calls == 8)
    message = f"another run is writing to {bulk.out}: wait until it ends, then run this command again\n"
    assert (bulk.run(), bulk.calls) == ((75, message), 8)
    process.kill()  # which releases the lock, also while the process is a zombie
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not bulk.out.exists()
    _, output = bulk.run("--dry-run")
    assert planned(output) == {
        "new": 1, "decided": 6, "in flight": 2, "total": 9
    }  # fmt: skip
    # Their leases expire while the next run waits.
    longer = "UPDATE entries SET lease_end = lease_end - 66 WHERE state = 'inflight'"
    change(bulk.ledger, longer)
    part = tmp_path / "out.jsonl.abcd_123.part"
    part.touch()
    code, output = bulk.run()
    assert "waiting for 2 rows in flight in another run, which may have been killed: at most 70 s" in output
    expected = ["approved"] * 6 + ["unknown"] * 2 + ["approved"]
    assert (code, bulk.statuses, bulk.calls, part.exists()) == (3, expected, 9, False)
    process.communicate()
    assert {each["note"] for each in listed(bulk.ledger) if each["state"] == "unknown"} == {
        "the lease expired"
    }


def test_orders_of_one_customer_are_requested_one_after_the_other(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("slow300")
    bulk = Bulk(tmp_path, served, row)
    write(bulk.file, [row, *({**row, "order_id": order} for order in ("second", "third"))])
    for _ in range(2):  # the second run sends nothing
        code, output = bulk.run()
        assert (code, sorted(bulk.statuses), len(bulk.requests)) == (1, ["approved", "failed", "failed"], 3)
        assert "in another run" not in output
    assert planned(bulk.run("--dry-run")[1]) == {"decided": 1, "decided for another order": 2, "total": 3}
    # Beside an order in progress, "already evaluated" would have to be resolved.
    assert [entry["note"] for entry in listed(bulk.ledger) if entry["state"] == "lost"] == [
        "evaluated for another order"
    ] * 2


def test_plan_and_run_agree_on_an_order_behind_an_open_one(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("resetafter")
    bulk = Bulk(tmp_path, served, row)
    assert bulk.run()[0] == 3
    write(bulk.file, [row, {**row, "order_id": "second"}])
    assert planned(bulk.run("--dry-run")[1]) == {"unknown": 2, "total": 2}
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (3, ["unknown", "unknown"], 1)
    write(bulk.file, [{**row, "amount": 50_000}])
    assert [*table(bulk.run("--dry-run")[1])] == ["unknown", "total"]
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (3, ["unknown"], 1)


def test_order_of_an_erased_customer_is_failed_and_needs_no_answer(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    assert bulk.run()[0] == 0
    done = run(served, "ledger", "--ledger", bulk.ledger, "forget", stdin=f"{bulk.rows[0]['fiscal_code']}\n")
    assert done.returncode == 0, done.stderr
    assert planned(bulk.run("--dry-run")[1]) == {"erased": 1, "total": 1}
    code, output = bulk.run()
    assert (code, bulk.statuses, bulk.calls) == (1, ["failed"], 1)
    assert "the data of this customer were erased" in output
    assert "ask the service" not in output
    created = len(served.journal.calls(operation="create_request"))
    write(bulk.file, [{**bulk.rows[0], "order_id": "second"}])
    assert (bulk.run("--create")[0], bulk.statuses) == (1, ["failed"])
    assert len(served.journal.calls(operation="create_request")) == created, "nothing of the customer is sent"


def test_creation_that_the_ledger_cannot_note_is_not_sent(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    created = len(served.journal.calls(operation="create_request"))

    async def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("loanasync.ledger.SqliteLedger.settle", fail)
        assert (bulk.run("--create")[0], bulk.statuses) == (1, ["not_sent"])
    [line] = read(bulk.out)
    assert (line["error"], line["sent"], line["repeatable"]) == ("LedgerUnavailableError", False, True)
    assert len(served.journal.calls(operation="create_request")) == created
    assert (bulk.run("--create")[0], bulk.statuses, bulk.calls) == (0, ["approved"], 1)


# Kills its own process before or after one call of a function, to simulate a crash at that point.
KILLER = """
import importlib, os, signal, sys

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

setattr(owner, last, wrapped if name == "os.fsync" else wrapped_async)
sys.argv[1:] = sys.argv[5:]
from loanasync.cli import main
main()
"""


def kill_at(served: Sandbox, where: str, when: str, number: int, *command: object) -> None:
    """Run a command that kills itself before or after a call of a function."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, *map(str, (*where.split(), when, number, *command))],
        env=environment(served), check=False, capture_output=True, encoding="utf-8",
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr


_SQLITE = "loanasync.ledger.sqlite SqliteLedger."
_CREATE = "loanasync LoanClient.create_request"
POINTS = [
    *((f"{_SQLITE}open", when, 1) for when in ("before", "after")),
    *((f"{_SQLITE}claim", when, 2) for when in ("before", "after")),
    (f"{_SQLITE}settle", "before", 4),
    (_CREATE, "before", 2),
]


@posix
@pytest.mark.parametrize(
    ("where", "when", "number"),
    [
        (f"{_SQLITE}settle", "after", 4),
        (_CREATE, "after", 2),
        ("loanasync.cli.approve_many.files os.fsync", "after", 1),
        *(pytest.param(*each, marks=pytest.mark.scheduled) for each in POINTS),
    ],
)
def test_kill_at_any_point_repeats_no_request(
    tmp_path: Path, served: Sandbox, where: str, when: str, number: int
) -> None:
    rows = [make_row(tag) for tag in ("approved", "refused", "approved")]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out, "--create", "--concurrency", "1")
    kill_at(served, where, when, number, *command)
    ledgers = [*(tmp_path / "loanasync").rglob("*.db")]
    if ledgers and (where, when) != (f"{_SQLITE}open", "before"):
        change(ledgers[0], "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'")
    codes = {run(served, *command).returncode for _ in range(2)}
    found = [line["status"] for line in read(out)]
    # The outcome is unknown only if the request may have been sent and no decision was recorded.
    assert codes == {3 if "unknown" in found else 0}
    for operation in ("create_request", "approve"):
        asked = [call.fiscal_code for call in served.journal.calls(operation=operation)]
        # A customer whose creation was noted, and not sent, is approved first, and not found.
        again = operation == "create_request" or (where, when) == (_CREATE, "before")
        assert len(asked) == len({*asked}) or again
    decided = [call.fiscal_code for call in served.journal.calls(operation="approve")]
    assert 3 - found.count("unknown") <= len({*decided}) <= 3
    assert [line["line"] for line in read(out)] == [1, 2, 3]


@posix
def test_noted_creation_is_approved_first(tmp_path: Path, served: Sandbox) -> None:
    """The specification does not say whether a creation may be repeated."""
    rows = [make_row("approved"), make_row("approved", amount=1)]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out, "--create", "--skip-invalid")
    kill_at(served, _CREATE, "after", 1, *command)
    [ledger] = (tmp_path / "loanasync").rglob("*.db")
    assert [(each["state"], each["note"]) for each in listed(ledger)] == [("released", "created")]
    assert run(served, *command).returncode == 1
    assert len(served.journal.calls(operation="create_request")) == 1
    write(file, [rows[0], {**rows[1], "amount": 45_000}])
    assert (run(served, *command).returncode, [line["status"] for line in read(out)]) == (0, ["approved"] * 2)
    assert len(served.journal.calls(operation="create_request")) == 2


def test_creation_is_not_repeated_after_many_releases_of_the_row(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of an entry keeps 20 changes, and a busy ledger may undo more claims of a row."""
    rows = [make_row("approved"), make_row("approved")]
    file, out, left = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl", [None] * 25
    real = LoanClient._approve_row

    async def often_unavailable(client: Any, *arguments: Any, **options: Any) -> Any:
        created = served.journal.calls(operation="create_request", fiscal_code=rows[1]["fiscal_code"])
        if left and created and arguments[0] == rows[1]["fiscal_code"]:
            left.pop()
            key = (await client.known(arguments[0], order_id=options["order_id"])).entry
            await client.ledger.claim(key, token=f"{len(left)}", payload="", lease=60.0)
            undone = Settlement(state=State.RELEASED, note="not sent")
            await client.ledger.settle(key, token=f"{len(left)}", payload="", settlement=undone)
            raise LedgerUnavailableError("approve", key, "TimeoutError")
        return await real(client, *arguments, **options)

    monkeypatch.setattr("loanasync.bulk.turns._CHECK", 0.001)
    monkeypatch.setattr("loanasync.bulk.turns._LONGEST_DELAY", 0.001)
    monkeypatch.setattr(LoanClient, "_approve_row", often_unavailable)
    done = run(served, "approve-many", file, "-o", out, "--create", "--concurrency", "1")
    assert (done.returncode, left) == (0, [])
    assert len(served.journal.calls(operation="create_request")) == 2


@posix
def test_two_runs_with_other_results_ask_each_customer_once(tmp_path: Path, served: Sandbox) -> None:
    bulk, out = Bulk(tmp_path, served, *["slow50"] * 60), tmp_path / "second.jsonl"
    processes = [start(served, *bulk.command("--concurrency", "8", out=each)) for each in (bulk.out, out)]
    assert [process.communicate(timeout=120)[1] and process.returncode for process in processes] == [0, 0]
    assert bulk.calls == 60
    for each in (bulk.out, out):
        assert [line["status"] for line in read(each)] == ["approved"] * 60


@pytest.mark.parametrize("operation", ["claim", "settle"])
def test_failing_ledger_stops_the_run_and_keeps_every_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    bulk = Bulk(tmp_path, served, *["approved"] * 3)
    with monkeypatch.context() as patched:
        patched.setattr(f"loanasync.ledger.sqlite.SqliteLedger.{operation}", fail)
        code, output = bulk.run("--concurrency", "1")
    assert code == (1 if operation == "claim" else 0), output
    assert bulk.statuses == (["not_sent"] * 3 if operation == "claim" else ["approved"] * 3)
    assert ("3 decisions could not be recorded in the ledger" in output) == (operation == "settle")
    assert json.loads(bulk.out.read_text(encoding="utf-8").splitlines()[0])["line"] == 1

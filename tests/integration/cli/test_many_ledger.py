"""``approve-many`` with ``--ledger``: resume after every kind of end, and runs that share a ledger."""

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loanasync import ApprovalRequest, Approved, ConfigurationError, Decision
from loanasync.ledger import Entry, SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import ScriptedResponse, SentRequest, approved, computed, scripted_client
from support.cli import (
    RunningCommand,
    create,
    environment,
    make_row,
    meanwhile,
    read,
    run,
    start,
    statuses,
    wait_for,
    write,
)
from support.ledger_clients import KEY
from support.ledger_file import change, create_at, listed, run_ledger
from support.raw_server import PATIENCE


def approve_calls(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


class Bulk:
    """A file of rows for a sandbox that knows their customers, and the command that requests them."""

    def __init__(self, folder: Path, sandbox: Sandbox, rows: list[dict[str, Any]], **policy: Any) -> None:
        create(sandbox, rows)
        self.sandbox = sandbox
        self.rows = rows
        self.out = folder / "out.jsonl"
        self.ledger = folder / "decisions.db"
        create_at(self.ledger, sandbox.base_url, **policy)
        self.file = write(folder / "rows.jsonl", rows)

    def command(self, *options: object, out: object = None, ledger: object = None) -> tuple[object, ...]:
        named = ("-o", out or self.out, "--ledger", ledger or self.ledger)
        return ("approve-many", self.file, *named, *options)

    def run(self, *options: object, out: object = None) -> tuple[int, str]:
        done = run(self.sandbox, *self.command(*options, out=out))
        return done.returncode, done.stderr

    def start(self, *options: object) -> RunningCommand:
        return start(self.sandbox, *self.command(*options))

    def states(self) -> dict[str, str]:
        """Return the ledger state by customer, found by the entry keys in the results."""
        by_key = {each["key"][:12]: each["state"] for each in listed(self.ledger)}
        return {line["fiscal_code"]: by_key[line["entry"]] for line in read(self.out)}


def cells(output: str) -> list[list[str]]:
    """Return the words of each row of a printed table."""
    return [line.replace("│", " ").split() for line in output.splitlines() if "│" in line]


def printed_statuses(capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the status of each customer in the results on standard output."""
    lines = map(json.loads, capfd.readouterr().out.splitlines())
    return {line["fiscal_code"]: line["status"] for line in lines}


def test_second_run_sends_nothing_and_keeps_the_results(tmp_path: Path, served: Sandbox) -> None:
    tags = ("approved", "refused", "resetafter", "500after", "approved")
    bulk = Bulk(tmp_path, served, [make_row(tag) for tag in tags])
    code, output = bulk.run()
    assert (code, approve_calls(served)) == (3, 6), "the HTTP 500 is retried once"
    written = read(bulk.out)
    for _ in range(2):
        code, output = bulk.run()
        assert code == 3
        assert ["decided", "in", "an", "earlier", "run", "3"] in cells(output)
        assert ["outcome", "unknown", "since", "an", "earlier", "run", "2"] in cells(output)
    assert approve_calls(served) == 6
    assert read(bulk.out) == written
    assert sorted(bulk.states().values()) == ["approved", "approved", "lost", "refused", "unknown"]


@pytest.mark.parametrize("command", ["approve", "approve-many"])
def test_ledger_with_an_entry_for_each_order_is_used_as_it_states(
    tmp_path: Path, served: Sandbox, command: str
) -> None:
    row = make_row("approved", order_token="A1")
    bulk = Bulk(tmp_path, served, [row], scope="order_token")
    file = tmp_path / "one.json"
    file.write_text(json.dumps(row))
    one = ("approve", file, "--ledger", bulk.ledger)
    for _ in range(2):
        done = run(served, *(one if command == "approve" else bulk.command()))
        assert done.returncode == 0, done.stderr
    assert approve_calls(served) == 1
    [entry] = listed(bulk.ledger)
    assert entry["state"] == "approved"


def test_deleted_results_are_written_again_from_the_ledger(
    tmp_path: Path, served: Sandbox, capfd: pytest.CaptureFixture[str]
) -> None:
    bulk = Bulk(tmp_path, served, [make_row(tag) for tag in ("approved", "refused", "resetafter")])
    bulk.run()
    first = {line["fiscal_code"]: line for line in read(bulk.out)}
    bulk.out.unlink()
    (tmp_path / "out.jsonl.resume").unlink()
    code, output = bulk.run()
    assert code == 3
    assert not [row for row in cells(output) if "earlier" in row], "no row is counted twice"
    second = {line["fiscal_code"]: line for line in read(bulk.out)}
    assert (approve_calls(served), len(first), second.keys()) == (3, 3, first.keys())
    for code, line in second.items():
        same = ("status", "redirect_url", "amount", "net_amount", "entry", "line")
        assert [line.get(name) for name in same] == [first[code].get(name) for name in same]
        assert line.get("attempts", 0) == 0
    capfd.readouterr()
    assert (bulk.run(out="-")[0], approve_calls(served)) == (3, 3)
    assert statuses(bulk.out) == printed_statuses(capfd)


def test_dry_run_counts_ledger_entries_and_creates_no_files(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("resetafter"), make_row("approved", amount=123_456)]
    bulk = Bulk(tmp_path, served, rows)
    code, output = bulk.run("--dry-run")
    assert code == 0
    assert cells(output)[0] == ["to", "be", "requested", "3", "2,134.56"]
    assert {path.name for path in tmp_path.iterdir()} == {"decisions.db", "rows.jsonl"}, "no file was created"
    write(bulk.file, rows[:2])
    bulk.run()
    write(bulk.file, rows)
    files = sorted(tmp_path.iterdir())
    for out in (bulk.out, tmp_path / "another.jsonl", "-"):
        code, output = bulk.run("--dry-run", out=out)
        assert code == 0
        assert cells(output) == [
            ["to", "be", "requested", "1", "1,234.56"],
            ["already", "decided", "1"],
            ["outcome", "unknown,", "will", "not", "be", "requested", "again", "1"],
            ["total", "3"],
        ]
    assert approve_calls(served) == 2
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize(
    ("resolution", "status", "calls", "code"),
    [
        *(("approved", "approved", 1, 0), ("refused", "refused", 1, 0)),
        *(("released", "approved", 2, 0), ("held", "unknown", 1, 3)),
    ],
)
def test_resolved_entry_is_in_the_results_of_the_next_run(
    tmp_path: Path, served: Sandbox, resolution: str, status: str, calls: int, code: int
) -> None:
    bulk = Bulk(tmp_path, served, [make_row("reset")])  # not evaluated, which the client cannot know
    assert bulk.run()[0] == 3
    (line,) = read(bulk.out)
    run_ledger("resolve", bulk.ledger, line["entry"], "--as", resolution, "--note", "ticket 17")
    actual, output = bulk.run()
    assert actual == code
    assert approve_calls(served) == calls
    last = read(bulk.out)[-1]
    assert last["status"] == status
    if resolution in ("approved", "refused"):
        assert [resolution, "1", "450.00"] in cells(output), "in the summary, too"
        assert (last["outcome"], last["amount"]) == (resolution, 45_000)
        assert ("ask the service where to send the customer" in last.get("message", "")) == (
            resolution == "approved"
        )
    lines = len(read(bulk.out))
    assert bulk.run()[0] == code
    assert len(read(bulk.out)) == lines


@pytest.mark.scheduled  # test_many_end_to_end.py does the same with one kill
def test_kill_loses_no_recorded_decision(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, [make_row("slow20") for _ in range(60)])
    for _ in range(3):
        before = approve_calls(served)
        process = bulk.start("--concurrency", "4")
        wait_for(partial(lambda before: approve_calls(served) >= before + 8, before))
        process.kill()
        process.communicate()
    change(bulk.ledger, "UPDATE entries SET lease_end = 0 WHERE state = 'inflight'")  # their leases expire
    code, _ = bulk.run()
    found = statuses(bulk.out)
    decided = {
        each: "approved" for each, record in served.snapshot().items() if json.loads(record)["approved"]
    }
    known = {each: status for each, status in found.items() if status != "unknown"}
    assert found.keys() == {row["fiscal_code"] for row in bulk.rows}
    assert known.items() <= decided.items()
    assert len(found) - len(known) <= 3 * 4, "requests in progress at a kill"
    assert code == (3 if len(found) > len(known) else 0)
    assert approve_calls(served) == len(
        {call.fiscal_code for call in served.journal.calls(operation="approve")}
    )
    states = bulk.states()
    assert {each for each, state in states.items() if state == "unknown"} == found.keys() - known.keys()


def test_customer_in_progress_in_another_process_is_waited_for(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_row("approved")
    bulk = Bulk(tmp_path, served, [row])
    is_sent, is_waited_for = threading.Event(), threading.Event()

    async def respond(_: SentRequest) -> ScriptedResponse:
        is_sent.set()
        assert await asyncio.to_thread(is_waited_for.wait, PATIENCE)
        return approved()

    async def approve() -> Decision:
        shop = {"base_url": served.base_url, "shop_id": served.shop_id}
        async with (
            SqliteLedger(bulk.ledger) as ledger,
            scripted_client(computed(respond), ledger=ledger, **shop) as other,
        ):
            return await other.approve(row["fiscal_code"], ApprovalRequest(**members))

    members = {name: value for name, value in row.items() if name != "fiscal_code"}
    wait = SqliteLedger.wait

    async def recorded(self: SqliteLedger, key: str, within: float) -> Entry | None:
        is_waited_for.set()
        return await wait(self, key, within)

    monkeypatch.setattr(SqliteLedger, "wait", recorded)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(asyncio.run, approve())
        assert is_sent.wait(PATIENCE)
        _, output = bulk.run("--dry-run")
        assert ["in", "progress", "in", "another", "command", "1"] in cells(output)
        code, output = bulk.run()
        is_waited_for.set()  # also if the command did not wait
        assert isinstance(other.result(), Approved)
    assert "waiting for 1 row claimed by another process" in output
    assert (code, statuses(bulk.out), approve_calls(served)) == (0, {row["fiscal_code"]: "approved"}, 0)


def test_resume_file_and_final_results_are_synced_to_the_disk(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def recorded(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recorded)
    bulk = Bulk(tmp_path, served, [make_row("invalid.city")])
    assert bulk.run()[0] == 1
    assert Path(f"{bulk.out}.resume").stat().st_ino in synced
    write(bulk.file, [{**bulk.rows[0], "email": "anna+approved@example.com"}])
    assert bulk.run()[0] == 0
    assert statuses(bulk.out) == {bulk.rows[0]["fiscal_code"]: "approved"}
    assert bulk.out.stat().st_ino in synced


def test_customer_in_two_files_is_requested_once(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("approved")
    bulk = Bulk(tmp_path, served, [row])
    bulk.run()
    write(bulk.file, [{**row, "amount": 90_000}])
    code, _ = bulk.run(out=tmp_path / "other.jsonl")
    (line,) = read(tmp_path / "other.jsonl")
    assert (code, line["error"], line["outcome"]) == (1, "PayloadMismatchError", "approved")
    assert approve_calls(served) == 1


def test_results_of_another_ledger_are_not_resumed(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, [make_row("approved")])
    bulk.run()
    output = (
        "was begun with another ledger: use the same --ledger as in the first run, or none if the first run"
    )
    without = run(served, "approve-many", bulk.file, "-o", bulk.out)
    assert (without.returncode, output in without.stderr) == (2, True)
    other = run(served, *bulk.command(ledger=tmp_path / "other.db"))
    assert (other.returncode, output in other.stderr) == (2, True)
    plain = tmp_path / "plain.jsonl"
    assert run(served, "approve-many", bulk.file, "-o", plain).returncode == 3, "already evaluated"
    assert bulk.run(out=plain)[0] == 2
    same = run(served, *bulk.command(ledger=f"sqlite:///{bulk.ledger}"))
    assert same.returncode == 0
    assert approve_calls(served) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/decisions.db", "nowhere does not exist"),
        (".", "is a directory"),
        ("other.jsonl", "is damaged, truncated, or not an SQLite file"),
        ("mongodb://host", "unknown scheme mongodb://"),
    ],
)
def test_unusable_ledger_sends_nothing(tmp_path: Path, served: Sandbox, name: str, message: str) -> None:
    bulk = Bulk(tmp_path, served, [make_row("approved")])
    other = write(tmp_path / "other.jsonl", bulk.rows)
    where = name if "://" in name else tmp_path / name
    done = run(served, *bulk.command(ledger=where))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert approve_calls(served) == 0
    assert other.read_bytes() == bulk.file.read_bytes()


def test_ledger_failure_stops_the_run_and_keeps_every_decision(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # The first request is still in progress when the table is removed.
    tags = ["slow3000", *["slow100"] * 39]
    bulk = Bulk(tmp_path, served, [make_row(tag) for tag in tags])
    rename = partial(change, bulk.ledger, "ALTER TABLE entries RENAME TO away")
    with meanwhile(lambda: approve_calls(served) >= 4, rename):
        code, errors = bulk.run("--concurrency", "2")
    assert code == 130
    assert "the ledger is not available (OperationalError); run the same command to resume" in errors
    assert (
        "could not be recorded in the ledger; the results contain them. When the ledger works again, run: "
        "loanasync ledger import-orphans (with the same --ledger)" in errors
    )
    calls = {call.fiscal_code: "approved" for call in served.journal.calls(operation="approve")}
    assert len(calls) < 40
    found = statuses(bulk.out)
    assert {code: status for code, status in found.items() if status != "error"} == calls
    change(bulk.ledger, "ALTER TABLE away RENAME TO entries")
    done = run_ledger("import-orphans", bulk.ledger)
    assert done.exit_code == 0
    assert [each["state"] for each in listed(bulk.ledger)] == ["approved"] * len(calls)
    assert bulk.run()[0] == 0
    assert approve_calls(served) == 40


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
    bulk = Bulk(tmp_path, served, [make_row("approved") for _ in range(12)])
    code, errors = bulk.run("--concurrency", "1")
    assert code == 130
    assert "has no option driver" in errors
    assert len(claimed) == 4
    monkeypatch.undo()
    assert bulk.run()[0] == 0
    assert approve_calls(served) == 12


def test_ledger_key_finds_entries_after_a_token_change(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER_KEY", KEY.decode())
    bulk = Bulk(tmp_path, served, [make_row("approved")], key=KEY)
    bulk.run()
    monkeypatch.setenv("LOANASYNC_LEDGER", str(bulk.ledger))
    (line,) = read(bulk.out)
    for name, value in environment(served).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", "another")
    done = run_ledger("show", bulk.ledger, "--customer", stdin=line["fiscal_code"])
    assert line["entry"] in done.stdout
    assert "approved since" in done.stdout


def test_sandbox_option_creates_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOANASYNC_LEDGER", str(tmp_path / "decisions.db"))
    rows = [make_row("approved")]
    file = write(tmp_path / "rows.jsonl", rows)
    assert run(None, "approve-many", file, "-o", "-", "--sandbox").returncode == 0
    assert run(None, "approve", "-", "--sandbox", stdin=json.dumps(rows[0])).returncode == 0
    assert not (tmp_path / "decisions.db").exists()


def test_approve_and_approve_many_share_a_ledger(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("approved")
    bulk = Bulk(tmp_path, served, [row])
    records = []
    for _ in range(2):
        done = run(served, "approve", "-", "--ledger", bulk.ledger, stdin=json.dumps(row))
        assert done.returncode == 0, done.stderr
        records.append(json.loads(done.stdout))
    assert records[0]["redirect_url"] == records[1]["redirect_url"]
    assert bulk.run()[0] == 0
    (line,) = read(bulk.out)
    assert line["redirect_url"] == records[0]["redirect_url"]
    assert approve_calls(served) == 1
    elsewhere = run(served, "approve", "-", "--ledger", tmp_path / "no" / "l.db", stdin=json.dumps(row))
    assert (elsewhere.returncode, elsewhere.stderr) == (
        2,
        f"ledger: the folder {tmp_path / 'no'} does not exist\n",
    )


def test_truncated_approval_is_decided_without_redirect(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, [make_row("truncafter")])
    for _ in range(2):
        assert bulk.run()[0] == 0
        (line,) = read(bulk.out)
        assert (line["status"], line["amount"], "redirect_url" in line) == ("approved", 45_000, False)
        assert line["message"] == "approved without a redirect: ask the service where to send the customer"
    assert (approve_calls(served), bulk.states()) == (1, {line["fiscal_code"]: "approved"})

"""A ledger on a server, by its address: the commands are the same, and its password is never shown."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from secrets import token_hex

import pytest

from loanasync.cli.ledger.open import ledger_at
from loanasync.ledger import DecisionLedger, Entry, State
from loanasync.sandbox import Sandbox
from support.cli import create, member, read, run, statuses, write
from support.ledger_file import ask, listed, put
from support.servers import Postgres, Server, Valkey


@pytest.fixture(params=["valkey", "postgres"])
def server(request: pytest.FixtureRequest) -> Server:
    """One of each kind, shared with other tests."""
    found: Valkey | Postgres = request.getfixturevalue(request.param)
    return found


def using(url: str, work: Callable[[DecisionLedger], Awaitable[Entry]]) -> Entry:
    async def done() -> Entry:
        ledger = ledger_at(url)
        try:
            return await work(ledger)
        finally:
            await ledger.aclose()

    return asyncio.run(done())


def state(url: str, key: str) -> str:
    return str(json.loads(ask("show", url, key, "--json").stdout)["state"])


def test_entries_on_a_server_are_shown_settled_and_swept(server: Server) -> None:
    asked, dead = token_hex(32), token_hex(32)
    using(server.url, lambda ledger: put(ledger, "x", State.UNKNOWN, under=asked, note="ReadTimeoutError"))
    using(server.url, lambda ledger: put(ledger, "x", State.INFLIGHT, under=dead, lease=0.0))
    assert state(server.url, asked[:12]) == "unknown"
    swept = ask("sweep", server.url, "--json")
    assert swept.exit_code == 3
    assert json.loads(swept.stdout)["swept"].count(dead) == 1
    assert dead not in json.loads(ask("sweep", server.url, "--json").stdout)["swept"]
    done = ask("resolve", server.url, asked[:12], dead[:12], "--as", "refused", "--note", "ticket 17")
    assert done.exit_code == 0, done.output
    assert state(server.url, asked) == state(server.url, dead) == "refused"
    corrected = ask("resolve", server.url, dead, "--as", "released", "--note", "x")
    assert (corrected.exit_code, corrected.stderr.split(": ")[1]) == (
        0,
        "corrected; the earlier state is kept in the history\n",
    )
    assert state(server.url, dead) == "released"
    story = json.loads(ask("show", server.url, dead, "--json").stdout)["history"]
    assert [(each["state"], each["note"]) for each in story][-1] == ("refused", "ticket 17")
    exported = [each["key"] for each in listed(server.url)]
    assert {asked, dead} <= {*exported}


def test_a_file_of_rows_is_gone_on_with_by_a_ledger_on_a_server(
    tmp_path: Path, server: Server, served: Sandbox
) -> None:
    rows = [member(word) for word in ("approved", "refused", "resetafter")]
    create(served, rows)
    out, file = tmp_path / "out.jsonl", write(tmp_path / "rows.jsonl", rows)
    command = ("approve-many", file, "-o", out, "--ledger", server.url)
    assert run(served, *command).returncode == 3
    first = statuses(out)
    unknown = next(line["entry"] for line in read(out) if line["status"] == "unknown")
    ask("resolve", server.url, unknown, "--as", "approved", "--note", "ticket 17")
    elsewhere = tmp_path / "elsewhere.jsonl"
    done = run(served, "approve-many", file, "-o", elsewhere, "--ledger", server.url)
    assert done.returncode == 0
    settled = {code: "approved" if status == "unknown" else status for code, status in first.items()}
    assert statuses(elsewhere) == settled
    assert len(served.journal.calls(operation="approve")) == 3


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_server_that_is_not_there_is_told_of_without_its_password(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://shop:SECRET@127.0.0.1:1/0"
    done = ask("ls", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("the ledger cannot be used (")
    assert "SECRET" not in done.output
    file = write(tmp_path / "rows.jsonl", [member("approved")])
    with Sandbox.in_thread() as sandbox:
        many = run(sandbox, "approve-many", file, "-o", tmp_path / "out.jsonl", "--ledger", url)
        assert many.returncode == 2
        assert "SECRET" not in many.stderr
        assert sandbox.journal.calls() == []
    assert not [file for file in tmp_path.iterdir() if "SECRET" in file.read_text(encoding="utf-8")]

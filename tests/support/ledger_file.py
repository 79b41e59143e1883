"""Ledgers with an entry in each state, and the ``loanasync ledger`` command run in this process."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from loanasync.cli.app import app
from loanasync.ledger import Entry, Ledger, LedgerPolicy, Settlement, SqliteLedger, State, create_ledger
from loanasync.ledger.address import ledger_at
from loanasync.ledger.orphans import Orphan, write_orphan
from support.cli import PLAIN
from support.ledger_clients import KEY
from support.servers import Postgres, Server

T = TypeVar("T")

# A stored body. The values that must never be shown are in capitals.
BODY = {
    "approved": True,
    "amount": 45_000,
    "netAmount": 43_650,
    "redirectUrl": "https://loans.example.com/SECRET",
    "firstname": "PERSONAL",
    "newMember": "UNKNOWN-TO-US",
}


def key(state: str) -> str:
    """Return the key of an entry. It begins with the name in hexadecimal."""
    return state.encode().hex().ljust(64, "0")


async def put(ledger: Ledger, name: str, state: State, **settled: Any) -> Entry:
    """Create an entry in a state, under the key for a name."""
    lease, under = settled.pop("lease", 3600.0), settled.pop("under", key(name))
    entry = await ledger.claim(under, token=f"TOKEN of {name}", payload="PAYLOAD", lease=lease)
    if state is State.INFLIGHT:
        return entry
    settlement = Settlement(state=state, **settled)
    return await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)


def one_of_each(file: Path) -> None:
    """Create a ledger file with an entry in each state."""

    async def fill(ledger: Ledger) -> None:
        await put(ledger, "approved", State.APPROVED, status=201, body=json.dumps(BODY).encode())
        await put(ledger, "refused", State.REFUSED, status=422, fault="not whole")
        await put(ledger, "released", State.RELEASED, note="RejectedError")
        await put(ledger, "unknown", State.UNKNOWN, note="ReadTimeoutError")
        await put(ledger, "lost", State.LOST, note="AlreadyEvaluatedError")
        await put(ledger, "held", State.HELD, note="ticket 5")
        await put(ledger, "inflight", State.INFLIGHT)
        await put(ledger, "expired", State.INFLIGHT, lease=0.0)

    using(file, fill)


def name_on(server: Server) -> str:
    """Return the name of a ledger that does not exist yet."""
    own = f"table=t{token_hex(4)}" if isinstance(server, Postgres) else f"prefix={token_hex(4)}%3A"
    return f"{server.url}?{own}"


def create_at(name: object, base_url: str = "https://loans.example.com", **policy: Any) -> None:
    """Create the ledger with a name. A ledger on a server gets `KEY` unless the policy has another key."""
    ledger = ledger_at(str(name))

    async def run() -> None:
        given = {"key": KEY, **policy} if ledger.driver else policy
        async with ledger:
            await create_ledger(ledger, base_url=base_url, policy=LedgerPolicy(**given))

    asyncio.run(run())


def using(file: Path, work: Callable[[SqliteLedger], Awaitable[T]]) -> T:
    """Run `work` with a ledger in an event loop, and return its result. Create the file if it is missing."""
    if not file.exists():
        create_at(file)

    async def run() -> T:
        async with SqliteLedger(file) as ledger:
            return await work(ledger)

    return asyncio.run(run())


def entries(file: Path) -> dict[str, Entry]:
    """Return all entries of a ledger file by the names of their keys."""

    async def scanned(ledger: SqliteLedger) -> dict[str, Entry]:
        every: AsyncIterator[Entry] = ledger.scan()
        return {bytes.fromhex(entry.key).strip(b"\0").decode(): entry async for entry in every}

    return using(file, scanned)


def left_orphan(folder: Path, file: Path, entry: Entry, settlement: Settlement) -> Path:
    """Write a response for an entry of a ledger file to an orphan file, and return its path."""
    header = using(file, lambda ledger: ledger.header())
    orphan = Orphan(
        ledger=header.id, key=entry.key, token=entry.token, payload=entry.payload, settlement=settlement
    )
    written = write_orphan([folder], orphan)
    assert written is not None
    return written


def states(file: Path) -> dict[str, str]:
    return {name: entry.state.value for name, entry in entries(file).items()}


def listed(file: object) -> list[dict[str, Any]]:
    """Return the entries that ``loanasync ledger ls --json`` prints."""
    return [json.loads(line) for line in run_ledger("ls", file, "--json").stdout.splitlines()]


def change(file: Path, statement: str) -> None:
    """Run an SQL statement on a ledger file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement)


def run_ledger(command: str, file: object, *arguments: object, stdin: str | None = None) -> Result:
    """Run ``loanasync ledger COMMAND`` in this process, and return its result."""
    line = ["ledger", "--ledger", str(file), command, *map(str, arguments)]
    done = CliRunner(env=PLAIN).invoke(app, line, input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done

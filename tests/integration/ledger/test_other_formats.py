"""Ledgers of earlier and later formats: refused by name, unchanged, and nothing is sent."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest

from loanasync import LedgerMismatchError
from loanasync.ledger import Ledger, PostgresLedger, SqliteLedger
from loanasync.testing import approved
from support.ledger_clients import Shop
from support.servers import Postgres

EARLIER = "has an earlier format, .* keep it, and finish its approvals with the version that wrote it"
LATER = "was written by a later version of loanasync: install that version here, too"


async def check_refused(ledger: Ledger, message: str) -> None:
    """Check that each operation on the ledger raises an error with this message."""
    shop = Shop(approved(), ledger=ledger)
    operations: list[Any] = [
        shop.approve,
        shop.entries,
        partial(ledger.get, "k"),
        partial(ledger.find, customer="c"),
        partial(ledger.purge, 0),
    ]
    for operation in operations:
        with pytest.raises(LedgerMismatchError, match=message):
            await operation()
    assert shop.script.left == 1
    await ledger.aclose()


@pytest.mark.parametrize(
    ("table", "number", "message"),
    [("entries", 1, EARLIER), ("decisions", 2, EARLIER), ("decisions", 3, EARLIER), ("any", 5, LATER)],
)
async def test_sqlite_file_of_another_format_is_refused(
    tmp_path: Path, table: str, number: int, message: str
) -> None:
    file = tmp_path / "decisions.db"
    with closing(sqlite3.connect(file)) as other:
        other.execute(f"CREATE TABLE {table} (key TEXT PRIMARY KEY)")
        other.execute("PRAGMA application_id = 0x4C454447")
        other.execute(f"PRAGMA user_version = {number}")
    before = file.read_bytes()
    await check_refused(SqliteLedger(file), rf"decisions\.db {message}")
    assert file.read_bytes() == before


@pytest.mark.parametrize("column", ["version", "format", "source"])
async def test_postgres_table_of_another_format_is_refused(postgres: Postgres, column: str) -> None:
    table = f"t{token_hex(4)}"
    connection = await asyncpg.connect(postgres.url)
    columns = "key, state, token, payload, claimed, expires, changed, takeovers, note, status, body, fault"
    values = ", ".join(f"'' AS {name}" for name in f"{columns}, {column}".split(", "))
    await connection.execute(f"CREATE TABLE {table} AS SELECT {values}")
    before = await connection.fetch(f"SELECT * FROM {table}")  # noqa: S608  (made up above)
    await check_refused(PostgresLedger(postgres.url, table=table), f"{table} {EARLIER}")
    assert await connection.fetch(f"SELECT * FROM {table}") == before  # noqa: S608  (made up above)
    await connection.close()

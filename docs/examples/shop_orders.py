"""The orders of the example shops, in an SQLite file that all workers of a shop share."""

import asyncio
import json
import os
import secrets
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from attrs import field, frozen

_CREATE = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, cookie TEXT UNIQUE, fiscal_code TEXT, holds INTEGER DEFAULT 0,
    entry TEXT, decision TEXT, has_documents INTEGER DEFAULT 0, is_completed INTEGER DEFAULT 0
)
"""
_HOLD = """
UPDATE orders SET fiscal_code = ?1, holds = holds + 1
WHERE cookie = ?2 AND (holds = 0 OR fiscal_code = ?1) RETURNING holds
"""


class Orders:
    """A file of orders. Only the user who starts the shop can read it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, mode=0o600))
        self._run(_CREATE, ())

    async def add(self) -> "Order":
        """Return a new order."""
        cookie = secrets.token_urlsafe()  # of one shopper: must be unguessable
        [row] = await self.run("INSERT INTO orders (cookie) VALUES (?) RETURNING id", cookie)
        return Order(self, f"A-{row['id']}", cookie)

    async def get(self, cookie: str | None) -> "Order | None":
        """Return the order of the shopper with this cookie, or None."""
        rows = await self.run("SELECT id FROM orders WHERE cookie = ?", cookie)
        return Order(self, f"A-{rows[0]['id']}", cookie) if cookie and rows else None

    async def run(self, statement: str, *values: str | None) -> list[sqlite3.Row]:
        """Run a statement, which is one transaction, and return its rows."""
        return await asyncio.to_thread(self._run, statement, values)

    def _run(self, statement: str, values: tuple[str | None, ...]) -> list[sqlite3.Row]:
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(statement, values).fetchall()


@frozen
class Order:
    """An order in the file. `loanasync.checkout` uses its number and the first four methods."""

    _orders: Orders = field(repr=False)
    number: str  # of the order: the ledger stores it
    cookie: str = field(repr=False)

    async def decision(self) -> dict[str, Any] | None:
        """Return the stored decision, None before."""
        decision: dict[str, Any] | None = json.loads((await self.row())["decision"] or "null")
        return decision

    async def hold(self, fiscal_code: str) -> int:
        """Hold the order for a customer. Return the number of holds; 0 if another customer has some."""
        rows = await self._orders.run(_HOLD, fiscal_code, self.cookie)
        return rows[0]["holds"] if rows else 0

    async def release(self) -> None:
        """Take back one hold."""
        await self._orders.run("UPDATE orders SET holds = max(holds - 1, 0) WHERE cookie = ?", self.cookie)

    async def save(self, entry: str, decision: Mapping[str, Any] | None) -> None:
        """Save the entry of the ledger, and the first decision."""
        text = None if decision is None else json.dumps(decision)
        statement = "UPDATE orders SET entry = ?, decision = coalesce(decision, ?) WHERE cookie = ?"
        await self._orders.run(statement, entry, text, self.cookie)

    async def row(self) -> sqlite3.Row:
        """Return the columns of the order, as they are now."""
        return (await self._orders.run("SELECT * FROM orders WHERE cookie = ?", self.cookie))[0]

    async def save_documents(self) -> None:
        """Save that the documents were uploaded."""
        await self._orders.run("UPDATE orders SET has_documents = 1 WHERE cookie = ?", self.cookie)

    async def save_completion(self) -> None:
        """Save that the data were completed."""
        await self._orders.run("UPDATE orders SET is_completed = 1 WHERE cookie = ?", self.cookie)

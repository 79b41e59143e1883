"""The orders of the example shops, in an SQLite file that all workers of a shop share."""

import asyncio
import json
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from attrs import field, frozen

_CREATE = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, cookie TEXT UNIQUE, amount INTEGER NOT NULL,
    loan_state TEXT NOT NULL DEFAULT 'free', loan TEXT NOT NULL DEFAULT '',
    has_documents INTEGER DEFAULT 0, is_completed INTEGER DEFAULT 0
)
"""
_CHANGE = """
UPDATE orders SET loan_state = ?, loan = ?
WHERE id = ? AND amount = ? AND loan_state = ? AND loan = ? RETURNING id
"""


class Orders:
    """A file of orders. Only the user who starts the shop can read it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, mode=0o600))
        self._run(_CREATE, ())

    async def add(self, amount: int) -> "Order":
        """Return a new order."""
        cookie = secrets.token_urlsafe()  # of one shopper: must be unguessable
        await self.run("INSERT INTO orders (cookie, amount) VALUES (?, ?)", cookie, amount)
        [order] = await self.where("cookie = ?", cookie)
        return order

    async def where(self, condition: str, *values: str | None) -> "list[Order]":
        """Return the orders that meet a condition, such as those whose loan is to be settled."""
        rows = await self.run(f"SELECT id, cookie, amount FROM orders WHERE {condition}", *values)  # noqa: S608
        return [Order(self, *row) for row in rows]

    async def run(self, statement: str, *values: str | int | None) -> list[sqlite3.Row]:
        """Run a statement, which is one transaction, and return its rows."""
        return await asyncio.to_thread(self._run, statement, values)

    def _run(self, statement: str, values: tuple[str | int | None, ...]) -> list[sqlite3.Row]:
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            return connection.execute(statement, values).fetchall()


@frozen
class Order:
    """An order in the file. `loanasync.checkout` uses the number, the amount, `loan` and `change`."""

    _orders: Orders = field(repr=False)
    id: int
    cookie: str = field(repr=False)
    amount: int  # euro cents

    @property
    def number(self) -> str:
        """Return the number of the order, which the ledger stores."""
        return f"A-{self.id}"

    async def loan(self) -> tuple[str, str]:
        """Return the columns of the loan."""
        row = await self.row()
        return row["loan_state"], row["loan"]

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Change the columns of the loan if they are still `old`."""
        return bool(await self._orders.run(_CHANGE, *new, self.id, self.amount, *old))

    async def row(self) -> sqlite3.Row:
        """Return the columns of the order, as they are now."""
        return (await self._orders.run("SELECT * FROM orders WHERE id = ?", self.id))[0]

    async def customer(self) -> str:
        """Return the fiscal code of the customer for whom the order is held or decided."""
        code: str = json.loads((await self.loan())[1])["code"]
        return code

    async def save_documents(self) -> None:
        """Save that the documents were uploaded."""
        await self._orders.run("UPDATE orders SET has_documents = 1 WHERE id = ?", self.id)

    async def save_completion(self) -> None:
        """Save that the data were completed."""
        await self._orders.run("UPDATE orders SET is_completed = 1 WHERE id = ?", self.id)

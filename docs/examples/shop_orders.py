"""The orders of the example shops, in an SQLite file that all workers of a shop share.

A real shop keeps its orders in its own database, with a driver that does not block the event loop.
"""

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

from attrs import Factory, asdict, define, field, fields

_CREATE = """
CREATE TABLE IF NOT EXISTS orders (
    number TEXT PRIMARY KEY, state TEXT, redirect_url TEXT, fiscal_code TEXT, holds INTEGER, entry TEXT,
    has_documents INTEGER, is_completed INTEGER
)
"""


@define
class Order:
    """A shopper's order and the decision on its loan."""

    number: str = Factory(secrets.token_urlsafe)  # the cookie's value: must be unguessable
    state: Literal["undecided", "approved", "refused"] = "undecided"
    redirect_url: str | None = field(default=None, repr=False)  # contains a token
    fiscal_code: str = field(default="", repr=False)  # of the customer who applied for the order
    holds: int = 0  # clicks in progress, and clicks after which the customer may be evaluated
    entry: str | None = None  # key of the entry in the ledger
    has_documents: bool = field(default=False, converter=bool)  # SQLite stores 0 or 1
    is_completed: bool = field(default=False, converter=bool)


class Orders:
    """A file of orders. Only the user who starts the shop can read it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, mode=0o600))
        with closing(self._connect()) as connection:
            connection.execute(_CREATE)

    def get(self, number: str | None) -> Order:
        """Return the order of a cookie; without such an order, a new one."""
        columns = ", ".join(each.name for each in fields(Order))
        statement = f"SELECT {columns} FROM orders WHERE number = ?"  # noqa: S608  (constants)
        with closing(self._connect()) as connection:
            row = connection.execute(statement, (number,)).fetchone()
        if row is not None:
            return Order(*row)
        order = Order()
        values = asdict(order)
        marks = ", ".join("?" for _ in values)
        self._write(f"INSERT INTO orders ({', '.join(values)}) VALUES ({marks})", *values.values())  # noqa: S608  (constants)
        return order

    def hold(self, number: str, fiscal_code: str) -> bool:
        """Save the customer of an order before the approval. Return False while it has another one."""
        statement = """
            UPDATE orders SET fiscal_code = ?, holds = holds + 1
            WHERE number = ? AND (holds = 0 OR fiscal_code = ?)
        """
        return self._write(statement, fiscal_code, number, fiscal_code)

    def release(self, number: str) -> None:
        """End the hold of a click without evaluation. Without holds, the shopper may correct the code."""
        self._write("UPDATE orders SET holds = holds - 1 WHERE number = ?", number)

    def decide(self, number: str, state: str, entry: str | None, redirect_url: str | None = None) -> None:
        """Save the decision. A decision that another worker saved is never overwritten."""
        statement = """
            UPDATE orders SET state = ?, entry = ?, redirect_url = ? WHERE number = ? AND state = 'undecided'
        """
        self._write(statement, state, entry, redirect_url, number)

    def save_entry(self, number: str, entry: str | None) -> None:
        """Save the key of the ledger entry, for the staff and `loanasync ledger show`."""
        self._write("UPDATE orders SET entry = coalesce(?, entry) WHERE number = ?", entry, number)

    def save_progress(self, number: str, *, has_documents: bool = True, is_completed: bool = False) -> None:
        """Save the completed steps. A step that another worker saved stays completed."""
        statement = """
            UPDATE orders SET has_documents = max(has_documents, ?), is_completed = max(is_completed, ?)
            WHERE number = ?
        """
        self._write(statement, has_documents, is_completed, number)

    def _write(self, statement: str, *values: str | bool | None) -> bool:
        """Run one statement, which is one transaction. Return True if it changed the order."""
        with closing(self._connect()) as connection:
            return connection.execute(statement, values).rowcount > 0

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, isolation_level=None)  # each statement is a transaction

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
    number TEXT PRIMARY KEY, state TEXT, redirect_url TEXT, fiscal_code TEXT,
    additional_data_needed INTEGER, has_documents INTEGER, is_completed INTEGER
)
"""


@define
class Order:
    """A shopper's order and the decision on its loan."""

    number: str = Factory(secrets.token_urlsafe)  # the cookie's value: must be unguessable
    state: Literal["undecided", "approved", "refused"] = "undecided"
    redirect_url: str | None = field(default=None, repr=False)  # contains a token
    fiscal_code: str = field(default="", repr=False)  # empty until the loan request was created
    additional_data_needed: bool = field(default=False, converter=bool)  # SQLite stores 0 or 1
    has_documents: bool = field(default=False, converter=bool)
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

    def claim(self, order: Order) -> bool:
        """Save the order's customer before the approval. Return False if the order has another customer."""
        statement = """
            UPDATE orders SET fiscal_code = ?, additional_data_needed = ?
            WHERE number = ? AND fiscal_code IN ('', ?)
        """
        code = order.fiscal_code
        return self._write(statement, code, order.additional_data_needed, order.number, code)

    def release(self, number: str, fiscal_code: str) -> None:
        """Remove the fiscal code of a request that was not evaluated: the shopper may correct it."""
        statement = """
            UPDATE orders SET fiscal_code = '' WHERE number = ? AND fiscal_code = ? AND state = 'undecided'
        """
        self._write(statement, number, fiscal_code)

    def decide(self, order: Order) -> None:
        """Save the decision. A decision that another worker saved is never overwritten."""
        statement = "UPDATE orders SET state = ?, redirect_url = ? WHERE number = ? AND state = 'undecided'"
        self._write(statement, order.state, order.redirect_url, order.number)

    def save_progress(self, order: Order) -> None:
        """Save the completed steps. A step that another worker saved stays completed."""
        statement = """
            UPDATE orders SET has_documents = max(has_documents, ?), is_completed = max(is_completed, ?)
            WHERE number = ?
        """
        self._write(statement, order.has_documents, order.is_completed, order.number)

    def _write(self, statement: str, *values: str | bool | None) -> bool:
        """Run one statement, which is one transaction. Return True if it changed the order."""
        with closing(self._connect()) as connection:
            return connection.execute(statement, values).rowcount > 0

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, isolation_level=None)  # each statement is a transaction

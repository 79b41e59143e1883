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
        self.save(order)
        return order

    def save(self, order: Order) -> None:
        """Write an order to the file."""
        values = asdict(order)
        marks = ", ".join(f":{name}" for name in values)
        statement = f"INSERT OR REPLACE INTO orders ({', '.join(values)}) VALUES ({marks})"  # noqa: S608  (constants)
        with closing(self._connect()) as connection:
            connection.execute(statement, values)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, isolation_level=None)  # each statement is a transaction

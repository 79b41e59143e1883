"""Customers of the sandbox, their states (spec §3), and the SQLite file that stores them."""

import json
import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, define, field

_NOT_STORED = ("fault_turns", "was_removed")
_APPLICATION_ID = 0x4C4F414E  # "LOAN" in ASCII
_VERSION = 4


class StateFileError(ValueError):
    """The state file cannot be used: another sandbox has it open, or it is not a state file of a sandbox.

    Example:
        >>> from loanasync.sandbox import StateFileError
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "orders.csv")
        ...     _ = file.write_text("this file has other contents")
        ...     try:
        ...         run(Sandbox(state=file).start())
        ...     except StateFileError:
        ...         print("choose another file")
        choose another file
    """


@define(kw_only=True)
class Order:
    """State of one request. A customer has several only if each order is evaluated (``evaluates="order"``).

    Args:
        approved: The decision; None until the request is evaluated (spec §3).
        request: Body of the approval that was evaluated.
        page: Last part of the path of the customer's page.
        application: The customer's choice on that page.
        repeat_breaks: Protocol rule that another approval breaks, given the last response that the shop
            received; empty if it breaks none.
    """

    approved: bool | None = None
    request: dict[str, Any] = field(factory=dict, repr=False)
    page: str = field(default="", repr=False)
    application: Literal["open", "accepted", "cancelled"] = "open"
    repeat_breaks: str = ""


@define(kw_only=True)
class Customer:
    """State of one customer, identified by shop and fiscal code (spec §2.1).

    Args:
        created: Whether the request was created (spec §4.3). Calls can name a customer before that.
        additional_data_needed: Value of `additionalDataNeeded` in the creation.
        documents: Whether documents were uploaded.
        user_data: Body of the last completion.
        email: E-mail address of the last readable approval. Its tag applies to the completion, too.
        selected: Order token of `order`; empty if each customer is evaluated once.
        orders: The requests by order token.
        calls: Number of calls, by operation.
        tag_turns: Number of faults used, by operation and tag.
        fault_turns: The same for faults that are not in a tag. It is not stored: they are not, either.
        was_removed: Whether the customer was reset or forgotten. A waiting call can still refer to it.
    """

    created: bool = False
    additional_data_needed: bool = False
    documents: bool = False
    user_data: dict[str, Any] = field(factory=dict, repr=False)
    email: str = field(default="", repr=False)
    selected: str = field(default="", repr=False)
    orders: dict[str, Order] = field(factory=dict, repr=False)
    calls: dict[str, int] = field(factory=dict)
    tag_turns: dict[str, int] = field(factory=dict)
    fault_turns: dict[str, int] = field(factory=dict, eq=False)
    was_removed: bool = field(default=False, eq=False)

    @property
    def order(self) -> Order:
        """The selected request."""
        return self.orders.setdefault(self.selected, Order())


def normalize_fiscal_code(text: str) -> str:
    """Return a fiscal code in capitals and without surrounding spaces, as clients send it.

    Raises:
        TypeError: The fiscal code is not a string.
        ValueError: The fiscal code is empty.
    """
    if not isinstance(text, str):
        raise TypeError(f"fiscal_code must be a str, not {type(text).__name__}")
    if not text.strip():
        raise ValueError("fiscal_code is empty: pass the code of one customer")
    return text.strip().upper()


class Customers:
    """The customers by fiscal code; beyond a limit, the oldest are forgotten.

    Args:
        limit: Customers to remember.
        file: SQLite file in which every change is saved; None keeps customers in memory only.
    """

    def __init__(self, limit: int, file: str | Path | None = None) -> None:
        self.forgotten: int = 0
        self._limit = limit
        self._file = None if file is None else Path(file).absolute()  # the working directory may change
        self._database: sqlite3.Connection | None = None
        # An OrderedDict, because finding the first key of a dict is slow after many deletions at its start.
        self._by_code: OrderedDict[str, Customer] = OrderedDict()

    def open(self) -> None:
        """Open and lock the file, and replace all customers by those in it.

        Raises:
            StateFileError: The file is not a state file of a sandbox, or another sandbox uses it.
        """
        if self._file is None:
            return
        try:
            # Other threads may use the connection, because the service's lock allows one at a time.
            self._database = sqlite3.connect(
                self._file, isolation_level=None, timeout=0, check_same_thread=False
            )
            stored = self._read(self._database)
        except sqlite3.Error as error:
            reason = "another sandbox uses it" if "locked" in str(error) else str(error)
            message = f"state file {self._file} cannot be used: {reason}. Choose another file"
            raise StateFileError(message) from None
        except (TypeError, ValueError, AttributeError):
            raise StateFileError(
                f"{self._file} is not a state file of this version of the sandbox: choose another file"
            ) from None
        self._by_code = stored
        self._forget_oldest()

    def _read(self, database: sqlite3.Connection) -> OrderedDict[str, Customer]:
        """Prepare the database and return its customers, oldest first."""
        run = database.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        [tables] = run("SELECT count(*) FROM sqlite_master").fetchone()
        [application_id] = run("PRAGMA application_id").fetchone()
        [version] = run("PRAGMA user_version").fetchone()
        if tables and (application_id, version) != (_APPLICATION_ID, _VERSION):
            raise ValueError("another kind of database")
        # Writes survive a kill of the process. A power failure may lose the last writes.
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run("BEGIN EXCLUSIVE")  # takes the exclusive lock, which is kept until `close`
        run("CREATE TABLE IF NOT EXISTS customers (code TEXT PRIMARY KEY, record TEXT NOT NULL)")
        run(f"PRAGMA application_id = {_APPLICATION_ID}")
        run(f"PRAGMA user_version = {_VERSION}")
        run("COMMIT")
        rows = run("SELECT code, record FROM customers ORDER BY rowid")
        return OrderedDict((code, _load_customer(record)) for code, record in rows)

    def close(self) -> None:
        """Close the file; the customers stay in memory."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def items(self) -> list[tuple[str, Customer]]:
        """Return the fiscal codes and states of all created customers, oldest first."""
        return [(code, customer) for code, customer in self._by_code.items() if customer.created]

    def by_page(self, page: str) -> tuple[str, Customer] | None:
        """Return fiscal code and customer of a page, after selecting the order that the page belongs to."""
        for code, customer in self._by_code.items():
            for token, order in customer.orders.items():
                if order.page == page:
                    customer.selected = token
                    return code, customer
        return None

    def codes(self) -> list[str]:
        """Return the fiscal codes of all customers, including those that were never created."""
        return list(self._by_code)

    def of(self, code: str) -> Customer:
        """Return the customer with this fiscal code; add an uncreated one for a new code."""
        customer = self._by_code.get(code)
        if customer is None:
            customer = self._by_code[code] = Customer()
            self._forget_oldest()
        return customer

    def _forget_oldest(self) -> None:
        while len(self._by_code) > self._limit:
            self.forget(next(iter(self._by_code)))
            self.forgotten += 1

    def save(self, code: str, customer: Customer) -> None:
        """Write a created customer to the file; called before the response is sent."""
        if customer.created and not customer.was_removed and self._database is not None:
            # ASCII, because strings from JSON may contain unpaired surrogates.
            record = json.dumps(asdict(customer, filter=lambda each, _: each.name not in _NOT_STORED))
            self._database.execute(
                "INSERT INTO customers VALUES (?1, ?2) ON CONFLICT (code) DO UPDATE SET record = ?2",
                (code, record),
            )

    def forget(self, code: str) -> bool:
        """Remove one customer; return False if no call named this fiscal code."""
        customer = self._by_code.pop(code, None)
        if customer is None:
            return False
        customer.was_removed = True
        if self._database is not None:
            self._database.execute("DELETE FROM customers WHERE code = ?", (code,))
        return True

    def clear(self) -> None:
        """Remove all customers, also those of waiting calls."""
        for code in self.codes():
            self.forget(code)


def _load_customer(record: str) -> Customer:
    members = json.loads(record)
    orders = {token: Order(**each) for token, each in members.pop("orders", {}).items()}
    return Customer(**members, orders=orders)

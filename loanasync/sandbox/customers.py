"""Customers of the sandbox and their states (spec §3); beyond a limit, the oldest are forgotten."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from attrs import asdict, define, field

from loanasync.sandbox.sqlite import SqliteStore, StateFileError

_NOT_STORED = ("fault_turns", "was_removed")


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


class Snapshot(dict[str, str]):
    """The state of all customers at one moment, from `Sandbox.snapshot` and for `Sandbox.restore`.

    It is a mapping of fiscal codes to JSON. Its `repr` contains no personal data.

    Example:
        >>> sandbox.snapshot()
        <Snapshot of 1 customer>
    """

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self)} customer{'' if len(self) == 1 else 's'}>"


class Customers:
    """The customers by fiscal code.

    Args:
        limit: Customers to remember. When there are more, the oldest are forgotten.
        store: The file in which every change is saved; None keeps customers in memory only.
    """

    def __init__(self, limit: int, store: SqliteStore | None = None) -> None:
        self.forgotten: int = 0
        self._limit = limit
        self._store = store
        # An OrderedDict, because finding the first key of a dict is slow after many deletions at its start.
        self._by_code: OrderedDict[str, Customer] = OrderedDict()
        self._is_newer = False  # than the store: customers changed while it was closed

    def open(self) -> None:
        """Open the store and load its customers, or save the current ones if they are newer.

        Raises:
            StateFileError: The file cannot be used, or does not contain customers of a sandbox.
        """
        if self._store is None:
            return
        stored = self._store.open()
        if self._is_newer:
            self._store.replace(self.snapshot())
        else:
            try:
                self._replace_all(stored)
            except ValueError:
                raise StateFileError(
                    "the state file does not contain customers of a sandbox: choose another file"
                ) from None
        self._is_newer = False

    def close(self) -> None:
        """Close the store; the customers stay in memory."""
        if self._store is not None:
            self._store.close()

    @property
    def _open_store(self) -> SqliteStore | None:
        return self._store if self._store is not None and self._store.is_open else None

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
        """Write a created customer to the store; called before the response is sent."""
        if customer.created and not customer.was_removed and (store := self._open_store):
            store.put(code, _dump_customer(customer))

    def snapshot(self) -> Snapshot:
        """Return the current state of all created customers."""
        return Snapshot({code: _dump_customer(customer) for code, customer in self.items()})

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Replace all customers by those of a snapshot.

        Raises:
            ValueError: The argument is not a snapshot. Nothing is changed.
        """
        self._replace_all(snapshot)
        if store := self._open_store:
            store.replace(self.snapshot())
        else:
            self._is_newer = True

    def forget(self, code: str) -> bool:
        """Remove one customer; return False if no call named this fiscal code."""
        customer = self._by_code.pop(code, None)
        if customer is None:
            return False
        customer.was_removed = True
        if store := self._open_store:
            store.delete(code)
        else:
            self._is_newer = True
        return True

    def _replace_all(self, records: Mapping[str, str]) -> None:
        try:
            known = {code: _load_customer(record) for code, record in records.items()}
        except (TypeError, ValueError, AttributeError):
            raise ValueError("not a snapshot of a sandbox: pass the value that snapshot() returned") from None
        for each in self._by_code.values():
            each.was_removed = True
        self._by_code = OrderedDict(known)
        self._forget_oldest()


def _dump_customer(customer: Customer) -> str:
    # ASCII, because strings from JSON may contain unpaired surrogates.
    return json.dumps(asdict(customer, filter=lambda each, _: each.name not in _NOT_STORED))


def _load_customer(record: str) -> Customer:
    members = json.loads(record)
    orders = {token: Order(**each) for token, each in members.pop("orders", {}).items()}
    return Customer(**members, orders=orders)

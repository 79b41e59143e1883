"""Customers of the sandbox and their states (spec §3); beyond a limit, the oldest are forgotten."""

import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from attrs import define, field, fields, fields_dict

from loanasync.sandbox.sqlite import SqliteStore, StateFileError

_MAX_UNCREATED = 1000

# The last result of `approve` that the shop received; the linter needs it.
LastResult = Literal["", "approved", "refused", "already", "nothing", "other"]


@define(kw_only=True)
class Customer:
    """State of one request, identified by shop and fiscal code (spec §2.1).

    Args:
        created: Whether the request was created (spec §4.3). Calls can name a customer before that.
        additional_data_needed: Value of `additionalDataNeeded` in the creation.
        approved: The decision; None until the request is evaluated (spec §3).
        documents: Whether documents were uploaded.
        request: Body of the approval that was evaluated.
        user_data: Body of the last completion.
        email: E-mail address of the last readable approval. Its tag applies to the completion, too.
        page: Last part of the path of the customer's page.
        application: The customer's choice on that page.
        last_result: The last result of `approve` that the shop received.
        order: Order token that `approved`, `request`, `page`, `application` and `last_result` belong to.
        orders: The same fields of the customer's other orders, by token (see `Readings.evaluates`).
        calls: Number of calls, by operation.
        faults: Number of faults used, by operation and by tag or rule.
        was_removed: Whether the customer was reset or forgotten. A waiting call can still refer to it.
    """

    created: bool = False
    additional_data_needed: bool = False
    approved: bool | None = None
    documents: bool = False
    request: dict[str, Any] = field(factory=dict, repr=False)
    user_data: dict[str, Any] = field(factory=dict, repr=False)
    email: str = field(default="", repr=False)
    page: str = field(default="", repr=False)
    application: Literal["open", "accepted", "cancelled"] = "open"
    last_result: LastResult = field(default="", alias="told")  # the alias is the name in state files
    order: str = field(default="", repr=False)
    orders: dict[str, dict[str, Any]] = field(factory=dict, repr=False)
    calls: dict[str, int] = field(factory=dict)
    faults: dict[str, int] = field(factory=dict)
    was_removed: bool = field(default=False, eq=False)

    def select(self, order: str) -> None:
        """Store the fields of the current order and load those of another one."""
        if order == self.order:
            return
        current = _order_state(self)
        if current != _INITIAL_ORDER:
            self.orders[self.order] = current
        for name, value in self.orders.pop(order, _order_state(Customer())).items():
            setattr(self, _ORDER_FIELDS[name], value)
        self.order = order

    def pages(self) -> dict[str, str]:
        """Return the order token of each page in the web application."""
        pages = {self.page: self.order, **{kept["page"]: order for order, kept in self.orders.items()}}
        return {page: order for page, order in pages.items() if page}


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


class InvalidSnapshotError(ValueError):
    """The given records are not customers of a sandbox."""

    def __init__(self) -> None:
        super().__init__("not a snapshot of a sandbox: pass the value that snapshot() returned")


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
        self._by_page: dict[str, str] = {}
        # Customers that calls named and that were never created. They have their own limit, so that calls
        # with mistyped codes do not evict created customers.
        self._uncreated: OrderedDict[str, Customer] = OrderedDict()
        self._store_is_stale = False  # customers changed while the store was closed
        self._was_opened = False
        self._is_writing = False

    def open(self) -> None:
        """Open the store and load its customers, or save the current ones if they are newer.

        Raises:
            StateFileError: The file cannot be used, or does not contain customers of a sandbox.
        """
        if self._store is None:
            return
        self._store.open()
        try:
            if self._store_is_stale:
                self._store.replace(self.snapshot())
            else:
                self._replace_all(self._store.load())
                if not self._was_opened:
                    self._forget_rules()
        except InvalidSnapshotError:
            self._store.close()
            raise StateFileError(
                "the state file does not contain customers of a sandbox: choose another file"
            ) from None
        except BaseException:
            self._store.close()
            raise
        self._store_is_stale, self._is_writing, self._was_opened = False, True, True

    def _forget_rules(self) -> None:
        """Remove the fault counts of an earlier process's rules; new rules reuse their numbers."""
        for customer in self._by_code.values():
            customer.faults = {name: count for name, count in customer.faults.items() if "#" not in name}

    def close(self) -> None:
        """Close the store; the customers stay in memory."""
        if self._store is not None:
            self._is_writing = False
            self._store.close()

    def __len__(self) -> int:
        return len(self._by_code)

    def items(self) -> list[tuple[str, Customer]]:
        """Return the fiscal codes and states of all created customers, oldest first."""
        return list(self._by_code.items())

    def by_page(self, page: str) -> tuple[str, Customer] | None:
        """Return fiscal code and customer of a page, after selecting the order that the page belongs to."""
        code = self._by_page.get(page)
        if code is None:
            return None
        customer = self._by_code[code]
        customer.select(customer.pages()[page])
        return code, customer

    def codes(self) -> list[str]:
        """Return the fiscal codes of all customers, including those that were never created."""
        return [*self._by_code, *self._uncreated]

    def has_seen(self, code: str) -> bool:
        """Return whether a call named this fiscal code since the last reset."""
        return code in self._by_code or code in self._uncreated

    def of(self, code: str) -> Customer:
        """Return the customer with this fiscal code; add an uncreated one for a new code."""
        customer = self._by_code.get(code) or self._uncreated.get(code)
        if customer is None:
            if len(self._uncreated) >= _MAX_UNCREATED:
                self._uncreated.popitem(last=False)
            customer = self._uncreated[code] = Customer()
        return customer

    def create(self, code: str) -> Customer:
        """Return the customer with this fiscal code, marked as created."""
        customer = self.of(code)
        if not customer.created:
            customer.created = True
            self._uncreated.pop(code, None)
            self._by_code[code] = customer
            self._evict_oldest()
        return customer

    def _evict_oldest(self) -> None:
        while len(self._by_code) > self._limit:
            self._drop(next(iter(self._by_code)))
            self.forgotten += 1

    def assign_page(self, code: str, customer: Customer) -> None:
        """Give the customer a page in the web application."""
        customer.page = secrets.token_urlsafe(12)
        self._by_page[customer.page] = code

    def save(self, code: str, customer: Customer) -> None:
        """Write a created customer to the store; called before the response is sent."""
        if self._is_writing and customer.created and not customer.was_removed and self._store is not None:
            if not self._store.is_current():
                self._rewrite_store()
            self._store.put(code, _dump_customer(customer))

    def _rewrite_store(self) -> None:
        """Write all customers to a new file, because the open file was removed or replaced."""
        self.close()
        self._store_is_stale = True
        try:
            self.open()
        finally:
            self._is_writing = True  # after a failure, the next call tries again and reports the error

    def snapshot(self) -> Snapshot:
        """Return the current state of all created customers."""
        return Snapshot({code: _dump_customer(customer) for code, customer in self.items()})

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Replace all customers by those of a snapshot.

        Raises:
            ValueError: The argument is not a snapshot. Nothing is changed.
        """
        self._replace_all(snapshot)
        if self._is_writing and self._store is not None:
            self._store.replace(self.snapshot())
        self._store_is_stale = not self._is_writing

    def forget(self, code: str) -> bool:
        """Remove one customer; return False if no call named this fiscal code."""
        known = code in self._by_code
        if known:
            self._drop(code)
            self._store_is_stale = not self._is_writing
        uncreated = self._uncreated.pop(code, None)
        if uncreated is not None:
            uncreated.was_removed = True
        return known or uncreated is not None

    def _replace_all(self, records: Mapping[str, str]) -> None:
        try:
            known = {code: _load_customer(record) for code, record in records.items()}
        except (TypeError, ValueError, AttributeError):
            raise InvalidSnapshotError from None
        for each in (*self._by_code.values(), *self._uncreated.values()):
            each.was_removed = True
        self._uncreated.clear()
        self._by_code = OrderedDict(known)
        self._by_page = {page: code for code, customer in known.items() for page in customer.pages()}
        self._evict_oldest()

    def _drop(self, code: str) -> None:
        customer = self._by_code.pop(code)
        customer.was_removed = True
        for page in customer.pages():
            self._by_page.pop(page, None)
        if self._is_writing and self._store is not None:
            self._store.delete(code)


def _dump_customer(customer: Customer) -> str:
    members = {name: getattr(customer, attribute) for name, attribute in _MEMBERS.items()}
    return json.dumps(members)  # ASCII, because strings from JSON may contain unpaired surrogates


def _load_customer(record: str) -> Customer:
    members = json.loads(record)
    customer = _validated(Customer(**members))
    for kept in customer.orders.values():
        if kept.keys() != _ORDER_FIELDS.keys():
            raise ValueError(kept)
        _validated(Customer(**kept))
    if "order" not in members:  # a file of a version that had one order per customer
        token = customer.request.get("orderToken")
        customer.order = token if isinstance(token, str) else ""
    return customer


def _validated(customer: Customer) -> Customer:
    for each in fields(Customer):
        value, default = getattr(customer, each.name), getattr(_DEFAULTS, each.name)
        if type(value) is not type(default) and not (each.name == "approved" and isinstance(value, bool)):
            raise TypeError(each.name)
    return customer


def _order_state(customer: Customer) -> dict[str, Any]:
    return {name: getattr(customer, attribute) for name, attribute in _ORDER_FIELDS.items()}


# Names of attributes, by their name in state files.
_MEMBERS = {each.alias: name for name, each in fields_dict(Customer).items() if name != "was_removed"}
_ORDER_FIELDS = {name: _MEMBERS[name] for name in ("approved", "request", "page", "application", "told")}
_DEFAULTS = Customer()
_INITIAL_ORDER = _order_state(_DEFAULTS)

"""Customers of the sandbox and their states (spec §3); only the newest ones are kept."""

import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from attrs import asdict, define, field, fields

from loanasync.sandbox.sqlite import SqliteStore, StateFileError

_STRANGERS = 1000

# What the shop was told last of its approval: the linter's facts.
Told = Literal["", "approved", "refused", "already", "nothing", "other"]


@define(kw_only=True)
class Customer:
    """One request, identified by shop and fiscal code (spec §2.1).

    Args:
        created: Whether it was created (spec §4.3); a customer may be asked for before.
        additional_data_needed: What the creation said.
        approved: None until it is evaluated (spec §3: created, then approved or refused; no further states).
        documents: Whether they were uploaded.
        request: The body of the evaluated approval.
        user_data: The body of the last completion.
        email: The address of the last approval that could be read; its tag decides the completion, too.
        page: Name of the customer's page in the web application.
        application: What the person did there.
        told: What the shop was told last of the approval.
        order: Token of the order that `approved`, `request`, `page`, `application` and `told` belong to.
        orders: These fields of the customer's other orders, by token (`Readings.evaluates`).
        calls: Calls so far, by operation.
        faults: Counted faults so far, by operation and by tag or rule.
        gone: Whether it was reset or forgotten; a call that waits may still hold it.
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
    told: Told = ""
    order: str = field(default="", repr=False)
    orders: dict[str, dict[str, Any]] = field(factory=dict, repr=False)
    calls: dict[str, int] = field(factory=dict)
    faults: dict[str, int] = field(factory=dict)
    gone: bool = field(default=False, eq=False)  # reset or forgotten, while a call may still wait

    def select(self, order: str) -> None:
        """Put the fields of the current order away, and take those of another one."""
        if order == self.order:
            return
        current = {name: getattr(self, name) for name in _OF_ORDER}
        if current != _new_order():
            self.orders[self.order] = current
        for name, value in self.orders.pop(order, _new_order()).items():
            setattr(self, name, value)
        self.order = order

    def pages(self) -> dict[str, str]:
        """Return the order token of each page in the web application."""
        pages = {self.page: self.order, **{kept["page"]: order for order, kept in self.orders.items()}}
        return {page: order for page, order in pages.items() if page}


def code_of(text: str) -> str:
    """Return a fiscal code as clients send it: in capitals, without spaces around it.

    Raises:
        TypeError: It is not a text.
        ValueError: It is empty.
    """
    if not isinstance(text, str):
        raise TypeError(f"fiscal_code must be a str, not {type(text).__name__}")
    if not text.strip():
        raise ValueError("fiscal_code is empty: give the code of one customer")
    return text.strip().upper()


class Snapshot(dict[str, str]):
    """All customers at one moment, for `Sandbox.restore`; nothing personal shows when it is printed.

    Example:
        >>> sandbox.snapshot()
        <Snapshot of 1 customers>
    """

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self)} customers>"


class NoCustomersError(ValueError):
    """What was given for customers is something else."""

    def __init__(self) -> None:
        super().__init__("these are no customers of a sandbox: give what snapshot() returned")


class Customers:
    """The customers by fiscal code; beyond `most`, the oldest are forgotten.

    Args:
        most: Customers to remember.
        store: Where they are written through to; None: in memory only.
    """

    def __init__(self, most: int, store: SqliteStore | None = None) -> None:
        self.forgotten: int = 0
        self._most = most
        self._store = store
        # The oldest go first: a plain dict would search all the places that others left before them.
        self._by_code: OrderedDict[str, Customer] = OrderedDict()
        self._by_page: dict[str, str] = {}
        # Asked for and never created: a misspelt code must not cost a customer their place.
        self._strangers: OrderedDict[str, Customer] = OrderedDict()
        self._ahead = False  # of the store, by what was done while it was closed
        self._was_open = False
        self._writing = False

    def open(self) -> None:
        """Go on where the store ended, or bring it to where these customers are.

        Raises:
            StateFileError: The store cannot be used, or what it holds are no customers.
        """
        if self._store is None:
            return
        self._store.open()
        try:
            if self._ahead:
                self._store.replace(self.snapshot())
            else:
                self._fill(self._store.load())
                if not self._was_open:
                    self._forget_rules()
        except NoCustomersError:
            self._store.close()
            raise StateFileError("the state file holds no customers of a sandbox: name another") from None
        except BaseException:
            self._store.close()
            raise
        self._ahead, self._writing, self._was_open = False, True, True

    def _forget_rules(self) -> None:
        """Forget the counts of an earlier process: its rules ended, and new rules have their numbers."""
        for customer in self._by_code.values():
            customer.faults = {name: count for name, count in customer.faults.items() if "#" not in name}

    def close(self) -> None:
        """Let go of the store; the customers stay."""
        if self._store is not None:
            self._writing = False
            self._store.close()

    def __len__(self) -> int:
        return len(self._by_code)

    def items(self) -> list[tuple[str, Customer]]:
        """All of them, oldest first."""
        return list(self._by_code.items())

    def at_page(self, page: str) -> tuple[str, Customer] | None:
        """Fiscal code and customer of a page of the web application, with the page's order selected."""
        code = self._by_page.get(page)
        if code is None:
            return None
        customer = self._by_code[code]
        customer.select(customer.pages()[page])
        return code, customer

    def codes(self) -> list[str]:
        """Return the fiscal codes of all customers, and of those who were only asked for."""
        return [*self._by_code, *self._strangers]

    def knows(self, code: str) -> bool:
        """Return whether a call named this fiscal code, and no reset has forgotten it."""
        return code in self._by_code or code in self._strangers

    def of(self, code: str) -> Customer:
        """The customer with this fiscal code, or the stranger who was asked for by it."""
        customer = self._by_code.get(code) or self._strangers.get(code)
        if customer is None:
            if len(self._strangers) >= _STRANGERS:
                self._strangers.popitem(last=False)
            customer = self._strangers[code] = Customer()
        return customer

    def admit(self, code: str) -> Customer:
        """The customer with this fiscal code, created by now."""
        customer = self.of(code)
        if not customer.created:
            customer.created = True
            self._strangers.pop(code, None)
            self._by_code[code] = customer
            self._make_room()
        return customer

    def _make_room(self) -> None:
        while len(self._by_code) > self._most:
            self._drop(next(iter(self._by_code)))
            self.forgotten += 1

    def give_page(self, code: str, customer: Customer) -> None:
        """A page of the customer's own in the web application."""
        customer.page = secrets.token_urlsafe(12)
        self._by_page[customer.page] = code

    def save(self, code: str, customer: Customer) -> None:
        """Write a created customer through, before anybody is told."""
        if self._writing and customer.created and not customer.gone and self._store is not None:
            if not self._store.is_there():
                self._write_again()
            self._store.put(code, _dump(customer))

    def _write_again(self) -> None:
        """Write all customers to a new file: the open one was removed, and would never be found again."""
        self.close()
        self._ahead = True
        try:
            self.open()
        finally:
            self._writing = True  # if it failed, the next call tries again, and fails as visibly

    def snapshot(self) -> Snapshot:
        """All of them as they are now."""
        return Snapshot({code: _dump(customer) for code, customer in self.items()})

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """All of them as they were then, and no others.

        Raises:
            ValueError: It is no snapshot; nothing is changed.
        """
        self._fill(snapshot)
        if self._writing and self._store is not None:
            self._store.replace(self.snapshot())
        self._ahead = not self._writing

    def forget(self, code: str) -> bool:
        """Forget one customer; False when there is none of this fiscal code."""
        known = code in self._by_code
        if known:
            self._drop(code)
            self._ahead = not self._writing
        stranger = self._strangers.pop(code, None)
        if stranger is not None:
            stranger.gone = True
        return known or stranger is not None

    def _fill(self, records: Mapping[str, str]) -> None:
        try:
            known = {code: _load(record) for code, record in records.items()}
        except (TypeError, ValueError, AttributeError):
            raise NoCustomersError from None
        for each in (*self._by_code.values(), *self._strangers.values()):
            each.gone = True
        self._strangers.clear()
        self._by_code = OrderedDict(known)
        self._by_page = {page: code for code, customer in known.items() for page in customer.pages()}
        self._make_room()

    def _drop(self, code: str) -> None:
        customer = self._by_code.pop(code)
        customer.gone = True
        for page in customer.pages():
            self._by_page.pop(page, None)
        if self._writing and self._store is not None:
            self._store.delete(code)


def _dump(customer: Customer) -> str:
    kept = asdict(customer, recurse=False, filter=lambda each, _: each.name != "gone")
    return json.dumps(kept)  # ASCII: JSON may bring halves of surrogate pairs


def _load(record: str) -> Customer:
    members = json.loads(record)
    customer = _checked(Customer(**members))
    for kept in customer.orders.values():
        if kept.keys() != set(_OF_ORDER):
            raise ValueError(kept)
        _checked(Customer(**kept))
    if "order" not in members:  # written before there were several orders
        token = customer.request.get("orderToken")
        customer.order = token if isinstance(token, str) else ""
    return customer


def _checked(customer: Customer) -> Customer:
    for each in fields(Customer):
        value, usual = getattr(customer, each.name), getattr(_USUAL, each.name)
        if type(value) is not type(usual) and not (each.name == "approved" and isinstance(value, bool)):
            raise TypeError(each.name)
    return customer


def _new_order() -> dict[str, Any]:
    fresh = Customer()
    return {name: getattr(fresh, name) for name in _OF_ORDER}


_OF_ORDER = ("approved", "request", "page", "application", "told")
_USUAL = Customer()

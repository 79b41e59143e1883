"""The orders that all compared clients send, the customers, and the expected result."""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import cycle
from string import ascii_uppercase
from typing import Any

from attrs import field, frozen
from full_order import full_request

from loanasync import ApprovalRequest

__all__ = [
    "APPROVED",
    "CODE",
    "FULL",
    "ORDERS",
    "SHOP",
    "SHORT",
    "TOKEN",
    "AsyncIterator",
    "Call",
    "Opener",
    "Order",
    "Result",
    "Scenario",
    "asynccontextmanager",
]

Result = tuple[int, object]  # status, and the member `approved` of the body
Call = Callable[[], Coroutine[Any, Any, Result]]

APPROVED: Result = (201, True)
SHOP = "shop"
TOKEN = "secret"  # noqa: S105  (made up)
CODE = "TSTXYZ00A00A000A"
# The customers: 10,000 calls in flight are for different ones, and no cache of a client holds them all.
_CODES = [f"TSTXY{letter}00A00A{number:03}A" for letter in ascii_uppercase for number in range(1000)]

# The members of the JSON body (spec §2.1).
_SHORT: dict[str, Any] = {
    "amount": 45_000,
    "instalments": 12,
    "loanFinality": "ecommerce_shop",
    "email": "anna@example.com",
    "lastname": "Prova",
    "firstname": "Anna",
    "mobilePhone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "streetNumber": "12/A",
    "citizenship": "italian",
    "zeroInterestRate": False,
    "orderToken": "order-2025-0000001",
}
_FULL: dict[str, Any] = _SHORT | {
    "countryCallingCode": "+39",
    "iban": "IT60X0542811101000000123456",
    "paymentDayOfMonth": "15",
    # The conditional block (spec §2.1).
    "residence": "rent",
    "residenceStartDate": "05/2019",
    "educationalQualification": "diploma",
    "children": "2",
    "salaryType": "net-monthly",
    "salary": 1600,
}
_TWO_WORDS = {"lastname": "last_name", "firstname": "first_name"}


def _named(members: dict[str, Any]) -> dict[str, Any]:
    """Return the members with the names of the models' fields."""
    return {
        _TWO_WORDS.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value
        for name, value in members.items()
    }


def _short_request() -> ApprovalRequest:
    return ApprovalRequest(**_FIELDS)


_FIELDS = _named(_SHORT)


@frozen
class Order:
    """An order.

    Attributes:
        name: Its name in the results.
        members: The JSON members, which other clients send.
        fields: The same values with the names of the models' fields, for other models.
        request: Builds the model of loanasync, as users do.
    """

    name: str
    members: dict[str, Any]
    request: Callable[[], ApprovalRequest]
    fields: dict[str, Any] = field(init=False)

    @fields.default
    def _fields(self) -> dict[str, Any]:
        return _named(self.members)


FULL = Order("full", _FULL, full_request)  # every member that an approval may have
SHORT = Order("short", _SHORT, _short_request)  # without the conditional block and three optional members
ORDERS = {order.name: order for order in (FULL, SHORT)}


@frozen
class Scenario:
    """The service that clients call, and the order that they send, each time for another customer."""

    base_url: str
    order: Order = FULL
    codes: Iterator[str] = field(factory=lambda: cycle(_CODES))

    def path(self) -> str:
        """Return the path of the next customer's approval (spec §4.1)."""
        return f"/api/shops/{SHOP}/requests/{next(self.codes)}"

    def address(self) -> str:
        """Return the URL of the next customer's approval."""
        return f"{self.base_url}{self.path()}"


Opener = Callable[[Scenario], AbstractAsyncContextManager[Call]]  # yields the call of a client

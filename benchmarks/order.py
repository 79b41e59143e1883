"""The order that every client of the comparison asks about, and what it must be told."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

__all__ = [
    "APPROVED",
    "CODE",
    "FIELDS",
    "ORDER",
    "SHOP",
    "TOKEN",
    "Answer",
    "AsyncIterator",
    "Call",
    "Opener",
    "address",
    "asynccontextmanager",
]

Answer = tuple[int, object]  # the status, and what the body says of approval
Call = Callable[[], Coroutine[Any, Any, Answer]]
Opener = Callable[[str], AbstractAsyncContextManager[Call]]  # from the service's address to a client's call

APPROVED: Answer = (201, True)
SHOP = "shop"
TOKEN = "secret"  # noqa: S105  (made up)
CODE = "TSTXYZ00A00A000A"

# As it goes over the wire (spec §2.1), and under our models' names.
ORDER: dict[str, Any] = {
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
_OURS = {
    "loanFinality": "loan_finality",
    "lastname": "last_name",
    "firstname": "first_name",
    "mobilePhone": "mobile_phone",
    "postalCode": "postal_code",
    "streetNumber": "street_number",
    "zeroInterestRate": "zero_interest_rate",
    "orderToken": "order_token",
}
FIELDS: dict[str, Any] = {_OURS.get(name, name): value for name, value in ORDER.items()}


def address(base_url: str) -> str:
    """Where the approval is asked for (spec §4.1)."""
    return f"{base_url}/api/shops/{SHOP}/requests/{CODE}"

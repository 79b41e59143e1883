"""The order that all compared clients send, and the expected result."""

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
    "AsyncIterator",
    "Call",
    "Opener",
    "Result",
    "address",
    "asynccontextmanager",
]

Result = tuple[int, object]  # status, and the member `approved` of the body
Call = Callable[[], Coroutine[Any, Any, Result]]
Opener = Callable[
    [str], AbstractAsyncContextManager[Call]
]  # takes the URL of the service, and yields the call of a client

APPROVED: Result = (201, True)
SHOP = "shop"
TOKEN = "secret"  # noqa: S105  (made up)
CODE = "TSTXYZ00A00A000A"

# With the names of the JSON members (spec §2.1), and with the names of the models' fields.
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
_FIELD_NAMES = {
    "loanFinality": "loan_finality",
    "lastname": "last_name",
    "firstname": "first_name",
    "mobilePhone": "mobile_phone",
    "postalCode": "postal_code",
    "streetNumber": "street_number",
    "zeroInterestRate": "zero_interest_rate",
    "orderToken": "order_token",
}
FIELDS: dict[str, Any] = {_FIELD_NAMES.get(name, name): value for name, value in ORDER.items()}


def address(base_url: str) -> str:
    """Return the URL of the approval (spec §4.1)."""
    return f"{base_url}/api/shops/{SHOP}/requests/{CODE}"

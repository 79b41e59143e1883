"""The orders that all compared clients send, the customers, and the expected result."""

import json
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import product
from string import ascii_uppercase
from typing import Any, Literal

from attrs import field, frozen
from orders import full_request, short_request

from loanasync import ApprovalRequest, InvalidRequestError, LoanClient
from loanasync._protocol.endpoints import APPROVE

Result = tuple[int, object]  # status, and the member `approved` of the body
Call = Callable[[], Coroutine[Any, Any, Result]]

APPROVED: Result = (201, True)
SHOP = "shop"
TOKEN = "secret"  # noqa: S105  (made up)
CODE = "TSTXYZ00A00A000A"
# The customers: 10,000 calls in flight are for different ones, and no cache of a client holds them all.
# New customers for all clients: a customer whom the process knows takes longer.
_CODES = map("TST%s%s%s00A00A%03dA".__mod__, product(*[ascii_uppercase] * 3, range(1000)))

# Members of the JSON body whose names in the models are not the same in another spelling.
_TWO_WORDS = {"lastname": "last_name", "firstname": "first_name"}


@frozen
class Order:
    """An order.

    Attributes:
        name: Its name in the results.
        request: Builds the model of loanasync, as users do.
        members: The members of the JSON body (spec §2.1), which other clients send.
        fields: The same values with the names of the models' fields, for other models.
    """

    name: str
    request: Callable[[], ApprovalRequest]
    members: dict[str, Any] = field(init=False)
    fields: dict[str, Any] = field(init=False)

    @members.default
    def _members(self) -> dict[str, Any]:
        client = LoanClient("https://loans.example.com", shop_id=SHOP, auth_token=TOKEN)
        call = APPROVE.prepare(client._options, CODE, self.request())  # noqa: SLF001  (what the client sends)
        assert not isinstance(call, InvalidRequestError)
        members: dict[str, Any] = json.loads(call.body)
        return members

    @fields.default
    def _fields(self) -> dict[str, Any]:
        return {
            _TWO_WORDS.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value
            for name, value in self.members.items()
        }


FULL = Order("full", full_request)  # every member that an approval may have
SHORT = Order("short", short_request)  # without the conditional block and three optional members
ORDERS = {order.name: order for order in (FULL, SHORT)}


@frozen
class Scenario:
    """The service that clients call, and the order that they send, each time for another customer."""

    base_url: str
    order: Order = FULL
    trust: ssl.SSLContext | Literal[True] = True  # a context for a server with TLS
    codes: Iterator[str] = _CODES

    def path(self) -> str:
        """Return the path of the next customer's approval (spec §4.1)."""
        return f"/api/shops/{SHOP}/requests/{next(self.codes)}"

    def address(self) -> str:
        """Return the URL of the next customer's approval."""
        return f"{self.base_url}{self.path()}"


Opener = Callable[[Scenario], AbstractAsyncContextManager[Call]]  # yields the call of a client

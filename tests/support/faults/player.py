"""Playing a row of the fault matrix: the servers that it needs, and the calls of a client that meets them."""

import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from secrets import token_hex
from typing import Any
from unittest import mock

import aiohttp
import pytest
from attrs import field, frozen

from faults_page import ROWS
from loanasync import (
    ApprovalRequest,
    Approved,
    LoanClient,
    LoanError,
    Refused,
    RetryPolicy,
    Timeout,
    UserData,
)
from loanasync._transport.fast import compatibility
from loanasync._transport.fast.pool import DirectTransport
from support.builders import FISCAL_CODE, approval_request
from support.faults.row import NOT_SENT, SESSIONS, Answer, Row
from support.raw_server import PATIENCE, Exchange, Play, RawServer, authority, certificate, running, until

__all__ = ["PATIENT", "Caller", "Customer", "cases", "ready", "went_well"]

PATIENT = Timeout(total=2 * PATIENCE, attempt=PATIENCE, connect=PATIENCE / 2)
SHORT = Timeout(total=PATIENCE, attempt=0.9, connect=0.5)  # where the fault is silence
# Where the silence is before a connection: on a busy machine, too, no other time runs out first.
UNCONNECTED = Timeout(total=PATIENCE, attempt=PATIENCE / 2, connect=0.5)


@frozen
class Customer:
    """Whom the calls are about, and what the service says of them."""

    fiscal_code: str = FISCAL_CODE
    request: ApprovalRequest = field(factory=approval_request)
    data: UserData = field(factory=lambda: UserData(us_person=False))
    echo: Mapping[str, Any] = field(factory=dict)
    saved: Mapping[str, Any] = {"profession": "baker"}

    def answer(self, operation: str, *, refused: bool = False, elsewhere: str = "") -> Answer:
        if operation == "complete":
            return Answer("200 OK", json.dumps(self.saved).encode(), elsewhere)
        body = {**self.echo, "approved": not refused, "fiscalCode": self.fiscal_code}
        status = "422 Unprocessable" if refused else "201 Created"
        return Answer(status, json.dumps(body).encode(), elsewhere, self.fiscal_code)


def cases() -> Iterator[Any]:
    """Each row with each scheme, call and kind of session that it is about."""
    for row in ROWS:
        for scheme in row.schemes:
            for operation in row.operations:
                for session in SESSIONS:
                    yield pytest.param(
                        row, scheme, operation, session, id=f"{row.name}-{scheme}-{operation}-{session}"
                    )


def _patience(row: Row, scheme: str) -> Timeout:
    if not row.silent:
        return PATIENT
    comes = row.over_https if scheme == "https" and row.over_https is not None else row.comes
    return UNCONNECTED if comes is NOT_SENT else SHORT


def went_well(result: object) -> bool:
    return isinstance(result, Approved | Refused | UserData)


@cache
def trust() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    return context


async def three_times(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A middleware as it stands in many an application."""
    for _ in range(2):
        try:
            response = await handler(request)
        except aiohttp.ClientError:
            continue
        if response.status < 500:
            return response
    return await handler(request)


@frozen(eq=False)
class Caller:
    """A client of one place, over its own session or over one that is set to spoil everything."""

    client: LoanClient
    operation: str
    customer: Customer
    server: RawServer
    other: RawServer  # where redirects lead
    timeout: Timeout
    already: list[bytes] = field(factory=list)

    @property
    def seen(self) -> int:
        """How many requests the service has read whole since the row's own call could begin."""
        return len(self.server.requests) - len(self.already)

    async def __call__(self, timeout: Timeout | None = None) -> Any:
        within = self.timeout if timeout is None else timeout
        customer = self.customer
        try:
            if self.operation == "approve":
                # Each call has another scope, because the client remembers the earlier outcomes.
                return await self.client.approve(
                    customer.fiscal_code, customer.request, timeout=within, scope=token_hex(4)
                )
            return await self.client.complete(customer.fiscal_code, customer.data, timeout=within)
        except LoanError as error:
            return error

    def kept(self) -> list[tuple[bool, bool]]:
        """The connections that wait for the next call: whether each is open, and clean."""
        lane: Any = self.client._pipeline._lanes.here()
        if isinstance(lane.transport, DirectTransport):
            idle = [each for origin in lane.transport._origins.values() for each in origin.idle]
            return [(each.is_open, each._is_good) for each in idle]
        pools = lane.transport._session.connector._conns.values()
        return [(each.is_connected(), not each.should_close) for pool in pools for each, _ in pool]

    async def noticed(self, before: Exchange) -> None:
        """Wait until the client knows what became of the connection that it keeps."""
        if Play.FIN in before:
            await self.server.all_hung_up()
        elif Play.AFTER_THE_CALL in before:
            await until(lambda: not any(is_clean for _, is_clean in self.kept()))


@asynccontextmanager
async def ready(
    row: Row, scheme: str, operation: str, session: str, customer: Customer, **options: Any
) -> AsyncIterator[Caller]:
    """Everything that stands before the row's own call; call what is given to make it."""
    tls = certificate(row.shows) if scheme == "https" and row.speaks_tls else None
    other = RawServer((Play.READ,), tls=tls, scheme=scheme, host="localhost")
    told = customer.answer(operation, refused=row.refused, elsewhere=f"{other.base_url}/")
    good = customer.answer(operation)
    # One more than is needed: a connection that ends may be about to take the next.
    exchanges = [*row.server(told), *[(Play.READ, good.whole)] * 2]
    if row.before is not None:
        exchanges.insert(0, row.before(good))
    server = RawServer(*exchanges, tls=tls, scheme=scheme)
    async with running(other), running(server, row.begin), AsyncExitStack() as stack:
        client = await _client(stack, server, scheme, session, options)
        caller = Caller(client, operation, customer, server, other, _patience(row, scheme))
        if row.before is not None:
            assert went_well(await caller(PATIENT))
            server.call_over.set()
            await caller.noticed(exchanges[0])
        caller.already.extend(server.requests)
        yield caller


async def _client(
    stack: AsyncExitStack, server: RawServer, scheme: str, session: str, options: dict[str, Any]
) -> LoanClient:
    context = trust() if scheme == "https" else None
    over: dict[str, Any] = {"max_concurrency": 1, "ssl": context}
    if session == "users":
        connector = aiohttp.TCPConnector(limit=1, ssl=context or True)
        users = aiohttp.ClientSession(connector=connector, middlewares=(three_times,), raise_for_status=True)
        over = {"session": await stack.enter_async_context(users)}
    elif session == "own, through aiohttp":
        stack.enter_context(mock.patch.object(compatibility, "is_possible", return_value=False))
    plain = {"shop_id": "s", "auth_token": "t", "retry": RetryPolicy(base=0.001), "remember": False}
    settings = {**plain, **over, **options}
    return await stack.enter_async_context(LoanClient(server.base_url, **settings))

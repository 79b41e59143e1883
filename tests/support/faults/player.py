"""Servers and clients that play a row of the fault matrix."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

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
from loanasync.testing import forget_approvals
from support.direct_path import client_of
from support.faults.row import NOT_SENT, SESSIONS, CorrectResponse, Row, exchanges
from support.privacy.plants import CODE, ECHO, LIMITS, SAVED, TOKEN, planted
from support.raw_server import PATIENCE, Exchange, Play, RawServer, certificate, running, until
from support.virtual_time import turns

PATIENT = Timeout(total=2 * PATIENCE, attempt=PATIENCE, connect=PATIENCE / 2)
SHORT = Timeout(total=PATIENCE, attempt=0.9, connect=0.5)  # for rows that end with a timeout
# For timeouts of the connection: on a busy machine, too, no other timeout expires first.
UNCONNECTED = Timeout(total=PATIENCE, attempt=PATIENCE / 2, connect=0.5)
USUAL = ("https", "approve", "own")  # the case that no commit leaves out

REQUEST, DATA = planted(ApprovalRequest), planted(UserData)


def correct_response(operation: str, *, refused: bool = False, redirect_to: str = "") -> CorrectResponse:
    """Return the response of the service, with all planted values."""
    if operation == "complete":
        return CorrectResponse("200 OK", json.dumps(SAVED).encode(), redirect_to)
    body = {
        "approved": not refused,
        **ECHO,
    }  # in the first half of the body, because a row sends only this half
    status = "422 Unprocessable" if refused else "201 Created"
    return CorrectResponse(status, json.dumps(body).encode(), redirect_to, CODE)


def cases() -> Iterator[Any]:
    """Yield each row with each of its schemes and operations, and each kind of session."""
    for position, row in enumerate(ROWS):
        choices = [enumerate(each) for each in (row.schemes, row.operations, SESSIONS)]
        for numbered in product(*choices):
            numbers, values = zip(*numbered, strict=True)
            marks = [pytest.mark.scheduled] if _is_scheduled(row, position, *numbers) else []
            yield pytest.param(row, *values, id="-".join([row.name, *values]), marks=marks)


def _is_scheduled(row: Row, position: int, scheme: int, operation: int, session: int) -> bool:
    """Return True for a case that the gate leaves out.

    The gate has all cases of a row with one scheme or one operation. It has each other row with each session,
    with each pair of a scheme and an operation, and always the approval over https with the client's own
    session. Four rows in sequence have all combinations.
    """
    is_usual = (row.schemes[scheme], row.operations[operation], SESSIONS[session]) == USUAL
    if is_usual or 1 in (len(row.schemes), len(row.operations)):
        return False
    return ((scheme + session + position) % 2, (operation + session // 2 + position // 2) % 2) != (0, 0)


def _timeout(row: Row, scheme: str) -> Timeout:
    if not row.times_out:
        return PATIENT
    expected = (
        row.expected_over_https if scheme == "https" and row.expected_over_https is not None else row.expected
    )
    return UNCONNECTED if expected is NOT_SENT else SHORT


def succeeded(result: object) -> bool:
    """Return True for a result that is not an error."""
    return isinstance(result, Approved | Refused | UserData)


async def three_times(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Send a request up to three times, as middlewares of many applications do."""
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
    """A client with one connection, and the servers that it calls. The session is its own or a user's.

    Each personal field of its calls, and of the correct responses, has a planted value.
    """

    client: LoanClient
    operation: str
    server: RawServer
    other: RawServer  # the target of redirects
    timeout: Timeout
    earlier_requests: list[bytes] = field(factory=list)

    @property
    def requests_read(self) -> int:
        """The number of whole requests of the row's own call that the service has read."""
        return len(self.server.requests) - len(self.earlier_requests)

    async def __call__(self, timeout: Timeout | None = None) -> Any:
        within = self.timeout if timeout is None else timeout
        try:
            if self.operation == "approve":
                forget_approvals()  # or the approval before would stop this one
                return await self.client.approve(CODE, REQUEST, timeout=within)
            return await self.client.complete(CODE, DATA, timeout=within)
        except LoanError as error:
            return error

    async def wait_until_noticed(self, exchange: Exchange) -> None:
        """Wait until the client has noticed the end of its idle connection, or unread data on it."""
        if Play.FIN in exchange:
            await self.server.wait_until_closed()
        elif Play.AFTER_THE_CALL in exchange:
            await until(lambda: self.server.played > 0)
            await turns(10)


@asynccontextmanager
async def ready(
    row: Row, scheme: str, operation: str, session: str, **providers: Any
) -> AsyncIterator[Caller]:
    """Start servers and client, make the earlier call, and yield the caller of the row's own call."""
    tls = certificate(row.certificate) if scheme == "https" and row.speaks_tls else None
    other = RawServer((Play.READ,), tls=tls, scheme=scheme, host="localhost")
    correct = correct_response(operation, refused=row.refused, redirect_to=f"{other.base_url}/")
    good = correct_response(operation)
    # One exchange more than is needed: an ending connection may take the next one.
    earlier = exchanges(row.earlier_steps, good)
    later = [*exchanges(row.steps, correct), *[(Play.READ, good.whole())] * 2]
    server = RawServer(*earlier, *later, tls=tls, scheme=scheme)
    users = {"middlewares": (three_times,), "raise_for_status": True}
    settings: dict[str, Any] = {"auth_token": TOKEN, "limits": LIMITS, "retry": RetryPolicy(base=0.001)}
    settings |= {"max_concurrency": 1, "separate": False, "users": users, **providers}
    async with (
        running(other),
        running(server, row.prepare),
        client_of(server.base_url, session, **settings) as client,
    ):
        caller = Caller(client, operation, server, other, _timeout(row, scheme))
        if earlier:
            assert succeeded(await caller(PATIENT))
            server.call_over.set()
            await caller.wait_until_noticed(earlier[0])
        caller.earlier_requests.extend(server.requests)
        yield caller

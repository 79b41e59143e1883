"""Every fault of the reliability page happens over real sockets, and comes to what its row says."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import aiohttp
import pytest
from attrs import evolve
from builders import FISCAL_CODE, approval_request
from faultpage import ROWS
from faultrow import Answer, Comes, Row
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from rawserver import PATIENCE, Certificate, Exchange, Play, RawServer, authority, certificate, running, until

from loanasync import (
    Approved,
    LoanClient,
    LoanError,
    RetryPolicy,
    ServiceError,
    Timeout,
    TransportError,
    UnexpectedReplyError,
    UserData,
)

PATIENT = Timeout(total=2 * PATIENCE, attempt=PATIENCE, connect=PATIENCE / 2)
SHORT = Timeout(total=PATIENCE, attempt=0.3, connect=0.25)  # where the fault is silence


def answer(operation: str, *, refused: bool = False, elsewhere: str = "") -> Answer:
    if operation == "complete":
        return Answer("200 OK", b'{"profession": "baker"}', elsewhere)
    body = {"approved": not refused, "fiscalCode": FISCAL_CODE}
    return Answer("422 Unprocessable" if refused else "201 Created", json.dumps(body).encode(), elsewhere)


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


class Caller:
    """A client of one place, over its own session or over one that is set to spoil everything."""

    def __init__(self, client: LoanClient, operation: str) -> None:
        self.client = client
        self.operation = operation

    async def __call__(self, timeout: Timeout = PATIENT) -> Any:
        try:
            if self.operation == "approve":
                return await self.client.approve(FISCAL_CODE, approval_request(), timeout=timeout)
            return await self.client.complete(FISCAL_CODE, UserData(us_person=False), timeout=timeout)
        except LoanError as error:
            return error

    def kept(self) -> list[Any]:
        """The connections that wait for the next call."""
        lane: Any = self.client._pipeline._lanes.here()
        connector = lane.transport._session.connector
        return [protocol for kept in connector._conns.values() for protocol, _ in kept]


@asynccontextmanager
async def calling(
    server: RawServer, operation: str, *, own: bool, tracing: TracerProvider
) -> AsyncIterator[Caller]:
    context = trust() if server.base_url.startswith("https") else None
    async with AsyncExitStack() as stack:
        session = None
        options: dict[str, Any] = {"max_concurrency": 1, "ssl": context}
        if not own:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=1, ssl=context or True),
                    middlewares=(three_times,),
                    raise_for_status=True,
                )
            )
            options = {"session": session}
        client = LoanClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            retry=RetryPolicy(base=0.001),
            tracer_provider=tracing,
            **options,
        )
        await stack.enter_async_context(client)
        yield Caller(client, operation)


def cases() -> Iterator[Any]:
    for row in ROWS:
        for scheme in row.schemes:
            for operation in row.operations:
                for session in ("own", "users"):
                    yield pytest.param(
                        row, scheme, operation, session, id=f"{row.name}-{scheme}-{operation}-{session}"
                    )


def went_well(result: object) -> bool:
    return isinstance(result, Approved | UserData)


async def noticed(caller: Caller, server: RawServer, before: Exchange) -> None:
    if Play.FIN in before:
        await server.all_hung_up()
    elif Play.AFTER_THE_CALL in before:
        await until(lambda: all(connection.should_close for connection in caller.kept()))


async def only_servers_are_busy(*servers: RawServer) -> None:
    this = asyncio.current_task()
    await until(lambda: asyncio.all_tasks() <= {this}.union(*(server.talks for server in servers)))


def expected(row: Row, scheme: str, operation: str, result: object) -> Comes:
    comes = row.over_https if scheme == "https" and row.over_https is not None else row.comes
    if comes.or_else is not None and isinstance(result, comes.or_else.error or ()):
        comes = comes.or_else
    if operation == "complete" and comes.error is UnexpectedReplyError:
        return evolve(comes, status=200, outcome="unknown")  # only an approval has an outcome to know
    return comes


def assert_comes(result: Any, comes: Comes, row: Row) -> None:
    if comes.error is None:
        assert went_well(result)
        return
    assert type(result) is comes.error
    assert row.says in str(result)
    assert FISCAL_CODE not in repr(result) + str(result)
    if isinstance(result, TransportError):
        assert (result.request_sent, result.attempts) == (comes.sent, row.attempts)
    elif isinstance(result, UnexpectedReplyError):
        assert (result.status, result.outcome) == (comes.status, comes.outcome)
    else:
        assert isinstance(result, ServiceError)
        assert (result.status, result.attempts) == (comes.status, row.attempts)


def told_by(span: ReadableSpan) -> tuple[object, object, StatusCode]:
    attributes = span.attributes or {}
    return attributes.get("http.response.status_code"), attributes.get("error.type"), span.status.status_code


def assert_traced(spans: Sequence[ReadableSpan], result: Any, comes: Comes, row: Row) -> None:
    *earlier, last = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [told_by(span) for span in earlier] == [(500, "500", StatusCode.ERROR)] * (row.attempts - 1)
    if isinstance(result, TransportError):
        assert told_by(last) == (None, result.cause_type, StatusCode.ERROR)
    else:
        status = 200 if isinstance(result, UserData) else result.meta.status
        wrong = str(status) if status >= 400 else f"body {comes.fault}" if comes.fault else None
        assert told_by(last) == (status, wrong, StatusCode.ERROR if wrong else StatusCode.UNSET)
    [call] = [span for span in spans if span.kind is SpanKind.INTERNAL]
    failed = None if comes.error is None else comes.error.__name__
    assert told_by(call) == (None, failed, StatusCode.ERROR if failed else StatusCode.UNSET)
    assert (call.attributes or {})["loanasync.attempts"] == row.attempts
    assert FISCAL_CODE not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize(("row", "scheme", "operation", "session"), list(cases()))
async def test_a_fault_comes_to_what_its_row_says(
    row: Row,
    scheme: str,
    operation: str,
    session: str,
    tracing: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    tls = certificate(row.shows) if scheme == "https" and row.speaks_tls else None
    other = RawServer((Play.READ,), tls=tls, scheme=scheme, host="localhost")
    told = answer(operation, refused=row.refused, elsewhere=f"{other.base_url}/")
    good = (Play.READ, answer(operation).whole)
    exchanges = [*row.server(told), good]
    if row.before is not None:
        exchanges.insert(0, row.before(answer(operation)))
    server = RawServer(*exchanges, tls=tls, scheme=scheme)
    async with running(other), running(server, row.begin), AsyncExitStack() as stack:
        caller = await stack.enter_async_context(
            calling(server, operation, own=session == "own", tracing=tracing)
        )
        if row.before is not None:
            assert went_well(await caller())
            server.call_over.set()
            await noticed(caller, server, exchanges[0])
        already = len(server.requests)
        exporter.clear()
        result = await caller(SHORT if row.silent else PATIENT)

        comes = expected(row, scheme, operation, result)
        assert_comes(result, comes, row)
        assert len(server.requests) - already == row.seen
        assert_traced(exporter.get_finished_spans(), result, comes, row)
        assert other.accepted == 0

        # Nothing is left of it: no task, no connection, no place that the next call would need.
        if isinstance(result, TransportError) and row.name != "unasked":
            await server.all_hung_up()
        await only_servers_are_busy(server, other)
        if row.dead:
            await until(lambda: not any(connection.is_connected() for connection in caller.kept()))
        await server.recover(certificate(Certificate.GOOD) if scheme == "https" else None)
        assert went_well(await caller())

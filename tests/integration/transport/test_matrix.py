"""Every fault of the reliability page happens over real sockets, and comes to what its row says."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from loanasync import Refused, ServiceError, TransportError, UnexpectedResponseError, UserData
from support.builders import FISCAL_CODE
from support.faults.player import PATIENT, Customer, cases, ready, went_well
from support.faults.row import NOT_SENT, Comes, Row
from support.raw_server import Certificate, RawServer, certificate, until


async def only_servers_are_busy(*servers: RawServer) -> None:
    this = asyncio.current_task()
    await until(lambda: asyncio.all_tasks() <= {this}.union(*(server.talks for server in servers)))


def expected(row: Row, scheme: str, operation: str, result: object) -> Comes:
    comes = row.over_https if scheme == "https" and row.over_https is not None else row.comes
    if comes.or_else is not None and isinstance(result, comes.or_else.error or ()):
        comes = comes.or_else
    if operation == "complete" and (comes.in_part or comes.error is UnexpectedResponseError):
        # spec §4.2: 200 is success
        return evolve(comes, error=UnexpectedResponseError, in_part=False, status=200, outcome="done")
    return comes


def assert_comes(result: Any, comes: Comes, row: Row) -> None:
    if comes.error is None:
        assert went_well(result)
        assert isinstance(result, Refused) == row.refused
        if not isinstance(result, UserData):
            assert result.meta.unread == (("body",) if comes.in_part else ())
        return
    assert type(result) is comes.error
    assert row.says in str(result)
    assert FISCAL_CODE not in repr(result) + str(result)
    if isinstance(result, TransportError):
        assert (result.outcome, result.attempts) == (comes.outcome, row.attempts)
    elif isinstance(result, UnexpectedResponseError):
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
    async with ready(row, scheme, operation, session, Customer(), tracer_provider=tracing) as caller:
        exporter.clear()
        result = await caller()

        comes = expected(row, scheme, operation, result)
        assert_comes(result, comes, row)
        assert caller.seen == (0 if comes in (row.comes.or_else, NOT_SENT) else row.seen)
        assert_traced(exporter.get_finished_spans(), result, comes, row)
        assert caller.other.accepted == 0

        # Nothing is left of it: no task, no connection, no place that the next call would need.
        server = caller.server
        if isinstance(result, TransportError):
            await server.all_hung_up()
        await only_servers_are_busy(server, caller.other)
        if row.dead:
            await until(lambda: not any(is_open for is_open, _ in caller.kept()))
        await server.recover(certificate(Certificate.GOOD) if scheme == "https" else None)
        assert went_well(await caller(PATIENT))

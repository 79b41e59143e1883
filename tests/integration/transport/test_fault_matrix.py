"""Each row of the fault matrix over real sockets.

The result, the requests read by the service and the spans are those of the row. No task, no connection and no
slot is left behind, and no output contains personal data.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from faults_page import ROWS
from loanasync import Refused, ServiceError, TransportError, UnexpectedResponseError, UserData
from support.direct_path import is_direct
from support.faults.player import PATIENT, USUAL, Caller, cases, ready, succeeded
from support.faults.row import NOT_SENT, Expected, Row
from support.privacy.scanner import Captured, capturing, leaks
from support.raw_server import Certificate, RawServer, certificate, until


async def wait_until_only_servers_run(*servers: RawServer) -> None:
    this = asyncio.current_task()
    await until(lambda: asyncio.all_tasks() <= {this}.union(*(server.tasks for server in servers)))


def expected_of(row: Row, scheme: str, operation: str, session: str, result: object) -> Expected:
    """Return the expected result of a row, or its alternative if the result is of that class."""
    over_https = row.expected_over_https if scheme == "https" else None
    through_aiohttp = None if is_direct(session) else row.expected_through_aiohttp
    expected = through_aiohttp or over_https or row.expected
    if expected.alternative is not None and isinstance(result, expected.alternative.error or ()):
        expected = expected.alternative
    is_of_201 = expected.is_partial or (expected.error, expected.status) == (UnexpectedResponseError, 201)
    if operation == "complete" and is_of_201:
        # spec §4.2: 200 is success
        return evolve(expected, error=UnexpectedResponseError, is_partial=False, status=200, outcome="done")
    return expected


def assert_result(result: Any, expected: Expected, row: Row) -> None:
    if expected.error is None:
        assert succeeded(result)
        assert isinstance(result, Refused) == row.refused
        if not isinstance(result, UserData):
            assert result.meta.unread == (("body",) if expected.is_partial else ())
        return
    assert type(result) is expected.error
    assert row.message in str(result)
    if isinstance(result, TransportError):
        assert (result.outcome, result.attempts) == (expected.outcome, row.attempts)
    elif isinstance(result, UnexpectedResponseError):
        assert (result.status, result.outcome) == (expected.status, expected.outcome)
    else:
        assert isinstance(result, ServiceError)
        assert (result.status, result.attempts) == (expected.status, row.attempts)


def status_of(span: ReadableSpan) -> tuple[object, object, StatusCode]:
    """Return HTTP status, error type and span status."""
    attributes = span.attributes or {}
    return attributes.get("http.response.status_code"), attributes.get("error.type"), span.status.status_code


def assert_traced(spans: Sequence[ReadableSpan], result: Any, expected: Expected, row: Row) -> None:
    *earlier, last = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [status_of(span) for span in earlier] == [(500, "500", StatusCode.ERROR)] * (row.attempts - 1)
    if isinstance(result, TransportError):
        assert status_of(last) == (None, result.cause_type, StatusCode.ERROR)
    else:
        status = 200 if isinstance(result, UserData) else result.meta.status
        wrong = str(status) if status >= 400 else f"body {expected.fault}" if expected.fault else None
        assert status_of(last) == (status, wrong, StatusCode.ERROR if wrong else StatusCode.UNSET)
    [call] = [span for span in spans if span.kind is SpanKind.INTERNAL]
    failed = None if expected.error is None else expected.error.__name__
    assert status_of(call) == (None, failed, StatusCode.ERROR if failed else StatusCode.UNSET)
    assert (call.attributes or {})["loanasync.attempts"] == row.attempts


def assert_private(captured: Captured) -> None:
    assert leaks(captured) == []
    assert captured.foreign_frames() == []
    assert captured.warned == []


async def assert_usable(caller: Caller, result: object, row: Row, scheme: str) -> None:
    """Assert that no task and no connection is left, and that the next call gets the only slot."""
    server = caller.server
    if isinstance(result, TransportError) or row.closes_connection:
        await server.wait_until_closed()
    await wait_until_only_servers_run(server, caller.other)
    await server.recover(certificate(Certificate.GOOD) if scheme == "https" else None)
    assert succeeded(await caller(PATIENT))


@pytest.mark.parametrize(("row", "scheme", "operation", "session"), list(cases()))
async def test_fault_has_the_result_of_its_row(
    row: Row, scheme: str, operation: str, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In debug mode asyncio logs more, such as errors of TLS handshakes. Tracebacks of all handles are slow.
    monkeypatch.setattr("asyncio.constants.DEBUG_STACK_DEPTH", 1)
    asyncio.get_running_loop().set_debug(operation == "approve")
    with capturing() as captured:
        async with ready(row, scheme, operation, session, **captured.providers) as caller:
            earlier = len(captured.spans.get_finished_spans())
            result = await caller()
            captured.add(result)

            expected = expected_of(row, scheme, operation, session, result)
            assert_result(result, expected, row)
            assert caller.requests_read == (
                0 if expected in (row.expected.alternative, NOT_SENT) else row.requests_read
            )
            assert_traced(captured.spans.get_finished_spans()[earlier:], result, expected, row)
            # Redirects are not followed: the other host gets no connection, no token and no personal data.
            assert caller.other.accepted == 0
            await assert_usable(caller, result, row, scheme)
            captured.values += [caller.client, vars(caller.client)]
    assert_private(captured)


def test_each_commit_plays_the_approval_over_https_of_each_fault() -> None:
    played = [case.values[0] for case in cases() if case.values[1:] == USUAL and not case.marks]
    assert played == ROWS

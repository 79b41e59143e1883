"""Records of the logger ``loanasync`` for attempts and calls, and their trace ids."""

import asyncio
import contextlib
import logging
import subprocess
import sys
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from loanasync import LoanClient, LoanError, Telemetry
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approved,
    computed,
    connection_lost,
    fiscal_code,
    refused,
    response,
    system_error,
)
from support.builders import FISCAL_CODE, approval_request, user_data


async def logged(
    caplog: pytest.LogCaptureFixture, *responses: ScriptedResponse, **options: object
) -> list[logging.LogRecord]:
    caplog.set_level(logging.DEBUG, "loanasync")
    caplog.clear()
    client = ScriptedTransport(*responses).client(**options)
    with contextlib.suppress(LoanError):
        await client.approve(FISCAL_CODE, approval_request())
    return [record for record in caplog.records if record.name == "loanasync"]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    usual = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "taskName"}
    return {name: value for name, value in vars(record).items() if name not in usual}


async def test_each_attempt_and_each_call_is_an_event_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    first, second, call = await logged(caplog, system_error(), approved())
    assert [record.levelname for record in (first, second, call)] == ["WARNING", "DEBUG", "INFO"]
    for record, attempt, status in ((first, 1, 500), (second, 2, 201)):
        duration = fields(record).pop("duration")
        assert 0 <= duration < 60
        assert (
            fields(record).items() >= {"operation": "approve", "attempt": attempt, "status": status}.items()
        )
        assert record.getMessage() == f"approve: attempt {attempt}: {status}, {duration:.3f} s"
    assert fields(call).items() >= {"operation": "approve", "attempts": 2, "outcome": "approved"}.items()
    assert call.getMessage().startswith("approve: approved, attempts: 2, ")


@pytest.mark.parametrize(
    ("responses", "level", "end", "attempt", "outcome"),
    [
        ([refused()], "INFO", "refused", "422", "refused"),
        ([connection_lost()], "WARNING", "ConnectionLostError", "ServerDisconnectedError", "unknown"),
        ([system_error()] * 3, "WARNING", "SystemFaultError", "500", "unknown"),
        ([response(403, {})], "WARNING", "AccessDeniedError", "403", "not_evaluated"),
    ],
)
async def test_call_and_attempt_are_logged_with_their_results(
    caplog: pytest.LogCaptureFixture,
    responses: list[ScriptedResponse],
    level: str,
    end: str,
    attempt: str,
    outcome: str,
) -> None:
    call = {"outcome": outcome} | ({"stopped_by": "attempts"} if attempt == "500" else {})
    *_, tried, ended = await logged(caplog, *responses)
    assert fields(tried)["error_type"] == attempt
    assert (ended.levelname, ended.getMessage().split(",")[0]) == (level, f"approve: {end}")
    assert {"outcome", "stopped_by"} & fields(ended).keys() == call.keys()
    assert fields(ended).items() >= call.items()


async def test_cancelled_call_is_a_warning_if_its_outcome_is_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def give_up(_: SentRequest) -> ScriptedResponse:
        raise asyncio.CancelledError

    await logged(caplog, computed(give_up))
    [call] = caplog.records
    assert call.getMessage().startswith("approve: cancelled, attempts: 1, ")
    assert (call.levelname, fields(call)["outcome"]) == ("WARNING", "unknown")


async def test_call_other_than_an_approval_is_logged_as_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loanasync")
    await ScriptedTransport(response(200, {})).client().complete(FISCAL_CODE, user_data())
    [call] = caplog.records
    assert call.getMessage().startswith("complete: done, attempts: 1, ")


async def test_events_have_a_trace_id_and_are_logged_within_their_span(
    caplog: pytest.LogCaptureFixture, tracing: TracerProvider
) -> None:
    seen: list[int] = []

    class Look(logging.Filter):
        def filter(self, _: logging.LogRecord) -> bool:
            seen.append(trace.get_current_span().get_span_context().span_id)
            return True

    logger, look = logging.getLogger("loanasync"), Look()
    logger.addFilter(look)
    try:
        attempt, call = await logged(caplog, approved(), telemetry=Telemetry(tracer_provider=tracing))
    finally:
        logger.removeFilter(look)
    assert len(set(seen)) == 2, "the attempt's span, and the call's"
    assert all(seen)
    assert fields(attempt)["trace_id"] == fields(call)["trace_id"]
    assert len(fields(call)["trace_id"]) == 32
    untraced = await logged(caplog, approved())
    assert ["trace_id" in fields(record) for record in untraced] == [False, False]


QUIET = """
import asyncio
from loanasync.testing import approval_request, connection_lost, fiscal_code, scripted_client
try:
    asyncio.run(scripted_client(connection_lost()).approve(fiscal_code(), approval_request()))
except Exception as error:
    print(type(error).__name__)
"""


def test_without_logging_configuration_nothing_is_printed() -> None:
    command = [sys.executable, "-c", QUIET]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert (done.stdout, done.stderr) == ("ConnectionLostError\n", "")


async def test_filter_of_a_log_sees_the_context_of_its_call() -> None:
    """The connections of the second round were opened, and their responses arrive, in other contexts."""
    name: ContextVar[str] = ContextVar("name", default="none")
    seen: list[tuple[str, str]] = []

    def look(record: logging.LogRecord) -> bool:
        seen.append((name.get(), record.getMessage().partition(":")[0]))
        return True

    async def approve(client: LoanClient, caller: str) -> None:
        name.set(caller)
        await client.create_request({"fiscalCode": (code := fiscal_code())})
        await client.approve(code, approval_request())

    logger = logging.getLogger("loanasync")
    logger.addFilter(look)
    logger.setLevel(logging.INFO)
    try:
        async with Sandbox() as sandbox, sandbox.client() as client:
            for number in range(2):
                await asyncio.gather(*(approve(client, f"{number} {letter}") for letter in "abc"))
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeFilter(look)
    callers = [f"{number} {letter}" for number in range(2) for letter in "abc"]
    assert sorted(caller for caller, operation in seen if operation == "approve") == callers

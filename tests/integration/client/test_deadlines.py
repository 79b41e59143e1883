"""One deadline for the queue, the attempts and the waits between them, with a fake and the real clock."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from loanasync import (
    ConnectError,
    DeadlineExceededError,
    LoanClient,
    LoanError,
    RetryPolicy,
    SystemFaultError,
    Timeout,
)
from loanasync.sandbox import Sandbox
from loanasync.testing import ScriptedResponse, SentRequest, approved, computed, system_error
from support.builders import FISCAL_CODE, approval_request
from support.scripted_pipeline import Run

SHORT = Timeout(total=0.2, attempt=0.6, connect=0.3)
PATIENT = 15.0  # seconds, between SHORT and the minute that a call without a deadline takes


async def failure(client: LoanClient, tag: str = "approved", **options: object) -> LoanError:
    request = approval_request(email=f"anna+{tag}@example.com")
    started = time.monotonic()
    with pytest.raises(LoanError) as caught:
        await client.approve(FISCAL_CODE, request, **options)  # type: ignore[arg-type]
    assert time.monotonic() - started < PATIENT
    return caught.value


async def test_slot_at_the_deadline_sends_nothing() -> None:
    held = asyncio.Event()
    run = Run(held, approved(), slots=1)
    first = asyncio.create_task(run.approve())
    await run.arrived.wait()
    second = asyncio.create_task(run.approve(Timeout(total=60, attempt=30)))
    await asyncio.sleep(0)
    run.clock.time += 60
    held.set()
    await first
    with pytest.raises(DeadlineExceededError) as caught:
        await second
    assert (caught.value.outcome, caught.value.attempts) == ("not_sent", 0)
    assert len(run.transport.sent) == 1


async def test_queue_attempts_and_waits_share_one_deadline() -> None:
    run = Run()

    def slow(_: SentRequest) -> ScriptedResponse:
        run.clock.time += 10
        return system_error(retry_after=5)

    run.play(*[computed(slow)] * 4, approved())
    with pytest.raises(SystemFaultError) as caught:
        await run.approve(Timeout(total=60, attempt=20), RetryPolicy(attempts=9))
    assert caught.value.stopped_by == "deadline"
    assert len(run.transport.sent) == 4
    assert run.clock.slept == [5, 5, 5]
    assert caught.value.meta.elapsed == 55


@pytest.mark.parametrize("tag", ["slow60000", "slow60000after", "hangbefore", "hangafter"])
async def test_deadline_ends_an_attempt_without_response(
    sandbox: Sandbox, client: LoanClient, tag: str
) -> None:
    await client.create_request({"fiscalCode": FISCAL_CODE})
    error = await failure(client, tag, timeout=SHORT)
    assert isinstance(error, DeadlineExceededError)
    assert (error.outcome, error.attempts) == ("unknown", 1)
    assert [call.operation for call in sandbox.journal].count("approve") <= 1


@pytest.fixture
def unreachable() -> Iterator[str]:
    """Return the URL of a port that accepts no connection, because its backlog is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.settimeout(0)
            filler.connect_ex(listening.getsockname())
            fillers.append(filler)
        yield "http://127.0.0.1:{1}".format(*listening.getsockname())
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    "timeout", [SHORT, Timeout(total=60, attempt=30, connect=0.2)], ids=["total", "connect"]
)
async def test_call_without_connection_is_not_sent_after_any_timeout(
    unreachable: str, timeout: Timeout
) -> None:
    async with LoanClient(unreachable, shop_id="s", auth_token="t", timeout=timeout) as client:
        error = await failure(client)
    assert isinstance(error, ConnectError)
    assert error.outcome == "not_sent"


@pytest.mark.parametrize("direct_connections", [True, False], ids=["direct", "session"])
async def test_connection_that_is_not_open_within_the_attempt_is_a_connect_error(
    *, direct_connections: bool
) -> None:
    """The server accepts the connection and never answers the TLS handshake."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = LoanClient(
        f"https://127.0.0.1:{port}",
        shop_id="shop",
        auth_token="token",
        direct_connections=direct_connections,
    )
    async with server, client:
        error = await failure(client, timeout=Timeout(total=5, attempt=0.3))
    assert (type(error), error.outcome) == (ConnectError, "not_sent")

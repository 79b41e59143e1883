"""OpenTelemetry's instrumentation of aiohttp records other requests, but not those of the client."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import aiohttp
import pytest
from opentelemetry.instrumentation import aiohttp_client

from loanasync import ApprovalRequest, Approved, ConnectionLostError, LoanClient
from support.canned_server import Canned, response_bytes, serving
from support.direct_path import each_path
from support.privacy.plants import CODE, LIMITS, PAYLOAD, TOKEN, planted
from support.privacy.scanner import Captured, capturing, leaks

SCOPE = "opentelemetry.instrumentation.aiohttp_client"
CREATED = response_bytes(200)
APPROVAL = response_bytes(201, b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000}')
MALFORMED = b"HTTP/1.1 zzz\r\n\r\n"


@contextmanager
def instrumented(captured: Captured) -> Iterator[None]:
    """Instrument every session that is created from now on."""
    instrumentor = aiohttp_client.AioHttpClientInstrumentor()
    telemetry = captured.providers["telemetry"]
    instrumentor.instrument(
        tracer_provider=telemetry.tracer_provider, meter_provider=telemetry.meter_provider
    )
    try:
        yield
    finally:
        instrumentor.uninstrument()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captured]:
    # Since 0.61b0, record the token as well.
    monkeypatch.setenv("OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_REQUEST", ".*")
    with capturing() as everything:
        yield everything


def client_of(server: Canned, captured: Captured, **options: Any) -> LoanClient:
    return server.client(auth_token=TOKEN, limits=LIMITS, **captured.providers, **options)


async def request_loans(client: LoanClient) -> None:
    """Make a successful call, an approval, and a call that fails with an error of aiohttp."""
    await client.create_request(PAYLOAD)
    assert isinstance(await client.approve(CODE, planted(ApprovalRequest)), Approved)
    with pytest.raises(ConnectionLostError):
        await client.approve(CODE, planted(ApprovalRequest))


def recorded_by(scope: str, captured: Captured) -> list[str]:
    spans = captured.spans.get_finished_spans()
    return [span.name for span in spans if span.instrumentation_scope.name == scope]  # type: ignore[union-attr]


def counted_by(scope: str, captured: Captured) -> set[int]:
    """Return the numbers of requests in the duration metrics of a scope."""
    data = captured.metrics.get_metrics_data()
    found = [each for one in data.resource_metrics for each in one.scope_metrics] if data else []
    metrics = [metric for each in found if each.scope.name == scope for metric in each.metrics]
    durations = [metric for metric in metrics if "duration" in metric.name and "queue" not in metric.name]
    return {sum(point.count for point in metric.data.data_points) for metric in durations}  # type: ignore[misc, union-attr]


@each_path
@pytest.mark.parametrize("is_users", [False, True], ids=["own", "users"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_instrumentation_does_not_record_requests_of_the_client(
    when: str, captured: Captured, *, is_users: bool, is_direct: bool
) -> None:
    async with serving(CREATED, APPROVAL, MALFORMED, CREATED) as server:
        with ExitStack() as stack:
            if when == "before":
                stack.enter_context(instrumented(captured))
            session = aiohttp.ClientSession()
            users = {"session": session} if is_users else {}
            client = client_of(server, captured, direct_connections=is_direct, **users)
            if when == "after":
                stack.enter_context(instrumented(captured))
            await request_loans(client)
        async with session, client, session.get(server.base_url, data=b"{}") as page:
            await page.read()
        assert server.requests == 4
    assert recorded_by("loanasync", captured) == [
        "POST /api/shops/{shopId}/requests",
        "loanasync.create_request",
        *("POST /api/shops/{shopId}/requests/{fiscalCode}", "loanasync.approve") * 2,
    ]
    others = ["GET"] if when == "before" else []
    assert recorded_by(SCOPE, captured) == others, "only the request that the shop sends itself"
    assert counted_by("loanasync", captured) == {3}
    assert counted_by(SCOPE, captured) == ({1} if others else set())
    assert leaks(captured) == []


async def test_instrumentation_would_record_the_fiscal_code(captured: Captured) -> None:
    """The other tests find nothing because the client prevents it, not because there is nothing to find."""
    async with serving(CREATED) as server:
        with instrumented(captured):
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{server.base_url}/{CODE}", json={}) as response,
            ):
                await response.read()
    assert [each for each in leaks(captured) if each.startswith("spans")]

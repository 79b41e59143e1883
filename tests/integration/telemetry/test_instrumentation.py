"""OpenTelemetry's instrumentation of aiohttp records other requests, but not those of the client.

`nox -s instrumentation` runs these tests with old versions of the instrumentation.
"""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from opentelemetry import context as otel_context
from opentelemetry.instrumentation import aiohttp_client
from packaging.version import Version

from loanasync import ApprovalRequest, Approved, ConfigurationError, ConnectionLostError, LoanClient
from loanasync._transport import instrumentation
from loanasync.sandbox import Sandbox
from loanasync.testing import fiscal_code
from support.canned_server import Canned, response_bytes, serving
from support.privacy.plants import CODE, LIMITS, PAYLOAD, TOKEN, planted
from support.privacy.scanner import Captured, capturing, leaks

SCOPE = "opentelemetry.instrumentation.aiohttp_client"
INSTALLED = Version(version("opentelemetry-instrumentation-aiohttp-client"))
HAS_METRICS = Version("0.55b0") <= INSTALLED
IS_NEW = Version("0.60b0") <= INSTALLED  # has the check of the key for HTTP
CREATED = response_bytes(200)
APPROVAL = response_bytes(201, b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000}')
MALFORMED = b"HTTP/1.1 zzz\r\n\r\n"


def _old_line() -> ModuleType:
    """Return the instrumentation with the check of versions before 0.60b0, which ignores the key for HTTP."""
    spec = find_spec(SCOPE)
    assert spec is not None
    assert spec.origin is not None
    module = module_from_spec(spec)
    source = Path(spec.origin).read_text(encoding="utf-8")
    old = source.replace("is_http_instrumentation_enabled", "is_instrumentation_enabled")
    exec(compile(old, spec.origin, "exec"), vars(module))  # noqa: S102  (the installed source)
    return module


OLD, NEW = "before 0.60b0", "installed"
LINES = {OLD: _old_line(), NEW: aiohttp_client}
REFUSED = [OLD] if IS_NEW else [OLD, NEW]


@contextmanager
def instrumented(line: str, captured: Captured) -> Iterator[None]:
    """Instrument every session that is created from now on."""
    instrumentor = LINES[line].AioHttpClientInstrumentor()
    instrumentor.instrument(**captured.providers)
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


SENDERS: dict[str, dict[str, bool]] = {
    "direct connections": {"direct_connections": True},
    "session of the client": {"direct_connections": False},
    "session of the user": {},
    "session of the user, not directly": {"direct_connections": False},
    "session of the user, suppressed": {"suppress_instrumentation": True},
}
NOT_SUPPRESSED = {"session of the user", "session of the user, not directly"}
CASES = [
    (line, when, sender)
    for line in LINES
    for when in ("before", "after")
    for sender in SENDERS
    if not (line in REFUSED and when == "before" and sender in NOT_SUPPRESSED)
]


@pytest.mark.parametrize(("line", "when", "sender"), CASES)
async def test_instrumentation_does_not_record_requests_of_the_client(
    line: str, when: str, sender: str, captured: Captured
) -> None:
    async with serving(CREATED, APPROVAL, MALFORMED, CREATED) as server:
        with ExitStack() as stack:
            if when == "before":
                stack.enter_context(instrumented(line, captured))
            session = aiohttp.ClientSession()
            users = {"session": session} if "user" in sender else {}
            client = client_of(server, captured, **SENDERS[sender], **users)
            if when == "after":
                stack.enter_context(instrumented(line, captured))
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
    assert counted_by(SCOPE, captured) == ({1} if others and HAS_METRICS else set())
    assert leaks(captured) == []


@pytest.mark.parametrize("line", LINES)
async def test_instrumentation_would_record_the_fiscal_code(line: str, captured: Captured) -> None:
    """The other tests find nothing because the client prevents it, not because there is nothing to find."""
    async with serving(CREATED) as server:
        with instrumented(line, captured):
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{server.base_url}/{CODE}", json={}) as response,
            ):
                await response.read()
    assert [each for each in leaks(captured) if each.startswith("spans")]


@pytest.mark.parametrize("line", REFUSED)
async def test_session_with_old_instrumentation_is_refused(line: str, captured: Captured) -> None:
    with instrumented(line, captured):
        async with serving(APPROVAL) as server, aiohttp.ClientSession() as session:
            with pytest.raises(ConfigurationError, match=r"upgrade .* to 0\.60b0, omit session, or pass"):
                client_of(server, captured, session=session)
            accepted = client_of(server, captured, session=session, suppress_instrumentation=True)
            await accepted.approve(CODE, planted(ApprovalRequest))


async def test_old_instrumentation_added_before_the_first_call_is_refused(captured: Captured) -> None:
    async with serving(APPROVAL) as server, aiohttp.ClientSession() as session:
        client = client_of(server, captured, session=session)
        config = LINES[OLD].create_trace_config()
        config.on_request_start[:] = map(partial, config.on_request_start)
        session.trace_configs.append(config)
        config.freeze()
        with pytest.raises(ConfigurationError, match="upgrade"):
            await client.approve(CODE, planted(ApprovalRequest))
        assert server.requests == 0


async def test_instrumentation_of_an_unknown_version_is_refused() -> None:
    class Hook:
        __module__ = SCOPE

        async def __call__(self, *_: object) -> None:
            raise NotImplementedError

    config = aiohttp.TraceConfig()
    config.on_request_start.append(Hook())
    async with aiohttp.ClientSession(trace_configs=[config]) as session:
        with pytest.raises(ConfigurationError, match="upgrade"):
            LoanClient("https://loans.example.com", shop_id="s", auth_token="t", session=session)


@pytest.mark.parametrize("key", ["HTTP_KEY", "GENERAL_KEY"])
async def test_renamed_suppression_key_does_not_count_as_suppression(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(otel_context, "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    monkeypatch.delattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY")
    renamed = runpy.run_path(instrumentation.__file__)[key]
    config = aiohttp_client.create_trace_config()
    async with aiohttp.ClientSession(trace_configs=[config]) as session:
        assert instrumentation.records_requests(session, renamed)


def test_suppress_instrumentation_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="suppress_instrumentation: must be of type bool, not str"):
        LoanClient("https://l.example", shop_id="s", auth_token="t", suppress_instrumentation="no")  # type: ignore[arg-type]


# In a separate process, like an agent that instruments aiohttp before the program imports anything.
SHOP = """
import asyncio, sys
import aiohttp
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

tracing = TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
AioHttpClientInstrumentor().instrument(tracer_provider=tracing)

from loanasync import LoanClient
from loanasync.testing import approval_request

async def main():
    base_url, code, is_new = sys.argv[1:]
    options = {"shop_id": "sandbox-shop", "auth_token": "sandbox-token"}
    async with aiohttp.ClientSession() as session:
        options |= {"session": session, "suppress_instrumentation": is_new == "False"}
        async with LoanClient(base_url, **options) as client:
            await client.create_request({"fiscalCode": code})
            await client.approve(code, approval_request())
        async with session.get(base_url + "/") as page:
            await page.read()

asyncio.run(main())
"""


def test_instrumentation_before_the_import_records_other_requests_only(served: Sandbox) -> None:
    code = fiscal_code()
    command = [sys.executable, "-W", "ignore", "-c", SHOP, served.base_url, code, str(IS_NEW)]
    done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"trace_id"') == 1
    assert code not in done.stdout + done.stderr

"""Fixtures of all tests, and the one repair that aioresponses needs."""

import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aioresponses import aioresponses, core
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import loanasync
from loanasync import LoanClient, RetryPolicy
from loanasync.sandbox import Sandbox
from support.raw_shop import Raw

# pytester is for runs of pytest within tests, of our own plugin.
pytest_plugins = ["support.network_guard", "pytester", "support.servers.fixtures"]

# No deadline: on a busy machine a slow example is not a wrong one.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("tests")

_NEEDS = "stream_writer"


class RepairedResponse(aiohttp.ClientResponse):
    """aioresponses 0.7.9 makes responses without the stream writer that aiohttp 3.14 asks for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault(_NEEDS, mock.Mock())
        super().__init__(*args, **kwargs)


@pytest.fixture(scope="session", autouse=True)
def _repaired_aioresponses() -> Iterator[None]:
    needed = inspect.signature(aiohttp.ClientResponse.__init__).parameters
    assert needed[_NEEDS].default is inspect.Parameter.empty, "aiohttp needs no repair any more"
    assert _NEEDS not in inspect.getsource(core), "aioresponses needs no repair any more"
    with mock.patch.object(core, "ClientResponse", RepairedResponse):
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_blocks_the_loop() -> Iterator[None]:
    """Make a blocking call of the package in an event loop an error, in every test.

    Left out is the sandbox: a server for tests, whose pages are files and whose memory may be SQLite.
    """
    with blockbuster_ctx(loanasync, excluded_modules=["loanasync.sandbox"]) as guard:
        for function in guard.functions.values():
            # the packages' versions are read from their files once, with the first client
            function.can_block_in("loanasync/_config.py", "installed_version")
            # OpenTelemetry's SDK looks around with threads, once for each recorder that a test makes
            function.can_block_in("loanasync/testing/telemetry.py", "__init__")
            function.can_block_in("loanasync/cli/demo.py", "__init__")
            # asyncpg looks for certificates and passwords in its user's folder, with each connection
            function.can_block_in("asyncpg/connect_utils.py", "_parse_connect_dsn_and_args")
            # a decision is written to a file where a loop or the process ends, and no thread starts any more
            function.can_block_in("loanasync/ledger/recorder.py", "_write_orphan_now")
            # a module is read from its file once, where it is first needed
            function.can_block_in("<frozen importlib._bootstrap>", "_find_and_load")
            # a command reads and writes its files between its calls
            function.can_block_in("typer/testing.py", "invoke")
            # what is covered is written down by threads, too
            function.can_block_in("coverage/collector.py", "lock_data")
        yield


# asyncpg leaves this exception to nobody when a server ends while a cancelled call connects to it.
_ASYNCPG = "unexpected connection_lost() call"
_UNTRUSTED = "Error on transport creation for incoming connection"  # a server's, if its client hangs up


class Heard(logging.Handler):
    """What asyncio logs where nobody can be told: what a callback raised, or a task that nobody awaits."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith(_UNTRUSTED) and _ASYNCPG not in message:
            self.said.append(self.format(record))


@pytest.fixture(autouse=True)
def _nothing_fails_unheard() -> Iterator[None]:
    heard, logger = Heard(), logging.getLogger("asyncio")
    logger.addHandler(heard)
    yield
    logger.removeHandler(heard)
    assert not heard.said


@pytest.fixture
def wire() -> Iterator[aioresponses]:
    """Answers for the next requests, and what was sent; nothing leaves the process."""
    with aioresponses() as answers:
        yield answers


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


@pytest.fixture
def served() -> Iterator[Sandbox]:
    """A sandbox in a thread of its own, which outlives the loops of its clients."""
    with Sandbox.in_thread() as running:
        yield running


@pytest.fixture(params=[None])
async def raw(request: pytest.FixtureRequest) -> AsyncIterator[Raw]:
    async with Sandbox(dialect=request.param) as sandbox, aiohttp.ClientSession() as session:
        yield Raw(sandbox, session)


@pytest.fixture
async def client(
    sandbox: Sandbox, tracing: TracerProvider, metering: MeterProvider
) -> AsyncIterator[LoanClient]:
    async with LoanClient(
        sandbox.base_url,
        shop_id=sandbox.shop_id,
        auth_token=sandbox.auth_token,
        retry=RetryPolicy(base=0.001, cap=0.002),
        tracer_provider=tracing,
        meter_provider=metering,
    ) as made:
        yield made


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def metering(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider(metric_readers=[reader])
    yield provider
    provider.shutdown()

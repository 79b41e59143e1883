"""Fixtures of all tests."""

import gc
import logging
import signal
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from aioresponses import aioresponses
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import loanasync
from loanasync import LoanClient, RetryPolicy, Telemetry
from loanasync.sandbox import Sandbox
from loanasync.testing import repaired_aioresponses
from support.failing_telemetry import fail
from support.raw_shop import Raw

# pytester runs pytest within tests, to test loanasync.pytest_plugin.
pytest_plugins = [
    *("support.run_folders", "support.time_limit", "support.network_guard", "support.forked_workers"),
    *("pytester", "support.servers.fixtures"),
]

# No deadline: a slow example, or slow generation of examples, on a busy machine is not an error.
_SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile("tests", deadline=None, suppress_health_check=_SUPPRESSED)
settings.load_profile("tests")

# A shell starts background jobs with SIGINT ignored, and `nohup` ignores SIGHUP. All their processes inherit
# that. Tests send both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # Windows has none
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection() -> None:
    """Stop garbage collections while tests are collected: they take a quarter of the time and find little."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collections, each of which would visit them all."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _blocking_calls_fail() -> Iterator[None]:
    """Raise an error if the package makes a blocking call in an event loop.

    The sandbox may block: it is a server for tests that reads templates and may use SQLite.
    """
    with blockbuster_ctx(loanasync, excluded_modules=["loanasync.sandbox"]) as guard:
        for function in guard.functions.values():
            # a call through a user's transport reads the version of aiohttp from a file
            function.can_block_in("loanasync/_shop.py", "_aiohttp_version")
            # `LoanClient.from_env` looks for the ledger's folder, once per program
            function.can_block_in("loanasync/ledger/address.py", "_sqlite_ledger")
            # OpenTelemetry's SDK detects resources in threads when it is configured
            function.can_block_in("loanasync/testing/telemetry.py", "__init__")
            # asyncpg looks for certificates and passwords in the home folder when it connects
            function.can_block_in("asyncpg/connect_utils.py", "_parse_connect_dsn_and_args")
            # an orphan file is written when a loop or the process ends, where no thread can start
            function.can_block_in("loanasync/ledger/guard.py", "_write_orphan_now")
            # modules are imported when they are first used
            function.can_block_in("<frozen importlib._bootstrap>", "_find_and_load")
            # commands read and write files between calls
            function.can_block_in("typer/testing.py", "invoke")
            # coverage locks its data
            function.can_block_in("coverage/collector.py", "lock_data")
        yield


# Messages that are not errors of the package. asyncpg: the server ended while a cancelled call connected.
_ASYNCPG = "unexpected connection_lost() call"
_REFUSED_TLS = "Error on transport creation for incoming connection"  # the client of a test server hung up


class AsyncioErrors(logging.Handler):
    """Collect errors that asyncio only logs: exceptions in callbacks, and in tasks that are not awaited."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith(_REFUSED_TLS) and _ASYNCPG not in message:
            self.messages.append(self.format(record))


class BrokenRecords(logging.Handler):
    """Collect records of the package that miss an argument, since an error of logging ends no call."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        try:
            record.getMessage()
        except (TypeError, ValueError) as error:
            self.messages.append(f"{record.msg}, {record.args}: {error}")
        if None in arguments:
            self.messages.append(f"{record.msg}, {arguments}")


@pytest.fixture(autouse=True)
def _logged_errors_fail() -> Iterator[None]:
    handlers: dict[str, AsyncioErrors | BrokenRecords] = {
        "asyncio": AsyncioErrors(),
        "loanasync": BrokenRecords(),
    }
    for name, handler in handlers.items():
        logging.getLogger(name).addHandler(handler)
    yield
    for name, handler in handlers.items():
        logging.getLogger(name).removeHandler(handler)
        assert not handler.messages


class FailingHandler(logging.Handler):
    emit = fail


class FailingFilter(logging.Filter):
    filter = fail


@pytest.fixture(params=["handler", "filter"])
def broken_logging(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the log of the package raise an error for each record."""
    logger = logging.getLogger("loanasync")
    level, handler, refusing = logger.level, FailingHandler(), FailingFilter()
    logger.setLevel(logging.DEBUG)
    if request.param == "handler":
        logger.addHandler(handler)
    else:
        logger.addFilter(refusing)
    yield
    logger.removeHandler(handler)
    logger.removeFilter(refusing)
    logger.setLevel(level)


@pytest.fixture
def mocked_http() -> Iterator[aioresponses]:
    """Mocked responses for aiohttp; no request leaves the process."""
    with repaired_aioresponses(), aioresponses() as mocked:
        yield mocked


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


@pytest.fixture
def served() -> Iterator[Sandbox]:
    """A sandbox in its own thread, so that it survives the event loops of its clients."""
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
        telemetry=Telemetry(tracer_provider=tracing, meter_provider=metering),
    ) as opened:
        yield opened


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

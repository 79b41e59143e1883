"""A shop that runs with one monitoring agent, in a separate process and environment.

It reads one JSON object from standard input. Its own frames and log records contain nothing personal, because
agents may show them. Only frames of loanasync and aiohttp, and of functions that have returned, have the
customer's data.
"""

import asyncio
import json
import logging
import os
import pickle
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Begin = Callable[[str], AbstractContextManager[object]]  # of a transaction with this name
End = Callable[[], object]  # send all data
Agent = Callable[[str, str], tuple[Begin, End]]  # with the address of the collector and the setting
Step = Callable[[], Awaitable[object]]

# Settings of an agent.
DEFAULT = "default"
EVERYTHING = "everything on"
NO_REPLAY = "everything on, without Exception Replay"
AS_TEXT = "everything on, decisions logged as text"
# Sessions of the client.
OWN = "its own"
THROUGH_AIOHTTP = "its own, `direct_connections=False`"
USERS = "yours"
USERS_THROUGH_AIOHTTP = "yours, `direct_connections=False`"


def sentry(collector: str, setting: str) -> tuple[Begin, End]:
    import sentry_sdk
    from sentry_sdk.integrations.logging import LoggingIntegration

    options: dict[str, Any] = {}
    if setting != DEFAULT:
        options = {
            "add_full_stack": True,
            "attach_stacktrace": True,
            "enable_logs": True,
            "include_local_variables": True,
            "integrations": [LoggingIntegration(logging.DEBUG, logging.ERROR, logging.DEBUG)],
            "max_breadcrumbs": 1_000,
            "max_request_body_size": "always",
            "max_value_length": 1_000_000,
            "profiles_sample_rate": 1.0,
            "send_default_pii": True,
            "traces_sample_rate": 1.0,
        }
    sentry_sdk.init(f"http://key@{collector}/1", **options)

    @contextmanager
    def begin(name: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=name):
            try:
                yield
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise

    return begin, sentry_sdk.flush


def ddtrace(collector: str, setting: str) -> tuple[Begin, End]:
    os.environ |= {"DD_TRACE_AGENT_URL": f"http://{collector}", "DD_SERVICE": "shop"}
    if setting != DEFAULT:
        os.environ |= {
            "DD_DYNAMIC_INSTRUMENTATION_ENABLED": "true",
            "DD_ERROR_TRACKING_HANDLED_ERRORS": "all",
            "DD_EXCEPTION_REPLAY_CAPTURE_MAX_FRAMES": "50",
            "DD_EXCEPTION_REPLAY_ENABLED": str(setting != NO_REPLAY),
            "DD_LOGS_INJECTION": "true",
            "DD_PROFILING_ENABLED": "true",
            "DD_TRACE_HEADER_TAGS": "X-Auth-Token:token,User-Agent:agent",
        }
    import ddtrace.auto  # noqa: F401  (starts the agent)
    from ddtrace.debugging._exception import replay
    from ddtrace.trace import tracer

    # By default, it captures the frames of one exception per second.
    replay.GLOBAL_RATE_LIMITER = replay.RateLimiter(limit_rate=1_000_000)
    return tracer.trace, tracer.shutdown


def newrelic(collector: str, setting: str) -> tuple[Begin, End]:
    host, _, port = collector.partition(":")
    os.environ |= {"NEW_RELIC_APP_NAME": "shop", "NEW_RELIC_LICENSE_KEY": "0" * 40}
    os.environ |= {"NEW_RELIC_HOST": host, "NEW_RELIC_PORT": port}
    if setting != DEFAULT:
        os.environ |= {
            "NEW_RELIC_APPLICATION_LOGGING_FORWARDING_CONTEXT_DATA_ENABLED": "true",
            "NEW_RELIC_APPLICATION_LOGGING_LOCAL_DECORATING_ENABLED": "true",
            "NEW_RELIC_ATTRIBUTES_INCLUDE": "*",
            "NEW_RELIC_SPAN_EVENTS_ATTRIBUTES_INCLUDE": "*",
            "NEW_RELIC_TRANSACTION_TRACER_ATTRIBUTES_INCLUDE": "*",
        }
    from newrelic import agent

    agent.initialize()
    for cloud in ("aws", "azure", "gcp", "pcf"):  # do not ask a cloud for its metadata
        setattr(agent.global_settings().utilization, f"detect_{cloud}", False)
    if setting != DEFAULT:
        settings = agent.global_settings()
        settings.transaction_tracer.transaction_threshold = 0.0  # keep a trace of fast transactions, too
        settings.transaction_tracer.stack_trace_threshold = 0.0
    application = agent.register_application(timeout=10.0)

    def begin(name: str) -> AbstractContextManager[object]:
        task: AbstractContextManager[object] = agent.BackgroundTask(application, name)
        return task

    return begin, lambda: agent.shutdown_agent(timeout=10.0)


def elastic(collector: str, setting: str) -> tuple[Begin, End]:
    import elasticapm
    from elasticapm.handlers.logging import LoggingHandler

    options: dict[str, Any] = {"SERVICE_NAME": "shop", "SERVER_URL": f"http://{collector}"}
    options["CLOUD_PROVIDER"] = "none"  # do not ask a cloud for its metadata
    if setting != DEFAULT:
        options |= {
            "CAPTURE_BODY": "all",
            "COLLECT_LOCAL_VARIABLES": "all",
            "LOCAL_VAR_LIST_MAX_LENGTH": 10_000,
            "LOCAL_VAR_MAX_LENGTH": 10_000,
            "SANITIZE_FIELD_NAMES": [],
            "SPAN_STACK_TRACE_MIN_DURATION": "0ms",
        }
    client = elasticapm.Client(options)
    elasticapm.instrument()
    if setting != DEFAULT:
        logging.getLogger().addHandler(LoggingHandler(client=client))

    @contextmanager
    def begin(name: str) -> Iterator[None]:
        client.begin_transaction("request")
        try:
            yield
        except Exception:
            client.capture_exception()
            raise
        finally:
            client.end_transaction(name, "done")

    return begin, client.close


def logfire(collector: str, setting: str) -> tuple[Begin, End]:
    import logfire

    options: dict[str, Any] = {}
    if setting != DEFAULT:
        options = {"distributed_tracing": True, "inspect_arguments": True, "scrubbing": False}
    logfire.configure(
        token="pylf_v1_us_" + "0" * 40,
        service_name="shop",
        console=False,
        advanced=logfire.AdvancedOptions(base_url=f"http://{collector}"),
        **options,
    )
    logfire.instrument_aiohttp_client(capture_all=setting != DEFAULT)
    if setting != DEFAULT:
        logging.getLogger().addHandler(logfire.LogfireLoggingHandler())
    return logfire.span, logfire.shutdown


def opentelemetry(collector: str, setting: str) -> tuple[Begin, End]:
    os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector}"}
    if setting != DEFAULT:
        os.environ |= {
            "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_REQUEST": ".*",
            "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_CLIENT_RESPONSE": ".*",
            "OTEL_PYTHON_LOG_CODE_ATTRIBUTES": "true",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "http/dup",
        }
    from opentelemetry import _logs, metrics, trace
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
    from opentelemetry.instrumentation.logging import LoggingInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracing, logs = TracerProvider(), LoggerProvider()
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    metering = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(metering)
    _logs.set_logger_provider(logs)
    AioHttpClientInstrumentor().instrument()
    LoggingInstrumentor().instrument(set_logging_format=setting != DEFAULT)

    def end() -> None:
        for provider in (tracing, logs, metering):
            provider.shutdown()

    return trace.get_tracer("shop").start_as_current_span, end


AGENTS: dict[str, Agent] = {
    each.__name__: each for each in (sentry, ddtrace, newrelic, elastic, logfire, opentelemetry)
}


async def handle(step: Step, logged: Callable[[object], object]) -> None:
    """Run the shop's code for one click; it catches nothing."""
    result = await step()
    logging.getLogger("shop").info("decided: %s", logged(result))


async def serve(begin: Begin, name: str, step: Step, logged: Callable[[object], object]) -> None:
    """Do what a web framework does: a transaction around the handler, and a log record of its error."""
    try:
        with begin(name):
            await handle(step, logged)
    except Exception:
        logging.getLogger("shop").exception("unhandled error in %s", name)


def customer(plan: dict[str, Any]) -> Callable[[Any], dict[str, tuple[Any, Step]]]:
    """Return a function that takes the user's session, and returns the client and the call of each row."""

    def calls(session: Any) -> dict[str, tuple[Any, Step]]:
        from loanasync import LoanClient, RetryPolicy, Timeout

        request, data, payload, limits = pickle.loads(b64decode(plan["data"]))
        code = plan["code"]

        def step(client: LoanClient, row: str) -> Step:
            if row == "created":
                return lambda: client.create_request(payload)
            if row == "completed":
                return lambda: client.complete(code, data)
            return lambda: client.approve(code, request)

        found = {}
        for row in plan["rows"]:
            client = LoanClient(
                plan["service"],
                shop_id=row,
                auth_token=plan["token"],
                direct_connections=plan["session"] in (OWN, USERS),
                limits=limits,
                retry=RetryPolicy(base=0.001),
                session=None if plan["session"] in (OWN, THROUGH_AIOHTTP) else session,
                timeout=Timeout(total=10, attempt=0.5 if row == "silent" else 5, connect=0.4),
            )
            found[row] = client, step(client, row)
        return found

    return calls


async def shop(
    begin: Begin,
    calls: Callable[[Any], dict[str, tuple[Any, Step]]],
    own_url: str,
    mark: str,
    logged: Callable[[object], object],
) -> None:
    """Make the call of each row, and then a request of the shop itself, which the agent should record."""
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def control() -> None:
            async with session.post(own_url) as response:
                await response.read()
            logging.getLogger("shop").error(mark)
            raise RuntimeError(mark)

        for row, (client, step) in calls(session).items():
            async with client:
                await serve(begin, row, step, logged)
        await serve(begin, "control", control, logged)


def main() -> None:
    """Start the agent before aiohttp and loanasync are imported, and run the shop."""
    plan = json.loads(sys.stdin.read())
    setting, own_url, mark, calls = plan["setting"], plan["own_url"], plan["mark"], customer(plan)
    start, collector = AGENTS[plan["agent"]], plan["collector"]
    del plan
    logging.basicConfig(level=logging.INFO if setting == DEFAULT else logging.DEBUG)
    begin, end = start(collector, setting)
    logged: Callable[[object], object] = str if setting == AS_TEXT else lambda result: result
    asyncio.run(shop(begin, calls, own_url, mark, logged))
    end()


if __name__ == "__main__":
    main()

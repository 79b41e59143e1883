"""The taskiq task: checks of its settings, tries and delays, tracing, and closing with the worker."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from taskiq import AckableMessage, AsyncBroker, InMemoryBroker, TaskiqMessage, TaskiqMiddleware
from taskiq.exceptions import SendTaskError
from taskiq.labels import LabelType
from taskiq.receiver import Receiver
from taskiq_nats import PullBasedJetStreamBroker
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from loanasync import (
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    Decision,
    LoanClient,
    Telemetry,
    Timeout,
)
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import approved, denied, not_connected, scripted_client
from loanasync.worker import handle, message, register
from loanasync.worker.delivery import Tries
from loanasync.worker.nats import JetStream
from loanasync.worker.redis import RedisStreams
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop

MESSAGE = message(FISCAL_CODE, approval_request())


@asynccontextmanager
async def running(shop: Shop, **options: Any) -> AsyncIterator[Callable[..., Any]]:
    """Start a worker, and return a function that puts a message into its queue and waits for the result."""
    broker = InMemoryBroker()
    task = register(broker, shop.client, redelivery=600, **{"base": 0.001, "cap": 0.004, **options})
    await broker.startup()

    async def put(queued: Any = MESSAGE) -> Any:
        return await (await task.kiq(queued)).wait_result(timeout=30)

    yield put
    await broker.shutdown()


async def test_message_put_twice_sends_one_request() -> None:
    shop = Shop(approved())
    async with running(shop) as put:
        first, second = await put(), await put()
    assert first.return_value["decision"] == second.return_value["decision"]
    assert (first.return_value["meta"]["attempts"], second.return_value["meta"]["attempts"]) == (1, 0)


async def test_denied_request_is_tried_again_with_growing_delays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(*[denied()] * 4, approved())
    caplog.set_level(logging.INFO, "loanasync")
    async with running(shop, base=0.1, cap=0.3) as put:
        result = await put()
    assert result.return_value["status"] == "approved"
    messages = [record.message for record in caplog.records if "trying" in record.message]
    delays = ["0.1", "0.2", "0.3", "0.3"]
    assert messages == [f"AccessDeniedError: trying again in {delay} s" for delay in delays]


async def test_unsent_request_is_tried_again_after_the_longest_delay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(*[not_connected()] * 2, approved())
    caplog.set_level(logging.INFO, "loanasync")
    async with running(shop, base=0.1, cap=0.3, tries=1) as put:
        result = await put()
    assert result.return_value["status"] == "approved"
    messages = [record.message for record in caplog.records if "trying" in record.message]
    assert messages == ["ConnectError: trying again in 0.3 s"] * 2


async def test_message_waits_until_the_circuit_breaker_permits_a_call(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(approved())
    errors, approve = [CircuitOpenError("approve", "denied", 0.6)], shop.client.approve

    async def closed_later(*args: Any, **options: Any) -> Decision:
        if errors:
            raise errors.pop()
        return await approve(*args, **options)

    monkeypatch.setattr(shop.client, "approve", closed_later)
    caplog.set_level(logging.INFO, "loanasync")
    async with running(shop, cap=0.3, tries=1) as put:
        assert (await put()).return_value["status"] == "approved"
    assert "CircuitOpenError: trying again in 0.6 s" in caplog.text


async def test_message_ends_after_the_maximum_number_of_tries() -> None:
    shop = Shop(*[denied()] * 3, approved())
    async with running(shop, tries=3) as put:
        result = await put()
    assert (result.is_err, shop.script.left) == (False, 1)
    assert (result.return_value["outcome"], result.return_value["repeatable"]) == ("not_evaluated", False)
    assert result.return_value["error"]["type"] == "AccessDeniedError"


async def test_message_is_tried_in_place_while_the_queue_is_down() -> None:
    shop = Shop(*[denied()] * 3, approved())
    refusals: list[SendTaskError] = []

    class FullBroker(InMemoryBroker):
        async def kick(self, message: Any) -> None:
            if message.labels.get("loanasync-tried") in {"1", "2"}:
                refusals.append(SendTaskError())
                raise refusals[-1]
            await super().kick(message)

    broker = FullBroker()
    task = register(broker, shop.client, redelivery=600, base=0.001, cap=0.002)
    await broker.startup()
    result = await (await task.kiq(MESSAGE)).wait_result(timeout=30)
    await broker.shutdown()
    assert result.return_value["status"] == "approved"
    assert len(refusals) == 2


async def test_paused_task_keeps_messages_and_counts_no_tries() -> None:
    def wrong_format() -> None:
        raise ConfigurationError("ledger", "has a later format")

    tried: dict[str, list[str]] = {}
    ended = asyncio.Queue[str]()

    class RecordingBroker(InMemoryBroker):
        async def kick(self, message: Any) -> None:
            labels = tried.setdefault(message.task_id, [])
            labels.append(str(message.labels.get("loanasync-tried", 0)))
            if len(labels) < 5:
                await super().kick(message)
            else:
                ended.put_nowait(message.task_id)

    broker = RecordingBroker()
    shop = Shop(ledger=FailingLedger(claim=wrong_format))
    task = register(broker, shop.client, redelivery=600, base=0.001, cap=0.002, tries=2)
    await broker.startup()
    await task.kiq(MESSAGE)
    first = await asyncio.wait_for(ended.get(), timeout=30)  # its first try has paused the task
    later = task.kicker().with_labels(**{"loanasync-tried": 2})  # from a worker with more tries
    await later.kiq(MESSAGE)
    last = await asyncio.wait_for(ended.get(), timeout=30)
    await broker.shutdown()
    assert tried == {first: ["0"] * 5, last: ["2"] * 5}


def test_delays_double_up_to_the_cap() -> None:
    tries = Tries(maximum=100, base=1.0, cap=10.0)
    assert [tries.delay(tried) for tried in (1, 2, 3, 4, 5, 6, 10_000)] == [1, 2, 4, 8, 10, 10, 10]


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"base": 0}, {"base": 2.0, "cap": 1.0}])
def test_invalid_tries_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        register(InMemoryBroker(), Shop().client, redelivery=600, **wrong)


def real_client(**options: Any) -> LoanClient:
    return LoanClient("https://loans.example.com", shop_id="shop", auth_token="token", **options)


async def test_client_without_a_lasting_ledger_is_rejected() -> None:
    for client in (scripted_client(), real_client(), real_client(ledger=MemoryLedger())):
        with pytest.raises(ConfigurationError, match="pass ledger=SqliteLedger"):
            register(InMemoryBroker(), client, redelivery=600)
        with pytest.raises(ConfigurationError, match="ledger: must outlive the worker"):
            await handle(client, MESSAGE)


async def test_memory_ledger_of_a_test_client_is_accepted(served: Sandbox) -> None:
    client = served.client(ledger=MemoryLedger())
    for each in (client, client.with_options(strict=False), Shop().client):
        register(RedisStreams("redis://127.0.0.1:1"), each)
    async with client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        assert (await handle(client, MESSAGE))["status"] == "approved"


def lasting(tmp_path: Path, **options: Any) -> LoanClient:
    return scripted_client(ledger=SqliteLedger(tmp_path / "decisions.db"), **options)


# 2 x 60 seconds (total), 5 x 10 (patience), and 10 (longest delay).
TOO_SOON: list[tuple[Callable[[], AsyncBroker], dict[str, Any], str]] = [
    (
        lambda: RedisStreams("redis://h", redelivery=99),
        {},
        "idle_timeout: must be at least 100 seconds, not 99",
    ),
    (lambda: RedisStreamBroker("redis://h", idle_timeout=5_000), {}, "idle_timeout: .* not 5:"),
    (lambda: JetStream("nats://h", redelivery=99), {}, "consumer_config.ack_wait: .* not 99"),
    (lambda: PullBasedJetStreamBroker("nats://h"), {}, "consumer_config.ack_wait: .* not 30:"),
    (lambda: ListQueueBroker("redis://h"), {}, "must be the seconds after which"),
    (InMemoryBroker, {"redelivery": 99}, "redelivery: must be at least 100"),
    (lambda: JetStream("nats://h"), {"cap": 91.0}, "at least 181"),
]


@pytest.mark.parametrize(("broker", "options", "text"), TOO_SOON, ids=[text for *_, text in TOO_SOON])
async def test_redelivery_that_is_too_short_is_rejected(
    broker: Callable[[], AsyncBroker], options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        register(broker(), lasting(tmp_path), **options)


async def test_redelivery_that_is_long_enough_is_accepted(tmp_path: Path) -> None:
    for broker in (RedisStreams("redis://h"), JetStream("nats://h"), RedisStreamBroker("redis://h")):
        register(broker, lasting(tmp_path))
    short = {"timeout": Timeout(total=1, attempt=0.9, connect=0.5), "ledger_policy": LedgerPolicy(patience=1)}
    register(JetStream("nats://h", redelivery=8), lasting(tmp_path, **short), cap=1)


class LeaseLedger(MemoryLedger):
    """A memory ledger that keeps the lease of the last claim."""

    lease = 0.0

    async def claim(self, key: str, **options: Any) -> Entry:
        self.lease = options["lease"]
        return await super().claim(key, **options)


@pytest.mark.parametrize("patience", [0.1, 10.0, 100.0])
@pytest.mark.parametrize("total", [1.0, 60.0, 600.0])
async def test_required_redelivery_time_is_longer_than_a_lease(total: float, patience: float) -> None:
    ledger, timeout = LeaseLedger(), Timeout(total=total, attempt=0.9 * total, connect=0.5 * total)
    shop = Shop(approved(), ledger=ledger, patience=patience, options={"timeout": timeout})
    await shop.approve()
    with pytest.raises(ConfigurationError, match="redelivery: must be at least"):
        register(InMemoryBroker(), shop.client, redelivery=ledger.lease)


async def test_invalid_ledger_ends_the_worker_at_its_start() -> None:
    def no_ledger() -> None:
        raise ConfigurationError("path", "is no ledger")

    with pytest.raises(ConfigurationError, match="is no ledger"):
        async with running(Shop(ledger=FailingLedger(open=no_ledger))):
            pass


async def test_driver_without_an_option_ends_the_worker_at_its_start() -> None:
    def connect() -> None:
        raise TypeError("connect() got an unexpected keyword argument 'driver'")

    class OldDriver(FailingLedger):
        driver, extra = "redis", "redis"

    with pytest.raises(ConfigurationError, match="has no option driver"):
        async with running(Shop(ledger=OldDriver(open=connect))):
            pass


async def test_hanging_ledger_does_not_stop_the_worker_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hanging() -> None:
        await asyncio.Event().wait()

    async with running(Shop(ledger=FailingLedger(open=hanging), patience=0.05)):
        assert "the ledger is not available (TimeoutError)" in caplog.text


async def test_worker_starts_while_the_ledger_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    ledger = FailingLedger()

    def broken() -> None:
        ledger.faults["open"] = soon
        raise OSError(111, "Connection refused")

    def soon() -> None:
        ledger.faults.clear()
        raise OSError(111, "Connection refused")

    ledger.faults["open"] = broken
    shop = Shop(approved(), ledger=ledger)
    async with running(shop) as put:
        assert "the ledger is not available (ConnectionRefusedError)" in caplog.text
        assert (await put()).return_value["status"] == "approved"


async def test_client_and_ledger_are_closed_with_the_worker() -> None:
    shop = Shop(ledger=FailingLedger())
    async with running(shop):
        pass
    assert shop.ledger.operations[-1] == "aclose"  # type: ignore[attr-defined]  # a FailingLedger
    with pytest.raises(ClientClosedError):
        await shop.approve()


async def test_sender_does_not_open_or_close_the_ledger() -> None:
    class SendingBroker(InMemoryBroker):
        startup = AsyncBroker.startup
        shutdown = AsyncBroker.shutdown

    shop = Shop(approved(), ledger=FailingLedger())
    broker = SendingBroker()
    register(broker, shop.client, redelivery=600)
    await broker.startup()
    await broker.shutdown()
    broker.executor.shutdown()
    assert shop.ledger.operations == []  # type: ignore[attr-defined]  # as above
    await shop.approve()


class StoringBroker(InMemoryBroker):
    """Stores messages, and delivers them later in a context without the sender's trace."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[bytes] = []

    async def kick(self, message: Any) -> None:
        self.messages.append(message.message)

    async def deliver(self) -> None:
        while self.messages:
            delivery = self.receiver.callback(message=self.messages.pop(0))
            await asyncio.get_running_loop().create_task(delivery, context=Context())


async def test_call_belongs_to_the_trace_of_the_sender(
    tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    shop = Shop(not_connected(), approved(), options={"telemetry": Telemetry(tracer_provider=tracing)})
    broker = StoringBroker()
    task = register(broker, shop.client, redelivery=600, base=0.001, cap=0.001)
    await broker.startup()
    with tracing.get_tracer("shop").start_as_current_span("checkout") as checkout:
        sent = await task.kiq(MESSAGE)
    await broker.deliver()  # the first and the second try
    result = await sent.get_result()
    await broker.shutdown()
    calls = [span for span in exporter.get_finished_spans() if span.name == "loanasync.approve"]
    assert len(calls) == 2
    wanted = checkout.get_span_context()
    assert {span.parent and (span.parent.trace_id, span.parent.span_id) for span in calls} == {
        (wanted.trace_id, wanted.span_id)
    }
    assert result.return_value["meta"]["trace_id"] == trace.format_trace_id(wanted.trace_id)


async def test_existing_span_of_the_worker_is_the_parent(
    tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    class Spanning(TaskiqMiddleware):
        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            self.span = tracing.get_tracer("worker").start_span("execute")
            contexts.attach(trace.set_span_in_context(self.span))
            return message

    shop = Shop(approved(), options={"telemetry": Telemetry(tracer_provider=tracing)})
    broker, spanning = StoringBroker(), Spanning()
    broker.add_middlewares(spanning)
    task = register(broker, shop.client, redelivery=600)
    await broker.startup()
    with tracing.get_tracer("shop").start_as_current_span("checkout"):
        await task.kiq(MESSAGE)
    await broker.deliver()
    await broker.shutdown()
    (call,) = [span for span in exporter.get_finished_spans() if span.name == "loanasync.approve"]
    assert call.parent is not None
    assert call.parent.span_id == spanning.span.get_span_context().span_id


OF_ANOTHER_MAKE = {"task_name": "loanasync:approve", "args": [MESSAGE], "kwargs": {}}
BAD_LABEL = {
    "task_id": "order-17",
    "labels": {"wait": FISCAL_CODE},
    "labels_types": {"wait": LabelType.INT.value},
}


@pytest.mark.parametrize(
    ("read", "error"),
    [(OF_ANOTHER_MAKE, "ValidationError"), (OF_ANOTHER_MAKE | BAD_LABEL, "ValueError")],
    ids=["content", "label"],
)
async def test_unreadable_message_is_rejected_and_not_logged(
    read: dict[str, Any], error: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop, broker, acknowledged = Shop(), InMemoryBroker(), asyncio.Event()
    register(broker, shop.client, redelivery=600)

    async def acknowledge() -> None:
        acknowledged.set()

    with caplog.at_level(logging.INFO):
        await Receiver(broker, max_async_tasks=1).callback(
            AckableMessage(data=json.dumps(read).encode(), ack=acknowledge)
        )
    assert acknowledged.is_set()
    has_result = await broker.result_backend.is_result_ready("order-17")
    assert has_result == ("task_id" in read)
    assert shop.script.sent == []
    assert f"a message of the queue cannot be read ({error})" in caplog.text
    for personal in (FISCAL_CODE, MESSAGE["request"]["last_name"], MESSAGE["request"]["email"]):
        assert personal not in caplog.text


async def test_several_shops_share_a_queue_with_separate_task_names() -> None:
    one, other = Shop(approved()), Shop(approved())
    broker = InMemoryBroker()
    tasks = [register(broker, s.client, name=n, redelivery=600) for s, n in ((one, "one"), (other, "other"))]
    await broker.startup()
    for task in tasks:
        await (await task.kiq(MESSAGE)).wait_result(timeout=30)
    await broker.shutdown()
    assert (len(one.script.sent), len(other.script.sent)) == (1, 1)
    assert isinstance(one.ledger, MemoryLedger)

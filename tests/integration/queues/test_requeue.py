"""Messages without a result go back into the queue, or become dead letters that can be replayed."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import nats as nats_py
import pytest
from nats.errors import Error as NatsError
from nats.js.manager import JetStreamManager
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id
from redis.asyncio import Redis
from redis.exceptions import RedisError
from taskiq import BrokerMessage
from taskiq.acks import AcknowledgeType
from taskiq.kicker import AsyncKicker
from taskiq.middlewares.opentelemetry_middleware import OpenTelemetryMiddleware
from taskiq.receiver import Receiver

from loanasync import (
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    Decision,
    InFlightError,
    LedgerUnavailableError,
    LoanError,
    Telemetry,
)
from loanasync.ledger import SqliteLedger
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    approved,
    computed,
    denied,
    not_connected,
    response,
)
from loanasync.worker import DeadLetter, NoQueueError, message, register
from loanasync.worker.delivery import QueueBroker
from loanasync.worker.nats import DeadLetters as NatsLetters
from loanasync.worker.redis import DeadLetters as RedisLetters
from support.builders import FISCAL_CODE, approval_request
from support.fleet.worker_process import FileResultBackend, broker_of, results
from support.fleet.workers import until
from support.ledger_clients import Shop
from support.servers import Nats, Server, Valkey
from support.servers.fixtures import skip_missing_server


@pytest.fixture(params=["valkey", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    server: Valkey | Nats = request.getfixturevalue(request.param)
    return server.url


def letters_of(url: str, queue: str) -> Any:
    return (NatsLetters if url.startswith("nats") else RedisLetters)(url, queue)


class Queue:
    """A queue, its worker in this process, and the results of its messages."""

    def __init__(self, url: str, folder: Path, *steps: ScriptedResponse, **options: Any) -> None:
        self.url, self.name = url, options.pop("name", "") or f"q{token_hex(4)}"
        self.dead = f"{self.name}-dead" if url.startswith("nats") else f"{self.name}:dead"
        self.file = folder / "results.jsonl"
        own = options.pop("options", None)
        self.shop = Shop(*steps, ledger=SqliteLedger(folder / "decisions.db"), options=own)
        self.options = {"base": 0.01, "cap": 0.02, **options}
        self.broker = self.new_broker()

    def new_broker(self) -> QueueBroker:
        broker = broker_of(self.url, self.name)
        broker.redelivery = 600.0  # skips the check of `register`
        broker.result_backend = FileResultBackend(self.file)
        register(broker, self.shop.client, **self.options)
        return broker

    async def put(self, *customers: str, task: str = "loanasync:approve", **labels: Any) -> list[str]:
        kicker: AsyncKicker[Any, Any] = AsyncKicker(task, self.broker, labels)
        return [(await kicker.kiq(message(each, approval_request()))).task_id for each in customers]

    @asynccontextmanager
    async def open(self) -> AsyncIterator["asyncio.Task[None]"]:
        await self.broker.startup()  # as a sender, so that a message can be sent at once
        self.broker.is_worker_process = True
        stop = asyncio.Event()
        # The option of the worker would acknowledge a message before its task begins.
        early = AcknowledgeType.WHEN_RECEIVED
        receiver = Receiver(self.broker, max_async_tasks=1, run_startup=False, ack_type=early)
        working = asyncio.create_task(receiver.listen(stop))
        try:
            yield working
        finally:
            stop.set()
            await working
            await self.broker.shutdown()

    async def deliver(self, **labels: Any) -> None:
        """Send a message, and work until its request is approved."""
        async with self.open():
            await self.put(FISCAL_CODE, **labels)
            await until(lambda: self.statuses() == ["approved"])

    def statuses(self) -> list[str]:
        return [each["status"] for each in results(self.file)]

    async def letters(self, number: int) -> list[DeadLetter]:
        """Wait until there is this number of dead letters, and return them."""
        found: list[DeadLetter] = []
        async with asyncio.timeout(60), letters_of(self.url, self.name) as letters:
            while len(found) < number:
                await asyncio.sleep(0.02)
                found = await letters.list()
        return found

    async def contents_of_letters(self) -> list[bytes]:
        """Return the dead letters as they are stored."""
        if self.url.startswith("nats"):
            client = await nats_py.connect(self.url)
            found = await client.jetstream().get_msg(self.dead, 1)
            await client.close()
            return [found.data or b""]
        async with Redis.from_url(self.url) as redis:
            entries: Any = await redis.xrange(self.dead)
            return [fields[b"data"] for _, fields in entries]


@asynccontextmanager
async def refused_writes(url: str, stream: str) -> AsyncIterator[None]:
    """Make the server refuse messages for a stream, which keeps its contents."""
    if url.startswith("nats"):
        client = await nats_py.connect(url)
        config = (await client.jetstream().stream_info(stream)).config
        await client.jetstream().update_stream(replace(config, subjects=[f"{stream}-other"]))
        yield
        await client.jetstream().update_stream(config)
        await client.close()
        return
    async with Redis.from_url(url) as redis:
        kept = await redis.dump(stream)
        await redis.set(stream, "not a stream")
        yield
        await redis.delete(stream)
        if kept:
            await redis.restore(stream, 0, kept)


async def test_message_not_processed_five_times_is_a_dead_letter(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[response(401)] * 6, approved())
    async with queue.open():
        (task,) = await queue.put(FISCAL_CODE)
        (letter,) = await queue.letters(1)
        assert (letter.task, letter.task_id) == ("loanasync:approve", task)
        assert letter.reason == "UnexpectedStatusError"
        assert (len(queue.shop.script.sent), queue.statuses()) == (5, [])
        assert FISCAL_CODE not in repr(letter)
        async with letters_of(url, queue.name) as letters:
            assert await letters.replay(letter)
            assert not await letters.replay(letter)
            assert not await letters.delete(letter)
            await until(lambda: queue.statuses() == ["approved"])  # with all its tries again
            assert await letters.list() == []


UNSENT: list[LoanError] = [
    CircuitOpenError("approve", 0.1),
    InFlightError("approve", "key"),
    LedgerUnavailableError("approve", "key", "OSError"),
    ConfigurationError("ledger", "has entries of a later version"),
]


@pytest.mark.parametrize("error", UNSENT, ids=lambda error: type(error).__name__)
async def test_delivery_that_sends_nothing_uses_up_no_try(
    url: str,
    tmp_path: Path,
    error: LoanError,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "loanasync")
    queue = Queue(url, tmp_path, response(401), approved(), tries=2)
    errors, approve = [error] * 3, queue.shop.client._approve_row

    async def as_often_unsent(*args: Any, **options: Any) -> Decision:
        if errors:
            raise errors.pop()
        return await approve(*args, **options)

    monkeypatch.setattr(queue.shop.client, "_approve_row", as_often_unsent)

    @queue.broker.task("the shop's own")  # so that a paused task does not end the worker
    async def _own() -> None: ...

    await queue.deliver()
    assert len(queue.shop.script.sent) == 2
    assert (" again in 0.1 s" in caplog.text) == isinstance(error, CircuitOpenError)


SALES_POINT = response(400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}})


@pytest.mark.parametrize("step", [denied(), SALES_POINT], ids=["403", "sales point"])
async def test_refused_shop_uses_up_no_try_and_waits_as_long_as_possible(
    url: str, tmp_path: Path, step: ScriptedResponse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loanasync")
    queue = Queue(url, tmp_path, *[step] * 3, approved(), tries=1, cap=0.2)
    await queue.deliver()
    assert (len(queue.shop.script.sent), caplog.text.count(" again in 0.2 s")) == (4, 3)


@pytest.mark.parametrize("step", [response(401), not_connected()], ids=["tried", "not sent"])
async def test_message_is_delivered_again_after_its_delay(
    url: str, tmp_path: Path, step: ScriptedResponse
) -> None:
    """The delay is longer than a second: so often a broker looks for messages that are due."""
    times: list[float] = []

    def timed(response: ScriptedResponse) -> ScriptedResponse:
        def respond(_: SentRequest) -> ScriptedResponse:
            times.append(time.monotonic())
            return response

        return computed(respond)

    queue = Queue(url, tmp_path, timed(step), timed(approved()), base=1.5, cap=1.5)
    await queue.deliver()
    first, second = times
    assert second - first >= 1.5


async def test_wrong_configuration_pauses_and_keeps_the_message(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(url, tmp_path, approved(), tries=1)

    async def later(*_: Any, **__: Any) -> None:
        raise ConfigurationError("ledger", "has entries of a later version")

    async with queue.open() as working:
        with monkeypatch.context() as patch:
            patch.setattr(queue.shop.client, "_approve_row", later)
            await queue.put(FISCAL_CODE)
            async with asyncio.timeout(60):
                await working
    assert queue.statuses() == []
    assert queue.shop.script.sent == []
    async with letters_of(url, queue.name) as letters:
        assert await letters.list() == []
    sender = queue.new_broker()
    await sender.startup()
    await sender.kick(BrokerMessage(task_id="1", task_name="", message=b"another", labels={}))
    assert await sender._backlog() == 2
    await sender.shutdown()


@pytest.mark.parametrize("other", ["ledger", "shop"])
async def test_worker_with_another_ledger_or_shop_is_paused(
    url: str, tmp_path: Path, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a message that is delivered again would be requested again."""
    folder = tmp_path / "other"
    folder.mkdir()
    first = Queue(url, tmp_path, approved(), approved())
    await first.deliver()
    options = {"options": {"shop_id": "another"}} if other == "shop" else {}
    second = Queue(url, tmp_path if other == "shop" else folder, approved(), name=first.name, **options)
    async with second.open() as working:
        await second.put("TSTXYZ00A00A000B")
        async with asyncio.timeout(60):
            await working
    assert second.shop.script.sent == []
    assert "the shop is not that of the other workers of this queue" in caplog.text
    again = Queue(url, tmp_path, approved(), name=first.name)
    async with again.open():
        await until(lambda: len(again.statuses()) == 2)


async def test_worker_that_cannot_compare_its_ledger_waits(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(url, tmp_path, approved())
    compare, errors = queue.broker._owner, [queue.broker._errors[0]()]

    async def failing_once(*arguments: str) -> str:
        if errors:
            raise errors.pop()
        return await compare(*arguments)

    monkeypatch.setattr(queue.broker, "_owner", failing_once)
    await queue.deliver()


@pytest.mark.parametrize("wait", ["1", "9999999999"])
async def test_limited_request_uses_up_no_try(
    url: str, tmp_path: Path, wait: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loanasync")
    monkeypatch.setattr("loanasync.bulk.next_steps._LONGEST_WAIT", 1.0)
    limited = response(429, headers={"Retry-After": wait})
    queue = Queue(url, tmp_path, limited, approved(), tries=1)
    await queue.deliver()
    assert "UnexpectedStatusError: trying message" in caplog.text
    assert " again in 1.0 s" in caplog.text


async def test_label_of_taskiq_does_not_cut_off_a_request(url: str, tmp_path: Path) -> None:
    async def slow(_: SentRequest) -> ScriptedResponse:
        await asyncio.sleep(0.2)
        return approved()

    queue = Queue(url, tmp_path, computed(slow), tries=1)
    await queue.deliver(timeout=0.01)


async def test_message_of_an_unknown_task_is_kept(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, tries=2)
    async with queue.open():
        (task,) = await queue.put(FISCAL_CODE, task="another shop's")
        (letter,) = await queue.letters(1)
    assert (letter.task, letter.task_id) == ("another shop's", task)


@pytest.mark.parametrize("middlewares", [[], [OpenTelemetryMiddleware]], ids=["ours", "taskiq's"])
async def test_call_belongs_to_the_trace_of_the_sender(
    url: str, tmp_path: Path, tracing: TracerProvider, exporter: InMemorySpanExporter, middlewares: list[Any]
) -> None:
    options = {"telemetry": Telemetry(tracer_provider=tracing)}
    queue = Queue(url, tmp_path, not_connected(), approved(), options=options)
    queue.broker.add_middlewares(*(each(tracer_provider=tracing) for each in middlewares))
    async with queue.open():
        with tracing.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await queue.put(FISCAL_CODE)
        await until(lambda: queue.statuses() == ["approved"])
    (result,) = results(queue.file)
    wanted = checkout.get_span_context()
    assert result["meta"]["trace_id"] == format_trace_id(wanted.trace_id)
    calls = [span for span in exporter.get_finished_spans() if span.name == "loanasync.approve"]
    assert {span.context.trace_id for span in calls} == {wanted.trace_id}
    is_parent = {span.parent is not None and span.parent.span_id == wanted.span_id for span in calls}
    assert (len(calls), is_parent) == (2, {not middlewares})


@pytest.mark.parametrize("labels", [{}, {"loanasync-tried": "x"}])
async def test_unreadable_message_becomes_a_dead_letter_at_once(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: dict[str, str]
) -> None:
    """The formatters of two shops are nested."""
    caplog.set_level(logging.INFO, "loanasync")
    queue = Queue(url, tmp_path)
    register(queue.broker, queue.shop.new_client(), name="other")
    members = {"task_name": "loanasync:approve", "args": ["TSTXYZ00A00A000A"], "labels": labels}
    data = json.dumps(members | ({"task_id": "t", "kwargs": {}} if labels else {})).encode()
    async with queue.open():
        await queue.broker.kick(BrokerMessage(task_id="t", task_name="n", message=data, labels={}))
        (letter,) = await queue.letters(1)
        assert letter.reason.startswith("cannot be read (")
        assert letter.task_id == ("t" if labels else "")
        assert await queue.contents_of_letters() == [data]
        async with letters_of(queue.url, queue.name) as letters:
            assert await letters.delete(letter)
            assert await letters.list() == []
    assert queue.statuses() == []
    assert "trying message" not in caplog.text
    assert "TSTXYZ" not in caplog.text


async def test_queue_whose_dead_letters_cannot_be_stored_is_refused(nats: Server) -> None:
    name = f"q{token_hex(4)}"
    client = await nats_py.connect(nats.url)
    await client.jetstream().add_stream(name=f"{name}-own", subjects=[f"{name}-dead"])
    await client.close()
    broker = broker_of(nats.url, name)
    with pytest.raises(ConfigurationError, match="name: cannot be used: subjects overlap"):
        await broker.startup()
    broker.is_worker_process = True
    with pytest.raises(ConfigurationError, match="name: cannot be used: subjects overlap"):
        await anext(broker.listen())
    await broker.shutdown()


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"retention": "limits"}, "retention"),
        ({"storage": "memory"}, "storage"),
        ({"max_age": 60.0, "max_msgs": 5, "max_bytes": 10_000}, "max_age, max_msgs, max_bytes"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject"),
    ],
)
async def test_stream_with_unsafe_settings_is_refused(
    nats: Server, settings: dict[str, Any], wrong: str
) -> None:
    name = f"q{token_hex(4)}"
    client = await nats_py.connect(nats.url)
    await client.jetstream().add_stream(name=name, subjects=[name], **{"retention": "workqueue", **settings})
    await client.close()
    broker = broker_of(nats.url, name)
    with pytest.raises(ConfigurationError, match=f"other settings, which you must change: {wrong}$"):
        await broker.startup()
    await broker.shutdown()


@pytest.mark.parametrize("header", ["soon", "-1", "nan", "0.01"])
async def test_delay_in_a_header_may_be_anything(nats: Server, header: str) -> None:
    broker: Any = broker_of(nats.url, f"q{token_hex(4)}")
    await broker.startup()
    await broker.js.publish(broker.subject, b"message", headers={"Loanasync-Delay": header})
    async with asyncio.timeout(60), aclosing(broker.listen()) as deliveries:
        assert (await anext(deliveries)).data == b"message"
    await broker.shutdown()


async def test_worker_stopped_without_a_server_closes_its_client(tmp_path: Path) -> None:
    with skip_missing_server(), Nats() as server:
        queue = Queue(server.url, tmp_path)
        await queue.broker.startup()
        queue.broker.is_worker_process = True
        await asyncio.to_thread(server.kill)
        await queue.broker.shutdown()
    with pytest.raises(ClientClosedError):
        await queue.shop.approve()


async def test_message_stays_while_its_dead_letter_cannot_be_stored(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(url, tmp_path, response(401), response(401), tries=1)
    async with queue.open():
        async with refused_writes(url, queue.dead):
            await queue.put(FISCAL_CODE)
            await until(lambda: "a message could not be acknowledged" in caplog.text)
        await queue.letters(1)


async def test_dead_letter_stays_while_it_cannot_be_put_back(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, response(401), approved(), tries=1)
    async with queue.open():
        await queue.put(FISCAL_CODE)
        (letter,) = await queue.letters(1)
    async with letters_of(url, queue.name) as letters:
        async with refused_writes(url, queue.name):
            with pytest.raises((NatsError, RedisError)):
                await letters.replay(letter)
            assert await letters.list() == [letter]
        assert await letters.replay(letter)


async def test_replay_that_is_interrupted_and_repeated_delivers_once(
    nats: Nats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(nats.url, tmp_path, response(401), approved(), tries=1)
    async with queue.open():
        await queue.put(FISCAL_CODE)
        (letter,) = await queue.letters(1)
        async with letters_of(nats.url, queue.name) as letters:
            with monkeypatch.context() as patch:
                patch.delattr(JetStreamManager, "delete_msg")
                with pytest.raises(AttributeError):
                    await letters.replay(letter)
            assert await letters.list() == [letter]
            assert await letters.replay(letter)
            await until(lambda: queue.statuses() == ["approved"])
            assert await letters.list() == []
    assert queue.statuses() == ["approved"]


async def test_dead_letters_of_a_missing_queue_raise(url: str) -> None:
    async with letters_of(url, "nowhere") as letters:
        with pytest.raises(NoQueueError, match="no queue nowhere"):
            await letters.list()


async def test_message_whose_task_fails_is_kept(url: str, tmp_path: Path) -> None:
    """taskiq acknowledges a message after any exception of its task."""
    queue = Queue(url, tmp_path, tries=2)
    async with queue.open():
        await queue.put(FISCAL_CODE, traceparent=7)
        (letter,) = await queue.letters(1)
        assert letter.task == "loanasync:approve"
        assert not queue.file.exists()
    assert queue.shop.script.sent == []

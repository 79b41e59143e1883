"""Messages without a result go back into the queue, or become dead letters that can be replayed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import nats as nats_py
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id
from redis.asyncio import Redis
from taskiq import AsyncBroker, BrokerMessage
from taskiq.kicker import AsyncKicker
from taskiq.middlewares.opentelemetry_middleware import OpenTelemetryMiddleware
from taskiq.receiver import Receiver

from loanasync import ConfigurationError
from loanasync.ledger import RedisLedger, SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import ScriptedResponse, approved, denied, not_connected, response
from loanasync.worker import DeadLetter, NoQueueError, message, register
from loanasync.worker.nats import DeadLetters as NatsLetters
from loanasync.worker.redis import DeadLetters as RedisLetters
from support.builders import FISCAL_CODE, approval_request
from support.fleet.worker_process import FileResultBackend, broker_of, results
from support.fleet.workers import Fleet, posts, until
from support.ledger_clients import Shop, held_response
from support.servers import Nats, Server, Valkey


@pytest.fixture(params=["valkey", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    server: Valkey | Nats = request.getfixturevalue(request.param)
    return server.url


def letters_of(url: str, queue: str) -> Any:
    return (NatsLetters if url.startswith("nats") else RedisLetters)(url, queue)


class Queue:
    """A queue, its worker in this process, and the results of its messages."""

    def __init__(self, url: str, folder: Path, *steps: ScriptedResponse, **options: Any) -> None:
        self.url, self.name = url, f"q{token_hex(4)}"
        self.file = folder / "results.jsonl"
        own = options.pop("options", None)
        self.shop = Shop(*steps, ledger=SqliteLedger(folder / "decisions.db"), options=own)
        self.options = {"redelivery": 600, "base": 0.01, "cap": 0.02, **options}
        self.broker = self.new_broker()

    def new_broker(self) -> AsyncBroker:
        broker = broker_of(self.url, self.name).with_result_backend(FileResultBackend(self.file))
        register(broker, self.shop.client, **self.options)
        return broker

    async def put(self, *customers: str, task: str = "loanasync:approve") -> list[str]:
        kicker: AsyncKicker[Any, Any] = AsyncKicker(task, self.broker, {})
        return [(await kicker.kiq(message(each, approval_request()))).task_id for each in customers]

    @asynccontextmanager
    async def open(self) -> AsyncIterator["asyncio.Task[None]"]:
        self.broker.is_worker_process = True
        await self.broker.startup()
        stop = asyncio.Event()
        receiver = Receiver(self.broker, max_async_tasks=1, run_startup=False)
        working = asyncio.create_task(receiver.listen(stop))
        try:
            yield working
        finally:
            stop.set()
            await working
            await self.broker.shutdown()

    def statuses(self) -> list[str]:
        return [each["status"] for each in results(self.file)]

    async def letters(self, number: int) -> list[DeadLetter]:
        """Wait until there is this number of dead letters, and return them."""
        found: list[DeadLetter] = []
        async with asyncio.timeout(60), letters_of(self.url, self.name) as letters:
            while len(found) < number:
                found = await letters.list()
        return found


CUSTOMERS = [f"TSTXYZ00A00A00{number}{letter}" for number in range(2) for letter in "ABCDEFGH"]


async def test_worker_with_an_old_token_consumes_no_message(
    url: str, served: Sandbox, tmp_path: Path
) -> None:
    fleet = Fleet(served, url, str(tmp_path / "decisions.db"), tmp_path)
    tasks = await fleet.put(*[await fleet.customer() for _ in range(20)])
    with fleet.worker(auth_token="old-token") as bad:
        await asyncio.to_thread(bad.join, 60)
        assert bad.exitcode == 0
        assert fleet.results.exists() is False
        assert "task loanasync:approve is paused" in fleet.log.read_text(encoding="utf-8")
    with fleet.worker(), fleet.worker(auth_token="old-token"):
        assert {(await fleet.result(task))["status"] for task in tasks} == {"approved"}
    assert sum(each.status == 201 for each in posts(served)) == 20


async def test_denied_message_becomes_a_dead_letter_that_can_be_replayed(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[denied()] * 3, approved(), tries=3)
    async with queue.open():
        (task,) = await queue.put(CUSTOMERS[0])
        (letter,) = await queue.letters(1)
        assert (letter.task, letter.task_id) == ("loanasync:approve", task)
        assert queue.statuses() == []
        assert CUSTOMERS[0] not in repr(letter)
        async with letters_of(url, queue.name) as letters:
            assert await letters.replay(letter)
            assert not await letters.replay(letter)
            await until(lambda: queue.statuses() == ["approved"])
            assert await letters.list() == []
    assert queue.shop.script.left == 0


@pytest.mark.usefixtures("broken_logging")
async def test_worker_with_a_failing_log_handler_loses_no_message(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[not_connected()] * 2, approved(), tries=2)
    async with queue.open():
        await queue.put(CUSTOMERS[0])
        await queue.letters(1)
        await queue.put(CUSTOMERS[1])
        await until(lambda: queue.statuses() == ["approved"])


async def test_replayed_message_has_all_its_tries_again(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[not_connected()] * 3, approved(), tries=2)
    async with queue.open():
        await queue.put(CUSTOMERS[0])
        (letter,) = await queue.letters(1)
        async with letters_of(url, queue.name) as letters:
            await letters.replay(letter)
        await until(lambda: queue.statuses() == ["approved"])


async def test_five_denials_in_a_row_pause_the_worker(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(url, tmp_path, *[denied()] * 4, approved(), *[denied()] * 5, base=60, cap=60)
    async with queue.open() as working:
        await queue.put(*CUSTOMERS)
        async with asyncio.timeout(60):
            await working
    assert queue.statuses() == ["approved"]
    assert queue.shop.script.left == 0
    assert "AccessDeniedError (status 403) for 5 customers in a row" in caplog.text
    assert not any(each in caplog.text for each in CUSTOMERS)


async def test_busy_service_does_not_pause_the_worker(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[response(429)] * 6, *[approved()] * 6)
    async with queue.open():
        await queue.put(*CUSTOMERS[:6])
        await until(lambda: queue.statuses() == ["approved"] * 6)


async def test_denials_of_one_customer_do_not_pause_the_worker(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[denied()] * 6, approved())
    async with queue.open() as working:
        await queue.put(FISCAL_CODE)
        await until(lambda: queue.statuses() == ["approved"])
        assert not working.done()


async def test_wrong_configuration_pauses_and_keeps_the_message(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(url, tmp_path, approved(), tries=1)

    async def later(*_: Any, **__: Any) -> None:
        raise ConfigurationError("ledger", "has entries of a later version")

    async with queue.open() as working:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteLedger, "get", later)
            patch.setattr(SqliteLedger, "claim", later)
            await queue.put(*CUSTOMERS[:3])
            async with asyncio.timeout(60):
                await working
    assert queue.statuses() == []
    assert len(queue.shop.script.sent) == 0


async def test_worker_with_a_ledger_of_a_later_version_ends_immediately(url: str, valkey: Valkey) -> None:
    prefix = f"{token_hex(4)}:"
    async with Redis.from_url(valkey.url) as redis:
        await redis.set(f"{prefix}entries", "9.0")
    broker = broker_of(url, f"q{token_hex(4)}")
    ledger = RedisLedger(valkey.url, prefix=prefix)
    register(broker, Shop(ledger=ledger).client, redelivery=600)
    broker.is_worker_process = True
    with pytest.raises(ConfigurationError, match="a later version"):
        await broker.startup()
    await ledger.aclose()


async def test_paused_shop_does_not_pause_other_shops_of_its_worker(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[denied()] * 5, base=60, cap=60)
    (tmp_path / "other").mkdir()
    other = Shop(*[approved()] * 3, ledger=SqliteLedger(tmp_path / "other" / "decisions.db"))
    register(queue.broker, other.client, name="other", redelivery=600)
    async with queue.open() as working:
        await queue.put(*CUSTOMERS[:5])
        await until(lambda: queue.shop.script.left == 0)
        await queue.put(*CUSTOMERS[:3], task="other")
        await until(lambda: queue.statuses() == ["approved"] * 3)
        assert not working.done()
    assert len(queue.shop.script.sent) == 5


async def test_message_of_an_unknown_task_is_kept(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, tries=2)
    async with queue.open():
        (task,) = await queue.put(FISCAL_CODE, task="another shop's")
        (letter,) = await queue.letters(1)
    assert (letter.task, letter.task_id) == ("another shop's", task)


async def test_opentelemetry_middleware_propagates_the_trace(
    url: str, tmp_path: Path, tracing: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    options = {"tracer_provider": tracing}
    queue = Queue(url, tmp_path, not_connected(), approved(), options=options)
    queue.broker.add_middlewares(OpenTelemetryMiddleware(tracer_provider=tracing))
    async with queue.open():
        with tracing.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await queue.put(FISCAL_CODE)
        await until(lambda: queue.statuses() == ["approved"])
    (result,) = results(queue.file)
    trace_id = checkout.get_span_context().trace_id
    assert result["meta"]["trace_id"] == format_trace_id(trace_id)
    calls = [span for span in exporter.get_finished_spans() if span.name == "loanasync.approve"]
    assert {span.context.trace_id for span in calls} == {trace_id}
    assert len(calls) == 2


async def test_message_that_cannot_be_read_is_kept(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(url, tmp_path, tries=2)
    data = b'{"task_name": "loanasync:approve", "args": ["TSTXYZ00A00A000A"]}'
    async with queue.open():
        await queue.broker.kick(BrokerMessage(task_id="t", task_name="n", message=data, labels={}))
        (letter,) = await queue.letters(1)
    assert (letter.task, letter.task_id) == ("", "")
    assert queue.statuses() == []
    assert "is a dead letter (cannot be read (" in caplog.text  # it is tried only once
    assert "TSTXYZ" not in caplog.text


async def test_worker_with_another_task_continues_when_ours_is_paused(url: str, tmp_path: Path) -> None:
    queue = Queue(url, tmp_path, *[denied()] * 5, base=60, cap=60)
    done = asyncio.Event()

    @queue.broker.task("the shop's own")
    async def own() -> None:
        done.set()

    async with queue.open() as working:
        await queue.put(*CUSTOMERS[:5])
        await until(lambda: queue.shop.script.left == 0)
        await own.kiq()
        async with asyncio.timeout(60):
            await done.wait()
        assert not working.done()


async def test_sender_without_the_task_keeps_the_limit_of_deliveries(nats: Server, tmp_path: Path) -> None:
    queue = Queue(nats.url, tmp_path, *[not_connected()] * 2, tries=2)
    async with queue.open():
        sender = broker_of(queue.url, queue.name)
        await sender.startup()
        await sender.shutdown()
        await queue.put(FISCAL_CODE)
        await queue.letters(1)


async def test_queue_without_its_dead_letter_stream_can_be_used(
    nats: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(nats.url, tmp_path, approved())
    subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{queue.name}.*"
    client = await nats_py.connect(nats.url)
    await client.jetstream().add_stream(name=f"{queue.name}-own", subjects=[subject])
    await client.close()
    async with queue.open():
        await queue.put(FISCAL_CODE)
        await until(lambda: queue.statuses() == ["approved"])
    assert "dead letters will not be listed" in caplog.text


async def test_dead_letters_of_a_missing_queue_raise(url: str) -> None:
    async with letters_of(url, "nowhere") as letters:
        with pytest.raises(NoQueueError, match="no queue nowhere"):
            await letters.list()


async def test_worker_killed_on_every_delivery_leaves_a_dead_letter(nats: Server, tmp_path: Path) -> None:
    """JetStream stops delivering the message and publishes an advisory. This needs no running worker."""
    queue = Queue(nats.url, tmp_path, tries=2)
    queue.broker = broker_of(queue.url, queue.name, redelivery=0.2)
    register(queue.broker, queue.shop.client, redelivery=600, tries=2)
    await queue.broker.startup()
    await queue.put(FISCAL_CODE)
    deliveries = queue.broker.listen()
    for _ in range(2):
        await anext(deliveries)  # it stays unacknowledged
    looking = asyncio.ensure_future(anext(deliveries))
    (letter,) = await queue.letters(1)
    looking.cancel()
    await asyncio.wait([looking])
    await queue.broker.shutdown()
    assert letter.reason == "delivered 2 times"


async def test_message_that_no_worker_can_read_is_kept_unchanged(valkey: Valkey, tmp_path: Path) -> None:
    """The formatters of two shops are nested."""
    queue = Queue(valkey.url, tmp_path, tries=2)
    register(queue.broker, queue.shop.new_client(), name="other", redelivery=600, tries=2)
    data = b'{"task_name": "loanasync:approve", "args": ["TSTXYZ00A00A000A"]}'
    async with queue.open():
        await queue.broker.kick(BrokerMessage(task_id="t", task_name="n", message=data, labels={}))
        await queue.letters(1)
    async with Redis.from_url(valkey.url) as redis:
        found: Any = await redis.xrange(f"{queue.name}:dead")
    assert [fields[b"data"] for _, fields in found] == [data]


@pytest.mark.parametrize("labels", [{"timeout": 0.2}, {"traceparent": 7}])
async def test_message_whose_task_fails_is_kept(url: str, tmp_path: Path, labels: dict[str, Any]) -> None:
    """taskiq acknowledges a message after any exception of its task, also after its own timeout."""
    step, arrived, go = held_response(approved())
    queue = Queue(url, tmp_path, step, tries=2)
    async with queue.open():
        kicker: AsyncKicker[Any, Any] = AsyncKicker("loanasync:approve", queue.broker, labels)
        await kicker.kiq(message(FISCAL_CODE, approval_request()))
        (letter,) = await queue.letters(1)
        go.set()
        assert letter.task == "loanasync:approve"
        assert not queue.file.exists()
    assert arrived.is_set() is ("timeout" in labels)

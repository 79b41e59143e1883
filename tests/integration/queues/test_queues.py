"""Queues on real servers: killed workers, restarted servers, deleted messages and cancellation."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import nats
import pytest
from nats.js.errors import Error as JetStreamError
from redis.asyncio import Redis
from taskiq import AckableMessage, AsyncBroker
from taskiq.message import BrokerMessage

from loanasync.sandbox import Sandbox
from loanasync.worker.nats import JetStream
from loanasync.worker.redis import RedisStreams
from support.fleet.worker_process import SHORT, broker_of
from support.fleet.workers import Fleet, evaluated, kill, posts, until
from support.servers import Nats, Server, Valkey
from support.servers.fixtures import skip_missing_server
from support.servers.process import free_port

KINDS = {"redis": Valkey, "nats": Nats}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    shared: Server = request.getfixturevalue("valkey" if request.param == "redis" else "nats")
    return shared


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with skip_missing_server(), KINDS[request.param]() as running:
        yield running


def url_of(server: Any) -> str:
    url: str = server.url
    return url


async def count_messages(url: str, queue: str) -> tuple[int, int]:
    """Return the number of messages of a queue, and how many of them are pending."""
    if url.startswith("nats"):
        connection = await nats.connect(url)
        jet = connection.jetstream()
        stream, consumer = await jet.stream_info(queue), await jet.consumer_info(queue, queue)
        await connection.close()
        return stream.state.messages, consumer.num_ack_pending or 0
    async with Redis.from_url(url) as redis:
        (pending,) = [each["pending"] for each in await redis.xinfo_groups(queue)]
        return await redis.xlen(queue), pending


async def test_stopping_worker_finishes_its_calls(server: Server, served: Sandbox, tmp_path: Path) -> None:
    times = {"total": 20.0, "redelivery": 60.0}
    fleet = Fleet(served, url_of(server), str(tmp_path / "decisions.db"), tmp_path, **times)
    with fleet.taskiq_command() as manager:
        (task,) = await fleet.put(await fleet.customer("+slow3000after"))
        await until(lambda: bool(evaluated(served)))  # the response has not arrived yet
        manager.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(manager.wait, 60) in (0, None)
        (result,) = fleet.results_of(task)
    assert (result["status"], result["error"]) == ("approved", None)
    assert await count_messages(url_of(server), str(fleet.settings["queue"])) == (0, 0)


async def test_worker_started_without_its_server_ends_on_sigterm(
    own_server: Server, served: Sandbox, tmp_path: Path
) -> None:
    await asyncio.to_thread(own_server.kill)
    fleet = Fleet(served, url_of(own_server), str(tmp_path / "decisions.db"), tmp_path)
    with fleet.worker() as working:
        await until(lambda: re.search("trying again|reconnecting", fleet.log.read_text("utf-8")) is not None)
        working.terminate()
        await asyncio.to_thread(working.join, 20)
        assert working.exitcode == 0


async def test_worker_waits_for_its_server_and_survives_restarts(
    own_server: Server, served: Sandbox, tmp_path: Path
) -> None:
    await asyncio.to_thread(own_server.kill)
    fleet = Fleet(served, url_of(own_server), str(tmp_path / "decisions.db"), tmp_path)
    with fleet.worker() as working:
        await until(lambda: re.search("trying again|reconnecting", fleet.log.read_text("utf-8")) is not None)
        for _ in range(3):
            await asyncio.to_thread(own_server.start)
            (task,) = await fleet.put(await fleet.customer())
            assert (await fleet.result(task))["status"] == "approved"
            await asyncio.to_thread(own_server.kill)
        assert working.is_alive()
    assert len(posts(served)) == len(evaluated(served)) == 3


async def test_worker_waits_for_a_server_that_is_down_for_long(caplog: pytest.LogCaptureFixture) -> None:
    with skip_missing_server(), Nats() as server:
        broker = JetStream(server.url, reconnect_time_wait=0.001)
        await broker.startup()
        pool = broker.client._server_pool
        await asyncio.to_thread(server.kill)
        await until(lambda: not pool or pool[0].reconnects > 100)  # nats-py stops trying after 60 attempts
        await asyncio.to_thread(server.start)
        async with pending_messages(JetStream(server.url), 1):
            (found,) = await receive(broker, 1)
            assert found.data == b"message 0"
        await broker.shutdown()
    assert [
        record for record in caplog.records if record.exc_info
    ] == []  # nats-py logs each attempt with this text
    assert 1 <= len(caplog.records) < 10


async def test_broker_started_before_its_server_waits_for_it(own_server: Server) -> None:
    broker: Any = broker_of(url_of(own_server), f"q{token_hex(4)}")
    await asyncio.to_thread(own_server.kill)
    starting = asyncio.ensure_future(broker.startup())
    await asyncio.wait([starting], timeout=1.0)
    assert not starting.done()
    await asyncio.to_thread(own_server.start)
    async with asyncio.timeout(60):
        await starting
        await broker.kick(BrokerMessage(task_id="t", task_name="n", message=b"early", labels={}))
        (found,) = await receive(broker, 1)
    assert found.data == b"early"
    await broker.shutdown()


@pytest.mark.parametrize("scheme", ["redis", "nats"])
async def test_sender_without_a_server_raises_after_a_time(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.worker.delivery._START_LIMIT", 0.1)
    broker = broker_of(f"{scheme}://127.0.0.1:{free_port()}", "q")
    with pytest.raises(TimeoutError):
        await broker.startup()
    await broker.shutdown()


@asynccontextmanager
async def pending_messages(broker: AsyncBroker, messages: int) -> AsyncIterator[list[bytes]]:
    """Create a queue whose messages are all pending for a worker that has ended."""
    await broker.startup()
    contents = [f"message {number}".encode() for number in range(messages)]
    for content in contents:
        await broker.kick(BrokerMessage(task_id="t", task_name="n", message=content, labels={}))
    yield contents
    await broker.shutdown()


async def receive(broker: AsyncBroker, number: int) -> list[AckableMessage]:
    """Receive this number of different messages. A slow machine may receive one of them twice."""
    found: dict[bytes, AckableMessage] = {}
    async with asyncio.timeout(60), aclosing(broker.listen()) as deliveries:
        async for delivery in deliveries:
            assert isinstance(delivery, AckableMessage)
            found[delivery.data] = delivery
            if len(found) == number:
                return list(found.values())
    raise AssertionError("it ended")


async def test_messages_of_a_dead_worker_are_redelivered_without_new_ones(server: Server) -> None:
    queue = f"q{token_hex(4)}"
    dead, living = (broker_of(url_of(server), queue, redelivery=0.3) for _ in range(2))
    async with pending_messages(dead, 25) as contents:
        assert len(await receive(dead, 25)) == 25
        async with pending_messages(living, 0):
            found = await receive(living, 25)
            assert sorted(each.data for each in found) == sorted(contents)
            for each in found:
                await each.ack()  # type: ignore[misc]  # `ack` of both brokers is a coroutine function


async def test_deleted_message_does_not_stop_the_worker(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    dead, living = (RedisStreams(valkey.url, queue_name=queue, redelivery=0.2) for _ in range(2))
    async with pending_messages(dead, 2), pending_messages(living, 0), Redis.from_url(valkey.url) as redis:
        first, second = await receive(dead, 2)
        ((number, _),) = await redis.xrange(queue, count=1)  # type: ignore[misc]  # never None
        await redis.xdel(queue, number)  # type: ignore[arg-type]  # as above
        (found,) = await receive(living, 1)
        assert (first.data, found.data) == (b"message 0", second.data)


async def test_consumers_of_ended_and_killed_workers_are_deleted(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    workers = [RedisStreams(valkey.url, queue_name=queue, redelivery=0.2) for _ in range(3)]
    for each in workers:
        each.is_worker_process = True
    killed, busy, last = workers

    async with Redis.from_url(valkey.url) as redis:

        async def names() -> set[str]:
            return {each["name"].decode() for each in await redis.xinfo_consumers(queue, queue)}

        async with pending_messages(killed, 1):
            (found,) = await receive(killed, 1)
            await found.ack()  # type: ignore[misc]  # a coroutine
            async with pending_messages(busy, 1):
                await receive(busy, 1)
            assert await names() == {killed.consumer_name, busy.consumer_name}  # it had a pending message
            while min(each["idle"] for each in await redis.xinfo_consumers(queue, queue)) <= 400:  # noqa: ASYNC110  (there is no event to wait for)
                await asyncio.sleep(0.1)
            async with pending_messages(last, 0), asyncio.timeout(60):
                while killed.consumer_name in await names():
                    await receive(last, 1)


async def delete_data(url: str, queue: str) -> None:
    """Delete the data of the server, as after a start with an empty disk."""
    if url.startswith("nats"):
        connection = await nats.connect(url)
        await connection.jetstream().delete_stream(queue)
        await connection.close()
        return
    async with Redis.from_url(url) as redis:
        await redis.delete(queue)


async def test_server_that_lost_its_data_does_not_end_the_worker(server: Server) -> None:
    queue = f"q{token_hex(4)}"
    broker: Any = broker_of(url_of(server), queue, redelivery=60.0)
    later = BrokerMessage(task_id="t", task_name="n", message=b"later", labels={})
    async with pending_messages(broker, 1), asyncio.timeout(60), aclosing(broker.listen()) as deliveries:
        assert (await anext(deliveries)).data == b"message 0"
        await delete_data(url_of(server), queue)
        listening = asyncio.ensure_future(anext(deliveries))
        while not listening.done():  # until the worker has created the queue again
            with suppress(JetStreamError):
                await broker.kick(later)
            await asyncio.wait([listening], timeout=0.1)
        assert (await listening).data == b"later"


async def test_early_messages_and_those_of_other_programs_are_removed(valkey: Valkey) -> None:
    queue = f"q{token_hex(4)}"
    broker = RedisStreams(valkey.url, queue_name=queue)
    async with Redis.from_url(valkey.url) as redis:
        await redis.xadd(queue, {"else": "what"})  # before the first worker
        await broker.kick(BrokerMessage(task_id="t", task_name="n", message=b"a message", labels={}))
        async with pending_messages(broker, 0):
            for each in (found := await receive(broker, 2)):
                await each.ack()  # type: ignore[misc]  # a coroutine
        assert [each.data for each in found] == [b"", b"a message"]
        assert await count_messages(valkey.url, queue) == (0, 0)


async def test_cancellation_swallowed_by_the_client_ends_listening(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: Any = broker_of(url_of(server), f"q{token_hex(4)}", redelivery=0.3)
    await broker.startup()
    is_redis = isinstance(broker, RedisStreams)
    owner, name = (broker._redis, "xreadgroup") if is_redis else (broker.consumer, "fetch")
    fetch, has_started = getattr(owner, name), asyncio.Event()

    async def swallow_cancellation(*args: Any, **options: Any) -> Any:
        has_started.set()
        try:
            return await fetch(*args, **options)
        except asyncio.CancelledError:
            return []

    monkeypatch.setattr(owner, name, swallow_cancellation)
    waiting = asyncio.ensure_future(anext(broker.listen()))
    await has_started.wait()
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=60)
    assert done == {waiting}
    assert waiting.cancelled()
    await broker.shutdown()


@pytest.mark.parametrize(("broker", "other"), [("redis", "nats"), ("nats", "redis")])
def test_each_broker_imports_only_its_own_package(broker: str, other: str) -> None:
    # Taskiq imports FastAPI, too, which takes long.
    missing = f"sys.modules[{other!r}] = sys.modules['fastapi'] = None"
    script = f"import sys; {missing}; import loanasync.worker.{broker}"
    subprocess.run([sys.executable, "-c", script], check=True)


# Before the request, after it, after the response and after the settlement; each queue and each ledger.
@pytest.mark.parametrize(
    ("point", "broker", "ledger", "status", "requests"),
    [
        ("after claim", "valkey", "postgres", "unknown", 0),
        ("after send", "nats", "sqlite", "unknown", 1),
        ("before commit", "nats", "valkey", "unknown", 1),
        ("before ack", "valkey", "sqlite", "approved", 1),
    ],
)
async def test_message_of_a_killed_worker_gets_a_result_and_no_request(
    point: str,
    broker: str,
    ledger: str,
    status: str,
    requests: int,
    served: Sandbox,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    queue = request.getfixturevalue(broker).url
    decisions = tmp_path / "decisions.db" if ledger == "sqlite" else request.getfixturevalue(ledger).url
    fleet = Fleet(served, queue, str(decisions), tmp_path)
    await fleet.create_ledger()
    is_sent = point == "after send"
    customer = await fleet.customer("+hangafter" if is_sent else "")
    (task,) = await fleet.put(customer)
    with fleet.worker(point="" if is_sent else point, times=SHORT) as killed:
        await until(lambda: bool(evaluated(served)) if is_sent else fleet.reached(point))
        kill(killed)
    earlier = fleet.results_of(task)
    assert len(earlier) == (point == "before ack"), "a message is acknowledged after its result was saved"
    with fleet.worker():
        first = await fleet.result(task, times=len(earlier) + 1)  # no new message arrives
        (again,) = await fleet.put(customer)
        second = await fleet.result(again)
    assert {each["status"] for each in (first, second, *earlier)} == {status}
    assert first["decision"] == second["decision"]
    assert len(posts(served)) == len(evaluated(served)) == requests

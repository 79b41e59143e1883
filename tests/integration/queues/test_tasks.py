"""The taskiq task: checks of its settings, in-memory tests, and the start and end of its worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from taskiq import AsyncBroker, InMemoryBroker
from taskiq_redis import ListQueueBroker

from loanasync import ClientClosedError, ConfigurationError, LoanClient, Timeout
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import approved, denied, not_connected, response, scripted_client
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
    task = register(broker, shop.client, **{"base": 0.001, "cap": 0.004, **options})
    await broker.startup()

    async def put(queued: Any = MESSAGE) -> Any:
        return (await (await task.kiq(queued)).wait_result(timeout=30)).return_value

    yield put
    await broker.shutdown()


async def test_in_memory_task_tries_again_and_ends_with_its_last_error() -> None:
    async with running(Shop(not_connected(), response(401), denied(), approved()), tries=2) as put:
        assert (await put())["status"] == "approved"
    shop = Shop(*[response(401)] * 3, approved())
    async with running(shop, tries=3) as put:
        result = await put()
    assert (result["outcome"], result["repeatable"], shop.script.left) == ("not_evaluated", False, 1)
    assert result["error"]["type"] == "UnexpectedStatusError"


def test_delays_double_up_to_the_cap() -> None:
    tries = Tries(maximum=100, base=1.0, cap=10.0)
    assert [tries.delay(tried) for tried in (1, 2, 3, 4, 5, 6, 10_000)] == [1, 2, 4, 8, 10, 10, 10]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [({"tries": 0}, "tries: must"), ({"base": 0}, "base: must"), ({"base": 2.0, "cap": 1.0}, "base: must")],
)
def test_invalid_tries_are_rejected(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        register(InMemoryBroker(), Shop().client, **wrong)


def test_second_task_of_the_same_name_is_rejected() -> None:
    """taskiq would replace the first one, and send its messages to the other shop."""
    broker = InMemoryBroker()
    register(broker, Shop().client)
    with pytest.raises(ConfigurationError, match="pass another one for each shop"):
        register(broker, Shop().client)
    register(broker, Shop().client, name="other")


def real_client(**options: Any) -> LoanClient:
    return LoanClient("https://loans.example.com", shop_id="shop", auth_token="token", **options)


async def test_client_without_a_lasting_ledger_is_rejected() -> None:
    for client in (scripted_client(), real_client(), real_client(ledger=MemoryLedger())):
        with pytest.raises(ConfigurationError, match="pass ledger=SqliteLedger"):
            register(InMemoryBroker(), client)
        with pytest.raises(ConfigurationError, match="ledger: must outlive the worker"):
            await handle(client, MESSAGE)


async def test_memory_ledger_of_a_test_client_is_accepted(served: Sandbox) -> None:
    client = served.client(ledger=MemoryLedger())
    for each in (client, client.with_options(), Shop().client):
        register(RedisStreams("redis://127.0.0.1:1"), each)
    async with client:
        await client.create_request({"fiscalCode": FISCAL_CODE})
        assert (await handle(client, MESSAGE))["status"] == "approved"


def lasting(tmp_path: Path, **options: Any) -> LoanClient:
    return scripted_client(ledger=SqliteLedger(tmp_path / "decisions.db"), **options)


@pytest.mark.parametrize(
    ("broker", "options", "text"),
    [  # 2 x 60 seconds (total), 5 x 10 (patience), and 10 (longest delay)
        (lambda: RedisStreams("redis://h", redelivery=99), {}, "redelivery: must be at least 100 .* not 99"),
        (lambda: JetStream("nats://h", redelivery=99), {}, "redelivery: must be at least 100 .* not 99"),
        (lambda: JetStream("nats://h"), {"cap": 91.0}, "at least 181"),
        (lambda: ListQueueBroker("redis://h"), {}, "broker: must be loanasync.worker.redis.RedisStreams"),
    ],
)
async def test_unsuitable_broker_is_rejected(
    broker: Callable[[], AsyncBroker], options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        register(broker(), lasting(tmp_path), **options)


async def test_redelivery_that_is_long_enough_is_accepted(tmp_path: Path) -> None:
    for broker in (RedisStreams("redis://h"), JetStream("nats://h")):
        register(broker, lasting(tmp_path))
    short = {"timeout": Timeout(total=1, attempt=0.9, connect=0.5), "ledger_policy": LedgerPolicy(patience=1)}
    register(JetStream("nats://h", redelivery=8), lasting(tmp_path, **short), cap=1)
    long_lease = lasting(tmp_path, timeout=Timeout(total=20, attempt=300))
    register(JetStream("nats://h", redelivery=340), long_lease)
    with pytest.raises(ConfigurationError, match="must be at least 340 "):
        register(JetStream("nats://h", redelivery=339), long_lease)


class LeaseLedger(MemoryLedger):
    """A memory ledger that keeps the lease of the last claim."""

    lease = 0.0

    async def claim(self, key: str, **options: Any) -> Entry:
        self.lease = options["lease"]
        return await super().claim(key, **options)


@pytest.mark.parametrize(("total", "patience"), [(1.0, 100.0), (60.0, 10.0), (600.0, 0.1)])
async def test_required_redelivery_time_is_longer_than_a_lease(total: float, patience: float) -> None:
    ledger, timeout = LeaseLedger(), Timeout(total=total, attempt=0.9 * total, connect=0.5 * total)
    shop = Shop(approved(), ledger=ledger, patience=patience, options={"timeout": timeout})
    await shop.approve()
    with pytest.raises(ConfigurationError, match="redelivery: must be at least"):
        register(RedisStreams("redis://h", redelivery=ledger.lease), shop.client)


async def test_invalid_ledger_ends_the_worker_at_its_start() -> None:
    def no_ledger() -> None:
        raise ConfigurationError("path", "is no ledger")

    with pytest.raises(ConfigurationError, match="is no ledger"):
        async with running(Shop(ledger=FailingLedger(open=no_ledger))):
            pass


async def test_worker_starts_while_the_ledger_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    ledger = FailingLedger(open=lambda: asyncio.Event().wait())
    async with running(Shop(approved(), ledger=ledger, patience=0.05)) as put:
        assert "the ledger is not available (TimeoutError)" in caplog.text
        ledger.faults.clear()
        assert (await put())["status"] == "approved"


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
    register(broker, shop.client)
    await broker.startup()
    await broker.shutdown()
    broker.executor.shutdown()
    assert shop.ledger.operations == []  # type: ignore[attr-defined]  # as above
    await shop.approve()


async def test_several_shops_share_a_queue_with_separate_task_names() -> None:
    one, other = Shop(approved()), Shop(approved())
    broker = InMemoryBroker()
    tasks = [register(broker, s.client, name=n) for s, n in ((one, "one"), (other, "other"))]
    await broker.startup()
    for task in tasks:
        await (await task.kiq(MESSAGE)).wait_result(timeout=30)
    await broker.shutdown()
    assert (len(one.script.sent), len(other.script.sent)) == (1, 1)
    assert isinstance(one.ledger, MemoryLedger)


async def test_worker_leaves_its_lifespan_after_the_client_is_closed() -> None:
    """The last metrics are recorded while the client closes."""
    shop, broker, steps = Shop(), InMemoryBroker(), []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("entered")
        yield
        with pytest.raises(ClientClosedError):
            await shop.client.create_request({})
        steps.append("left")

    register(broker, shop.client, lifespan=lifespan)
    assert steps == []
    await broker.startup()
    assert steps == ["entered"]
    await broker.shutdown()
    assert steps == ["entered", "left"]

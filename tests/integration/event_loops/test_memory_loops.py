"""The memory of a client across event loops, threads, forks, and the end of a client or its loop."""

import asyncio
import threading
from typing import Any, Self

import pytest

from loanasync import (
    Approved,
    ClientClosedError,
    Decision,
    InFlightError,
    LoanError,
    OutcomeUnknownError,
    Refused,
    Timeout,
)
from loanasync.sandbox import Sandbox
from loanasync.testing import approved, fiscal_code, refused
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, serving
from support.direct_path import needs_direct_path
from support.faults.row import SESSIONS
from support.ledger_clients import held_response
from support.memory_clients import Shop, cancelled, held_server, request
from support.processes import run_script
from support.raw_server import PATIENCE, until
from support.virtual_time import turns

each_session = pytest.mark.parametrize("session", SESSIONS)


@each_session
async def test_memory_close_waits_for_a_late_response(session: str) -> None:
    async with held_server(session) as (server, client):
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        await cancelled(call)
        closing = asyncio.create_task(client.aclose())
        await turns()
        assert not closing.done()
        server.respond_to_all(APPROVAL)
        await closing


async def test_memory_close_waits_for_a_call_and_those_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `aclose` does, also a second and a third one."""
    monkeypatch.setattr("loanasync._runtime.run.CLOSE_TIMEOUT", 0.0)
    step, arrived, go = held_response(approved())
    shop = Shop(step)
    calls = [asyncio.create_task(shop.approve()) for _ in range(3)]
    await arrived.wait()
    closings = [asyncio.create_task(shop.client.aclose()) for _ in range(3)]
    await turns()
    assert not any(closing.done() for closing in closings)
    go.set()
    assert {type(each) for each in await asyncio.gather(*calls)} == {Approved}
    await asyncio.gather(*closings)
    assert shop.script.closed == 1
    assert isinstance(await shop.approve(), ClientClosedError)


@pytest.mark.parametrize(
    ("direct", "outcome"),
    [pytest.param(True, Approved, marks=needs_direct_path), (False, OutcomeUnknownError)],
    ids=["direct", "through aiohttp"],
)
def test_memory_event_loop_that_ends_reads_the_response(outcome: type, *, direct: bool) -> None:
    """The response arrives after `asyncio.run` has cancelled all tasks, and with them aiohttp's waits."""
    left: list[Any] = []

    async def leave() -> None:
        left.append(serving(None))
        server = await left[0].__aenter__()
        client = server.client(separate=False, direct_connections=direct)
        call = asyncio.create_task(request(client))
        await server.wait_for_requests(1)
        call.add_done_callback(lambda _: server.respond_to_all(APPROVAL))
        left.extend((server, client))

    asyncio.run(leave())
    _, server, client = left
    assert isinstance(asyncio.run(request(client)), outcome)
    assert server.requests == 1


def test_memory_threads_with_a_loop_each_share_one_request(served: Sandbox) -> None:
    client = served.client()
    decisions: list[Decision | LoanError] = []
    for _ in range(10):
        code, payload = fiscal_code(), approval_request()
        asyncio.run(client.create_request({"fiscalCode": code}))
        start = threading.Barrier(8)

        def call(code: str = code, payload: Any = payload, start: threading.Barrier = start) -> None:
            start.wait()
            decisions.append(asyncio.run(request(client, code, payload=payload)))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {type(each) for each in decisions} == {Approved}
    assert len(decisions) == 80
    assert len(served.journal.calls(operation="approve")) == 10


class OtherThread:
    """A thread whose event loop joins the approval of a shop, after `start` was set."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        self.start, self.joined, self.ended = (threading.Event() for _ in range(3))
        self.result: object = None
        self._thread = threading.Thread(target=asyncio.run, args=[self._join(shop, options)])
        self._thread.start()

    async def _join(self, shop: Shop, options: dict[str, Any]) -> None:
        self.start.wait()
        call = asyncio.create_task(shop.approve(**options))
        await turns()
        self.joined.set()
        self.result = await call
        self.ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()


def test_memory_thread_gets_the_decision_of_a_cancelled_call() -> None:
    shop = Shop()

    async def first() -> None:
        step, began, go = held_response(refused())
        shop.script.add(step)
        call = asyncio.create_task(shop.approve())
        await began.wait()
        other.start.set()
        await asyncio.to_thread(other.joined.wait)
        await cancelled(call)
        go.set()
        await asyncio.to_thread(other.ended.wait)

    with OtherThread(shop) as other:
        asyncio.run(first())
    assert isinstance(other.result, Refused)
    assert shop.sent == 1


def test_memory_thread_waits_no_longer_than_its_own_time() -> None:
    """The call of the other event loop has not sent its request, since it waits for a slot."""
    shop = Shop(max_concurrency=1)

    async def first() -> None:
        step, began, go = held_response(refused())
        shop.script.add(step)
        busy = asyncio.create_task(shop.approve("TSTXYZ00A00A000B"))
        await began.wait()
        call = asyncio.create_task(shop.approve())
        await turns()
        other.start.set()
        assert await asyncio.to_thread(other.ended.wait, PATIENCE)
        await cancelled(call)
        go.set()
        assert isinstance(await busy, Refused)

    with OtherThread(shop, timeout=Timeout(total=0.3, attempt=0.3)) as other:
        asyncio.run(first())
    assert isinstance(other.result, InFlightError)
    assert shop.sent == 1


LEFT = """
import asyncio, gc, logging, sys
logging.basicConfig(level=logging.WARNING)
logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith("Executing"))
logging.getLogger("loanasync").setLevel(logging.CRITICAL)
from loanasync import LoanClient, LoanError, Timeout
from loanasync.testing import approval_request, fiscal_code
limits = Timeout(attempt=1)  # the end of the event loop waits for the response
client = LoanClient(sys.argv[1], shop_id="sandbox-shop", auth_token="sandbox-token", timeout=limits)
request = approval_request(tag="hangafter")
code = fiscal_code()
async def begin(waiters):
    await client.create_request({"fiscalCode": code})
    calls = [asyncio.create_task(client.approve(code, request)) for _ in range(waiters)]
    while not any(flight.may_be_evaluated for flight in client._pipeline.calls):
        await asyncio.sleep(0.01)
    return calls
async def cancelled():
    for call in await begin(3):
        call.cancel()
    await asyncio.sleep(0.01)
async def left():
    await begin(3)
async def look():
    try:
        await client.approve(code, request)
    except LoanError as error:
        print(type(error).__name__)
    await client.aclose()
asyncio.run({"cancelled": cancelled, "left": left}[sys.argv[2]]())
gc.collect()
asyncio.run(look())
"""


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_memory_loop_that_ends_during_a_request_logs_no_warning(served: Sandbox, how: str) -> None:
    """No "Task was destroyed", "never awaited" or "exception was never retrieved" is logged."""
    done = run_script(LEFT, served.base_url, how)
    assert (done.stderr, done.stdout) == ("", "OutcomeUnknownError\n")
    assert len(served.journal.calls(operation="approve")) == 1


def test_row_that_joins_an_approval_of_a_closed_event_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync._runtime.run.CLOSE_TIMEOUT", 0.1)
    limits = Timeout(total=0.3, attempt=0.3)
    step, _, _ = held_response(approved())  # it is never released
    shop = Shop(step, timeout=limits)
    is_joined, statuses = threading.Event(), []
    left: set[asyncio.Task[Any]] = set()

    async def join() -> None:
        rows = [(FISCAL_CODE, approval_request())]
        async with shop.client.approve_many(rows, progress=None) as results:
            is_joined.set()
            statuses.extend([result.status async for result in results])

    async def start() -> None:
        call = asyncio.create_task(shop.approve())
        await asyncio.sleep(0.05)
        thread.start()
        await until(is_joined.is_set)
        await asyncio.sleep(0.05)
        left.update({call, *asyncio.all_tasks()} - {asyncio.current_task()})

    thread = threading.Thread(target=lambda: asyncio.run(join()), daemon=True)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    loop.close()  # its tasks never end
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert statuses == ["unknown"]
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()  # as garbage collection does later

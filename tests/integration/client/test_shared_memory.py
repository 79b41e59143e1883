"""Clients without a ledger share the memory of the process; clients with one ledger object share requests."""

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aioresponses import aioresponses

from loanasync import (
    Approved,
    Decision,
    InFlightError,
    LoanClient,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    ReadTimeoutError,
    Refused,
    Timeout,
)
from loanasync._runtime.flights import Memories
from loanasync.ledger import MemoryLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    ScriptedTransport,
    approved,
    computed,
    fiscal_code,
    forget_approvals,
    repaired_aioresponses,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, FAULT, REFUSAL, Canned, serving
from support.ledger_clients import held_response
from support.memory_clients import cancelled, request
from support.processes import run_script
from support.raw_server import PATIENCE
from support.virtual_time import turns


async def once(server: Canned, code: str = FISCAL_CODE, **options: Any) -> Decision | LoanError:
    """Request an approval with a new client."""
    settings = {name: options.pop(name) for name in ("payload", "wait") if name in options}
    async with server.client(separate=False, **options) as client:
        return await request(client, code, **settings)


async def test_double_click_with_a_client_per_call_sends_one_request() -> None:
    async with serving(None) as server:
        calls = [asyncio.create_task(once(server)) for _ in range(3)]
        await server.wait_for_requests(1)
        await turns()
        server.respond_to_all(APPROVAL)
        first, *others = await asyncio.gather(*calls)
        assert isinstance(first, Approved)
        assert others == [first, first]
        assert server.requests == 1


async def test_client_after_a_closed_one_knows_its_decision_and_its_data() -> None:
    async with serving(REFUSAL) as server:
        for _ in range(2):
            assert isinstance(await once(server), Refused)
        other = await once(server, payload=approval_request(amount=99_000))
        assert isinstance(other, PayloadMismatchError)
        assert (other.state, server.requests) == ("refused", 1)


async def test_copy_with_options_shares_the_memory_of_a_separate_client() -> None:
    async with serving(APPROVAL) as server:
        assert isinstance(await once(server), Approved)
        async with server.client(separate=False, shop_id="other") as client:
            copy = client.with_options(shop_id="shop", auth_token="secret-token")
            assert isinstance(await request(copy), Approved)
            assert server.requests == 1


@asynccontextmanager
async def other_shop(server: Canned) -> AsyncIterator[Any]:
    yield server.client(separate=False, shop_id="other"), lambda: server.requests


@asynccontextmanager
async def other_url(server: Canned) -> AsyncIterator[Any]:
    async with serving(APPROVAL) as other:
        yield other.client(separate=False), lambda: server.requests + other.requests


@asynccontextmanager
async def other_session(server: Canned) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession() as session:
        yield server.client(separate=False, session=session), lambda: server.requests


@asynccontextmanager
async def own_transport(server: Canned) -> AsyncIterator[Any]:
    script = ScriptedTransport(approved())
    client = script.client(base_url=server.base_url, shop_id="shop")
    yield client, lambda: server.requests + len(script.sent)


@asynccontextmanager
async def mocked(server: Canned) -> AsyncIterator[Any]:
    client, url = server.client(separate=False), f"{server.base_url}/api/shops/shop/requests/{FISCAL_CODE}"
    with repaired_aioresponses(), aioresponses() as mock:
        mock.post(url, status=201, payload={"approved": True})
        yield client, lambda: server.requests + sum(map(len, mock.requests.values()))


SEPARATE = [other_shop, other_url, other_session, own_transport, mocked]


@pytest.mark.parametrize("separate", SEPARATE, ids=lambda each: each.__name__)
async def test_client_with_a_memory_of_its_own_sends_its_request(separate: Any) -> None:
    async with serving(APPROVAL) as server:
        assert isinstance(await once(server), Approved)
        async with separate(server) as (client, requests), client:
            for _ in range(2):
                assert isinstance(await request(client), Approved)
            assert requests() == 2


async def test_decision_of_a_mock_is_not_returned_after_the_mock() -> None:
    async with serving(REFUSAL) as server:
        async with mocked(server) as (client, _):
            assert isinstance(await request(client), Approved)
        async with client:
            assert isinstance(await request(client), Refused)


async def test_clients_of_a_sandbox_have_a_memory_each(sandbox: Sandbox) -> None:
    code, payload = fiscal_code(), approval_request()
    async with sandbox.client() as one, sandbox.client() as other:
        await one.create_request({"fiscalCode": code})
        assert isinstance(await request(one, code, payload=payload), Approved)
        assert not isinstance(await request(other, code, payload=payload), Approved)
        assert len(sandbox.journal.calls(operation="approve")) == 2


async def test_clients_with_one_session_share_a_memory_and_do_not_keep_it() -> None:
    async with serving(APPROVAL) as server:
        session = aiohttp.ClientSession()
        for _ in range(2):
            assert isinstance(await once(server, session=session), Approved)
        assert server.requests == 1
        await session.close()
        reference = weakref.ref(session)
        del session
        gc.collect()
        assert reference() is None


async def test_clients_with_one_ledger_object_share_a_request() -> None:
    step, arrived, go = held_response(approved())
    ledger, script = MemoryLedger(), ScriptedTransport(step)
    calls = [asyncio.create_task(request(script.client(ledger=ledger))) for _ in range(2)]
    await arrived.wait()
    await turns()
    go.set()
    assert [type(each) for each in await asyncio.gather(*calls)] == [Approved, Approved]
    assert len(script.sent) == 1


async def test_forgotten_approval_is_requested_again() -> None:
    async with serving(APPROVAL, REFUSAL) as server, aiohttp.ClientSession() as session:
        assert isinstance(await once(server), Approved)
        assert isinstance(await once(server, session=session), Refused)
        forget_approvals()
        assert isinstance(await once(server), Refused)
        assert isinstance(await once(server, session=session), Refused)
        assert server.requests == 4


async def test_request_that_ends_after_it_was_forgotten_is_not_remembered() -> None:
    async with serving(None, REFUSAL) as server:
        call = asyncio.create_task(once(server))
        await server.wait_for_requests(1)
        forget_approvals()
        server.respond_to_all(APPROVAL)
        assert isinstance(await call, Approved)
        assert isinstance(await once(server), Refused)


# The end of a client while a call of another client waits for its request.


async def test_closing_waits_for_the_response_that_another_client_awaits() -> None:
    """Although `within` is over."""
    async with serving(None) as server:
        one = server.client(separate=False)
        first = asyncio.create_task(request(one))
        await server.wait_for_requests(1)
        guest = asyncio.create_task(once(server))
        await turns()
        closing = asyncio.create_task(one.aclose(within=0.0))
        await cancelled(first)
        await turns()
        assert not closing.done()
        server.respond_to_all(APPROVAL)
        await closing
        assert isinstance(await guest, Approved)
        assert server.requests == 1


@pytest.mark.parametrize("joins_late", [False, True], ids=["request begins late", "guest joins late"])
async def test_closing_waits_for_what_begins_while_it_waits(*, joins_late: bool) -> None:
    """The request is written, or the other client joins, after `aclose(within)` has begun."""
    is_valid = asyncio.Event()

    async def token() -> str:
        await is_valid.wait()
        return "secret-token"

    async with serving(None) as server:
        one = server.client(separate=False, auth_token="secret-token" if joins_late else token)
        first = asyncio.create_task(request(one))
        guests = [] if joins_late else [asyncio.create_task(once(server))]
        await (server.wait_for_requests(1) if joins_late else turns())
        closing = asyncio.create_task(one.aclose(within=1.0))
        await turns()
        guests += [asyncio.create_task(once(server))] if joins_late else []
        is_valid.set()
        await server.wait_for_requests(1)
        await asyncio.wait(guests, timeout=1.2)  # longer than `within`
        server.respond_to_all(APPROVAL)
        assert isinstance(await guests[0], Approved)
        assert isinstance(await first, Approved)
        await closing
        assert server.requests == 1


async def test_guest_sends_the_request_that_a_closed_client_has_not_sent() -> None:
    async with serving(None, APPROVAL) as server:
        one = server.client(separate=False, max_concurrency=1)
        busy = asyncio.create_task(request(one, "TSTXYZ00A00A000B"))
        await server.wait_for_requests(1)
        first = asyncio.create_task(request(one))
        await turns()
        guest = asyncio.create_task(once(server))
        await turns()
        await one.aclose(within=0.0)
        assert isinstance(await guest, Approved)
        assert isinstance(await first, LoanError)
        await busy
        assert server.requests == 2


async def test_guest_ends_when_its_own_client_is_closed() -> None:
    async with serving(None) as server:
        first = asyncio.create_task(once(server))
        await server.wait_for_requests(1)
        client = server.client(separate=False)
        guest = asyncio.create_task(request(client))
        await turns()
        await client.aclose(within=0.0)
        assert isinstance(await guest, InFlightError)
        server.respond_to_all(APPROVAL)
        assert isinstance(await first, Approved)


async def test_last_caller_of_another_client_lets_the_request_be_retried() -> None:
    """Callers of all clients count: the first one leaves, and the 500 is still retried."""
    async with serving(None, APPROVAL) as server, server.client(separate=False) as one:
        first = asyncio.create_task(request(one))
        await server.wait_for_requests(1)
        guest = asyncio.create_task(once(server))
        await turns()
        await cancelled(first)
        server.respond_to_all(FAULT)
        assert isinstance(await guest, Approved)
        assert server.requests == 2


# Other event loops and threads.


def in_other_loop(server: Canned, **options: Any) -> "asyncio.Task[Decision | LoanError]":
    """Request an approval with a new client and a new event loop, in another thread."""
    return asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(once(server, **options))))


@pytest.mark.parametrize("wait", [None, PATIENCE])
async def test_call_of_another_loop_waits_for_the_decision(wait: float | None) -> None:
    async with serving(None) as server:
        first = asyncio.create_task(once(server))
        await server.wait_for_requests(1)
        other = in_other_loop(server, wait=wait)
        server.respond_to_all(APPROVAL)
        assert [type(each) for each in await asyncio.gather(first, other)] == [Approved, Approved]
        assert server.requests == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"wait": 0.0}, InFlightError),
        ({"wait": PATIENCE, "payload": approval_request(amount=99_000)}, PayloadMismatchError),
    ],
    ids=["no wait", "other data"],
)
async def test_call_of_another_loop_sends_no_second_request(options: dict[str, Any], expected: type) -> None:
    async with serving(None) as server:
        first = asyncio.create_task(once(server))
        await server.wait_for_requests(1)
        assert isinstance(await in_other_loop(server, **options), expected)
        server.respond_to_all(APPROVAL)
        assert isinstance(await first, Approved)
        assert server.requests == 1


class Shared:
    """Scripted clients that share one memory, in any event loop."""

    def __init__(self, *steps: Any) -> None:
        self.script = ScriptedTransport(*steps)
        self.memories = Memories()

    def client(self, **options: Any) -> LoanClient:
        client = self.script.client(**options)
        client._flights.shared = self.memories.of(None)
        return client


async def never(_: object) -> Any:
    await asyncio.Event().wait()


def leave_in_flight(
    shared: Shared, client: LoanClient | None = None, *codes: str
) -> tuple[asyncio.AbstractEventLoop, "asyncio.Task[Any]"]:
    """Begin approvals in an event loop that does not run any more. Return the loop and the last call."""
    loop = asyncio.new_event_loop()

    async def begin() -> "asyncio.Task[Any]":
        for code in codes or (FISCAL_CODE,):
            call = asyncio.create_task(request(client or shared.client(), code))
            await turns()
        return call

    return loop, loop.run_until_complete(begin())


def end(tasks: "set[asyncio.Task[Any]]") -> None:
    """End the tasks of a closed loop, as garbage collection does later."""
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()


def test_approval_of_a_closed_loop_is_unknown_for_a_new_client() -> None:
    """The late end of the first request does not replace the decision of the second one."""
    shared = Shared(computed(never), approved())
    other = shared.client()  # made before: a new one ends dead flights
    loop, _ = leave_in_flight(shared)
    tasks = asyncio.all_tasks(loop)
    loop.close()
    assert asyncio.run(other.known(FISCAL_CODE)).state == "unknown"
    blocked = OutcomeUnknownError("approve", "", "unknown", "GeneratorExit")
    assert asyncio.run(request(shared.client())) == blocked
    assert isinstance(asyncio.run(request(shared.client(), repeat_unknown=True)), Approved)
    end(tasks)
    assert isinstance(asyncio.run(request(shared.client())), Approved)
    assert len(shared.script.sent) == 2


def test_approval_of_a_closed_loop_that_was_not_sent_is_released() -> None:
    shared = Shared(computed(never), approved())
    client = shared.client(max_concurrency=1)
    loop, _ = leave_in_flight(shared, client, FISCAL_CODE[:-1] + "B", FISCAL_CODE)
    tasks = asyncio.all_tasks(loop)
    loop.close()
    assert isinstance(asyncio.run(request(shared.client())), Approved)
    end(tasks)


@pytest.mark.parametrize(("seconds", "expected"), [(16.0, InFlightError), (18.1, OutcomeUnknownError)])
def test_approval_of_a_stopped_loop_is_unknown_when_it_is_overdue(seconds: float, expected: type) -> None:
    """After `Timeout.longest`, here 13 s, and 5 s. If the loop runs again, the decision is remembered."""
    step, _, go = held_response(approved())
    shared = Shared(step)
    loop, call = leave_in_flight(shared, shared.client(timeout=Timeout(total=10, attempt=3)))
    shared.script.clock.time += seconds
    assert isinstance(asyncio.run(request(shared.client(), wait=0)), expected)
    loop.call_soon(go.set)
    assert isinstance(loop.run_until_complete(call), Approved)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert isinstance(asyncio.run(request(shared.client())), Approved)
    assert len(shared.script.sent) == 1


def test_late_end_of_an_overdue_approval_does_not_replace_a_decision() -> None:
    step, _, go = held_response(timed_out())
    shared = Shared(step, approved())
    other = shared.client()
    loop, call = leave_in_flight(shared)
    assert asyncio.run(other.known(FISCAL_CODE)).state == "inflight"
    shared.script.clock.time += Timeout().longest + 6
    assert asyncio.run(other.known(FISCAL_CODE)).state == "unknown"
    assert isinstance(asyncio.run(request(shared.client())), OutcomeUnknownError)
    assert isinstance(asyncio.run(request(shared.client(), repeat_unknown=True)), Approved)
    loop.call_soon(go.set)
    assert isinstance(loop.run_until_complete(call), ReadTimeoutError)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert isinstance(asyncio.run(request(shared.client())), Approved)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "stopped"])
def test_memory_keeps_no_client_whose_loop_has_ended(*, is_closed: bool) -> None:
    shared = Shared(computed(never))
    loop, call = leave_in_flight(shared)
    tasks = asyncio.all_tasks(loop)
    if is_closed:
        loop.close()
    else:
        shared.script.clock.time += Timeout().longest + 6
    memory = shared.memories.of(None)  # for a new client
    assert not memory._in_flight
    loop.close()
    end(tasks)
    del call


class Interrupt(BaseException):
    """As KeyboardInterrupt, which would also end pytest."""


def test_interrupt_before_the_request_leaves_no_approval_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(approved())

    def interrupt(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise Interrupt

    async def twice() -> object:
        with pytest.raises(Interrupt):
            await request(shared.client())
        return await request(shared.client())

    monkeypatch.setattr("loanasync._runtime.flights.Flight._prepare", interrupt)
    assert isinstance(asyncio.run(twice()), Approved)


FORK = """
import asyncio, os, sys, warnings
from loanasync import LoanClient, LoanError, Timeout
from loanasync.testing import approval_request

warnings.simplefilter("ignore")  # of forks
REQUEST = approval_request()

async def approve(letter, **options):
    client = LoanClient(sys.argv[1], shop_id="shop", auth_token="token")
    try:
        await client.approve(f"TSTXYZ00A00A000{letter}", REQUEST, **options)
    except LoanError as error:
        return type(error).__name__
    finally:
        await client.aclose()
    return "approved"

async def in_child():
    own = asyncio.create_task(approve("C"))  # gets no response: the parent waits for the child
    await asyncio.sleep(0)
    results = [await approve(letter) for letter in "AB"]
    print(*results, await approve("C", timeout=Timeout(total=0.05)), flush=True)
    os._exit(0)

async def main():
    requests, arrived = [], asyncio.Event()

    async def serve(reader, writer):
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        requests.append(head)
        if b"00B" in head:
            arrived.set()
            await asyncio.sleep(3600)
        writer.write(b'HTTP/1.1 201 OK\\r\\nContent-Length: 17\\r\\n\\r\\n{"approved":true}')

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sys.argv[1:] = ["http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]]
    print(await approve("A"), flush=True)
    calls = [asyncio.create_task(approve("B"))]
    await arrived.wait()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print(len(requests), flush=True)
        os._exit(0)
    asyncio._set_running_loop(None)
    asyncio.run(in_child())

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
def test_new_client_of_a_forked_child_knows_the_approvals_of_the_parent() -> None:
    """A call for an approval that the parent requests does not end those in progress in the child."""
    done = run_script(FORK)
    expected = "approved\napproved OutcomeUnknownError InFlightError\n2\n"
    assert done.stdout == expected, done.stderr


WAITING = """
import asyncio, os, sys, warnings
from loanasync import LoanError
from loanasync.ledger import MemoryLedger
from loanasync.testing import ScriptedTransport, approval_request, approved, computed, denied

warnings.simplefilter("ignore")  # of forks
REQUEST = approval_request()
ledger = MemoryLedger() if sys.argv[1] else None

async def approve(letter, order):
    try:
        return (await client.approve(f"TSTXYZ00A00A000{letter}", REQUEST, order_id=order)).approved
    except LoanError as error:
        return type(error).__name__

async def main():
    global client
    go = asyncio.Event()

    async def hold(_):
        await go.wait()
        return approved()

    script = ScriptedTransport(denied(), computed(hold), approved())
    client = script.client(max_concurrency=1, ledger=ledger)
    print(await approve("B", "A-1"), flush=True)  # released
    calls = [asyncio.create_task(approve(*each)) for each in (("A", ""), ("B", "A-1"))]
    while len(script.sent) < 2:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    for second_order in ("A-1", "A-2"):
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            asyncio._set_running_loop(None)
            print(asyncio.run(approve("B", second_order)), len(script.sent), flush=True)
            os._exit(0)
    go.set()
    print(*await asyncio.gather(*calls), len(script.sent), flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only some systems fork")
@pytest.mark.parametrize("ledger", ["", "MemoryLedger"])
def test_forked_child_sends_no_approval_for_which_its_parent_awaits_a_slot(ledger: str) -> None:
    done = run_script(WAITING, ledger)
    expected = "AccessDeniedError\nOutcomeUnknownError 2\nOutcomeUnknownError 2\nTrue True 3\n"
    assert done.stdout == expected, done.stderr

"""Calls after the event loop was blocked while the server closed connections."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest

from loanasync import LoanClient, Refused, Timeout, TransportError
from loanasync._transport import connection as direct_connection
from loanasync._transport.connection import read_pending, unread_data_check
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import each_path, needs_direct_path
from support.raw_server import PATIENCE, Certificate, authority, certificate, until
from support.separate import SeparateClient


def loops() -> Iterator[Any]:
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    with contextlib.suppress(ImportError):  # not on every platform
        import uvloop  # noqa: PLC0415  (an optional dependency)

        yield pytest.param(uvloop.new_event_loop, id="uvloop")


class ClosingServer:
    """A server in a thread, which closes its connections when a test calls `close_connections`."""

    def __init__(self, scheme: str, *, resets: bool) -> None:
        self.requests = 0
        self._tls = certificate(Certificate.GOOD) if scheme == "https" else None
        self._resets = resets
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._close, self._has_closed = threading.Semaphore(0), threading.Semaphore(0)
        self.holds_responses = False  # until `release_response` is called
        self._respond, self._has_responded = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close_connections(self, count: int = 1) -> None:
        """Close connections, and return when they are closed."""
        for _ in range(count):
            self._close.release()
        for _ in range(count):
            assert self._has_closed.acquire(timeout=PATIENCE)

    def release_response(self) -> None:
        """Send a response that was held back, and return when it is sent."""
        self._respond.release()
        assert self._has_responded.acquire(timeout=PATIENCE)

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for _ in range(20):
            self._close.release()
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        threads = []
        with contextlib.suppress(OSError):  # `stop` closes the socket
            while True:
                connection, _ = self._socket.accept()
                threads.append(threading.Thread(target=self._serve_connection, args=(connection,)))
                threads[-1].start()
        for thread in threads:
            thread.join(PATIENCE)

    def _serve_connection(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # so that data is sent at once
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            read = b""
            while b'"citizenship"' not in read and (more := connection.recv(1 << 16)):
                read += more
            self.requests += 1
            if self.holds_responses:
                self._respond.acquire(timeout=PATIENCE)
            connection.sendall(REFUSAL)
            self._has_responded.release()
            self._close.acquire()
            if self._resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._has_closed.release()


@contextmanager
def closing_server(scheme: str, *, resets: bool = False) -> Iterator[ClosingServer]:
    server = ClosingServer(scheme, resets=resets)
    try:
        yield server
    finally:
        server.stop()


def trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


@pytest.fixture(autouse=True)
def _always_check_after_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_BLOCKED_AFTER", 0.0)


def client_of(server: ClosingServer, **options: Any) -> LoanClient:
    if server.base_url.startswith("https") and "session" not in options:
        options["ssl"] = trust()
    return SeparateClient(server.base_url, shop_id="s", auth_token="t", **options)


def test_new_connection_with_an_unread_session_ticket_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # A server may send session tickets at any time.
    monkeypatch.setattr(direct_connection, "unread_data_check", lambda _: lambda: True)
    with closing_server("https") as server, asyncio.Runner() as runner:
        client = client_of(server)
        assert isinstance(runner.run(approve(client)), Refused)
        server.close_connections()  # aiohttp closes a TLS connection only after the server has done so
        runner.run(client.aclose())


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("new_loop", list(loops()))
def test_call_after_a_blocked_loop_is_sent_once_on_another_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, *, resets: bool
) -> None:
    with closing_server(scheme, resets=resets) as server, asyncio.Runner(loop_factory=new_loop) as runner:
        client = client_of(server)
        for number in range(1, 4):
            assert isinstance(runner.run(approve(client)), Refused)
            assert server.requests == number
            server.close_connections()  # the event loop does not run meanwhile
        runner.run(client.aclose())


async def two(client: LoanClient) -> None:
    await asyncio.gather(approve(client), approve(client))


async def queued_during_a_block(
    client: LoanClient, meanwhile: Callable[[], object], **options: Any
) -> list[object]:
    """Return the results of two calls that are queued while `meanwhile` blocks the event loop."""
    resources: Any = client._pipeline._per_loop.current()
    scheduler = resources.transport._scheduler
    # As if another call were in progress: a single call is written at once, and not queued.
    scheduler.in_progress += 1
    calls = [asyncio.create_task(approve(client, **options)) for _ in range(2)]
    while len(scheduler._queue) < len(calls):  # noqa: ASYNC110  (emptied in the iteration after this)
        await asyncio.sleep(0)
    meanwhile()
    scheduler.in_progress -= 1
    return list(await asyncio.gather(*calls, return_exceptions=True))


@needs_direct_path
@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("new_loop", list(loops()))
def test_calls_queued_during_a_block_are_sent_once_on_new_connections(
    new_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, *, resets: bool
) -> None:
    with closing_server(scheme, resets=resets) as server, asyncio.Runner(loop_factory=new_loop) as runner:
        client = client_of(server)
        runner.run(two(client))
        results = runner.run(queued_during_a_block(client, lambda: server.close_connections(2)))
        assert [type(each) for each in results] == [Refused, Refused]
        assert server.requests == 4
        server.close_connections(2)
        runner.run(client.aclose())


@needs_direct_path
@pytest.mark.parametrize("new_loop", list(loops()))
def test_calls_whose_deadline_passes_during_a_block_are_not_sent(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def wait() -> None:
        began = time.monotonic()
        while time.monotonic() < began + 0.06:
            pass

    with closing_server("http") as server, asyncio.Runner(loop_factory=new_loop) as runner:
        client = client_of(server)
        runner.run(two(client))
        short = Timeout(total=0.05, attempt=0.05, connect=0.04)
        for error in runner.run(queued_during_a_block(client, wait, timeout=short)):
            assert isinstance(error, TransportError)
            assert error.outcome == "not_sent"
        assert server.requests == 2
        runner.run(client.aclose())


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("session", ["own", "shop"])
def test_response_that_arrived_before_the_deadline_is_read_after_a_block(session: str, scheme: str) -> None:
    async def late() -> object:
        options = {}
        if session == "shop":
            options["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust()))
        async with client_of(server, **options) as client:
            call = asyncio.create_task(approve(client))
            await until(lambda: server.requests == 1)
            server.release_response()
            loop: Any = asyncio.get_running_loop()
            loop.time = lambda: (
                time.monotonic() + 2 * Timeout().total
            )  # as if the event loop had been blocked
            result = await call
        for each in options.values():
            await each.close()
        return result

    with closing_server(scheme) as server, asyncio.Runner() as runner:
        server.holds_responses = True
        assert isinstance(runner.run(late()), Refused)
        server.close_connections()


@needs_direct_path
def test_aclose_during_a_tls_shutdown_succeeds() -> None:
    async def close() -> None:
        resources: Any = client._pipeline._per_loop.current()
        (connection,) = resources.transport._scheduler.connections
        connection._transport.close()
        await client.aclose()

    with closing_server("https") as server, asyncio.Runner() as runner:
        client = client_of(server)
        runner.run(approve(client))
        runner.run(close())
        server.close_connections()


@needs_direct_path
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_users_session_takes_another_connection_after_a_blocked_loop(scheme: str) -> None:
    with closing_server(scheme) as server, asyncio.Runner() as runner:

        async def opened() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust()))

        session = runner.run(opened())
        client = client_of(server, session=session)
        assert isinstance(runner.run(approve(client)), Refused)
        for number in (2, 3):
            server.close_connections()
            assert isinstance(runner.run(approve(client)), Refused)
            assert server.requests == number
        server.close_connections()
        runner.run(client.aclose())
        runner.run(session.close())


@each_path
async def test_call_that_gets_a_slot_after_its_deadline_is_not_sent(*, is_direct: bool) -> None:
    """The call waits for the only slot of the user's pool while the event loop is blocked."""
    connector: Any = aiohttp.TCPConnector(limit=1)
    async with serving(None, REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:

        async def send_and_block() -> None:
            async with session.post(server.base_url, data=b"{}") as response:
                await response.read()
            time.sleep(deadline - time.monotonic())  # noqa: ASYNC251  (it blocks the event loop)

        client = server.client(session=session, direct_connections=is_direct)
        theirs = asyncio.create_task(send_and_block())
        await server.wait_for_requests(1)
        call = asyncio.create_task(approve(client, timeout=Timeout(total=0.5)))
        await until(lambda: bool(connector._waiters))
        deadline = time.monotonic() + 0.5
        server.respond_to_all(REFUSAL)
        with pytest.raises(TransportError) as caught:
            await call
        await theirs
        assert (caught.value.outcome, server.requests) == ("not_sent", 1)
        assert isinstance(await approve(client), Refused), "the slot is free"


async def test_unread_data_check_without_an_open_socket_is_false() -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    has_unread_data = unread_data_check(writer.transport)
    assert not has_unread_data()
    there.sendall(b"x")
    assert has_unread_data()
    await read_pending(has_unread_data)
    assert not has_unread_data()
    assert await reader.read(1) == b"x"
    writer.close()
    await writer.wait_closed()
    assert not unread_data_check(writer.transport)()
    assert not unread_data_check(None)()
    there.close()

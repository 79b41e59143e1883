"""A loop that stands still does not see a server hang up; what it asks next must not be lost for that."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import aiohttp
import pytest

from loanasync import LoanClient, Refused, Timeout, TransportError
from loanasync._transport.fast import connection as direct_connection
from loanasync._transport.liveness import read_pending, unread_data_check
from support.canned_server import REFUSAL, approve
from support.raw_server import PATIENCE, Certificate, authority, certificate, until


def loops() -> Iterator[Any]:
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    with contextlib.suppress(ImportError):  # not on every platform
        import uvloop  # noqa: PLC0415  (as said)

        yield pytest.param(uvloop.new_event_loop, id="uvloop")


class HangsUp:
    """Answers, and ends the connection when it is told to, in a thread of its own."""

    def __init__(self, scheme: str, *, resets: bool) -> None:
        self.requests = 0
        self._tls = certificate(Certificate.GOOD) if scheme == "https" else None
        self._resets = resets
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._hang_up, self._has_hung_up = threading.Semaphore(0), threading.Semaphore(0)
        self.holds_back = False  # its answers, until it is told to give one
        self._give, self._has_given = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def hang_up(self, connections: int = 1) -> None:
        """End connections, and return when they have ended."""
        for _ in range(connections):
            self._hang_up.release()
        for _ in range(connections):
            assert self._has_hung_up.acquire(timeout=PATIENCE)

    def give_answer(self) -> None:
        """Answer, and return when the answer has left."""
        self._give.release()
        assert self._has_given.acquire(timeout=PATIENCE)

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for _ in range(20):
            self._hang_up.release()
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        talks = []
        with contextlib.suppress(OSError):  # it is closed in order to stop
            while True:
                connection, _ = self._socket.accept()
                talks.append(threading.Thread(target=self._talk, args=(connection,)))
                talks[-1].start()
        for talk in talks:
            talk.join(PATIENCE)

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what was given has left
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            read = b""
            while b'"citizenship"' not in read and (more := connection.recv(1 << 16)):
                read += more
            self.requests += 1
            if self.holds_back:
                self._give.acquire(timeout=PATIENCE)
            connection.sendall(REFUSAL)
            self._has_given.release()
            self._hang_up.acquire()
            if self._resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._has_hung_up.release()


@contextmanager
def hanging_up(scheme: str, *, resets: bool = False) -> Iterator[HangsUp]:
    server = HangsUp(scheme, resets=resets)
    try:
        yield server
    finally:
        server.stop()


def trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


@pytest.fixture(autouse=True)
def a_moment_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_connection, "_BLOCKED_AFTER", 0.0)


def of(server: HangsUp, **options: Any) -> LoanClient:
    if server.base_url.startswith("https") and "session" not in options:
        options["ssl"] = trust()
    return LoanClient(server.base_url, shop_id="s", auth_token="t", remember=False, **options)


def test_new_connection_with_an_unread_session_ticket_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # A server may send session tickets at any time.
    monkeypatch.setattr(direct_connection, "unread_data_check", lambda _: lambda: True)
    with hanging_up("https") as server, asyncio.Runner() as cells:
        client = of(server)
        assert isinstance(cells.run(approve(client)), Refused)
        cells.run(client.aclose())


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("new_loop", list(loops()))
def test_call_after_a_blocked_loop_is_sent_once_on_another_connection(
    new_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, *, resets: bool
) -> None:
    with hanging_up(scheme, resets=resets) as server, asyncio.Runner(loop_factory=new_loop) as cells:
        client = of(server)
        for number in range(1, 4):
            assert isinstance(cells.run(approve(client)), Refused)
            assert server.requests == number
            server.hang_up()  # and the loop stands still
        cells.run(client.aclose())


def test_concurrent_calls_after_a_blocked_loop_use_new_connections() -> None:
    async def eight() -> list[object]:
        return list(await asyncio.gather(*(approve(client) for _ in range(8))))

    with hanging_up("http") as server, asyncio.Runner() as cells:
        client = of(server)
        for number in (8, 16):
            assert {type(each) for each in cells.run(eight())} == {Refused}
            assert server.requests == number
            server.hang_up(8)
        cells.run(client.aclose())


async def two(client: LoanClient) -> None:
    await asyncio.gather(approve(client), approve(client))


async def asked_meanwhile(
    client: LoanClient, meanwhile: Callable[[], object], **options: Any
) -> list[object]:
    """What comes of two calls that wait for their turn to be sent while the loop stands still."""
    lane: Any = client._pipeline._per_loop.current()
    lane.transport._scheduler.in_progress += (
        1  # as beside another call, since one that is alone is sent at once
    )
    calls = [asyncio.create_task(approve(client, **options)) for _ in range(2)]
    await asyncio.sleep(0)
    meanwhile()
    lane.transport._scheduler.in_progress -= 1
    return list(await asyncio.gather(*calls, return_exceptions=True))


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("new_loop", list(loops()))
def test_calls_queued_during_a_block_are_sent_once_on_new_connections(
    new_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, *, resets: bool
) -> None:
    with hanging_up(scheme, resets=resets) as server, asyncio.Runner(loop_factory=new_loop) as cells:
        client = of(server)
        cells.run(two(client))
        came = cells.run(asked_meanwhile(client, lambda: server.hang_up(2)))
        assert [type(each) for each in came] == [Refused, Refused]
        assert server.requests == 4
        server.hang_up(2)
        cells.run(client.aclose())


@pytest.mark.parametrize("new_loop", list(loops()))
def test_calls_whose_deadline_passes_during_a_block_are_not_sent(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    def wait() -> None:
        began = time.monotonic()
        while time.monotonic() < began + 0.06:
            pass

    with hanging_up("http") as server, asyncio.Runner(loop_factory=new_loop) as cells:
        client = of(server)
        cells.run(two(client))
        short = Timeout(total=0.05, attempt=0.05, connect=0.04)
        for error in cells.run(asked_meanwhile(client, wait, timeout=short)):
            assert isinstance(error, TransportError)
            assert error.outcome == "not_sent"
        assert server.requests == 2
        cells.run(client.aclose())


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("session", ["own", "shop"])
def test_response_that_arrived_before_the_deadline_is_read_after_a_block(session: str, scheme: str) -> None:
    async def late() -> object:
        options = {}
        if session == "shop":
            options["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust()))
        async with of(server, **options) as client:
            call = asyncio.create_task(approve(client))
            await until(lambda: server.requests == 1)
            server.give_answer()
            loop: Any = asyncio.get_running_loop()
            loop.time = lambda: time.monotonic() + 2 * Timeout().total  # as if it had stood still since then
            came = await call
        for each in options.values():
            await each.close()
        return came

    with hanging_up(scheme) as server, asyncio.Runner() as cells:
        server.holds_back = True
        assert isinstance(cells.run(late()), Refused)
        server.hang_up()


def test_aclose_during_a_tls_shutdown_succeeds() -> None:
    async def close() -> None:
        lane: Any = client._pipeline._per_loop.current()
        (connection,) = lane.transport._scheduler.connections
        connection._transport.close()
        await client.aclose()

    with hanging_up("https") as server, asyncio.Runner() as cells:
        client = of(server)
        cells.run(approve(client))
        cells.run(close())
        server.hang_up()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_users_session_takes_another_connection_after_a_blocked_loop(scheme: str) -> None:
    with hanging_up(scheme) as server, asyncio.Runner() as cells:

        async def opened() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust()))

        session = cells.run(opened())
        client = of(server, session=session)
        assert isinstance(cells.run(approve(client)), Refused)
        for number in (2, 3):
            server.hang_up()
            assert isinstance(cells.run(approve(client)), Refused)
            assert server.requests == number
        server.hang_up()
        cells.run(client.aclose())
        cells.run(session.close())


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


async def test_read_pending_ends_although_data_stays_unread() -> None:
    here, there = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    cast("asyncio.Transport", writer.transport).pause_reading()
    there.sendall(b"x")
    has_unread_data = unread_data_check(writer.transport)
    await read_pending(has_unread_data)
    assert has_unread_data()
    there.close()
    writer.close()
    await writer.wait_closed()

"""Calls after the event loop was blocked, while the server closed connections or responded."""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import aiohttp
import pytest

from loanasync import ConnectError, Refused, Timeout, TransportError
from loanasync._transport.connection import Scheduler
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import client_of, each_direct_session, each_path, needs_direct_path
from support.raw_server import PATIENCE, Certificate, certificate, until
from support.virtual_time import StoppedClock, turns


def loops() -> Iterator[Any]:
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    with contextlib.suppress(ImportError):  # not on every platform
        import uvloop  # noqa: PLC0415  (an optional dependency)

        yield pytest.param(uvloop.new_event_loop, id="uvloop")


class ThreadedServer:
    """A server in threads, which reads one request on each connection and leaves it open."""

    def __init__(self, scheme: str, *, responds_first: bool = False) -> None:
        self.requests = 0
        self.resets = False  # instead of closing
        self.may_respond, self.has_responded = threading.Event(), threading.Event()
        self.may_respond.set()
        self._responds_first = responds_first
        self._tls = certificate(Certificate.GOOD) if scheme == "https" else None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close_connections(self) -> None:
        """Close all connections, in the thread of the caller."""
        for connection in self._open:
            if self.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        self._open.clear()

    def stop(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.close_connections()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # `stop` closes the socket
            while True:
                connection, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # so that data is sent at once
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        self._open.append(connection)
        with contextlib.suppress(OSError):  # the client hangs up on a response without a request
            if self._responds_first:
                connection.sendall(REFUSAL)
                self.has_responded.set()
            read = b""
            while b'"citizenship"' not in read and (more := connection.recv(1 << 16)):
                read += more
            self.requests += bool(read)
            self.may_respond.wait(PATIENCE)
            connection.sendall(REFUSAL)
            self.has_responded.set()


@contextmanager
def threaded_server(scheme: str, **options: bool) -> Iterator[ThreadedServer]:
    server = ThreadedServer(scheme, **options)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("end", ["closed", "reset"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("new_loop", list(loops()))
@each_direct_session
def test_call_after_a_blocked_loop_is_sent_once_on_another_connection(
    session: str, new_loop: Callable[[], asyncio.AbstractEventLoop], scheme: str, end: str
) -> None:
    async def call() -> None:
        async with client_of(server.base_url, session) as client:
            for number in range(1, 4):
                assert isinstance(await approve(client), Refused)
                assert server.requests == number
                server.close_connections()  # the event loop does not run meanwhile

    with threaded_server(scheme) as server, asyncio.Runner(loop_factory=new_loop) as runner:
        server.resets = end == "reset"
        runner.run(call())


@pytest.mark.parametrize("scheme", ["http", "https"])
@each_direct_session
def test_response_that_arrived_before_the_deadline_is_read_after_a_block(session: str, scheme: str) -> None:
    async def late() -> object:
        clock = StoppedClock()
        async with client_of(server.base_url, session) as client:
            call = asyncio.create_task(approve(client))
            await until(lambda: server.requests == 1)
            server.may_respond.set()
            server.has_responded.wait(PATIENCE)
            clock.passed = 2 * Timeout().total
            return await call

    with threaded_server(scheme) as server:
        server.may_respond.clear()
        assert isinstance(asyncio.run(late()), Refused)


@pytest.mark.parametrize("scheme", ["http", "https"])
@each_direct_session
def test_response_before_any_request_is_refused(
    session: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives while the event loop is blocked, so the client cannot have read it."""
    connected = aiohttp.TCPConnector._create_connection

    async def connect_and_block(self: aiohttp.TCPConnector, *args: Any) -> Any:
        made = await connected(self, *args)
        while not server.has_responded.is_set():
            os.sched_yield()
        return made

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", connect_and_block)

    async def call() -> None:
        async with client_of(server.base_url, session) as client:
            with pytest.raises(ConnectError) as caught:
                await approve(client)
            assert caught.value.outcome == "not_sent"

    with threaded_server(scheme, responds_first=True) as server:
        asyncio.run(call())
        assert server.requests == 0


@each_direct_session
async def test_connection_that_opens_after_the_deadline_is_not_used(
    session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, connected = StoppedClock(), aiohttp.TCPConnector._create_connection

    async def connect_and_block(self: aiohttp.TCPConnector, *args: Any) -> Any:
        made = await connected(self, *args)
        clock.passed = 1.0
        return made

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", connect_and_block)
    async with serving(REFUSAL) as server, client_of(server.base_url, session) as client:
        with pytest.raises(ConnectError) as caught:
            await approve(client, timeout=Timeout(total=1, attempt=1))
        assert (caught.value.outcome, server.requests) == ("not_sent", 0)


@each_path
async def test_call_that_gets_a_slot_after_its_deadline_is_not_sent(*, is_direct: bool) -> None:
    """The call waits for the only slot of the user's pool while the event loop is blocked."""
    clock, connector = StoppedClock(), cast("Any", aiohttp.TCPConnector(limit=1))
    async with serving(None, REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:

        async def send_and_block() -> None:
            async with session.post(server.base_url, data=b"{}") as response:
                await response.read()
            clock.passed = 1.0

        client = server.client(session=session, direct_connections=is_direct)
        theirs = asyncio.create_task(send_and_block())
        await server.wait_for_requests(1)
        call = asyncio.create_task(approve(client, timeout=Timeout(total=1)))
        await until(lambda: bool(connector._waiters))
        server.respond_to_all(REFUSAL)
        with pytest.raises(TransportError) as caught:
            await call
        await theirs
        assert (caught.value.outcome, server.requests) == ("not_sent", 1)
        assert isinstance(await approve(client), Refused), "the slot is free"


@needs_direct_path
@pytest.mark.parametrize(
    ("scheme", "end"), [("http", "closed"), ("http", "reset"), ("https", "closed"), ("http", "deadline")]
)
def test_request_that_was_queued_before_a_block_is_checked_again(scheme: str, end: str) -> None:
    """The second call blocks the event loop between the queueing and the writing of the first call."""

    async def results() -> list[object]:
        clock, calls = StoppedClock(), count(1)

        def token() -> str:
            """Return the token; each call asks for it before it sends its request."""
            if next(calls) == 5:
                clock.passed = 0.6 if end == "deadline" else 0.1
                if end != "deadline":
                    server.close_connections()
            return "token"

        timeout = Timeout(total=0.5, attempt=0.5)
        async with client_of(server.base_url, auth_token=token, timeout=timeout) as client:
            await asyncio.gather(approve(client), approve(client))  # opens two connections
            held = asyncio.create_task(approve(client))  # while it is in progress, requests are queued
            await turns(10)
            return [*await asyncio.gather(approve(client), approve(client), held, return_exceptions=True)]

    with threaded_server(scheme) as server:
        server.resets = end == "reset"
        first, second, _ = asyncio.run(results())
        if end == "deadline":
            assert isinstance(first, TransportError)
            assert first.outcome == "not_sent"
        else:
            assert [type(first), type(second), server.requests] == [Refused, Refused, 4]


@needs_direct_path
async def test_request_queued_on_a_new_connection_is_sent_after_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, add = StoppedClock(), Scheduler.add

    def add_and_block(*arguments: Any) -> None:
        add(*arguments)
        clock.passed = 2.0

    monkeypatch.setattr(Scheduler, "add", add_and_block)
    async with serving(None, REFUSAL) as server, server.client() as client:
        held = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        [result] = await asyncio.gather(approve(client), return_exceptions=True)
        server.respond_to_all(REFUSAL)
        assert [type(result), type(await held)] == [Refused, Refused]

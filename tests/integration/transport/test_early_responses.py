"""A response that arrives before the request is not taken for its response."""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
import pytest

from loanasync import ConnectError, LoanClient
from support.canned_server import APPROVAL, approve
from support.direct_path import each_direct_session
from support.raw_server import PATIENCE, Certificate, authority, certificate


class Hasty:
    """A server in a thread that responds on each connection before it reads a request."""

    def __init__(self, scheme: str) -> None:
        self.has_sent = threading.Event()
        self.requests = 0
        self._tls = certificate(Certificate.GOOD) if scheme == "https" else None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        with suppress(OSError):  # `stop` closes the socket
            while True:
                connection, _ = self._socket.accept()
                with suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(PATIENCE)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True)
        with connection:
            connection.sendall(APPROVAL)
            self.has_sent.set()
            self.requests += bool(connection.recv(1 << 16))


@contextmanager
def hasty(scheme: str) -> Iterator[Hasty]:
    server = Hasty(scheme)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("scheme", ["http", "https"])
@each_direct_session
def test_response_before_any_request_is_refused(
    session: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = aiohttp.TCPConnector._create_connection

    async def sent_before_we_go_on(self: aiohttp.TCPConnector, *args: Any) -> Any:
        made = await connected(self, *args)
        while not server.has_sent.is_set():  # the event loop is blocked: it cannot read the response
            os.sched_yield()
        return made

    monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", sent_before_we_go_on)

    async def call() -> BaseException:
        trust = ssl.create_default_context()
        authority().configure_trust(trust)
        options: dict[str, Any] = {"shop_id": "s", "auth_token": "t"}
        options["direct_connections"] = "through aiohttp" not in session
        users = None
        if session.startswith("users"):
            users = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))
            options["session"] = users
        else:
            options["ssl"] = trust
        async with LoanClient(server.base_url, **options) as client:
            with pytest.raises(ConnectError) as caught:
                await approve(client)
        if users is not None:
            await users.close()
        return caught.value

    with hasty(scheme) as server:
        error = asyncio.run(call())
        assert isinstance(error, ConnectError)
        assert error.outcome == "not_sent"
    assert server.requests == 0

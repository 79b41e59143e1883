"""A user's session with a proxy, which tunnels TLS and cannot read the requests."""

import asyncio
import contextlib
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from unittest import mock

import aiohttp
import pytest

from loanasync import Approved, ConnectError, LoanClient
from loanasync._transport.aiohttp_session import SessionTransport
from support.builders import FISCAL_CODE, approval_request
from support.direct_path import each_path
from support.faults.row import http
from support.raw_server import Certificate, Play, RawServer, authority, certificate, running, until
from support.separate import SeparateClient

RESPONSE = (Play.READ, http("201 Created", b'{"approved": true}'))
TOKEN = "token-of-the-shop"


class Proxy:
    """A proxy that opens tunnels, or responds with an error; it records the tunnelled bytes."""

    def __init__(self, *, status: str = "200 Connection established") -> None:
        self.received = b""
        self._status = status
        self._tunnels = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await until(lambda: not self._tunnels)

    async def _serve(self, shop: asyncio.StreamReader, to_shop: asyncio.StreamWriter) -> None:
        self._tunnels += 1
        head = await shop.readuntil(b"\r\n\r\n")
        self.received += head
        to_shop.write(f"HTTP/1.1 {self._status}\r\nContent-Length: 0\r\n\r\n".encode())
        if self._status.startswith("200"):
            host, port = head.split()[1].decode().rsplit(":", 1)
            service, to_service = await asyncio.open_connection(host, int(port))
            await asyncio.gather(self._pass(shop, to_service), self._pass(service, to_shop, keep=False))
        to_shop.close()
        self._tunnels -= 1

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep: bool = True
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                self.received += part if keep else b""
                writer.write(part)
        writer.close()


@asynccontextmanager
async def shop(service: str, proxy: str, *, is_direct: bool, **headers: str) -> AsyncIterator[LoanClient]:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(trusting)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        users = aiohttp.ClientSession(
            proxy=proxy,
            proxy_auth=aiohttp.BasicAuth("shop", "secret"),
            connector=aiohttp.TCPConnector(ssl=trusting),
            headers=headers,
        )
    async with (
        users as session,
        SeparateClient(
            service,
            shop_id="s",
            auth_token=TOKEN,
            session=session,
            direct_connections=is_direct,
        ) as client,
    ):
        yield client


@each_path
async def test_approval_through_a_proxy_is_not_readable_by_it(*, is_direct: bool) -> None:
    proxy = Proxy()
    async with (
        running(RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
        shop(server.base_url, address, is_direct=is_direct) as client,
    ):
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)
    assert proxy.received.startswith(b"CONNECT 127.0.0.1:")
    assert len(proxy.received) > 1000
    for secret in (TOKEN.encode(), FISCAL_CODE.encode(), b"/api/shops/"):
        assert secret not in proxy.received
        assert secret in server.requests[0]


@pytest.mark.parametrize("headers", [{}, {"X-Shop": "a"}], ids=["no headers", "headers"])
@each_path
async def test_calls_through_a_proxy_use_tunnels(headers: dict[str, str], *, is_direct: bool) -> None:
    """Direct calls share one tunnel; each request through aiohttp has a new one."""
    proxy = Proxy()
    async with (
        running(RawServer(RESPONSE * 2, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
        shop(server.base_url, address, is_direct=is_direct, **headers) as client,
    ):
        other_path = mock.patch.object(SessionTransport, "send", side_effect=AssertionError)
        with other_path if is_direct else nullcontext():
            for _ in range(2):
                assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)
    tunnels = 1 if is_direct else 2
    assert (server.accepted, len(server.requests)) == (tunnels, 2)
    head = proxy.received.partition(b"\r\n\r\n")[0]
    assert proxy.received.count(b"CONNECT ") == tunnels
    assert b"Proxy-Authorization: Basic " in head
    assert (b"X-Shop: a" in head) == bool(headers), "aiohttp sends the default headers to the proxy, too"


@each_path
@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "403 Forbidden", "502 Bad Gateway"])
async def test_request_refused_by_a_proxy_is_not_sent(status: str, *, is_direct: bool) -> None:
    proxy = Proxy(status=status)
    async with (
        running(RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
        shop(server.base_url, address, is_direct=is_direct) as client,
    ):
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
        assert caught.value.outcome == "not_sent"
    assert server.requests == []


@each_path
async def test_unreachable_proxy_is_a_connect_error(*, is_direct: bool) -> None:
    async with Proxy().running() as closed:
        pass
    async with shop("https://loans.example.com", closed, is_direct=is_direct) as client:
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert caught.value.outcome == "not_sent"


async def test_own_session_ignores_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would also read credentials from .netrc."""
    proxy = Proxy()
    async with running(RawServer(RESPONSE)) as server, proxy.running() as address:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("no_proxy", "")
        async with LoanClient(
            server.base_url, shop_id="s", auth_token=TOKEN, direct_connections=False
        ) as client:
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)
    assert proxy.received == b""

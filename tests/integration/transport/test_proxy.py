"""A proxy, which tunnels TLS and cannot read the requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from traceback import walk_tb
from typing import Any

import aiohttp
import pytest

from loanasync import Approved, ConfigurationError, ConnectError, LoanClient
from loanasync.testing import ScriptedTransport
from support.builders import FISCAL_CODE
from support.canned_server import approve
from support.direct_path import client_of, is_direct, needs_direct_path
from support.faults.row import http
from support.raw_server import Certificate, Play, RawServer, certificate, running, until

RESPONSE = (Play.READ, http("201 Created", b'{"approved": true, "fiscalCode": "TSTXYZ00A00A000A"}'))
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


each_own_session = pytest.mark.parametrize(
    "session", [pytest.param("own", marks=needs_direct_path), "own, through aiohttp"]
)


@each_own_session
@pytest.mark.parametrize("is_env", [False, True], ids=["URL", "env"])
async def test_approvals_through_a_proxy_are_not_readable_by_it(
    session: str, monkeypatch: pytest.MonkeyPatch, *, is_env: bool
) -> None:
    """Direct calls share one tunnel; each request through aiohttp has a new one."""
    proxy = Proxy()
    async with (
        running(RawServer(RESPONSE * 2, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
    ):
        with_password = address.replace("//", "//shop:secret@")
        monkeypatch.setenv("https_proxy", with_password)
        monkeypatch.setenv("no_proxy", "localhost")
        proxy_setting = "env" if is_env else with_password
        async with client_of(server.base_url, session, auth_token=TOKEN, proxy=proxy_setting) as client:
            for _ in range(2):
                assert isinstance(await approve(client), Approved)
    tunnels = 1 if is_direct(session) else 2
    assert (server.accepted, len(server.requests)) == (tunnels, 2)
    head = proxy.received.partition(b"\r\n\r\n")[0]
    assert proxy.received.count(b"CONNECT 127.0.0.1:") == tunnels
    assert b"Proxy-Authorization: Basic c2hvcDpzZWNyZXQ=" in head
    assert len(proxy.received) > 1000
    for secret in (TOKEN.encode(), FISCAL_CODE.encode(), b"/api/shops/"):
        assert secret not in proxy.received
        assert secret in server.requests[0]


@each_own_session
@pytest.mark.parametrize("status", ["407 Proxy Authentication Required", "403 Forbidden", "502 Bad Gateway"])
async def test_request_refused_by_a_proxy_is_not_sent(session: str, status: str) -> None:
    proxy = Proxy(status=status)
    async with (
        running(RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
        client_of(server.base_url, session, proxy=address) as client,
    ):
        with pytest.raises(ConnectError) as caught:
            await approve(client)
    code = status.partition(" ")[0]
    message = f"the proxy refused the connection; check proxy (ClientHttpProxyError status {code})"
    assert (caught.value.outcome, message in str(caught.value)) == ("not_sent", True)
    assert server.requests == []


@each_own_session
async def test_unreachable_proxy_is_a_connect_error(session: str) -> None:
    async with Proxy().running() as closed:
        pass
    async with client_of("https://loans.example.com", session, proxy=closed) as client:
        with pytest.raises(ConnectError) as caught:
            await approve(client)
    message = "no connection to the proxy; check proxy and the network (ClientProxyConnectionError"
    assert (caught.value.outcome, message in str(caught.value)) == ("not_sent", True)


@pytest.mark.parametrize("proxy", [None, "env"])
@each_own_session
async def test_request_on_this_machine_ignores_the_proxy_of_the_environment(
    session: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over http, the proxy would read it."""
    seen = Proxy()
    async with running(RawServer(RESPONSE)) as server, seen.running() as address:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("no_proxy", "")
        async with client_of(server.base_url, session, proxy=proxy) as client:
            assert isinstance(await approve(client), Approved)
    assert seen.received == b""


@each_own_session
async def test_host_that_the_environment_excludes_is_called_without_the_proxy(
    session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy()
    async with (
        running(RawServer(RESPONSE, tls=certificate(Certificate.GOOD), scheme="https")) as server,
        proxy.running() as address,
    ):
        monkeypatch.setenv("https_proxy", address)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with client_of(server.base_url, session, proxy="env") as client:
            assert isinstance(await approve(client), Approved)
    assert proxy.received == b""


HTTPS, LOCAL = "https://loans.example.com", "http://127.0.0.1:8000"
INVALID = [
    *("", "proxy:3128", "http://", "http://h\n", 1),
    "socks5://shop:hidden@proxy",
    "http://hidden:x@h:0x1",
]
MESSAGE = 'proxy: must be a URL such as http://proxy.example.com:3128, or "env"'


@pytest.mark.parametrize(
    ("base_url", "proxy", "message"),
    [
        *[(HTTPS, each, MESSAGE) for each in INVALID],
        (
            HTTPS,
            "http://shop:hidden%E2%82%AC@proxy",
            "proxy: must have a user name and a password in Latin-1",
        ),
        (HTTPS, "http://shop%3Ahidden:x@proxy", "proxy: must have a user name without a colon"),
        (LOCAL, "http://proxy:3128", "proxy: needs a base_url with https, or the proxy would read"),
    ],
)
def test_invalid_proxy_is_refused_without_showing_it(base_url: str, proxy: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LoanClient(base_url, shop_id="s", auth_token="t", proxy=proxy)
    assert str(caught.value).startswith(message)
    assert "hidden" not in str(caught.value)
    frames = [frame for frame, _ in walk_tb(caught.value.__traceback__)][1:]
    assert "hidden" not in repr([dict(frame.f_locals) for frame in frames])


async def test_proxy_with_a_session_or_a_transport_is_refused() -> None:
    async with aiohttp.ClientSession() as session:
        for others in ({"session": session}, {"transport": ScriptedTransport}):
            with pytest.raises(ConfigurationError, match=r"^proxy: cannot be used with"):
                LoanClient(HTTPS, shop_id="s", auth_token="t", proxy="http://proxy:3128", **others)

"""Results of the transport with servers that misbehave, over real sockets."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ConnectionKey

from loanasync import (
    Approved,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    DeadlineExceededError,
    LoanClient,
    LoanError,
    ReadTimeoutError,
    Refused,
    RetryPolicy,
    Timeout,
)
from loanasync._transport.failures import no_response
from support.builders import FISCAL_CODE, approval_request
from support.direct_path import each_path
from support.separate import SeparateClient

QUICK = Timeout(total=10, attempt=0.6, connect=0.5)


def response_bytes(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class Peer:
    """A server that reads whole requests and plays a script of raw bytes."""

    def __init__(self, *scripts: bytes | None, reset: bool = False, close: bool = True) -> None:
        self.scripts = list(scripts)
        self.requests: list[bytes] = []
        self.reset = reset
        self.close = close
        self.base_url = ""
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                script = self.scripts.pop(0)
                if script is None:
                    continue
                writer.write(script)
                await writer.drain()
                if self.reset:
                    raw: socket.socket = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if self.close or self.reset:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(peer: Peer) -> AsyncIterator[Peer]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    peer.base_url = f"http://{host}:{port}"
    try:
        yield peer
    finally:
        server.close()
        await asyncio.gather(*peer.tasks)  # each ends when its client has closed the connection


async def outcome(peer: Peer, timeout: Timeout = QUICK) -> object:
    async with (
        serving(peer),
        LoanClient(peer.base_url, shop_id="s", auth_token="t", timeout=timeout) as client,
    ):
        try:
            return await client.approve(FISCAL_CODE, approval_request(), retry=RetryPolicy(base=0.001))
        except LoanError as error:
            return error


APPROVAL = b'{"approved": true}'
REFUSAL = b'{"approved": false}'


class NoNames(AbstractResolver):
    async def resolve(self, host: str, *_: Any, **__: Any) -> list[ResolveResult]:
        raise OSError(None, f"no such name: {host}")

    async def close(self) -> None:
        pass


async def test_host_without_an_address_is_not_sent() -> None:
    connector = aiohttp.TCPConnector(resolver=NoNames())
    async with aiohttp.ClientSession(connector=connector) as session:
        client = LoanClient("https://loans.example.com", shop_id="s", auth_token="t", session=session)
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("not_sent", "ClientConnectorDNSError")


async def test_silent_server_beyond_the_deadline_is_deadline_exceeded() -> None:
    error = await outcome(Peer(None), Timeout(total=0.1, attempt=5, connect=1))
    assert isinstance(error, DeadlineExceededError)
    assert error.outcome == "unknown"


@each_path
async def test_users_session_is_not_changed_and_not_closed(*, is_direct: bool) -> None:
    repeats = 0

    async def repeating(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        nonlocal repeats
        repeats += 1
        return await handler(request)

    peer = Peer(response_bytes("422 No", REFUSAL))
    async with (
        serving(peer),
        aiohttp.ClientSession(
            middlewares=(repeating,), raise_for_status=True, headers={"X-Proxy": "yes"}
        ) as session,
    ):
        async with LoanClient(
            peer.base_url, shop_id="s", auth_token="t", session=session, direct_connections=is_direct
        ) as client:
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)
        assert not session.closed
        assert (repeats, len(peer.requests)) == (0, 1)
        assert b"x-proxy: yes" in peer.requests[0].lower()


@each_path
async def test_timeouts_of_the_users_session_are_ignored(*, is_direct: bool) -> None:
    never = aiohttp.ClientTimeout(total=1e-9, connect=1e-9, sock_connect=1e-9, sock_read=1e-9)
    peer = Peer(response_bytes("201 Created", APPROVAL))
    async with serving(peer), aiohttp.ClientSession(timeout=never) as session:
        client = LoanClient(
            peer.base_url, shop_id="s", auth_token="t", session=session, direct_connections=is_direct
        )
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


@pytest.mark.parametrize("charset", ["utf-16", "cp500", "rot13", "no-such-codec"])
async def test_response_is_read_as_utf_8_with_any_charset(charset: str) -> None:
    kind = f"Content-Type: application/json; charset={charset}"
    decision = await outcome(
        Peer(response_bytes("201 Created", '{"approved": true, "city": "Forlì"}'.encode(), kind))
    )
    assert isinstance(decision, Approved)
    assert decision.city == "Forlì"


async def test_closed_session_of_the_user_is_a_configuration_error() -> None:
    async with aiohttp.ClientSession() as session:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
    with pytest.raises(ConfigurationError, match="session: is closed"):
        await client.approve(FISCAL_CODE, approval_request())


@each_path
async def test_users_session_closed_between_attempts_is_unknown(*, is_direct: bool) -> None:
    peer = Peer(response_bytes("500 Oops", b"{}"), close=False)
    async with serving(peer), aiohttp.ClientSession() as session:
        client = LoanClient(
            peer.base_url, shop_id="s", auth_token="t", session=session, direct_connections=is_direct
        )

        async def close(_: float) -> None:
            await session.close()

        client._pipeline.sleep = close
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("unknown", "SessionClosed")


def test_session_of_another_event_loop_is_a_configuration_error() -> None:
    async def make() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def use(session: aiohttp.ClientSession) -> None:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
        with pytest.raises(ConfigurationError, match="belongs to another event loop"):
            await client.approve(FISCAL_CODE, approval_request())
        await session.close()

    session = asyncio.run(make())
    asyncio.run(use(session))


def test_session_of_another_type_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="session: must be of type ClientSession, not str"):
        LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session="x")  # type: ignore[arg-type]


async def test_sequential_calls_share_a_connection() -> None:
    peer = Peer(*[response_bytes("201 Created", APPROVAL)] * 5, close=False)
    async with serving(peer), LoanClient(peer.base_url, shop_id="s", auth_token="t") as client:
        for _ in range(5):
            await client.approve(FISCAL_CODE, approval_request())
        assert len(peer.tasks) == 1


async def test_own_session_keeps_no_cookies_and_ignores_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    peer = Peer(
        response_bytes("422 No", REFUSAL, "Set-Cookie: a=b"), response_bytes("422 No", REFUSAL), close=False
    )
    async with serving(peer):
        # A cookie jar accepts cookies from host names only, not from IP addresses.
        address = peer.base_url.replace("127.0.0.1", "localhost")
        client = SeparateClient(address, shop_id="s", auth_token="t")
        for _ in range(2):
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)
        await client.aclose()
    assert b"cookie" not in peer.requests[1].lower()
    assert b"authorization" not in peer.requests[0].lower()


async def test_concurrent_calls_use_separate_connections() -> None:
    peer = Peer(*[None] * 3)
    async with (
        serving(peer),
        SeparateClient(peer.base_url, shop_id="s", auth_token="t", timeout=QUICK) as client,
    ):
        calls = (client.approve(FISCAL_CODE, approval_request()) for _ in range(3))
        errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ReadTimeoutError] * 3
    assert len(peer.requests) == 3


KEY = ConnectionKey("loans.example.com", 443, True, True, None, None, None)  # noqa: FBT003  (aiohttp's form)


# An error of aiohttp, whether the request is unsent, and the expected class, outcome and cause.
@pytest.mark.parametrize(
    ("error", "is_unsent", "kind", "sent", "cause"),
    [
        (
            aiohttp.ClientConnectorError(KEY, OSError(111, "x")),
            False,
            ConnectError,
            False,
            "ClientConnectorError errno 111",
        ),
        (aiohttp.ConnectionTimeoutError("x"), False, ConnectError, False, "ConnectionTimeoutError"),
        (
            aiohttp.ClientConnectionResetError("closing"),
            True,
            ConnectError,
            False,
            "ClientConnectionResetError",
        ),
        (aiohttp.ClientOSError(None, "closing"), True, ConnectError, False, "ClientOSError"),
        (aiohttp.ClientOSError(None, "lost"), False, ConnectionLostError, True, "ClientOSError"),
        (aiohttp.ClientOSError(104, "reset"), False, ConnectionLostError, True, "ClientOSError errno 104"),
        (aiohttp.ServerDisconnectedError(), False, ConnectionLostError, True, "ServerDisconnectedError"),
        (aiohttp.ClientPayloadError("x"), False, ConnectionLostError, True, "ClientPayloadError"),
        (aiohttp.SocketTimeoutError("x"), False, ReadTimeoutError, True, "SocketTimeoutError"),
        (TimeoutError(), False, ReadTimeoutError, True, "TimeoutError"),
        (TimeoutError(), True, ConnectError, False, "TimeoutError"),
        (OSError(32, "pipe"), False, ConnectionLostError, True, "BrokenPipeError errno 32"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_no_response_maps_each_aiohttp_error(
    error: Exception,
    is_unsent: bool,  # noqa: FBT001  (parametrised)
    kind: type,
    sent: bool,  # noqa: FBT001  (parametrised)
    cause: str,
) -> None:
    result = no_response(error, is_unsent=is_unsent)
    assert (result.error, result.is_sent, result.cause_type) == (kind, sent, cause)

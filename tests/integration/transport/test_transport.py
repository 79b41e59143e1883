"""What the transport says of a peer that misbehaves, over real sockets."""

import asyncio
import contextlib
import gzip
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
    TransportError,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._transport.failures import no_response
from support.builders import FISCAL_CODE, approval_request

QUICK = Timeout(total=10, attempt=0.6, connect=0.5)


def answer(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
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
        self.talks: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks.add(asyncio.create_task(self._talk(reader, writer)))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        await asyncio.gather(*peer.talks)  # each ends when its client has hung up


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


async def test_a_refused_connection_sent_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with LoanClient(f"http://127.0.0.1:{port}", shop_id="s", auth_token="t") as client:
            with pytest.raises(ConnectError) as caught:
                await client.approve(FISCAL_CODE, approval_request())
    assert caught.value.outcome == "not_sent"
    assert caught.value.cause_type.startswith("ClientConnectorError errno ")


class NoNames(AbstractResolver):
    async def resolve(self, host: str, *_: Any, **__: Any) -> list[ResolveResult]:
        raise OSError(None, f"no such name: {host}")

    async def close(self) -> None:
        pass


async def test_a_host_without_an_address_sent_nothing() -> None:
    connector = aiohttp.TCPConnector(resolver=NoNames())
    async with aiohttp.ClientSession(connector=connector) as session:
        client = LoanClient("https://loans.example.com", shop_id="s", auth_token="t", session=session)
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("not_sent", "ClientConnectorDNSError")


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_a_connection_that_breaks_before_the_answer_was_maybe_sent(reset: bool) -> None:  # noqa: FBT001  (parametrised)
    peer = Peer(b"", reset=reset)
    error = await outcome(peer)
    assert isinstance(error, ConnectionLostError)
    assert (error.outcome, len(peer.requests)) == ("unknown", 1)


async def test_half_of_the_headers_isno_answer() -> None:
    peer = Peer(b"HTTP/1.1 201 Created\r\nContent-")
    error = await outcome(peer)
    assert isinstance(error, ConnectionLostError)
    assert (error.outcome, len(peer.requests)) == ("unknown", 1)


async def test_garbage_is_no_answer_and_no_400() -> None:
    peer = Peer(b"hello, this is no HTTP\r\n\r\n")
    error = await outcome(peer)
    assert isinstance(error, ConnectionLostError)
    assert (error.outcome, len(peer.requests)) == ("unknown", 1)


async def test_silence_ends_with_the_time_of_the_attempt() -> None:
    peer = Peer(None)
    error = await outcome(peer)
    assert isinstance(error, ReadTimeoutError)
    assert (error.outcome, len(peer.requests)) == ("unknown", 1)


async def test_silence_ends_with_the_deadline_when_that_is_nearer() -> None:
    error = await outcome(Peer(None), Timeout(total=0.1, attempt=5, connect=1))
    assert isinstance(error, DeadlineExceededError)
    assert error.outcome == "unknown"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        pytest.param("422 Unprocessable", REFUSAL, Refused, id="422"),
        pytest.param("201 Created", APPROVAL, Approved, id="201"),
        pytest.param("422 Unprocessable", APPROVAL, UnexpectedResponseError, id="422 that contradicts"),
        pytest.param("201 Created", b'{"amount": 1', UnexpectedResponseError, id="201 without a decision"),
        pytest.param("201 Created", APPROVAL + APPROVAL, UnexpectedResponseError, id="201 twice"),
        pytest.param("400 Bad Request", b"{}", UnexpectedResponseError, id="400"),
    ],
)
@pytest.mark.parametrize("close", [True, False], ids=["truncated", "timed out"])
async def test_a_status_is_kept_when_its_body_does_not_come_whole(
    status: str,
    body: bytes,
    kind: type,
    close: bool,  # noqa: FBT001  (parametrised)
) -> None:
    peer = Peer(answer(status, body, length=1000), close=close)
    ended = await outcome(peer)
    assert isinstance(ended, Approved | Refused | UnexpectedResponseError)
    assert (type(ended), ended.meta.status) == (kind, int(status[:3]))
    if isinstance(ended, UnexpectedResponseError):
        assert (ended.outcome, ended.reasons) == (
            "unknown",
            ("body: truncated" if close else "body: timed out",),
        )
        assert ended.response is not None
        assert ended.response.body == body
    else:
        assert ended.meta.unread == ("body",)
    assert len(peer.requests) == 1


async def test_a_truncated_500_is_repeated_as_any_500() -> None:
    peer = Peer(answer("500 Oops", b"{}", length=1000), answer("422 No", REFUSAL))
    assert isinstance(await outcome(peer), Refused)
    assert len(peer.requests) == 2


async def test_a_body_that_inflates_without_end_is_cut() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    error = await outcome(Peer(answer("201 Created", bomb, "Content-Encoding: gzip")), Timeout())
    assert isinstance(error, UnexpectedResponseError)
    assert (error.outcome, error.reasons) == ("unknown", ("body: too large",))


async def test_a_redirect_is_never_followed() -> None:
    async with serving(Peer(answer("201 Created", APPROVAL))) as other:
        peer = Peer(answer("307 Temporary Redirect", b"", f"Location: {other.base_url}/"))
        error = await outcome(peer)
        assert isinstance(error, UnexpectedStatusError)
        assert (error.status, other.requests) == (307, [])


async def test_a_stale_connection_is_no_reason_to_send_twice() -> None:
    peer = Peer(answer("201 Created", APPROVAL), b"", close=False)
    async with (
        serving(peer),
        LoanClient(peer.base_url, shop_id="s", auth_token="t", remember=False) as client,
    ):
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)
        peer.close = True
        with pytest.raises(TransportError):
            await client.approve(FISCAL_CODE, approval_request())
    assert len(peer.requests) == 2


async def test_the_users_session_is_used_and_left_as_it_was() -> None:
    repeats = 0

    async def repeating(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        nonlocal repeats
        repeats += 1
        return await handler(request)

    peer = Peer(answer("422 No", REFUSAL))
    async with (
        serving(peer),
        aiohttp.ClientSession(
            middlewares=(repeating,), raise_for_status=True, headers={"X-Proxy": "yes"}
        ) as session,
    ):
        async with LoanClient(peer.base_url, shop_id="s", auth_token="t", session=session) as client:
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)
        assert not session.closed
        assert (repeats, len(peer.requests)) == (0, 1)
        assert b"x-proxy: yes" in peer.requests[0].lower()


async def test_the_times_of_the_users_session_are_not_ours() -> None:
    never = aiohttp.ClientTimeout(total=1e-9, connect=1e-9, sock_connect=1e-9, sock_read=1e-9)
    peer = Peer(answer("201 Created", APPROVAL))
    async with serving(peer), aiohttp.ClientSession(timeout=never) as session:
        client = LoanClient(peer.base_url, shop_id="s", auth_token="t", session=session)
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


@pytest.mark.parametrize("charset", ["utf-16", "cp500", "rot13", "no-such-codec"])
async def test_an_answer_is_utf_8_whatever_charset_it_claims(charset: str) -> None:
    kind = f"Content-Type: application/json; charset={charset}"
    told = await outcome(Peer(answer("201 Created", '{"approved": true, "city": "Forlì"}'.encode(), kind)))
    assert isinstance(told, Approved)
    assert told.city == "Forlì"


async def test_a_closed_session_of_the_user_is_named_at_once() -> None:
    async with aiohttp.ClientSession() as session:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
    with pytest.raises(ConfigurationError, match="session: is closed"):
        await client.approve(FISCAL_CODE, approval_request())


async def test_a_session_that_closes_between_two_attempts_leaves_the_call_a_maybe() -> None:
    peer = Peer(answer("500 Oops", b"{}"), close=False)
    async with serving(peer), aiohttp.ClientSession() as session:
        client = LoanClient(peer.base_url, shop_id="s", auth_token="t", session=session)

        async def close(_: float) -> None:
            await session.close()

        client._pipeline.sleep = close
        with pytest.raises(ConnectError) as caught:
            await client.approve(FISCAL_CODE, approval_request())
    assert (caught.value.outcome, caught.value.cause_type) == ("unknown", "SessionClosed")


def test_a_session_of_another_loop_is_named_at_once() -> None:
    async def make() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def use(session: aiohttp.ClientSession) -> None:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
        with pytest.raises(ConfigurationError, match="belongs to another event loop"):
            await client.approve(FISCAL_CODE, approval_request())
        await session.close()

    session = asyncio.run(make())
    asyncio.run(use(session))


def test_something_else_is_no_session() -> None:
    with pytest.raises(ConfigurationError, match="session: must be of type ClientSession, not str"):
        LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session="x")  # type: ignore[arg-type]


async def test_calls_after_one_another_share_a_connection() -> None:
    peer = Peer(*[answer("201 Created", APPROVAL)] * 5, close=False)
    async with serving(peer), LoanClient(peer.base_url, shop_id="s", auth_token="t") as client:
        for _ in range(5):
            await client.approve(FISCAL_CODE, approval_request())
        assert len(peer.talks) == 1


async def test_our_session_keeps_no_cookies_and_asks_no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    peer = Peer(answer("422 No", REFUSAL, "Set-Cookie: a=b"), answer("422 No", REFUSAL), close=False)
    async with serving(peer):
        # a cookie jar takes cookies from names, not from numbers
        address = peer.base_url.replace("127.0.0.1", "localhost")
        client = LoanClient(address, shop_id="s", auth_token="t", remember=False)
        for _ in range(2):
            assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Refused)
        await client.aclose()
    assert b"cookie" not in peer.requests[1].lower()
    assert b"authorization" not in peer.requests[0].lower()


async def test_calls_at_once_do_not_wait_for_each_others_connection() -> None:
    peer = Peer(*[None] * 3)
    async with (
        serving(peer),
        LoanClient(peer.base_url, shop_id="s", auth_token="t", timeout=QUICK, remember=False) as client,
    ):
        calls = (client.approve(FISCAL_CODE, approval_request()) for _ in range(3))
        errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [ReadTimeoutError] * 3
    assert len(peer.requests) == 3


KEY = ConnectionKey("loans.example.com", 443, True, True, None, None, None)  # noqa: FBT003  (aiohttp's form)


# What aiohttp raises, by class, and whether the request had left: what it is called, and what is told.
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
        (TimeoutError(), True, ReadTimeoutError, False, "TimeoutError"),
        (OSError(32, "pipe"), False, ConnectionLostError, True, "BrokenPipeError errno 32"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_only_what_surely_stayed_here_is_not_sent(
    error: Exception,
    is_unsent: bool,  # noqa: FBT001  (parametrised)
    kind: type,
    sent: bool,  # noqa: FBT001  (parametrised)
    cause: str,
) -> None:
    told = no_response(error, is_unsent=is_unsent)
    assert (told.error, told.is_sent, told.cause_type) == (kind, sent, cause)

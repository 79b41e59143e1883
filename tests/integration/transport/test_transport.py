"""The client's own session, and the result of each error of aiohttp."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ConnectionKey

from loanasync import ConnectError, ConnectionLostError, ReadTimeoutError, Refused
from loanasync._transport.failures import no_response
from support.canned_server import REFUSAL, approve, response_bytes, serving
from support.direct_path import client_of
from support.raw_server import Play, RawServer, running


class NoNames(AbstractResolver):
    async def resolve(self, host: str, *_: Any, **__: Any) -> list[ResolveResult]:
        raise OSError(None, f"no such name: {host}")

    async def close(self) -> None:
        pass


async def test_host_without_an_address_is_not_sent() -> None:
    users = {"connector": aiohttp.TCPConnector(resolver=NoNames())}
    async with client_of("https://loans.example.com", "users", users=users) as client:
        with pytest.raises(ConnectError) as caught:
            await approve(client)
    assert (caught.value.outcome, caught.value.cause_type) == ("not_sent", "ClientConnectorDNSError")


async def test_own_session_keeps_no_cookies_and_ignores_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    cookie = REFUSAL.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b\r\n\r\n", 1)
    # A cookie jar accepts cookies from host names only, not from IP addresses.
    server = RawServer((Play.READ, cookie), (Play.READ, REFUSAL), host="localhost")
    async with running(server), client_of(server.base_url) as client:
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
    assert b"cookie" not in server.requests[1].lower()
    assert b"authorization" not in server.requests[0].lower()


@pytest.mark.parametrize("charset", ["utf-16", "cp500", "rot13", "no-such-codec"])
async def test_response_is_read_as_utf_8_with_any_charset(charset: str) -> None:
    kind = f"Content-Type: application/json; charset={charset}"
    approval = response_bytes(201, '{"approved": true, "city": "Forlì"}'.encode(), kind)
    async with serving(approval) as server, server.client() as client:
        assert (await approve(client)).city == "Forlì"


KEY = ConnectionKey("loans.example.com", 443, True, True, None, None, None)  # noqa: FBT003  (aiohttp's form)
CONNECTING, SENDING = True, False  # whether the request is unsent, as the transport knows


@pytest.mark.parametrize(
    ("error", "is_unsent", "expected", "cause"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(111, "x")), SENDING, ConnectError, " errno 111"),
        (aiohttp.ConnectionTimeoutError("x"), SENDING, ConnectError, ""),
        (aiohttp.ClientConnectionResetError("closing"), CONNECTING, ConnectError, ""),
        (aiohttp.ClientOSError(None, "closing"), CONNECTING, ConnectError, ""),
        (aiohttp.ClientOSError(None, "lost"), SENDING, ConnectionLostError, ""),
        (aiohttp.ClientOSError(104, "reset"), SENDING, ConnectionLostError, " errno 104"),
        (aiohttp.ServerDisconnectedError(), SENDING, ConnectionLostError, ""),
        (aiohttp.ClientPayloadError("x"), SENDING, ConnectionLostError, ""),
        (aiohttp.SocketTimeoutError("x"), SENDING, ReadTimeoutError, ""),
        (TimeoutError(), SENDING, ReadTimeoutError, ""),
        (TimeoutError(), CONNECTING, ConnectError, ""),
        (OSError(32, "pipe"), SENDING, ConnectionLostError, " errno 32"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_no_response_maps_each_aiohttp_error(
    error: Exception,
    is_unsent: bool,  # noqa: FBT001  (parametrised)
    expected: type,
    cause: str,
) -> None:
    result = no_response(error, is_unsent=is_unsent)
    assert (result.error, result.is_sent) == (expected, expected is not ConnectError)
    assert result.cause_type == f"{type(error).__name__}{cause}"

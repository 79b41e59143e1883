"""The direct path: when it is used, and its fallback to `ClientSession.request`."""

import subprocess
import sys
from asyncio import selector_events
from traceback import walk_tb
from types import FrameType
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import http
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aioresponses import aioresponses

from loanasync import Approved, ConnectError, ConnectionLostError, LoanClient, _log
from loanasync._protocol import endpoints
from loanasync._protocol.messages import Request
from loanasync._transport import aiohttp_internals, pool
from loanasync._transport.aiohttp_internals import is_direct_possible
from loanasync._transport.pool import DirectTransport
from loanasync._transport.session import SessionTransport
from loanasync.testing import repaired_aioresponses
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, approve, response_bytes, serving
from support.direct_path import needs_direct_path
from support.raw_server import Play, RawServer, running


def transport_of(client: LoanClient) -> Any:
    resources: Any = client._pipeline._per_loop.current()
    return resources.transport


@needs_direct_path
async def test_direct_path_is_used_with_a_session_of_the_client() -> None:
    async with serving(APPROVAL) as server, server.client() as client:
        with mock.patch.object(SessionTransport, "send", side_effect=AssertionError):
            assert isinstance(await approve(client), Approved)
        assert type(transport_of(client)) is DirectTransport


@needs_direct_path
async def test_direct_path_is_used_with_a_session_of_the_user() -> None:
    async with serving(APPROVAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session)
        with mock.patch.object(SessionTransport, "send", side_effect=AssertionError):
            assert isinstance(await approve(client), Approved)
        assert type(transport_of(client)) is DirectTransport


def request_of(client: LoanClient, **headers: str) -> Request:
    call = endpoints.APPROVE.call(
        client._options.shop, client._options.dialect, FISCAL_CODE, approval_request()
    )
    return call.request(headers)


@needs_direct_path
@pytest.mark.parametrize("is_users", [False, True], ids=["own", "users"])
async def test_both_transports_send_the_same_request(*, is_users: bool) -> None:
    good = response_bytes(201, b'{"approved": true}')
    last = good.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    server = RawServer((Play.READ, last), (Play.READ, last))
    # The client's own headers replace those of the session, in any case.
    headers = [
        ("X-Proxy", "a"),
        ("X-Proxy", "b"),
        ("user-agent", "shop"),
        ("X-City", "Forlì"),
        ("Connection", "upgrade"),
        ("Accept", "x"),
    ]
    async with (
        running(server),
        aiohttp.ClientSession(headers=headers) as session,
        LoanClient(
            server.base_url, shop_id="s", auth_token="t", session=session if is_users else None
        ) as client,
    ):
        with mock.patch.object(SessionTransport, "send", side_effect=AssertionError):
            assert isinstance(await approve(client), Approved)
        transport = transport_of(client)
        await transport._session_transport.send(request_of(client), connect=5.0, within=5.0)
    directly, through_session = (request.partition(b"\r\n\r\n") for request in server.requests)
    assert directly[2] == through_session[2]
    lines = [sorted(head[0].lower().split(b"\r\n")) for head in (directly, through_session)]
    assert lines[1] == sorted([*lines[0], b"connection: close"])
    assert (b"x-proxy: a" in lines[0], b"x-proxy: b" in lines[0]) == (is_users, is_users)
    assert b"user-agent: shop" not in lines[0]


@needs_direct_path
@pytest.mark.parametrize("splitting", ["a\r\nX-Other: b", "a\nb", "a\rb", "a\0b"])
async def test_header_value_with_a_line_break_is_refused(splitting: str) -> None:
    async with serving(APPROVAL) as server, server.client() as client:
        await approve(client)
        request = request_of(client, traceparent=splitting)
        with pytest.raises(ValueError, match="line breaks") as caught:
            await transport_of(client).send(request, connect=5.0, within=5.0)
        assert splitting not in str(caught.value)
        assert server.requests == 1


SOCKET: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # a private name


def is_of_package(frame: FrameType) -> bool:
    return str(frame.f_globals["__name__"]).startswith("loanasync.")


@needs_direct_path
@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [(aiohttp.TCPConnector, "_create_connection", ConnectError), (SOCKET, "write", ConnectionLostError)],
)
async def test_write_error_has_no_frame_with_the_request(
    owner: type, name: str, expected: type[Exception]
) -> None:
    assert is_direct_possible()  # the result is cached before the patch
    async with serving(None) as server, server.client() as client:
        with (
            mock.patch.object(owner, name, side_effect=RuntimeError("Executor shutdown has been called")),
            pytest.raises(expected) as caught,
        ):
            await approve(client)
        client_frames = [frame for frame, _ in walk_tb(caught.value.__traceback__) if is_of_package(frame)]
        assert len(client_frames) > 2
        variables = repr([dict(frame.f_locals) for frame in client_frames])
        assert "secret-token" not in variables
        assert FISCAL_CODE not in variables


async def test_mocked_session_receives_the_request() -> None:
    async with serving(APPROVAL) as server, server.client() as client:
        assert isinstance(await approve(client), Approved)
        with repaired_aioresponses(), aioresponses() as mocked:
            mocked.post(
                f"{server.base_url}/api/shops/shop/requests/{FISCAL_CODE}",
                status=201,
                payload={"approved": True, "redirectUrl": "https://example.com/#mocked"},
            )
            decision = await approve(client)
        assert isinstance(decision, Approved)
        assert decision.redirect_url == "https://example.com/#mocked"
        assert server.requests == 1


@needs_direct_path
async def test_mocked_session_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_log, "_warned", set())
    original = aiohttp.ClientSession._request

    async def traced(self: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> aiohttp.ClientResponse:
        return await original(self, *args, **kwargs)

    async with serving(APPROVAL) as server, server.client() as client:
        await approve(client)
        assert not caplog.records
        monkeypatch.setattr(aiohttp.ClientSession, "_request", traced)
        for _ in range(3):
            assert isinstance(await approve(client), Approved)
    assert [(record.name, record.levelname) for record in caplog.records] == [("loanasync", "WARNING")]
    assert "that code sees fiscal codes" in caplog.text


async def test_mocked_public_method_receives_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise aiohttp.ClientOSError

    async with serving(APPROVAL) as server, server.client() as client:
        monkeypatch.setattr(aiohttp.ClientSession, "request", refuse)
        with pytest.raises(ConnectionLostError):
            await approve(client)
        assert server.requests == 0


MOCKED_BEFORE_IMPORT = """
from aioresponses import aioresponses
with aioresponses():
    from loanasync._transport.aiohttp_internals import is_replaced
    print(is_replaced())
print(is_replaced())
"""


def test_session_mocked_before_the_import_receives_the_request() -> None:
    command = [sys.executable, "-c", MOCKED_BEFORE_IMPORT]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.split() == ["True", "False"]


def changed(*names: str) -> Any:
    """Return a function with these parameters."""
    return eval(f"lambda {', '.join(names)}: None")  # noqa: S307  (names of this file)


@needs_direct_path
@pytest.mark.parametrize(
    ("owner", "name", "now"),
    [
        (aiohttp.BaseConnector, "connect", changed("self", "request", "traces", "timeout", "key")),
        (http, "HttpResponseParser", changed("protocol", "loop", "limit")),
        (ResponseHandler, "connection_lost", changed("self")),
        (aiohttp.ClientRequest, "connection_key", changed("self")),
        (Connection, "close", changed("self", "how")),
        (Connection, "protocol", changed("self")),
        (ResponseHandler, "should_close", changed("self")),
        (ConnectionKey, "_fields", ("host", "port")),
    ],
)
async def test_changed_aiohttp_is_used_through_its_documented_api(owner: object, name: str, now: Any) -> None:
    assert aiohttp_internals._has_expected_names()
    with mock.patch.object(owner, name, now):
        assert not aiohttp_internals._has_expected_names()


async def test_aiohttp_without_tested_names_is_used_through_requests() -> None:
    with mock.patch.object(pool, "is_direct_possible", return_value=False):
        async with serving(APPROVAL) as server, server.client() as client:
            assert isinstance(await approve(client), Approved)
            assert type(transport_of(client)) is SessionTransport


@needs_direct_path
@pytest.mark.parametrize("name", ["aiohttp.client_proto", "aiohttp.connector"])
def test_aiohttp_with_moved_modules_is_used_through_its_documented_api(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert not aiohttp_internals._has_expected_names()

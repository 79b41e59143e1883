"""Requests on connections of a user's pool, and the sessions that `ClientSession.request` is used with."""

import asyncio
import gc
import logging
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest import mock

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from opentelemetry.instrumentation.aiohttp_client import create_trace_config
from yarl import URL

from loanasync import Approved, ConnectError, Refused, RetryPolicy, TransportError
from loanasync._transport.aiohttp_session import SessionTransport
from loanasync._transport.fast.users_pool import BorrowedConnection
from support.canned_server import APPROVAL, FAULT, REFUSAL, Canned, approve, response_bytes, serving
from support.direct_path import needs_direct_path
from support.raw_server import PATIENCE, Certificate, Play, RawServer, authority, certificate, running, until
from support.separate import SeparateClient

pytestmark = needs_direct_path


@pytest.fixture
def through_aiohttp(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that were sent through `ClientSession.request`."""
    sent: list[object] = []
    send = SessionTransport.send

    async def recorded(self: SessionTransport, request: Any, **limits: float) -> Any:
        sent.append(request)
        return await send(self, request, **limits)

    monkeypatch.setattr(SessionTransport, "send", recorded)
    return sent


def pool_of(session: aiohttp.ClientSession) -> tuple[set[ResponseHandler], list[ResponseHandler]]:
    """Return the protocols of connections in use, and of idle connections."""
    connector: Any = session.connector
    idle = [handler for pool in connector._conns.values() for handler, _ in pool]
    return set(connector._acquired), idle


async def post(session: aiohttp.ClientSession, server: Canned) -> int:
    """Send a request of the user."""
    async with session.post(server.base_url, data=b"{}") as response:
        await response.read()
        return response.status


class TestSharing:
    """The client and the user share the pool and its limits, but no connection."""

    async def test_call_and_request_of_the_user_have_their_own_connections(
        self, through_aiohttp: list[object]
    ) -> None:
        async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
            client = server.client(session=session)
            for _ in range(2):
                assert isinstance(await approve(client), Refused)
                assert await post(session, server) == 422
                in_use, idle = pool_of(session)
                transports: list[Any] = [each.transport for each in idle]
                assert (in_use, [each.get_protocol() for each in transports]) == (set(), idle)
            assert (server.requests, server.most_open) == (4, 2)
        assert through_aiohttp == []

    async def test_clients_and_user_share_a_full_pool(self, through_aiohttp: list[object]) -> None:
        connector = aiohttp.TCPConnector(limit=3)
        async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
            clients = [server.client(session=session) for _ in range(2)]
            calls: list[Any] = [approve(client) for client in clients * 15]
            calls += [post(session, server) for _ in range(10)]
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*calls)
            assert all(each == 422 or isinstance(each, Refused) for each in results)
            assert server.requests == len(calls)
            assert server.most_open <= 2 * 3, "as many idle connections of the other key"
            assert pool_of(session)[0] == set()
        assert through_aiohttp == []

    async def test_server_is_asked_to_close_a_connection_with_force_close(self) -> None:
        server = RawServer((Play.READ, REFUSAL))
        connector = aiohttp.TCPConnector(force_close=True)
        async with running(server), aiohttp.ClientSession(connector=connector) as session:
            client = SeparateClient(server.base_url, shop_id="s", auth_token="t", session=session)
            assert isinstance(await approve(client), Refused)
            assert pool_of(session) == (set(), [])
        assert b"\r\nConnection: close\r\n" in server.requests[0]

    async def test_idle_client_holds_no_connection_of_the_pool(self) -> None:
        """The user may close the session first, without a warning."""
        with warnings.catch_warnings(action="error"):
            async with serving(REFUSAL) as server:
                async with aiohttp.ClientSession() as session:
                    client = server.client(session=session)
                    await approve(client)
                await until(lambda: not server.open)
                await client.aclose()
            gc.collect()


def stay(_: ResponseHandler) -> None:
    """Leave an idle connection as it is."""


def receive_data(handler: ResponseHandler) -> None:
    handler.data_received(APPROVAL)


def pause_writing(handler: ResponseHandler) -> None:
    """A part of the last request is unsent."""
    handler.pause_writing()


def belong_to_another_exchange(handler: ResponseHandler) -> None:
    transport: Any = handler.transport
    transport.set_protocol(asyncio.Protocol())


class TestReuse:
    """An idle connection is checked before a call takes it."""

    @pytest.mark.parametrize("spoil", [receive_data, pause_writing, belong_to_another_exchange])
    @pytest.mark.parametrize("limit", [1, 0])
    async def test_unusable_idle_connection_is_closed(self, spoil: Any, limit: int) -> None:
        connector = aiohttp.TCPConnector(limit=limit)
        async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
            client = server.client(session=session)
            assert isinstance(await approve(client), Refused)
            [first] = server.open
            spoil(pool_of(session)[1][0])
            assert isinstance(await approve(client), Refused)
            assert (server.requests, len(server.open - {first})) == (2, 1)
            await until(lambda: first not in server.open)

    async def test_used_connection_that_fails_before_the_request_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchange = BorrowedConnection.exchange
        failed: list[object] = []

        def fail_once(self: BorrowedConnection, *args: Any) -> Any:
            if not failed:
                failed.append(self)
                self._transport.abort()
            return exchange(self, *args)

        async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
            client = server.client(session=session)
            await approve(server.client(session=session))
            monkeypatch.setattr(BorrowedConnection, "exchange", fail_once)
            assert isinstance(await approve(client), Refused)
            assert (len(failed), server.requests) == (1, 2)
            assert len(pool_of(session)[1]) == 1

    async def test_new_connection_that_fails_before_the_request_is_not_sent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchange = BorrowedConnection.exchange

        def fail(self: BorrowedConnection, *args: Any) -> Any:
            self._transport.abort()
            return exchange(self, *args)

        monkeypatch.setattr(BorrowedConnection, "exchange", fail)
        async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
            with pytest.raises(ConnectError) as caught:
                await approve(server.client(session=session))
            assert (caught.value.outcome, server.requests) == ("not_sent", 0)
            await until(lambda: not pool_of(session)[0])

    @pytest.mark.parametrize(("spoil", "most_open"), [(stay, 1), (receive_data, 2)])
    async def test_connection_released_to_a_waiting_call_is_checked(self, spoil: Any, most_open: int) -> None:
        """The call waits for the only slot of the pool; it then gets the connection of the call before."""
        connector: Any = aiohttp.TCPConnector(limit=1)
        async with serving(None, REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
            first_call = asyncio.create_task(approve(server.client(session=session)))
            await server.wait_for_requests(1)
            call = asyncio.create_task(approve(server.client(session=session)))
            await until(lambda: bool(connector._waiters))
            [first] = server.open
            available = connector._available_connections

            def spoil_first(key: Any) -> Any:
                for handler in pool_of(session)[1]:
                    spoil(handler)
                return available(key)

            with mock.patch.object(connector, "_available_connections", spoil_first):
                server.respond_to_all(REFUSAL)
                assert isinstance(await call, Refused)
            assert isinstance(await first_call, Refused)
            assert (first in server.open) == (most_open == 1)
            assert server.requests == 2

    async def test_slot_of_a_closed_tls_connection_is_free_at_once(self) -> None:
        """TLS waits for the closing message of the server, which does not come."""
        trust = ssl.create_default_context()
        authority().configure_trust(trust)
        connector = aiohttp.TCPConnector(limit=1, ssl=trust)
        tls = certificate(Certificate.GOOD)
        server = RawServer((Play.READ, REFUSAL, Play.SILENCE), (Play.READ, REFUSAL), scheme="https", tls=tls)
        async with running(server), aiohttp.ClientSession(connector=connector) as session:
            client = SeparateClient(server.base_url, shop_id="s", auth_token="t", session=session)
            assert isinstance(await approve(client), Refused)
            receive_data(pool_of(session)[1][0])
            with mock.patch.object(connector, "_wait_for_available_connection", side_effect=AssertionError):
                assert isinstance(await approve(client), Refused)
            assert server.accepted == 2

    async def test_connection_with_paused_writing_is_not_returned(self) -> None:
        """A part of the request is still unsent."""
        async with serving(None, REFUSAL) as server, aiohttp.ClientSession() as session:
            call = asyncio.create_task(approve(server.client(session=session)))
            await server.wait_for_requests(1)
            [handler] = pool_of(session)[0]
            transport: Any = handler.transport
            transport.get_protocol().pause_writing()
            server.respond_to_all(REFUSAL)
            assert isinstance(await call, Refused)
            assert pool_of(session)[1] == []
            await until(lambda: not server.open)


class TestClosing:
    """The session or the client is closed while a call is in progress."""

    async def test_session_closed_while_a_request_is_queued_is_not_sent(self) -> None:
        async with serving(REFUSAL, REFUSAL, None) as server:
            session = aiohttp.ClientSession()
            client = server.client(session=session)
            await asyncio.gather(approve(client), approve(client))
            held = asyncio.create_task(approve(client))
            await server.wait_for_requests(3)
            queued = asyncio.create_task(approve(client))
            for _ in range(2):  # the call and its flight begin
                await asyncio.sleep(0)
            # No other connection is opened.
            with mock.patch.object(session.connector, "_create_connection", side_effect=AssertionError):
                await session.close()
                await asyncio.wait({queued})
            for call, outcome in ((held, "unknown"), (queued, "not_sent")):
                with pytest.raises(TransportError) as caught:
                    await call
                assert caught.value.outcome == outcome
            assert server.requests == 3

    async def test_client_closed_between_attempts_sends_nothing(self) -> None:
        async with serving(FAULT) as server, aiohttp.ClientSession() as session:
            client = server.client(session=session, retry=RetryPolicy(base=0.001))

            async def close(_: float) -> None:
                resources: Any = client._pipeline._per_loop.current()
                await resources.transport.aclose()

            client._pipeline.sleep = close
            with pytest.raises(ConnectError) as caught:
                await approve(client)
            assert (caught.value.cause_type, server.requests) == ("SessionClosed", 1)
            assert pool_of(session)[0] == set()

    async def test_response_to_a_cancelled_approval_frees_its_slot(self) -> None:
        connector = aiohttp.TCPConnector(limit=1)
        async with serving(None, REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
            client = server.client(session=session, separate=False)
            call = asyncio.create_task(approve(client))
            await server.wait_for_requests(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            server.respond_to_all(APPROVAL)
            assert isinstance(await approve(client), Approved), "the late response"
            assert await post(session, server) == 422
            assert server.requests == 2


class Request(aiohttp.ClientRequest):
    """A user's class of requests."""


class Response(aiohttp.ClientResponse):
    """A user's class of responses."""


class Connector(aiohttp.TCPConnector):
    """A user's connector that notes its calls."""

    calls = 0

    async def connect(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return await super().connect(*args, **options)


class Resolving(aiohttp.TCPConnector):
    """A user's connector that changes the connections only."""


class Wrapper:
    """A user's wrapper of a session or a connector, which has no settings itself."""

    def __init__(self, wrapped: Any) -> None:
        vars(self)["wrapped"] = wrapped

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name) if name == "__dict__" else getattr(vars(self)["wrapped"], name)


with warnings.catch_warnings(action="ignore", category=DeprecationWarning):

    class Session(aiohttp.ClientSession):
        """A user's class of sessions."""

    class WrappingSession(Wrapper, aiohttp.ClientSession):
        """A user's wrapper that is also a session."""


def hooks() -> aiohttp.TraceConfig:
    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(mock.AsyncMock())
    return config


def instrumentation_and_hooks() -> aiohttp.TraceConfig:
    config = create_trace_config()
    config.on_request_end.append(mock.AsyncMock())
    return config


def sentry() -> aiohttp.TraceConfig:
    async def hook(*_: object) -> None:
        raise AssertionError

    hook.__module__ = "sentry_sdk.integrations.aiohttp"
    config = aiohttp.TraceConfig()
    config.on_request_start.append(hook)
    return config


def jar(url: str) -> aiohttp.CookieJar:
    cookies = aiohttp.CookieJar(unsafe=True)
    cookies.update_cookies({"name": "value"}, URL(url))
    return cookies


OBSTACLES: dict[str, Callable[[str], aiohttp.ClientSession]] = {
    "methods of the session": lambda _: Session(),
    "methods of the session that wraps another": lambda _: WrappingSession(aiohttp.ClientSession()),
    "methods of the connector that wraps another": lambda _: aiohttp.ClientSession(
        connector=cast("aiohttp.BaseConnector", Wrapper(aiohttp.TCPConnector()))
    ),
    "methods of the connector": lambda _: aiohttp.ClientSession(connector=Connector()),
    "force_close": lambda _: aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)),
    "class of requests": lambda _: aiohttp.ClientSession(request_class=Request),
    "class of responses": lambda _: aiohttp.ClientSession(response_class=Response),
    "version of HTTP": lambda _: aiohttp.ClientSession(version=aiohttp.HttpVersion10),
    "trace hooks": lambda _: aiohttp.ClientSession(trace_configs=[hooks()]),
    "trace hooks of two": lambda _: aiohttp.ClientSession(trace_configs=[instrumentation_and_hooks()]),
    "environment": lambda _: aiohttp.ClientSession(trust_env=True),
    "credentials": lambda _: aiohttp.ClientSession(auth=aiohttp.BasicAuth("shop", "x")),
    "proxy": lambda url: aiohttp.ClientSession(proxy=url),
    "cookies": lambda url: aiohttp.ClientSession(cookie_jar=jar(url)),
    "default headers": lambda _: aiohttp.ClientSession(headers={"host": "other"}),
    "default headers that are split": lambda _: aiohttp.ClientSession(headers={"X-Shop": "a\tb"}),
}


@asynccontextmanager
async def opened(name: str, server: Canned) -> AsyncIterator[aiohttp.ClientSession]:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        session = OBSTACLES[name](server.base_url)
    async with session:
        yield session


class TestObstacles:
    """A session that does more than the direct path is used through `ClientSession.request`."""

    @pytest.mark.parametrize("name", OBSTACLES)
    async def test_session_is_used_through_aiohttp(
        self, name: str, through_aiohttp: list[object], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "loanasync")
        async with serving(REFUSAL) as server, opened(name, server) as session:
            client = server.client(session=session)
            for _ in range(2):
                assert isinstance(await approve(client), Refused)
        assert len(through_aiohttp) == server.requests == 2
        [message] = [each for each in caplog.messages if "ClientSession.request" in each]
        assert name.partition(" that ")[0].partition(" of two")[0] in message

    @pytest.mark.parametrize(
        "options",
        [
            lambda: {"cookie_jar": aiohttp.DummyCookieJar()},
            lambda: {"cookie_jar": jar("http://127.0.0.2/")},
            lambda: {"connector": Resolving()},
            lambda: {"trace_configs": [create_trace_config(), sentry()]},
            lambda: {"headers": {"X-Shop": "a"}},
            lambda: {
                "base_url": "http://127.0.0.2/",
                "raise_for_status": True,
                "skip_auto_headers": ["Accept"],
            },
        ],
        ids=["dummy jar", "cookies of another host", "connector", "instrumentation", "headers", "base URL"],
    )
    async def test_session_is_used_directly(
        self, options: Callable[[], dict[str, Any]], through_aiohttp: list[object]
    ) -> None:
        async with serving(REFUSAL) as server, aiohttp.ClientSession(**options()) as session:
            assert isinstance(await approve(server.client(session=session)), Refused)
            assert server.requests == 1
        assert through_aiohttp == []

    @pytest.mark.parametrize("owner", ["session", "class", "connector"])
    async def test_mocked_method_is_called(self, owner: str, through_aiohttp: list[object]) -> None:
        failing = mock.AsyncMock(side_effect=aiohttp.ClientConnectionError)
        async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
            client = server.client(session=session)
            assert isinstance(await approve(client), Refused)
            targets = {"session": session, "class": aiohttp.ClientSession, "connector": session.connector}
            name = "connect" if owner == "connector" else "_request"
            with mock.patch.object(targets[owner], name, failing), pytest.raises(TransportError):
                await approve(client)
            assert (failing.await_count, server.requests, len(through_aiohttp)) == (1, 1, 1)
            assert isinstance(await approve(client), Refused)
            assert len(through_aiohttp) == 1

    async def test_default_headers_of_the_moment_are_sent(self) -> None:
        server = RawServer(*[(Play.READ, response_bytes(422, b'{"approved":false}'))] * 2)
        async with running(server), aiohttp.ClientSession() as session:
            client = SeparateClient(server.base_url, shop_id="s", auth_token="t", session=session)
            for name in ("X-First", "X-Second"):
                session.headers.clear()
                session.headers[name] = "yes"
                assert isinstance(await approve(client), Refused)
        first, second = server.requests
        assert (b"X-First: yes" in first, b"X-Second" in first) == (True, False)
        assert (b"X-First" in second, b"X-Second: yes" in second) == (False, True)

    async def test_failing_log_handler_does_not_break_the_call(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Failing(logging.Filter):
            def filter(self, _: logging.LogRecord) -> bool:
                raise RuntimeError

        logger, failing = logging.getLogger("loanasync"), Failing()
        caplog.set_level(logging.INFO, "loanasync")
        logger.addFilter(failing)
        try:
            async with serving(REFUSAL) as server, opened("trace hooks", server) as session:
                assert isinstance(await approve(server.client(session=session)), Refused)
        finally:
            logger.removeFilter(failing)

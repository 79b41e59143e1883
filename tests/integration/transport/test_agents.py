"""Requests of the client pass the hooks of monitoring agents on aiohttp; all other requests do not.

`nox -s agents` does the same with the agents themselves. Here, hooks have the form and the module names that
the agents use.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from unittest import mock

import aiohttp
import pytest
import wrapt

from loanasync import ConfigurationError, LoanClient, Refused, TransportError
from loanasync.ledger import MemoryLedger
from support.builders import FISCAL_CODE
from support.canned_server import REFUSAL, Canned, approve, serving
from support.direct_path import needs_direct_path

Opener = Callable[..., aiohttp.ClientSession]


@pytest.fixture
def seen() -> list[str]:
    """The paths of the requests that the agent has seen."""
    return []


def wrapper(seen: list[str], module: str, method: Any = aiohttp.ClientSession._request) -> Any:
    """Return a wrapper of `ClientSession._request` that notes each request."""

    async def note(method: Any, _: object, arguments: Any, options: Any) -> Any:
        seen.append(str(arguments[1]))
        return await method(*arguments, **options)

    note.__module__ = module
    called = partial(note) if "elastic" in module else note
    return wrapt.FunctionWrapper(method, called)


def trace_config(seen: list[str], module: str) -> aiohttp.TraceConfig:
    """Return a trace configuration that notes each request."""

    async def note(_: object, __: object, params: aiohttp.TraceRequestStartParams) -> None:
        seen.append(str(params.url))

    note.__module__ = module
    config = aiohttp.TraceConfig()
    config.on_request_start.append(note)
    return config


AGENTS = ["sentry", "ddtrace", "elastic", "sentry and ddtrace"]


@pytest.fixture(params=AGENTS)
def open_session(request: pytest.FixtureRequest, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> Opener:
    """A function that opens a session, as it is with an agent."""
    agent: str = request.param
    if "ddtrace" in agent:
        patch = wrapper(seen, "ddtrace.contrib.internal.aiohttp.patch")
        monkeypatch.setattr(aiohttp.ClientSession, "_request", patch)
    elif agent == "elastic":
        patch = wrapper(seen, "elasticapm.instrumentation.packages.base")
        monkeypatch.setattr(aiohttp.ClientSession, "_request", patch)

    def opened(*configs: aiohttp.TraceConfig, **options: Any) -> aiohttp.ClientSession:
        sentry = [trace_config(seen, "sentry_sdk.integrations.aiohttp")] if "sentry" in agent else []
        return aiohttp.ClientSession(trace_configs=[*configs, *sentry], **options)

    return opened


async def test_agent_sees_only_the_other_requests_of_a_users_session(
    open_session: Opener, seen: list[str]
) -> None:
    users: list[str] = []
    async with serving(REFUSAL) as server, open_session(trace_config(users, "shop")) as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        assert seen == []
        assert len(users) == 1, "the user's own hooks see the requests of the client"
        async with session.post(server.base_url, data=b"{}") as response:
            await response.read()
    assert set(seen) == {server.base_url}, "the agent still sees the other requests"
    assert len(users) == 2


DIRECT: dict[str, bool] = {"direct_connections": True}
THROUGH_AIOHTTP: dict[str, bool] = {"direct_connections": False}


@pytest.mark.parametrize("options", [pytest.param(DIRECT, marks=needs_direct_path), THROUGH_AIOHTTP])
@pytest.mark.usefixtures("open_session")
async def test_agent_does_not_see_requests_of_the_clients_session(
    options: dict[str, bool], seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "loanasync"):
        async with serving(REFUSAL) as server, server.client(**options) as client:
            assert isinstance(await approve(client), Refused)
    assert seen == []
    assert caplog.messages == []


def refused(server: Canned, session: aiohttp.ClientSession) -> str:
    with pytest.raises(ConfigurationError) as caught:
        server.client(session=session)
    return str(caught.value)


async def test_session_with_an_agents_hook_and_another_aiohttp_is_refused(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    async with serving(REFUSAL) as server, aiohttp.ClientSession(trace_configs=[sentry]) as session:
        configs = session.trace_configs
        monkeypatch.setattr(aiohttp.ClientSession, "trace_configs", property(lambda _: configs))
        monkeypatch.delattr(session, "_trace_configs")
        assert "has hooks of sentry_sdk that record the fiscal code: omit session" in refused(server, session)


@pytest.fixture(params=["_request", "request", "a class of the same name"])
def subclass(request: pytest.FixtureRequest) -> type[aiohttp.ClientSession]:
    """A user's subclass that replaces a method and notes its calls in a header of the session."""
    replaced = "request" if request.param == "request" else "_request"

    def send(self: aiohttp.ClientSession, *arguments: Any, **options: Any) -> Any:
        self.headers["X-Gateway"] = "1"
        return getattr(super(kind, self), replaced)(*arguments, **options)

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        kind = type("ClientSession", (aiohttp.ClientSession,), {replaced: send})
    kind.__qualname__ = "ClientSession" if "class" in request.param else "Session"
    return kind


ddtrace = partial(wrapper, module="ddtrace.contrib.internal.aiohttp.patch")


async def test_subclass_keeps_its_method_with_a_trace_hook_of_an_agent(
    subclass: type[aiohttp.ClientSession], seen: list[str]
) -> None:
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    async with serving(REFUSAL) as server, subclass(trace_configs=[sentry]) as session:
        assert isinstance(await approve(server.client(session=session)), Refused)
        assert session.headers["X-Gateway"] == "1"
    assert seen == []


async def test_subclass_with_a_method_around_that_of_an_agent_is_refused(
    subclass: type[aiohttp.ClientSession], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(REFUSAL) as server, subclass() as session:
        assert isinstance(await approve(server.client(session=session)), Refused)
        monkeypatch.setattr(aiohttp.ClientSession, "_request", ddtrace(seen))
        assert "has hooks of ddtrace" in refused(server, session)
        assert "use aiohttp.ClientSession instead of a subclass" in refused(server, session)


def around(method: Any, sessions: list[object]) -> Any:
    """Return a wrapper of another library, such as for retries."""

    @wraps(method)
    async def send(self: object, *arguments: Any, **options: Any) -> Any:
        sessions.append(self)
        return await method.__get__(self)(*arguments, **options)

    send.__module__ = "shop.retries"
    return send


def around_with_wrapt(method: Any, sessions: list[object]) -> Any:
    """Return the same wrapper, made with the library wrapt."""

    async def send(wrapped: Any, instance: object, arguments: Any, options: Any) -> Any:
        sessions.append(instance)
        return await wrapped(*arguments, **options)

    send.__module__ = "shop.retries"
    return wrapt.FunctionWrapper(method, send)


@pytest.mark.parametrize("wrap", [around, around_with_wrapt])
async def test_wrapper_of_other_code_around_that_of_an_agent_is_refused(
    wrap: Callable[..., Any], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiohttp.ClientSession, "_request", wrap(ddtrace(seen), []))
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        assert "has hooks of ddtrace" in refused(server, session)
        ledger = MemoryLedger()
        async with server.client(direct_connections=False, ledger=ledger) as client:
            with pytest.raises(ConfigurationError, match="disable the aiohttp integration of ddtrace"):
                await approve(client)
            assert await ledger.get(await client.entry_key(FISCAL_CODE)) is None
        assert server.requests == 0
    assert seen == []


@needs_direct_path
async def test_direct_path_that_other_code_has_replaced_is_refused(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(REFUSAL) as server, server.client() as client:
        assert isinstance(await approve(client), Refused)
        with monkeypatch.context() as patch:
            patch.setattr(aiohttp.ClientSession, "_request", around(ddtrace(seen), []))
            with pytest.raises(ConfigurationError, match="disable the aiohttp integration of ddtrace"):
                await approve(client)
        assert isinstance(await approve(client), Refused)
        assert server.requests == 2
    assert seen == []


@pytest.mark.parametrize("wrap", [around, around_with_wrapt])
async def test_wrapper_of_other_code_inside_that_of_an_agent_sees_the_request(
    wrap: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sessions: list[object] = []
    inner = wrap(aiohttp.ClientSession._request, sessions)
    monkeypatch.setattr(aiohttp.ClientSession, "_request", wrapper(seen, "ddtrace.contrib", inner))
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        assert isinstance(await approve(server.client(session=session)), Refused)
        assert sessions == [session]
    assert seen == []


async def test_session_wrapped_by_two_agents_around_other_code_is_refused(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = around(ddtrace(seen), [])
    monkeypatch.setattr(aiohttp.ClientSession, "_request", wrapper(seen, "newrelic.hooks", inner))
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        assert "has hooks of ddtrace" in refused(server, session)


async def test_method_wrapped_after_the_client_was_created_is_refused(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session)
        monkeypatch.setattr(aiohttp.ClientSession, "_request", around(ddtrace(seen), []))
        with pytest.raises(ConfigurationError, match="has hooks of ddtrace"):
            await approve(client)
        assert server.requests == 0


async def test_users_hook_gets_the_users_session_despite_an_agent(seen: list[str]) -> None:
    sessions: list[object] = []

    async def note(session: aiohttp.ClientSession, *_: object) -> None:
        sessions.append(session)

    def trace(wrapped: Any, _: object, arguments: Any, options: Any) -> Any:
        return wrapped(*arguments, **options)

    trace.__module__ = "newrelic.api.function_trace"  # a decorator for the user's functions
    users = aiohttp.TraceConfig()
    users.on_request_start.append(note)
    users.on_request_start.append(wrapt.FunctionWrapper(note, trace))
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    configs = [users, sentry]
    async with serving(REFUSAL) as server, aiohttp.ClientSession(trace_configs=configs) as session:
        assert isinstance(await approve(server.client(session=session)), Refused)
        assert sessions == [session, session]
        assert session.trace_configs == configs
    assert seen == []


async def test_request_with_an_agent_uses_the_proxy_of_the_session(open_session: Opener) -> None:
    async with serving(REFUSAL) as proxy, open_session(proxy=proxy.base_url) as session:
        client = LoanClient("http://127.0.0.1:9", shop_id="shop", auth_token="secret-token", session=session)
        assert isinstance(await approve(client), Refused)
        assert proxy.requests == 1


@pytest.mark.parametrize("name", ["request", "_request"])
@pytest.mark.parametrize("is_class", [True, False])
async def test_mock_receives_the_request_instead_of_the_server(
    name: str,
    is_class: bool,  # noqa: FBT001  (a parameter of the test)
    seen: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aiohttp.ClientSession, "_request", ddtrace(seen))
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    replaced = mock.AsyncMock(side_effect=aiohttp.ClientConnectionError)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(trace_configs=[sentry]) as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        owner = aiohttp.ClientSession if is_class else session
        with mock.patch.object(owner, name, replaced), pytest.raises(TransportError):
            await approve(client)
        assert server.requests == 1
    assert replaced.call_args.args[0] == "POST", "the mock gets the arguments that it gets without an agent"

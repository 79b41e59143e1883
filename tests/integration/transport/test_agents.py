"""Requests of the client pass the hooks of monitoring agents on aiohttp; all other requests do not.

`nox -s agents` does the same with the agents themselves. Here, hooks have the form and the module names that
the agents use.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any
from unittest import mock

import aiohttp
import pytest
import wrapt

from loanasync import Refused, TransportError
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import each_path
from support.raw_server import until


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


@pytest.fixture(params=["sentry", "ddtrace", "elasticapm", "newrelic", "sentry and ddtrace"])
def agent(request: pytest.FixtureRequest, seen: list[str]) -> Iterator[None]:
    """Install the hooks of an agent on aiohttp."""
    with ExitStack() as stack:
        if "sentry" in request.param:
            hooks = trace_config(seen, "sentry_sdk.integrations.aiohttp")
            made = aiohttp.ClientSession.__init__

            def make(self: aiohttp.ClientSession, *arguments: Any, **options: Any) -> None:
                configs = [*(options.pop("trace_configs", None) or ()), hooks]
                made(self, *arguments, trace_configs=configs, **options)

            stack.enter_context(mock.patch.object(aiohttp.ClientSession, "__init__", make))
        if request.param != "sentry":
            patch = wrapper(seen, f"{request.param.split()[-1]}.contrib.aiohttp")
            stack.enter_context(mock.patch.object(aiohttp.ClientSession, "_request", patch))
        yield


@pytest.mark.usefixtures("agent")
@each_path
@pytest.mark.parametrize("is_users", [False, True], ids=["own", "users"])
async def test_agent_sees_only_the_other_requests(
    seen: list[str], caplog: pytest.LogCaptureFixture, *, is_users: bool, is_direct: bool
) -> None:
    with caplog.at_level(logging.WARNING, "loanasync"):
        async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
            users: dict[str, Any] = {"session": session} if is_users else {}
            async with server.client(direct_connections=is_direct, **users) as client:
                assert isinstance(await approve(client), Refused)
                if not is_direct:
                    await until(lambda: not server.open)
            assert seen == []
            async with session.post(server.base_url, data=b"{}") as response:
                await response.read()
    assert set(seen) == {server.base_url}, "the agent still sees the other requests"
    assert caplog.messages == []


def around(method: Any, sessions: list[object]) -> Any:
    """Return a wrapper of another library, such as a recorder."""

    @wraps(method)
    async def send(self: object, *arguments: Any, **options: Any) -> Any:
        sessions.append(self)
        return await method.__get__(self)(*arguments, **options)

    send.__module__ = "shop.recorder"
    return send


def around_with_wrapt(method: Any, sessions: list[object]) -> Any:
    """Return the same wrapper, made with the library wrapt."""

    async def send(wrapped: Any, instance: object, arguments: Any, options: Any) -> Any:
        sessions.append(instance)
        return await wrapped(*arguments, **options)

    send.__module__ = "shop.recorder"
    return wrapt.FunctionWrapper(method, send)


@each_path
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside the agent", "without an agent"])
@pytest.mark.parametrize("wrap", [around, around_with_wrapt])
async def test_recorder_sees_the_request(
    wrap: Callable[..., Any],
    seen: list[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_inside: bool,
    is_direct: bool,
) -> None:
    sessions: list[object] = []
    method = wrap(aiohttp.ClientSession._request, sessions)
    if is_inside:
        method = wrapper(seen, "ddtrace.contrib", method)
    async with serving(REFUSAL) as server, server.client(direct_connections=is_direct) as client:
        assert isinstance(await approve(client), Refused)
        assert sessions == []
        monkeypatch.setattr(aiohttp.ClientSession, "_request", method)
        assert isinstance(await approve(client), Refused)
        assert len(sessions) == 1
        assert server.requests == 2
    assert seen == []


@each_path
@pytest.mark.parametrize("name", ["request", "_request"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (aiohttp.ClientConnectionError(), "unknown"),
        (aiohttp.ClientConnectorError(mock.Mock(), OSError()), "not_sent"),
    ],
    ids=["lost", "refused"],
)
async def test_mock_receives_the_request_instead_of_the_server(
    name: str,
    error: Exception,
    outcome: str,
    seen: list[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_direct: bool,
) -> None:
    """Only an error that says that no connection was made proves that nothing was sent."""
    monkeypatch.setattr(aiohttp.ClientSession, "_request", wrapper(seen, "ddtrace.contrib"))
    replaced = mock.AsyncMock(side_effect=error)
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session, direct_connections=is_direct)
        assert isinstance(await approve(client), Refused)
        with (
            mock.patch.object(aiohttp.ClientSession, name, replaced),
            pytest.raises(TransportError) as caught,
        ):
            await approve(client)
        assert caught.value.outcome == outcome
        assert server.requests == 1
    assert replaced.call_args.args[0] == "POST", "the mock gets the arguments that it gets without an agent"
    assert seen == []

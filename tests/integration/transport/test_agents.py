"""Requests of the client pass the hooks of monitoring agents on aiohttp; all other requests do not.

`nox -s agents` does the same with the agents themselves. Here, hooks have the form and the module names that
the agents use.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import aiohttp
import pytest
import wrapt

from loanasync import ConfigurationError, Refused, TransportError
from support.canned_server import REFUSAL, Canned, approve, serving
from support.direct_path import needs_direct_path

Opener = Callable[..., aiohttp.ClientSession]


@pytest.fixture
def seen() -> list[str]:
    """The paths of the requests that the agent has seen."""
    return []


def wrapper(seen: list[str], module: str) -> Any:
    """Return a wrapper of `ClientSession._request` that notes each request."""

    async def note(method: Any, _: object, arguments: Any, options: Any) -> Any:
        seen.append(str(arguments[1]))
        return await method(*arguments, **options)

    note.__module__ = module
    called = partial(note) if "elastic" in module else note
    return wrapt.FunctionWrapper(aiohttp.ClientSession._request, called)


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

    def opened(*configs: aiohttp.TraceConfig) -> aiohttp.ClientSession:
        sentry = [trace_config(seen, "sentry_sdk.integrations.aiohttp")] if "sentry" in agent else []
        return aiohttp.ClientSession(trace_configs=[*configs, *sentry])

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


@pytest.mark.parametrize("renamed", ["_request", "_trace_configs"])
async def test_session_with_an_agents_hook_and_another_aiohttp_is_refused(
    renamed: str, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    async with serving(REFUSAL) as server, aiohttp.ClientSession(trace_configs=[sentry]) as session:
        configs = session.trace_configs
        monkeypatch.setattr(aiohttp.ClientSession, "trace_configs", property(lambda _: configs))
        monkeypatch.delattr(aiohttp.ClientSession if renamed == "_request" else session, renamed)
        assert "has hooks of sentry_sdk that record the fiscal code: omit session" in refused(server, session)


@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
async def test_session_with_another_method_and_an_agents_hook_is_refused(seen: list[str]) -> None:
    class Session(aiohttp.ClientSession):
        async def _request(self, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
            return await super()._request(*arguments, **options)

    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    async with serving(REFUSAL) as server:
        async with Session(trace_configs=[sentry]) as session:
            assert "use aiohttp.ClientSession instead of a subclass" in refused(server, session)
        async with Session() as session:  # without an agent, its method is called
            assert isinstance(await approve(server.client(session=session)), Refused)


async def test_mock_receives_the_request_despite_an_agent(seen: list[str]) -> None:
    sentry = trace_config(seen, "sentry_sdk.integrations.aiohttp")
    replaced = mock.AsyncMock(side_effect=aiohttp.ClientConnectionError)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(trace_configs=[sentry]) as session:
        with mock.patch.object(aiohttp.ClientSession, "_request", replaced), pytest.raises(TransportError):
            await approve(server.client(session=session))
        assert server.requests == 0
    assert replaced.call_args.args[0] == "POST", "the mock gets the arguments that it gets without an agent"

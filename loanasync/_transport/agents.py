"""Requests without the hooks of monitoring agents, which would record the fiscal code in the URL.

Sentry adds trace hooks to each new session. The agents of Datadog, Elastic and New Relic replace the method
`ClientSession._request`, also of sessions that the client opens. Nothing suppresses these hooks for a single
request. So a request of the client calls aiohttp's own method. All other requests of the session, and the
hooks of other code, stay as they are.

`ClientSession._request` and `_trace_configs` are undocumented. If aiohttp renames them, a user's session with
hooks of an agent is refused.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, cast

import aiohttp

Send: TypeAlias = Callable[..., Awaitable[aiohttp.ClientResponse]]

# The packages of the agents. `nox -s agents` runs the client with each of them.
_AGENTS = frozenset({"ddtrace", "elasticapm", "newrelic", "sentry_sdk"})


class _SessionView:
    """A session without some of its trace configurations, for one request."""

    def __init__(self, session: aiohttp.ClientSession, trace_configs: list[aiohttp.TraceConfig]) -> None:
        self._session = session
        self._trace_configs = trace_configs

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)


def send_method(session: aiohttp.ClientSession) -> Send:
    """Return `session.request`, or a function that does the same without the hooks of agents."""
    method = getattr(type(session), "_request", None)
    own = _without_agents(method)
    others = [config for config in session.trace_configs if _agent_of(*config.on_request_start) is None]
    has_hooks = own is not method or len(others) < len(session.trace_configs)
    if has_hooks and _is_of_aiohttp(own):
        return partial(cast("Send", own), _SessionView(session, others))
    return session.request  # a subclass or a mocking library may have replaced it


def agent_in(session: aiohttp.ClientSession) -> str | None:
    """Return the package of an agent whose hooks would see requests of the client, else None."""
    method = getattr(type(session), "_request", None)
    is_mocked = method is not None and type(session) is aiohttp.ClientSession
    if hasattr(session, "_trace_configs") and (is_mocked or _is_of_aiohttp(_without_agents(method))):
        return None
    return _agent_of(method, *(hook for each in session.trace_configs for hook in each.on_request_start))


def _is_of_aiohttp(method: object) -> bool:
    code = getattr(method, "__code__", None)
    return getattr(code, "co_qualname", "") == "ClientSession._request"


def _without_agents(method: object) -> object:
    """Return the method that agents have wrapped."""
    while _agent_of(method) is not None and (wrapped := getattr(method, "__wrapped__", None)) is not None:
        method = wrapped
    return method


def _agent_of(*hooks: object) -> str | None:
    """Return the package of the first hook of an agent, else None."""
    return next((package for package in map(_package, hooks) if package in _AGENTS), None)


def _package(hook: object) -> str:
    """Return the package of the function that a hook calls."""
    # Wrappers of the library wrapt have the module of the wrapped method, and the called function here.
    called = getattr(hook, "_self_wrapper", hook)
    while isinstance(called, partial):
        called = called.func
    return str(getattr(called, "__module__", None)).partition(".")[0]

"""Requests without the hooks of monitoring agents, which would record the fiscal code in the URL.

Sentry adds trace hooks to each new session. The agents of Datadog, Elastic and New Relic wrap the method
`ClientSession._request`, also of sessions that the client opens. Nothing suppresses these hooks for a single
request. So a request of the client does not run the trace hooks of agents, and calls the method that an agent
has wrapped. All other requests of the session, and the hooks and methods of other code, stay as they are.

`ClientSession._request` and `_trace_configs` are undocumented. If aiohttp renames `_trace_configs`, a user's
session with hooks of an agent is refused.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import filterfalse, takewhile
from types import FunctionType, ModuleType
from typing import Any, TypeAlias, cast

import aiohttp

Send: TypeAlias = Callable[..., Awaitable[aiohttp.ClientResponse]]

# The packages of the agents. `nox -s agents` runs the client with each of them.
_AGENTS = frozenset({"ddtrace", "elasticapm", "newrelic", "sentry_sdk"})
_METHODS = ("request", "_request")

# True during a request of the client. Requests that a user's hooks send meanwhile run without agents, too.
_skips_agents: ContextVar[bool] = ContextVar("loanasync_skips_agents", default=False)


class _TraceConfigs(list[aiohttp.TraceConfig]):
    """The trace configurations of a session. A request of the client does not see those of agents."""

    def __iter__(self) -> Iterator[aiohttp.TraceConfig]:
        configs = super().__iter__()
        return filterfalse(is_of_agent, configs) if _skips_agents.get() else configs


@contextmanager
def without_agents(session: aiohttp.ClientSession) -> Iterator[Send]:
    """Skip the hooks of agents in this context. Yield `session.request`, or what an agent has wrapped."""
    configs: Any = session.trace_configs
    if type(configs) is not _TraceConfigs and any(map(is_of_agent, configs)):
        vars(session)["_trace_configs"] = _TraceConfigs(configs)
    token = _skips_agents.set(True)
    try:
        yield _send_method(session)
    finally:
        _skips_agents.reset(token)


def _send_method(session: aiohttp.ClientSession) -> Send:
    method = vars(aiohttp.ClientSession).get("_request")
    wrapped: Any = without_wrappers(method)
    if wrapped is method or _is_overridden(session):
        return session.request
    return cast("Send", wrapped.__get__(session))


def agent_in(session: aiohttp.ClientSession | None) -> str | None:
    """Return the package of an agent that would record requests of the client, else None.

    Args:
        session: The user's session; None for one that the client opens without trace hooks.
    """
    owners = _owners(session)
    methods = [vars(owner).get(name) for owner in (*owners, aiohttp.ClientSession) for name in _METHODS]
    if not _is_overridden(session):
        methods = [without_wrappers(method) for method in methods]
    packages = [_package(each) for method in methods for each in _chain(method)]
    if session is not None and not hasattr(session, "_trace_configs"):
        hooks = (hook for config in session.trace_configs for hook in config.on_request_start)
        packages += [_package(_chain(hook)[-1]) for hook in hooks]
    return next((package for package in packages if package in _AGENTS), None)


def _owners(session: aiohttp.ClientSession | None) -> list[object]:
    """Return the session and the classes that may override methods of `ClientSession`."""
    if session is None:
        return []
    return [session, *takewhile(lambda kind: kind is not aiohttp.ClientSession, type(session).__mro__)]


def _is_overridden(session: aiohttp.ClientSession | None) -> bool:
    """Return True if a subclass, a mock or a library has replaced a method around that of an agent."""
    request = vars(aiohttp.ClientSession).get("request")
    return not is_of_module(request, aiohttp.client) or any(
        vars(owner).keys() & set(_METHODS) for owner in _owners(session)
    )


def is_of_module(method: object, module: ModuleType) -> bool:
    """Return True for a function of a module that no other code has replaced or wrapped."""
    # A wrapper has the attributes of the function that it wraps, so this compares the type.
    return type(method) is FunctionType and method.__globals__ is vars(module)


def is_of_agent(config: aiohttp.TraceConfig) -> bool:
    """Return True if the hooks of a trace configuration belong to an agent."""
    # An agent may have wrapped a user's hook, which stays. So this asks for the innermost function.
    return any(_package(_chain(hook)[-1]) in _AGENTS for hook in config.on_request_start)


def without_wrappers(method: object) -> object:
    """Return the method without the outer wrappers that belong to agents."""
    while _package(method) in _AGENTS and (wrapped := getattr(method, "__wrapped__", None)) is not None:
        method = wrapped
    return method


def _chain(function: object) -> list[object]:
    """Return a function and all functions that it wraps."""
    chain = [function]
    while (wrapped := getattr(chain[-1], "__wrapped__", None)) is not None:
        chain.append(wrapped)
    return chain


def _package(hook: object) -> str:
    """Return the package of the function that a hook calls."""
    # Wrappers of the library wrapt have the module of the wrapped method, and the called function here.
    called = getattr(hook, "_self_wrapper", hook)
    while isinstance(called, partial):
        called = called.func
    return str(getattr(called, "__module__", None)).partition(".")[0]

"""The reasons why a request cannot be sent directly on a connection of a user's session."""

from collections.abc import Mapping
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from loanasync._transport.agents import is_of_agent, is_of_module, without_wrappers
from loanasync._transport.instrumentation import is_instrumentation_hook

if TYPE_CHECKING:
    from aiohttp.abc import AbstractCookieJar
    from multidict import CIMultiDict

_SESSION_METHODS = ("request", "_request")
_CONNECTOR_METHODS = ("connect", "_get", "_release")
# aiohttp sends a request with one of these in another way, or refuses it.
_SPECIAL_HEADERS = (
    "Host",
    "Connection",
    "Content-Encoding",
    "Content-Length",
    "Cookie",
    "Expect",
    "Transfer-Encoding",
    "Upgrade",
)


def find_lasting_obstacle(session: aiohttp.ClientSession) -> str | None:
    """Return why no request can be sent directly: a setting that a session keeps. Else return None."""
    if _has_replaced_methods(session):
        return None  # it may lack the settings that are read below, and `find_obstacle` names the reason
    settings = vars(session)
    connector = settings["_connector"]  # None if the session was closed
    obstacles = {
        "the connector closes each connection (force_close)": connector is not None and connector.force_close,
        "the session has its own class of requests": settings["_request_class"] is not aiohttp.ClientRequest,
        "the session has its own class of responses": settings["_response_class"]
        is not aiohttp.ClientResponse,
        "the session has another version of HTTP": settings["_version"] != aiohttp.HttpVersion11,
        "the session uses the environment (trust_env)": settings["_trust_env"],
        "the session adds credentials": settings["_default_auth"] is not None,
    }
    return _first(obstacles)


def find_obstacle(session: aiohttp.ClientSession, url: str) -> str | None:
    """Return why a request must be sent through `ClientSession.request`; None if it can be sent directly.

    Other code may add these obstacles at any time. `find_lasting_obstacle` names the others.
    """
    if _has_replaced_methods(session):
        return "methods of the session are replaced"  # it may lack the settings that are read below
    settings = vars(session)
    trace_configs, headers = settings["_trace_configs"], settings["_default_headers"]
    obstacles = {
        "methods of the connector are replaced": _is_replaced(settings["_connector"]),
        "the session has trace hooks": trace_configs and not all(map(_is_skipped, trace_configs)),
        "the proxy of the session reads the request": settings["_default_proxy"] is not None
        and not url.startswith("https:"),
        "the session has cookies for this URL": _has_cookies(settings["_cookie_jar"], url),
        "the default headers change how the request is sent": headers and _has_special(headers),
    }
    return _first(obstacles)


def _first(obstacles: Mapping[str, object]) -> str | None:
    for text, exists in obstacles.items():
        if exists:
            return text
    return None


def _original(owner: type, name: str, module: ModuleType) -> object:
    """Return a method of aiohttp; an object that is no method if other code than an agent has replaced it."""
    method = without_wrappers(vars(owner).get(name))
    return method if is_of_module(method, module) else object()


_REQUEST, _SEND = (_original(aiohttp.ClientSession, name, aiohttp.client) for name in _SESSION_METHODS)
_CONNECT, _GET, _RELEASE = (
    _original(aiohttp.BaseConnector, name, aiohttp.connector) for name in _CONNECTOR_METHODS
)


def _has_replaced_methods(session: aiohttp.ClientSession) -> bool:
    """Return True if a subclass, a mock or a library has replaced a method; agents do not count."""
    if type(session) is not aiohttp.ClientSession or not vars(session).keys().isdisjoint(_SESSION_METHODS):
        return True
    methods = vars(aiohttp.ClientSession)
    # Wrappers of the library wrapt are equal to the wrapped method, so this compares the identity.
    send = methods.get("_request")
    return methods.get("request") is not _REQUEST or (
        send is not _SEND and without_wrappers(send) is not _SEND
    )


def _is_replaced(connector: aiohttp.BaseConnector | None) -> bool:
    """Return True if a subclass, a mock or a library has replaced a method that the direct path calls."""
    kind: Any = type(connector)
    return (
        getattr(kind, "connect", None) is not _CONNECT  # it may be a wrapper of a connector
        or kind._get is not _GET  # noqa: SLF001
        or kind._release is not _RELEASE  # noqa: SLF001
        or not vars(connector).keys().isdisjoint(_CONNECTOR_METHODS)
    )


def _is_skipped(config: aiohttp.TraceConfig) -> bool:
    """Return True for hooks that do nothing in requests of the client."""
    if is_of_agent(config):
        return True
    kind = type(config.on_request_start)
    signals = [each for each in vars(config).values() if isinstance(each, kind)]
    return all(map(is_instrumentation_hook, chain.from_iterable(signals)))


def _has_cookies(jar: "AbstractCookieJar", url: str) -> bool:
    if type(jar) is aiohttp.DummyCookieJar:
        return False
    if type(jar) is aiohttp.CookieJar and not len(jar):
        return False
    return bool(jar.filter_cookies(URL(url, encoded=True)))


def _has_special(headers: "CIMultiDict[str]") -> bool:
    if any(name in headers for name in _SPECIAL_HEADERS):
        return True
    return not "".join([*headers.keys(), *headers.values()]).isprintable()

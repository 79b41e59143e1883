"""Selection of the transport by the settings of a client."""

import ssl
from collections.abc import Callable
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from loanasync._settings import require
from loanasync._transport.aiohttp_internals import belongs_to_other_loop, is_direct_possible, is_replaced
from loanasync._transport.base import Proxy, Transport
from loanasync._transport.connection import DirectTransport
from loanasync._transport.session import SessionTransport, check_session, open_session
from loanasync._transport.tls import ssl_context
from loanasync.errors import ConfigurationError

_WOULD_BE_READ = "needs a base_url with https, or the proxy would read the requests"
_NO_URL = 'must be a URL such as http://proxy.example.com:3128, or "env"'


def proxy_of(setting: object, base_url: str) -> Proxy | None:
    """Return the proxy for the setting `proxy=`.

    Raises:
        ConfigurationError: The setting is invalid.
    """
    scheme, host = urlsplit(base_url)[:2]
    url = setting
    if setting == "env":
        from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415  (slow, and rarely used)

        # Over http, which is allowed on this machine only, the proxy would read the requests.
        url = None if scheme == "http" or proxy_bypass(host) else getproxies().get("https")
    if url is None:
        return None if setting is None else Proxy(None)
    violation = _WOULD_BE_READ if scheme == "http" else _violation(url)
    if violation is None:
        return Proxy(str(url))
    del setting, url  # may contain a password: must not be in a traceback
    raise ConfigurationError("proxy", violation)


def _violation(url: object) -> str | None:
    """Return the rule that the URL of a proxy breaks, or None. The text does not contain the URL."""
    if not (isinstance(url, str) and url.isascii() and url.isprintable()):
        return _NO_URL
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            return _NO_URL
        proxy = URL(url)
        f"{proxy.user}{proxy.password}".encode("latin-1")  # as aiohttp does
    except UnicodeEncodeError:
        return "must have a user name and a password in Latin-1, the encoding of the header that has them"
    except ValueError:
        return _NO_URL
    return "must have a user name without a colon" if ":" in (proxy.user or "") else None


def transport_factory(
    session: aiohttp.ClientSession | None,
    trust: object,
    proxy: Proxy | None,
    *,
    direct_connections: bool,
) -> Callable[[], Transport | DirectTransport]:
    """Return a function that opens the transport of the running event loop.

    Args:
        session: The user's session; None to open one.
        trust: The CA file or SSL context, if the client opens the session.
        proxy: The proxy, if the client opens the session.
        direct_connections: True to write requests directly to connections, if that is possible.

    Raises:
        ConfigurationError: A setting is invalid, or `session` is given together with `trust` or `proxy`.
    """
    require(bool, "direct_connections", direct_connections)
    if session is not None:
        for setting, value in (("ssl", trust), ("proxy", proxy)):
            if value is not None:
                raise ConfigurationError(
                    setting,
                    "cannot be used with session=: set it in your connector, or omit session",
                )
        require(aiohttp.ClientSession, "session", session)
        check_session(session)
    return partial(
        open_transport,
        session,
        None if trust is None else ssl_context(trust),
        proxy,
        direct_connections=direct_connections,
    )


def open_transport(
    users: aiohttp.ClientSession | None,
    context: ssl.SSLContext | None,
    proxy: Proxy | None,
    *,
    direct_connections: bool,
) -> DirectTransport | SessionTransport:
    """Open the transport of the running event loop, through the connector of the user's session or its own.

    Raises:
        ConfigurationError: The user's session belongs to another event loop.
    """
    if users is None:
        trust = True if context is None else context
        # The pipeline limits the number of calls.
        session = open_session(aiohttp.TCPConnector(limit=0, ssl=trust), owned=True)
    elif belongs_to_other_loop(users):
        raise ConfigurationError(
            "session", "belongs to another event loop: create it in this event loop, or omit session"
        )
    else:
        session = users
    address = None if proxy is None or proxy.url is None else URL(proxy.url)
    through_session = SessionTransport(session, owned=users is None, proxy=address)
    if direct_connections and is_direct_possible():
        return DirectTransport(through_session)
    return through_session


def user_transport_factory(transport: object, **others: object) -> Callable[[], Transport]:
    """Return the function passed as `transport=`, which opens a transport in the running event loop.

    Raises:
        ConfigurationError: It is not callable, or one of the `others` is given too.
    """
    for setting, value in others.items():
        if value is not None:
            raise ConfigurationError(setting, "cannot be used with transport=: omit one of them")
    if not callable(transport):
        raise ConfigurationError(
            "transport",
            "must be a function or class that returns the transport of the running event loop",
        )
    return cast("Callable[[], Transport]", transport)


def is_of_user(transport: Transport) -> bool:
    """Return True if code of the user sends the requests: a transport, or a mock that replaces aiohttp."""
    return is_replaced() or not isinstance(transport, SessionTransport)

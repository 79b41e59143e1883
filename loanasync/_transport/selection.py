"""Selection of the transport by the settings of a client."""

from collections.abc import Callable
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import aiohttp

from loanasync._config import require
from loanasync._transport.base import Proxy, Transport
from loanasync._transport.pool import open_transport
from loanasync._transport.session import check_session
from loanasync._transport.tls import ssl_context
from loanasync.errors import ConfigurationError


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
    would_be_read = scheme == "http" and url is not None
    if url is None or (not would_be_read and _is_proxy_url(url)):
        return None if setting is None else Proxy(cast("str | None", url))
    del setting, url  # may contain a password: must not be in a traceback
    if would_be_read:
        raise ConfigurationError("proxy", "needs a base_url with https, or the proxy would read the requests")
    raise ConfigurationError("proxy", 'must be a URL such as http://proxy.example.com:3128, or "env"')


def _is_proxy_url(url: object) -> bool:
    if not (isinstance(url, str) and url.isascii() and url.isprintable()):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def transport_factory(
    session: aiohttp.ClientSession | None,
    trust: object,
    proxy: Proxy | None,
    *,
    direct_connections: bool,
) -> Callable[[], Transport]:
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
        check_session(session)
    return partial(
        open_transport,
        session,
        None if trust is None else ssl_context(trust),
        proxy,
        direct_connections=direct_connections,
    )


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

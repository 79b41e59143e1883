"""Selection of the transport by the settings of a client; aiohttp is loaded when a transport is opened."""

from typing import TYPE_CHECKING, cast

from loanasync._config import require
from loanasync._lifecycle import LOADING
from loanasync.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    import aiohttp

    from loanasync._transport.base import Transport


def transport_factory(
    session: "aiohttp.ClientSession | None",
    trust: object = None,
    *,
    direct_connections: bool = True,
    suppress_instrumentation: bool = False,
) -> "Callable[[], Transport]":
    """Return a function that opens the transport of the running event loop.

    Args:
        session: The user's session; None to open one.
        trust: The CA file or SSL context, if the client opens the session.
        direct_connections: True to allow the direct path.
        suppress_instrumentation: True to suppress all instrumentation during requests of the user's session.

    Raises:
        ConfigurationError: `session` is not an aiohttp session, may not verify certificates or would record
            fiscal codes, or both `session` and `trust` are given, or `trust` is not a CA file or SSL context
            that verifies.
    """
    require(bool, "direct_connections", direct_connections)
    require(bool, "suppress_instrumentation", suppress_instrumentation)
    context: ssl.SSLContext | None = None
    if trust is not None:
        from loanasync._transport.tls import ssl_context  # noqa: PLC0415  (loads ssl, which takes 10 ms)

        context = ssl_context(trust)
    if session is not None:
        from loanasync._transport.sessions import users_session_factory  # noqa: PLC0415  (loads aiohttp)

        return users_session_factory(
            session,
            context,
            direct_connections=direct_connections,
            suppress_instrumentation=suppress_instrumentation,
        )

    def open_transport() -> "Transport":
        with LOADING:
            from loanasync._transport.sessions import open_own_transport  # noqa: PLC0415  (loads aiohttp)

        return open_own_transport(context, direct_connections=direct_connections)

    return open_transport


def user_transport_factory(transport: object, session: object, trust: object) -> "Callable[[], Transport]":
    """Return the function passed as `transport=`, which opens a transport in the running event loop.

    Raises:
        ConfigurationError: It is not callable, or `session` or `ssl` is given too.
    """
    for setting, value in (("session", session), ("ssl", trust)):
        if value is not None:
            raise ConfigurationError(setting, "cannot be used with transport=: omit one of them")
    if not callable(transport):
        raise ConfigurationError(
            "transport",
            "must be a function or class that returns the transport of the running event loop",
        )
    return cast("Callable[[], Transport]", transport)

"""Selection of the transport for an event loop: over the user's session, or over one that it opens."""

import ssl
from collections.abc import Callable
from functools import partial

import aiohttp

from loanasync._config import require
from loanasync._transport import tls
from loanasync._transport.aiohttp_internals import is_of_other_loop, trust_of
from loanasync._transport.aiohttp_session import SessionTransport
from loanasync._transport.fast import compatibility
from loanasync._transport.fast.pool import DirectTransport
from loanasync.errors import ConfigurationError


def opener(
    session: aiohttp.ClientSession | None, trust: object = None, *, direct_connections: bool = True
) -> Callable[[], DirectTransport | SessionTransport]:
    """Return a function that opens the transport of the running event loop.

    Args:
        session: The user's session, or None for one of our own.
        trust: The CA file or context for a session of our own.
        direct_connections: True if requests may be written directly to the connections of our own session.

    Raises:
        ConfigurationError: The session is none, or whom to trust is not told or told twice.
    """
    require(bool, "direct_connections", direct_connections)
    context = tls.trusted(trust)
    if session is None:
        return partial(_open, context, direct_connections=direct_connections)
    require(aiohttp.ClientSession, "session", session)
    if context is not None:
        raise ConfigurationError("ssl", "is for our own session: give it to the connector of yours")
    if not tls.is_checking(trust_of(session.connector)):
        raise ConfigurationError(
            "session", "must check certificates and host names: its connector does not, or does not say so"
        )
    return partial(_borrow, session)


def _open(context: ssl.SSLContext | None, *, direct_connections: bool) -> DirectTransport | SessionTransport:
    # Instrumentation puts its hooks into each session there is: this one's requests are not for them to see.
    session = aiohttp.ClientSession(
        # The pipeline limits calls, and says so.
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # costs thread hops, and may add credentials of a .netrc
    )
    session.trace_configs.clear()
    if direct_connections and compatibility.is_possible():
        return DirectTransport(session)
    return SessionTransport(session, owned=True)


def _borrow(session: aiohttp.ClientSession) -> SessionTransport:
    if is_of_other_loop(session):
        raise ConfigurationError(
            "session", "belongs to another event loop: make one in this loop, or leave session out"
        )
    return SessionTransport(session, owned=False)

"""Opening of transports: through the user's session, or through one that the client opens."""

import ssl
from collections.abc import Callable
from functools import partial

import aiohttp

from loanasync._config import require
from loanasync._transport import tls
from loanasync._transport.agents import agent_in
from loanasync._transport.aiohttp_internals import belongs_to_other_loop, tls_setting
from loanasync._transport.aiohttp_session import SessionTransport
from loanasync._transport.fast import compatibility
from loanasync._transport.fast.pool import DirectTransport
from loanasync._transport.fast.users_pool import UsersPoolTransport
from loanasync._transport.instrumentation import GENERAL_KEY, HTTP_KEY, records_requests
from loanasync.errors import ConfigurationError


def users_session_factory(
    session: aiohttp.ClientSession,
    context: ssl.SSLContext | None,
    *,
    direct_connections: bool,
    suppress_instrumentation: bool,
) -> Callable[[], DirectTransport | SessionTransport]:
    """Return a function that opens a transport through the user's session.

    Raises:
        ConfigurationError: `session` is not an aiohttp session, may not verify certificates or would record
            fiscal codes, or both `session` and `context` are given.
    """
    require(aiohttp.ClientSession, "session", session)
    if context is not None:
        raise ConfigurationError("ssl", "cannot be used with session=: pass it to your session's connector")
    if not tls.verifies_certificates(tls_setting(session.connector)):
        raise ConfigurationError(
            "session", "must verify certificates and host names; its connector does not, or it is unknown"
        )
    suppression_key = GENERAL_KEY if suppress_instrumentation else HTTP_KEY
    _check_hooks(session, suppression_key)
    return partial(_open_users_transport, session, suppression_key, direct_connections=direct_connections)


def open_own_transport(
    context: ssl.SSLContext | None, *, direct_connections: bool
) -> DirectTransport | SessionTransport:
    """Open a session of the client, and a transport through it, in the running event loop."""
    session = aiohttp.ClientSession(
        # The pipeline limits the number of calls.
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # True reads .netrc in a thread for each request, and may send its credentials
    )
    # Instrumentation adds its hooks to every new session. It must not see the fiscal codes in our URLs.
    session.trace_configs.clear()
    through_session = SessionTransport(session, owned=True)
    if direct_connections and compatibility.is_possible():
        return DirectTransport(session, through_session)
    return through_session


def _open_users_transport(
    session: aiohttp.ClientSession, suppression_key: str, *, direct_connections: bool
) -> DirectTransport | SessionTransport:
    """Open a transport through the user's session in the running event loop."""
    if belongs_to_other_loop(session):
        raise ConfigurationError(
            "session", "belongs to another event loop: create it in this event loop, or omit session"
        )
    _check_hooks(session, suppression_key)  # again, because hooks may have been added
    through_session = SessionTransport(session, owned=False, suppression_key=suppression_key)
    if direct_connections and compatibility.is_possible():
        return UsersPoolTransport(session, through_session)
    return through_session


def _check_hooks(session: aiohttp.ClientSession, suppression_key: str) -> None:
    if records_requests(session, suppression_key):
        raise ConfigurationError(
            "session",
            "has OpenTelemetry instrumentation that records the fiscal code: upgrade opentelemetry-"
            "instrumentation-aiohttp-client to 0.60b0, omit session, or pass suppress_instrumentation=True",
        )
    if agent := agent_in(session):
        raise ConfigurationError(
            "session",
            f"has hooks of {agent} that record the fiscal code: omit session, use aiohttp.ClientSession "
            "instead of a subclass and without wrappers of other libraries, or disable the aiohttp "
            f"integration of {agent}",
        )

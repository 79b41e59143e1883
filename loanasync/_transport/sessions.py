"""Choice of the transport: through the user's session, or with a session that the client opens."""

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
from loanasync._transport.instrumentation import GENERAL_KEY, HTTP_KEY, records_requests
from loanasync.errors import ConfigurationError


def transport_factory(
    session: aiohttp.ClientSession | None,
    trust: object = None,
    *,
    direct_connections: bool = True,
    suppress_instrumentation: bool = False,
) -> Callable[[], DirectTransport | SessionTransport]:
    """Return a function that opens the transport of the running event loop.

    Args:
        session: The user's session; None to open one.
        trust: The CA file or SSL context, if the client opens the session.
        direct_connections: True to allow the direct path on a session that the client opens.
        suppress_instrumentation: True to suppress all instrumentation during requests of the user's session.

    Raises:
        ConfigurationError: `session` is not an aiohttp session, may not verify certificates or would record
            fiscal codes, or both `session` and `trust` are given, or `trust` is not a CA file or SSL context
            that verifies.
    """
    require(bool, "direct_connections", direct_connections)
    require(bool, "suppress_instrumentation", suppress_instrumentation)
    context = tls.ssl_context(trust)
    if session is None:
        return partial(_open, context, direct_connections=direct_connections)
    require(aiohttp.ClientSession, "session", session)
    if context is not None:
        raise ConfigurationError("ssl", "cannot be used with session=: pass it to your session's connector")
    if not tls.verifies_certificates(tls_setting(session.connector)):
        raise ConfigurationError(
            "session", "must verify certificates and host names; its connector does not, or it is unknown"
        )
    suppression_key = GENERAL_KEY if suppress_instrumentation else HTTP_KEY
    _check_hooks(session, suppression_key)
    return partial(_use, session, suppression_key)


def _open(context: ssl.SSLContext | None, *, direct_connections: bool) -> DirectTransport | SessionTransport:
    session = aiohttp.ClientSession(
        # The pipeline limits the number of calls.
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # True reads .netrc in a thread for each request, and may send its credentials
    )
    # Instrumentation adds its hooks to every new session. It must not see the fiscal codes in our URLs.
    session.trace_configs.clear()
    if direct_connections and compatibility.is_possible():
        return DirectTransport(session)
    return SessionTransport(session, owned=True)


def _use(session: aiohttp.ClientSession, suppression_key: str) -> SessionTransport:
    if belongs_to_other_loop(session):
        raise ConfigurationError(
            "session", "belongs to another event loop: create it in this event loop, or omit session"
        )
    _check_hooks(session, suppression_key)  # again, because hooks may have been added
    return SessionTransport(session, owned=False, suppression_key=suppression_key)


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

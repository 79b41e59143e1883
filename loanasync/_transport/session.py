"""The transport that sends requests through `ClientSession.request`, and the sessions of both transports."""

import asyncio
import ssl
from functools import cache, lru_cache
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._telemetry.log import warn_once
from loanasync._transport import bodies, failures, tls
from loanasync._transport.aiohttp_internals import (
    MAX_FIELD_SIZE,
    MAX_HEADERS,
    MUST_CHECK_LENGTHS,
    ClosingResponse,
    buffered_body,
    has_proxy,
    is_replaced,
    send_method,
    tls_setting,
)
from loanasync._transport.waits import Waits, expire
from loanasync.errors import ConfigurationError

_MAX_BYTES = 1 << 20  # the largest body that aiohttp accepts as `bytes` without a warning
_REPLACED = (
    "aiohttp's ClientSession._request was replaced by other code, such as a mocking library: "
    "that code sees fiscal codes and tokens"
)
# Headers that describe how a request is sent. Those of a user's session are not used.
_FRAMING = frozenset(
    {"connection", "content-encoding", "content-length", "expect", "host", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)


def check_session(session: aiohttp.ClientSession) -> None:
    """Check that requests can be sent through the connector of a user's session.

    Raises:
        ConfigurationError: The session is closed, does not verify certificates, or has a setting that the
            client would ignore.
    """
    if session.closed:
        raise ConfigurationError("session", "is closed: close it only after the last call")
    if not tls.verifies_certificates(tls_setting(session.connector)):
        raise ConfigurationError(
            "session", "must verify certificates and host names; its connector does not, or it is unknown"
        )
    if has_proxy(session) or session.trust_env:
        raise ConfigurationError(
            "session", "must not have proxy= or trust_env=True: omit session, and pass proxy= to the client"
        )
    if session.auth is not None:
        raise ConfigurationError("session", "must not have auth=: pass the header Authorization in headers=")
    if _overrides_requests(session):
        raise ConfigurationError(
            "session", "must not override the methods of ClientSession that send requests: pass transport="
        )


def _overrides_requests(session: aiohttp.ClientSession) -> bool:
    kinds = type(session).__mro__
    owners = [session, *kinds[: kinds.index(aiohttp.ClientSession)]]
    return any("request" in vars(owner) or "_request" in vars(owner) for owner in owners)


def open_session(connector: aiohttp.BaseConnector | None, *, owned: bool) -> aiohttp.ClientSession:
    """Open a session of the client, with its own connector or that of a user's session."""
    # Before 3.13.4, aiohttp had no limit of the number of headers. Later versions may lack the class. Agents
    # replace the constructor, so its signature says nothing.
    optional = [{"max_headers": MAX_HEADERS, "response_class": ClosingResponse}]
    optional += [{"response_class": ClosingResponse}, {}]
    while True:
        options: dict[str, Any] = optional.pop(0)
        try:
            session = aiohttp.ClientSession(
                connector=connector,
                connector_owner=owned,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # True reads .netrc in a thread for each request, and may send it
                auto_decompress=False,
                max_line_size=MAX_FIELD_SIZE,
                max_field_size=MAX_FIELD_SIZE,
                **options,
            )
        except TypeError:
            if not optional:
                raise
        else:
            # Agents and instrumentation add their hooks to every new session. They must not see fiscal codes.
            session.trace_configs[:] = [_sent_trace()]
            return session


@cache
def _sent_trace() -> aiohttp.TraceConfig:
    """Return trace hooks that set `Request.is_sent`, once a connection was found and before it is used."""
    trace = aiohttp.TraceConfig()
    for signal in (
        trace.on_connection_create_end,
        trace.on_connection_reuseconn,
        trace.on_request_headers_sent,  # if a user's connector calls none of the others
    ):
        signal.append(_set_sent)
    trace.freeze()
    return trace


async def _set_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    context.trace_request_ctx.is_sent = True


class SessionTransport:
    """Sends requests through `ClientSession.request`. It belongs to one event loop.

    It requires only documented names of aiohttp, so it works with all versions, and while other code replaces
    methods of `ClientSession`. That code may send the request, so the request then counts as sent.

    Each request has a new connection, which is closed after the response. If connections were kept, aiohttp's
    pool would give a response that belongs to no request to the next request: tests got the decision about
    another customer that way. The public API cannot close a connection whose response was not understood.

    Args:
        session: The session of the client, which `open_session` returned, or that of the user. Of the latter,
            only the connector and the default headers are used.
        owned: True for a session of the client.
        proxy: The address of a proxy.
    """

    def __init__(self, session: aiohttp.ClientSession, *, owned: bool, proxy: URL | None = None) -> None:
        self.session = session
        self.proxy = proxy
        self.is_owned = owned
        self._waits = Waits()

    def check(self) -> None:
        """Raise an error if no call can begin.

        Raises:
            ConfigurationError: The user's session is closed or was changed, as `check_session` says.
        """
        if not self.is_owned:
            check_session(self.session)

    def headers_of(self, request: Request) -> list[tuple[str, str]]:
        """Return the headers of a request, and the default headers of the user's session."""
        headers = list(request.headers.items())
        if not self.is_owned and (defaults := self.session.headers):
            given = {name.lower() for name in request.headers} | _FRAMING
            headers += [each for each in defaults.items() if each[0].lower() not in given]
        return headers

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """See `Transport.send`."""
        if self._waits.is_closed or self.session.closed:  # between two attempts
            return failures.SESSION_CLOSED
        request.is_sent = False
        if is_replaced():
            warn_once(_REPLACED)
            request.is_sent = True
        url, body = URL(request.url, encoded=True), request.body
        session: aiohttp.ClientSession = self.session
        trust: object = True
        if not self.is_owned:
            setting = tls_setting(session.connector)
            trust = _default_trust() if setting is True else setting
            session = open_session(session.connector, owned=False)
        response: aiohttp.ClientResponse | None = None
        received = bytearray()
        limit = asyncio.timeout(None)
        # After a blocked event loop, a response that arrived in time is read before this callback runs.
        timer = asyncio.get_running_loop().call_later(within, expire, limit)
        try:
            async with self._waits.limited_by(limit):
                response = await send_method(session)(
                    request.method,
                    url,
                    data=BytesIO(body) if len(body) > _MAX_BYTES else body,
                    headers=CIMultiDict(self.headers_of(request), Connection="close"),
                    # A redirect would send the token to another host and turn a POST into a GET.
                    allow_redirects=False,
                    timeout=connect_timeout(connect),
                    proxy=self.proxy,
                    # aiohttp reuses a connection only for requests with the same value. The user's requests
                    # have another one.
                    ssl=trust,
                    trace_request_ctx=request,
                )
                if MUST_CHECK_LENGTHS and bodies.has_two_lengths(response.headers):
                    return failures.no_response(failures.MalformedResponseError(), is_unsent=False)
                return await bodies.read(response, received)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (`cause_of` distinguishes them)
            try:
                cause = failures.cause_of(error, self._waits)
                if response is None:
                    return failures.no_response(cause, is_unsent=not request.is_sent)
                received += buffered_body(response.content)
                return bodies.partial_response(response.status, response.headers, cause, bytes(received))
            finally:
                failures.drop_frames(error)
        finally:
            timer.cancel()
            if response is not None:
                response.close()
            if not self.is_owned:
                session.detach()

    async def aclose(self) -> None:
        """End the requests in progress with the cause `SessionClosed`; close the session if it is owned."""
        self._waits.close()
        if self.is_owned:
            await self.session.close()


_default_trust = cache(ssl.create_default_context)


@lru_cache(maxsize=32)
def connect_timeout(connect: float) -> aiohttp.ClientTimeout:
    """Return aiohttp's timeout settings: `connect` seconds for the connection, and no other limit."""
    # By default, aiohttp rounds timeouts of more than 5 seconds up to whole seconds.
    return aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=float("inf"))

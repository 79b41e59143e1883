"""Requests sent through `ClientSession.request`, by the rules of the package `_transport`."""

import asyncio
from functools import lru_cache
from http.cookies import SimpleCookie
from weakref import WeakSet

import aiohttp
from opentelemetry import context as otel_context
from yarl import URL

from loanasync._lifecycle import Waits, expire
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.aiohttp_internals import RequestBody, rest_of
from loanasync.errors import ConfigurationError, ConnectError

try:  # private, and the only way to tell instrumentation of aiohttp to leave a request alone
    from opentelemetry.context import (
        _SUPPRESS_HTTP_INSTRUMENTATION_KEY as _HAS_ITS_SPAN,
    )
except ImportError:  # pragma: no cover  (a later API may drop it: double spans, and nothing worse)
    _HAS_ITS_SPAN = otel_context.create_key("loanasync")


class SessionTransport:
    """One aiohttp session of one event loop, ours or the user's."""

    raises_errors = True  # of hooks of the user's session, before anything was sent

    def __init__(self, session: aiohttp.ClientSession, *, owned: bool) -> None:
        self._session = session
        self._owned = owned
        self._waits = Waits()
        # Protocols of connections on which a response was read: not all transports have weak references.
        self._kept: WeakSet[object] = WeakSet()

    def check(self) -> None:
        """Look whether a call can begin.

        Raises:
            ConfigurationError: The user's session is closed.
        """
        if self._session.closed and not self._owned:
            raise ConfigurationError("session", "is closed: keep it open for as long as calls come")

    @property
    def _is_closed(self) -> bool:
        return self._session.closed or self._waits.is_closed

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        if self._is_closed:  # between two attempts
            return NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)
        if not request.outlives_caller:
            return await self._exchange(request, connect, within)
        request.is_sent = False
        exchange = asyncio.ensure_future(self._exchange(request, connect, within))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            if request.is_sent:
                request.late = exchange
            else:
                request.is_withdrawn = True  # a separate task of aiohttp writes it
                exchange.cancel()
            raise

    async def _exchange(self, request: Request, connect: float, within: float) -> Response | NoResponse:
        """Send over a clean connection: a kept one may be closed, or have unread data."""
        until = asyncio.get_running_loop().time() + within
        while True:
            body = RequestBody(request.body)
            body.request = request
            result = await self._exchange_once(request, body, connect, within)
            within = until - asyncio.get_running_loop().time()
            was_unusable = isinstance(result, NoResponse) and result.error is ConnectError and body.never_left
            was_kept = body.protocol is not None and body.protocol in self._kept
            is_over = within <= 0 or request.is_withdrawn or self._is_closed
            if is_over or not (was_unusable and was_kept):
                return result

    async def _exchange_once(
        self, request: Request, body: RequestBody, connect: float, within: float
    ) -> Response | NoResponse:
        response: aiohttp.ClientResponse | None = None
        result: Response | NoResponse | None = None
        received = bytearray()

        async def read_early(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            """Read the response before the hooks of the user's session run: they may fail or wait.

            The cookies stay out of the session's jar. (A middleware of aiohttp.)
            """
            nonlocal response, result
            response = await handler(request)
            response.cookies = SimpleCookie()
            result = await self._read(response, body, received)
            return response

        request.is_sent = False
        instrumented = otel_context.attach(otel_context.set_value(_HAS_ITS_SPAN, value=True))
        limit = asyncio.timeout(None)
        # One turn later, after a response that came in time was read: the event loop may have been blocked.
        late = asyncio.get_running_loop().call_later(within, expire, limit)
        try:
            async with limit:
                self._waits.add(limit)
                returned = await self._session.request(
                    request.method,
                    URL(request.url, encoded=True),
                    data=body,
                    headers=request.headers,
                    # Whatever the user's session is set to: a redirect would carry the token away and turn
                    # a POST into a GET, a middleware may repeat an approval behind our back.
                    allow_redirects=False,
                    raise_for_status=False,
                    middlewares=(read_early,),
                    timeout=connecting(connect),
                    auto_decompress=False,
                    max_headers=failures.MOST_HEADERS,
                    max_line_size=failures.LARGEST_FIELD,
                    max_field_size=failures.LARGEST_FIELD,
                )
                if result is None:  # a test has replaced `ClientSession._request`
                    response = returned
                    result = await self._read(response, body, received)
                return result
        except (Exception, asyncio.CancelledError) as error:
            is_own = isinstance(error, (*failures.IO_ERRORS, asyncio.CancelledError))
            if not (is_own or body.has_left or result is not None):
                raise  # a hook of the user's session
            try:
                cause = failures.cause_of(error, self._waits)
                if result is not None:
                    return result
                if response is None:
                    return failures.no_response(cause, never_left=body.never_left)
                received += rest_of(response.content)
                return failures.partial_response(response.status, response.headers, cause, bytes(received))
            finally:
                failures.drop_frames(error)
        finally:
            late.cancel()
            self._waits.discard(limit)
            body.end(response)
            otel_context.detach(instrumented)

    async def _read(
        self, response: aiohttp.ClientResponse, body: RequestBody, received: bytearray
    ) -> Response | NoResponse:
        """Read the body of a response into `received`, if it is the response to the request of `body`."""
        if body.never_left:  # so this is no answer to it, and may be one to somebody else
            body.withhold(response)
            return NoResponse(error=ConnectError, cause_type="UnaskedAnswer", is_sent=False)
        if failures.has_two_lengths(response.headers):
            return failures.no_response(failures.MalformedResponseError(), never_left=False)
        body.read(response)
        result = await failures.read(response.status, response.headers, response.content, received)
        if body.protocol is not None:
            self._kept.add(body.protocol)
        return result

    async def aclose(self) -> None:
        """End the calls in progress, and close the session if it is ours."""
        self._waits.close()
        if self._owned:
            await self._session.close()


@lru_cache(maxsize=32)
def connecting(connect: float) -> aiohttp.ClientTimeout:
    """A limit for the connection alone, seconds; the rest is the caller's to end."""
    # aiohttp rounds longer waits up to whole seconds unless the threshold is out of reach.
    return aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=float("inf"))

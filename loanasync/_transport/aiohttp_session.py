"""Requests sent through an aiohttp session: one in, a reply or the word that none came out."""

import asyncio
from contextlib import suppress
from functools import lru_cache
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

import aiohttp
from aiohttp import http
from aiohttp.abc import AbstractStreamWriter
from opentelemetry import context as otel_context
from yarl import URL

from loanasync._display.masking import mask
from loanasync._lifecycle import Waits, end
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures as replies
from loanasync._transport.aiohttp_internals import AT_ONCE, Splitter
from loanasync._transport.fast.compatibility import LARGEST_FIELD, MOST_HEADERS, has_two_lengths
from loanasync._transport.liveness import hear_out, listener
from loanasync._transport.tested import is_tested
from loanasync.errors import ConfigurationError, ConnectError

if TYPE_CHECKING:
    from aiohttp.http import StreamWriter


try:  # private, and the only way to tell instrumentation of aiohttp to leave a request alone
    from opentelemetry.context import (
        _SUPPRESS_HTTP_INSTRUMENTATION_KEY as _HAS_ITS_SPAN,
    )
except ImportError:  # pragma: no cover  (a later API may drop it: double spans, and nothing worse)
    _HAS_ITS_SPAN = otel_context.create_key("loanasync")


_EXPECTED = (aiohttp.ClientError, TimeoutError, OSError)


class _Body(bytes, aiohttp.Payload):
    """A request's body, which knows whether it left; aiohttp writes the head together with it.

    It is bytes, too, for those who look at what a shop's tests catch in place of aiohttp.
    """

    _autoclose = True  # nothing to close

    def __init__(self, value: bytes) -> None:
        aiohttp.Payload.__init__(self, value)
        self._splits = is_tested(aiohttp.__version__)
        self.request: Request | None = None  # its `is_sent` is set here
        self._asked_for = False
        self._left = False
        self._kept_back = False
        self.protocol: object | None = None  # of the connection that aiohttp chose
        self._splitter: Splitter | None = None

    def __repr__(self) -> str:
        return mask(self)

    @property
    def size(self) -> int:
        """Its length in bytes; whoever asks for it builds a request."""
        self._asked_for = True
        return len(self._value)

    @property
    def has_left(self) -> bool:
        """Return True if it was given to a connection."""
        return self._left

    @property
    def never_left(self) -> bool:
        """Whether a request was built, and nothing of it was given to a connection."""
        return self._asked_for and not self._left

    def keep_back(self) -> None:
        """Do not leave any more."""
        self._kept_back = True

    def read(self, response: aiohttp.ClientResponse) -> None:
        """Begin to read the response's body."""
        if self._splitter is not None:
            self._splitter.read(response)

    def end(self, response: aiohttp.ClientResponse | None) -> None:
        """Release the connection, or abort it if it cannot be used again."""
        if self._splitter is not None:
            with suppress(Exception):  # no error here may hide the response
                self._splitter.leave()
        if response is not None:
            with suppress(Exception):
                response.close()

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it to a connection on which nothing else is under way."""
        out = cast("StreamWriter", writer)
        transport = cast("asyncio.Transport | None", getattr(out, "transport", None))
        self.protocol = out.protocol
        has_news = listener(transport)
        if has_news():
            await hear_out(has_news)
        if transport is not None and self._splits:
            await Splitter.left(transport)
        # What the server said before it was asked would be taken for the answer.
        is_held = self._kept_back or (self.request is not None and self.request.is_withdrawn)
        if is_held or getattr(out.protocol, "should_close", False):
            if transport is not None:
                transport.abort()
            raise aiohttp.ClientConnectionResetError("not a clean connection")
        if transport is not None and self._splits and isinstance(transport.get_protocol(), asyncio.Protocol):
            self._splitter = Splitter(transport, keep=len(self._value) < AT_ONCE)
        await out.write(self._value, drain=False)  # raises when the connection is closing, or hands all over
        self._left = True
        if self.request is not None:
            self.request.is_sent = True
        await out.drain()

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it; the length is its own."""
        del content_length
        await self.write(writer)


class SessionTransport:
    """One aiohttp session of one event loop, ours or the user's."""

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

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        if self._session.closed or self._waits.is_closed:  # between two attempts
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
            body = _Body(request.body)
            body.request = request
            answer = await self._exchange_once(request, body, connect, within)
            within = until - asyncio.get_running_loop().time()
            was_unusable = isinstance(answer, NoResponse) and answer.error is ConnectError and body.never_left
            was_kept = body.protocol is not None and body.protocol in self._kept
            is_over = within <= 0 or request.is_withdrawn or self._waits.is_closed or self._session.closed
            if is_over or not (was_unusable and was_kept):
                return answer

    async def _exchange_once(
        self, request: Request, body: _Body, connect: float, within: float
    ) -> Response | NoResponse:
        response: aiohttp.ClientResponse | None = None
        answer: Response | NoResponse | None = None
        received = bytearray()

        async def read_early(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            """Read the response before the hooks of the user's session run: they may fail or wait.

            The cookies stay out of the session's jar. (A middleware of aiohttp.)
            """
            nonlocal response, answer
            response = await handler(request)
            response.cookies = SimpleCookie()
            answer = await self._answer(response, body, received)
            return response

        request.is_sent = False
        instrumented = otel_context.attach(otel_context.set_value(_HAS_ITS_SPAN, value=True))
        limit = asyncio.timeout(None)
        # A turn later than what came in time is read: the loop may have stood still until both were due.
        late = asyncio.get_running_loop().call_later(within, end, limit)
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
                    max_headers=MOST_HEADERS,
                    max_line_size=LARGEST_FIELD,
                    max_field_size=LARGEST_FIELD,
                )
                if answer is None:  # a test has replaced `ClientSession._request`
                    response = returned
                    answer = await self._answer(response, body, received)
                return answer
        except Exception as error:
            if answer is not None:
                replies.drop_frames(error)
                return answer
            if not (isinstance(error, _EXPECTED) or body.has_left):
                raise
            reason = asyncio.CancelledError() if self._waits.is_closed else error
            try:
                if response is None:
                    return replies.no_answer(reason, never_left=body.never_left)
                received += replies.rest_of(response.content)
                return replies.part_of_a_reply(response.status, response.headers, reason, bytes(received))
            finally:
                replies.drop_frames(error)
        except asyncio.CancelledError as given_up:
            replies.drop_frames(given_up)  # an error report with local variables would show token and answer
            if replies.was_cancelled():
                raise
            return answer or replies.no_answer(given_up, never_left=body.never_left)
        finally:
            late.cancel()
            self._waits.discard(limit)
            body.end(response)
            otel_context.detach(instrumented)

    async def _answer(
        self, response: aiohttp.ClientResponse, body: _Body, received: bytearray
    ) -> Response | NoResponse:
        """Read the body of a response into `received`, if it is the response to the request of `body`."""
        if body.never_left:  # so this is no answer to it, and may be one to somebody else
            body.keep_back()
            if response.connection is not None:
                body.protocol = response.connection.protocol
            return NoResponse(error=ConnectError, cause_type="UnaskedAnswer", is_sent=False)
        if has_two_lengths(response):
            return replies.no_answer(http.HttpProcessingError(), never_left=False)
        body.read(response)
        answer = await replies.read(response.status, response.headers, response.content, received)
        if body.protocol is not None:
            self._kept.add(body.protocol)
        return answer

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

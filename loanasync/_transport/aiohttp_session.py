"""The transport that sends requests through `ClientSession.request`."""

import asyncio
from functools import cache, lru_cache
from http.cookies import SimpleCookie
from inspect import signature
from typing import Any

import aiohttp
from opentelemetry import context as otel_context
from yarl import URL

from loanasync._lifecycle import Waits, expire
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._transport import failures
from loanasync._transport.agents import agent_in, without_agents
from loanasync._transport.aiohttp_internals import RequestBody, buffered_body
from loanasync._transport.instrumentation import HTTP_KEY
from loanasync.errors import ConfigurationError, ConnectError


class SessionTransport:
    """Sends requests through an aiohttp session, which the client opened or the user passed.

    It belongs to one event loop, and closes the session only if `owned` is True. Each request has a
    separate timeout; the session's timeouts do not apply. `RequestBody` notes when the request is written.

    Each request has a new connection, which is closed after the response. The public API can neither limit
    the time for which a connection may be idle, nor close one whose response was not understood. If aiohttp
    chooses a connection that was used before, `RequestBody` aborts it, and the request is sent on another.

    During a request, `suppression_key` suppresses OpenTelemetry's instrumentation of the session.
    """

    raises_errors = True  # errors of the hooks of the user's session, raised before anything was sent

    def __init__(
        self, session: aiohttp.ClientSession, *, owned: bool, suppression_key: str = HTTP_KEY
    ) -> None:
        self._session = session
        self._owned = owned
        self._suppression_key = suppression_key
        self._waits = Waits()

    def check(self) -> None:
        """Raise an error if no call can begin.

        Raises:
            ConfigurationError: The user's session is closed, or hooks of an agent would record the requests.
        """
        if self._session.closed and not self._owned:
            raise ConfigurationError("session", "is closed: close it only after the last call")
        if self._owned and (agent := agent_in(None)):  # a user's session is checked before its first call
            raise ConfigurationError(
                "session",
                f"cannot be used: hooks of {agent} on aiohttp, with other code around them, would record the "
                f"fiscal code; disable the aiohttp integration of {agent}",
            )

    @property
    def _is_closed(self) -> bool:
        return self._session.closed or self._waits.is_closed

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """See `Transport.send`."""
        if self._is_closed:  # closed between two attempts
            return NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)
        return await self._exchange(request, connect, within)

    async def _exchange(self, request: Request, connect: float, within: float) -> Response | NoResponse:
        """Send the request; try again while aiohttp chooses connections that were used before."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            body = RequestBody(request.body)
            body.request, body.task, body.deadline = request, asyncio.current_task(), deadline
            result = await self._exchange_once(request, body, connect, within)
            within = deadline - asyncio.get_running_loop().time()
            is_over = within <= 0 or self._is_closed
            if is_over or not body.was_refused:
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
            """Read the response before the hooks of the user's session run, which may fail or wait.

            This is an aiohttp middleware. It also keeps cookies of the response out of the session's jar.
            """
            nonlocal response, result
            response = await handler(request)
            response.cookies = SimpleCookie()
            result = await self._read(response, body, received)
            return response

        request.is_sent = False
        suppression = otel_context.attach(otel_context.set_value(self._suppression_key, value=True))
        limit = asyncio.timeout(None)
        # After a blocked event loop, a response that arrived in time is read before this callback runs.
        timer = asyncio.get_running_loop().call_later(within, expire, limit)
        try:
            async with limit:
                self._waits.add(limit)
                with without_agents(self._session) as send:
                    returned = await send(
                        request.method,
                        URL(request.url, encoded=True),
                        data=body,
                        headers={**request.headers, "Connection": "close"},
                        # These override the settings of the user's session. A redirect would send the
                        # token to another host and turn a POST into a GET. A middleware could send an
                        # approval twice.
                        allow_redirects=False,
                        raise_for_status=False,
                        middlewares=(read_early,),
                        timeout=connect_timeout(connect),
                        auto_decompress=False,
                        **parser_limits(),
                    )
                if result is None:  # the middleware did not run: a test replaces `ClientSession._request`
                    response = returned
                    result = await self._read(response, body, received)
                return result
        except (Exception, asyncio.CancelledError) as error:
            is_expected = isinstance(error, (*failures.IO_ERRORS, asyncio.CancelledError))
            if not (is_expected or body.is_written or result is not None):
                raise  # raised by a hook of the user's session, before anything was sent
            try:
                cause = failures.cause_of(error, self._waits)
                if result is not None:
                    return result
                if response is None:
                    return failures.no_response(cause, is_unsent=body.is_unsent)
                received += buffered_body(response.content)
                return failures.partial_response(response.status, response.headers, cause, bytes(received))
            finally:
                failures.drop_frames(error)
        finally:
            timer.cancel()
            self._waits.discard(limit)
            body.end(response)
            otel_context.detach(suppression)

    async def _read(
        self, response: aiohttp.ClientResponse, body: RequestBody, received: bytearray
    ) -> Response | NoResponse:
        """Read the body of a response into `received`, if it is the response to the request of `body`."""
        if body.is_unsent:  # the response belongs to another request, perhaps of another customer
            body.cancel_write(response)
            return NoResponse(error=ConnectError, cause_type="UnsolicitedResponse", is_sent=False)
        if failures.has_two_lengths(response.headers):
            body.discard_connection()
            return failures.no_response(failures.MalformedResponseError(), is_unsent=False)
        body.watch(response)
        return await failures.read(response.status, response.headers, response.content, received)

    async def aclose(self) -> None:
        """End the requests in progress with the cause `SessionClosed`; close the session if it is owned."""
        self._waits.close()
        if self._owned:
            await self._session.close()


@lru_cache(maxsize=32)
def connect_timeout(connect: float) -> aiohttp.ClientTimeout:
    """Return aiohttp's timeout settings: `connect` seconds for the connection, and no other limit."""
    # By default, aiohttp rounds timeouts of more than 5 seconds up to whole seconds.
    return aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=float("inf"))


@cache
def parser_limits() -> dict[str, Any]:
    """Return the limits of aiohttp's parser: parameters of `ClientSession.request`."""
    limits = {"max_line_size": failures.MAX_FIELD_SIZE, "max_field_size": failures.MAX_FIELD_SIZE}
    # Before 3.13.4, aiohttp had no limit of the number of headers.
    if "max_headers" in signature(aiohttp.ClientSession).parameters:
        limits["max_headers"] = failures.MAX_HEADERS
    return limits

"""The only file that speaks aiohttp: one request in, a reply or the word that none came out."""

import asyncio
import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from traceback import walk_tb
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from loanasync import _certificates as certificates
from loanasync._calls import NoAnswer, Reply, Request
from loanasync._configuration import require
from loanasync._display import mask
from loanasync.errors import (
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

if TYPE_CHECKING:
    from aiohttp.http import StreamWriter

__all__ = ["Transport", "opener"]

_LARGEST_BODY = 1 << 20  # bytes, decoded: a decision has about a thousand

# What these name comes before the request, also where a shop's tests raise them in place of aiohttp.
_NO_CONNECTION = (
    aiohttp.ClientConnectorError,  # name, refusal, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also the wait for a connection of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
)


class _Body(bytes, aiohttp.Payload):
    """A request's body, which knows whether it left; aiohttp writes the head together with it.

    It is bytes, too, for those who look at what a shop's tests catch in place of aiohttp.
    """

    _autoclose = True  # nothing to close

    def __init__(self, value: bytes) -> None:
        aiohttp.Payload.__init__(self, value)
        self._asked_for = False
        self._left = False
        self._kept_back = False

    def __repr__(self) -> str:
        return mask(self)

    @property
    def size(self) -> int:
        """Its length in bytes; whoever asks for it builds a request."""
        self._asked_for = True
        return len(self._value)

    @property
    def never_left(self) -> bool:
        """Whether a request was built, and nothing of it was given to a connection."""
        return self._asked_for and not self._left

    def keep_back(self) -> None:
        """Do not leave any more."""
        self._kept_back = True

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write it to a connection on which nothing else is under way."""
        out = cast("StreamWriter", writer)
        # What the server said before it was asked would be taken for the answer.
        if self._kept_back or getattr(out.protocol, "should_close", False):
            raise aiohttp.ClientConnectionResetError("not a clean connection")
        await out.write(self._value, drain=False)  # raises when the connection is closing, or hands all over
        self._left = True
        await out.drain()

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write it; the length is its own."""
        del content_length
        await self.write(writer)


class Transport:
    """One aiohttp session of one event loop, ours or the user's."""

    def __init__(self, session: aiohttp.ClientSession, *, owned: bool) -> None:
        self._session = session
        self._owned = owned

    def check(self) -> None:
        """Look whether a call can begin.

        Raises:
            ConfigurationError: The user's session is closed.
        """
        if self._session.closed and not self._owned:
            raise ConfigurationError("session", "is closed: keep it open for as long as calls come")

    async def send(self, request: Request, *, connect: float, within: float) -> Reply | NoAnswer:
        """Send once; `connect` and `within` are seconds for the connection and for the whole."""
        if self._session.closed:  # between two attempts
            return NoAnswer(error=ConnectError, cause_type="SessionClosed", request_sent="no")
        response: aiohttp.ClientResponse | None = None
        body = _Body(request.body)
        try:
            async with asyncio.timeout(within):
                response = await self._session.request(
                    request.method,
                    URL(request.url, encoded=True),
                    data=body,
                    headers=request.headers,
                    # Whatever the user's session is set to: a redirect would carry the token away and turn
                    # a POST into a GET, a middleware may repeat an approval behind our back.
                    allow_redirects=False,
                    raise_for_status=False,
                    middlewares=(),
                    timeout=_timeout(connect),
                )
                if body.never_left:  # so this is no answer to it, and may be one to somebody else
                    body.keep_back()
                    return NoAnswer(error=ConnectError, cause_type="UnaskedAnswer", request_sent="no")
                return await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            try:
                if response is None:
                    return _no_answer(error, never_left=body.never_left)
                # The status has come, and it is the answer's better half: a truncated 422 is a refusal.
                fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
                return _reply(response, b"", fault)
            finally:
                _drop_frames(error)
        except asyncio.CancelledError as given_up:
            _drop_frames(given_up)  # an error report with local variables would show token and answer
            raise
        finally:
            if response is not None:
                response.close()

    async def aclose(self) -> None:
        """Close the session if it is ours."""
        if self._owned:
            await self._session.close()


def opener(session: aiohttp.ClientSession | None, trust: object = None) -> Callable[[], Transport]:
    """How a running loop gets its transport: over the user's session or, for None, one of our own.

    Raises:
        ConfigurationError: The session is none, or whom to trust is not told or told twice.
    """
    context = certificates.trusted(trust)
    if session is None:
        return partial(_open, context)
    require(aiohttp.ClientSession, "session", session)
    if context is not None:
        raise ConfigurationError("ssl", "is for our own session: give it to the connector of yours")
    if not certificates.is_checking(getattr(session.connector, "_ssl", True)):
        raise ConfigurationError(
            "session", "must check certificates and host names: its connector was told not to"
        )
    return partial(_borrow, session)


def _open(context: ssl.SSLContext | None) -> Transport:
    session = aiohttp.ClientSession(
        # The pipeline limits calls, and says so.
        connector=aiohttp.TCPConnector(limit=0, ssl=True if context is None else context),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # costs thread hops, and may add credentials of a .netrc
    )
    return Transport(session, owned=True)


def _borrow(session: aiohttp.ClientSession) -> Transport:
    loop = asyncio.get_running_loop()
    if getattr(session, "_loop", loop) is not loop:
        raise ConfigurationError(
            "session", "belongs to another event loop: make one in this loop, or leave session out"
        )
    return Transport(session, owned=False)


async def _read(response: aiohttp.ClientResponse) -> Reply:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _LARGEST_BODY:
            return _reply(response, b"", "too large")
    return _reply(response, bytes(body), None)


def _reply(response: aiohttp.ClientResponse, body: bytes, fault: str | None) -> Reply:
    return Reply(status=response.status, headers=response.headers, body=body, fault=fault)


@lru_cache(maxsize=32)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    # aiohttp rounds longer waits up to whole seconds unless the threshold is out of reach.
    return aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=float("inf"))


def _no_answer(error: Exception, *, never_left: bool) -> NoAnswer:
    no_connection = isinstance(error, _NO_CONNECTION)
    kind: type[TransportError]
    if isinstance(error, aiohttp.ConnectionTimeoutError) and _waited_for_pool(error):
        kind = PoolTimeoutError
    elif isinstance(error, TimeoutError) and not no_connection:
        kind = ReadTimeoutError
    else:
        kind = ConnectError if no_connection or never_left else ConnectionLostError
    return NoAnswer(
        error=kind,
        cause_type=_cause_type(error),
        request_sent="no" if no_connection or never_left else "maybe",
    )


def _cause_type(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{name}: {certificates.flaw(error.certificate_error)}"
    number = getattr(error, "errno", None)
    return f"{name} errno {number}" if isinstance(number, int) else name


def _drop_frames(error: BaseException | None) -> None:
    """Forget where an error came from: aiohttp keeps some in what those very frames hold, the request too."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# aiohttp has one error for two waits, for a connection and for a free slot of a pool that is full. Which one
# it was stands in the stack that the time-out cut off. Should aiohttp rename the method, all are connections.
_POOL = getattr(getattr(aiohttp.BaseConnector, "_wait_for_available_connection", None), "__code__", None)


def _waited_for_pool(error: BaseException | None) -> bool:
    while error is not None:
        if any(frame.f_code is _POOL for frame, _ in walk_tb(error.__traceback__)):
            return True
        error = error.__cause__
    return False

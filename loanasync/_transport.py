"""The only file that speaks aiohttp: one request in, a reply or the word that none came out."""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from traceback import walk_tb

import aiohttp
from yarl import URL

from loanasync._calls import NoAnswer, Reply, Request
from loanasync._configuration import require
from loanasync.errors import (
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
)

__all__ = ["Transport", "opener"]

_LARGEST_BODY = 1 << 20  # bytes, decoded: a decision has about a thousand

# Raised before the first byte of the request leaves. Their parents are raised later, too: test them first.
_NEVER_SENT = (
    aiohttp.ClientConnectorError,  # name, refusal, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also the wait for a connection of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
    aiohttp.ClientConnectionResetError,  # found closing before the write of the head
)


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
        try:
            async with asyncio.timeout(within):
                response = await self._session.request(
                    request.method,
                    URL(request.url, encoded=True),
                    data=request.body,
                    headers=request.headers,
                    # Whatever the user's session is set to: a redirect would carry the token away and turn
                    # a POST into a GET, a middleware may repeat an approval behind our back.
                    allow_redirects=False,
                    raise_for_status=False,
                    middlewares=(),
                    timeout=_timeout(connect),
                )
                return await _read(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            try:
                if response is None:
                    return _no_answer(error)
                # The status has come, and it is the answer's better half: a truncated 422 is a refusal.
                fault = "timed out" if isinstance(error, TimeoutError) else "truncated"
                return _reply(response, b"", fault)
            finally:
                _drop_frames(error)
        finally:
            if response is not None:
                response.close()

    async def aclose(self) -> None:
        """Close the session if it is ours."""
        if self._owned:
            await self._session.close()


def opener(session: aiohttp.ClientSession | None) -> Callable[[], Transport]:
    """How a running loop gets its transport: over the user's session or, for None, one of our own.

    Raises:
        ConfigurationError: The session is none.
    """
    if session is None:
        return _open
    require(aiohttp.ClientSession, "session", session)
    return partial(_borrow, session)


def _open() -> Transport:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # the pipeline limits calls, and says so
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


def _no_answer(error: Exception) -> NoAnswer:
    number = getattr(error, "errno", None)
    cause_type = type(error).__name__ + (f" errno {number}" if isinstance(number, int) else "")
    # Without a number it is aiohttp's own: found closing before the write of the body.
    closing = isinstance(error, aiohttp.ClientOSError) and error.errno is None
    if isinstance(error, _NEVER_SENT) or closing:
        waited = isinstance(error, aiohttp.ConnectionTimeoutError) and _waited_for_pool(error)
        never = PoolTimeoutError if waited else ConnectError
        return NoAnswer(error=never, cause_type=cause_type, request_sent="no")
    kind = ReadTimeoutError if isinstance(error, TimeoutError) else ConnectionLostError
    return NoAnswer(error=kind, cause_type=cause_type, request_sent="maybe")


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

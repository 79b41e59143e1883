"""Conversion of exceptions to `NoResponse`."""

import asyncio

import aiohttp

from loanasync._protocol.messages import NoResponse
from loanasync._transport import tls
from loanasync._transport.aiohttp_internals import is_replaced, waited_for_pool
from loanasync._transport.waits import Waits, was_cancelled
from loanasync.errors import (
    PROGRAM_FAILED,
    ConnectError,
    ConnectionLostError,
    PoolTimeoutError,
    ReadTimeoutError,
    TransportError,
)

# Subclasses of OSError include TimeoutError. Requests that wait for a closed pool raise CancelledError.
_IO_ERRORS = (aiohttp.ClientError, OSError, asyncio.CancelledError)
SESSION_CLOSED = NoResponse(error=ConnectError, cause_type="SessionClosed", is_sent=False)

# aiohttp raises these errors before it sends the request. They mean the same when a user's test raises them
# in a mocked session.
_NO_CONNECTION = (
    aiohttp.ClientConnectorError,  # DNS, connection refused, TLS, certificate, proxy
    aiohttp.ConnectionTimeoutError,  # also while waiting for a free slot of the session's pool
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientHttpProxyError,
)


class MalformedResponseError(Exception):
    """The received bytes are not a valid HTTP response."""


class ProgramError(Exception):
    """An exception that is no error of the network, by the name of its class."""


def cause_of(error: BaseException, waits: Waits) -> BaseException:
    """Return the cause of the end of an exchange.

    Raise `error` if it is the cancellation of the current task, or the AssertionError of a test with a mock.

    When a transport is closed, its `waits` end with TimeoutError. Then the cause is a CancelledError, which
    `no_response` reports as `SessionClosed`.
    """
    if isinstance(error, asyncio.CancelledError) and was_cancelled():
        drop_frames(error)  # an error report with local variables would show the token and the response
        raise error
    if isinstance(error, AssertionError) and is_replaced():
        raise error
    if waits.is_closed:
        return asyncio.CancelledError()
    if not _is_of_program(error):
        return error
    return ProgramError("TimeoutError" if isinstance(error, TimeoutError) else type(error).__name__)


def _is_of_program(error: BaseException) -> bool:
    """Return True for an exception that is no error of the network, such as that of a signal handler.

    It may be a TimeoutError. asyncio raises one while it handles the CancelledError that ended the wait.
    """
    if is_replaced():  # a mock may raise any exception
        return False
    if not isinstance(error, _IO_ERRORS):
        return True
    found = error if type(error) is TimeoutError else error.__cause__
    if type(found) is not TimeoutError or found.errno is not None:  # with a number, it is one of the system
        return False
    return not isinstance(found.__cause__ or found.__context__, asyncio.CancelledError)


def no_response(error: BaseException, *, is_unsent: bool) -> NoResponse:
    """Return the `NoResponse` for an error; `is_unsent` says that nothing of the request was written."""
    no_connection = isinstance(error, _NO_CONNECTION)
    is_unsent = is_unsent or no_connection
    kind: type[TransportError] = ConnectError if is_unsent else ConnectionLostError
    if isinstance(error, aiohttp.ConnectionTimeoutError) and waited_for_pool(error):
        kind = PoolTimeoutError
    elif isinstance(error, TimeoutError) and not is_unsent:
        kind = ReadTimeoutError
    return NoResponse(error=kind, cause_type=_cause_type(error), is_sent=not is_unsent)


def _cause_type(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "SessionClosed"
    if isinstance(error, MalformedResponseError):
        return aiohttp.ClientResponseError.__name__  # the error of `ClientSession.request`
    if isinstance(error, ProgramError):
        return f"{PROGRAM_FAILED}{error}"
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{name}: {tls.certificate_problem(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{name} status {error.status}"
    number = getattr(error, "errno", None)
    return f"{name} errno {number}" if isinstance(number, int) else name


def drop_frames(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and its causes.

    Their frames hold the request. aiohttp also stores some errors in these frames, which makes a cycle.
    A test prints the frames of its AssertionError.
    """
    if isinstance(error, AssertionError) and is_replaced():
        return
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__

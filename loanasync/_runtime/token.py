"""The auth token of a shop that has a function for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from loanasync._protocol.messages import NoResponse
from loanasync._shop import Shop, token_violation
from loanasync._transport.failures import SESSION_CLOSED, drop_frames
from loanasync._transport.waits import Waits, was_cancelled
from loanasync.errors import TOKEN_FAILED, ConnectError, DeadlineExceededError

_TOO_LATE = NoResponse(error=DeadlineExceededError, cause_type=f"{TOKEN_FAILED}TimeoutError", is_sent=False)


async def obtain_token(shop: Shop, waits: Waits, remaining: Callable[[], float]) -> str | NoResponse:
    """Return the token of the next request from the user's function, or the reason for sending nothing.

    An exception of the function is not raised, because its text may contain a secret.

    Args:
        shop: A shop with a function.
        waits: The waits that end when the client is closed.
        remaining: Returns the seconds that are left of the call.
    """
    limit = asyncio.timeout(remaining())
    token: object = None
    try:
        token = await _call(shop, waits, limit)
        cause = token_violation(token)
    except (Exception, asyncio.CancelledError) as error:
        drop_frames(error)  # those of the user's function, whose local variables may be secret
        if isinstance(error, asyncio.CancelledError) and was_cancelled():
            raise
        cause = type(error).__name__
    if waits.is_closed:
        return SESSION_CLOSED
    if limit.expired() or remaining() <= 0:
        return _TOO_LATE
    if cause is not None:
        return NoResponse(error=ConnectError, cause_type=TOKEN_FAILED + cause, is_sent=False)
    return str(token)


async def _call(shop: Shop, waits: Waits, limit: asyncio.Timeout) -> object:
    """Return the result of the user's function.

    An awaitable is awaited in a separate task: then `limit` ends this wait even if the awaitable suppresses
    its cancellation. The function is not stored in a variable: its `repr` may contain a secret.
    """
    assert not isinstance(shop.auth_token, str)  # noqa: S101  (only called for functions)
    token: object = None
    task: asyncio.Future[Any] | None = None
    try:
        token = shop.auth_token()
        if not isinstance(token, Awaitable):
            return token
        task = asyncio.ensure_future(cast("Awaitable[Any]", token))
        async with waits.limited_by(limit):
            await asyncio.wait((task,))
        return task.result()
    finally:
        if task is not None and task is not token:  # not the user's, which several calls may await
            task.cancel()
            task.add_done_callback(_retrieve)
        del token, task  # secret: must not be in a traceback


def _retrieve(task: "asyncio.Future[Any]") -> None:
    """Retrieve the exception of a task that is not awaited any more, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()

"""Approvals in progress: the callers that wait for one, and what is remembered of its end."""

import asyncio
import os
from asyncio import CancelledError
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, RawResponse, Refused
from loanasync._telemetry.spans import CallRecord
from loanasync.errors import (
    AlreadyEvaluatedError,
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)

Error = TypeVar("Error", bound=Exception)
Waiter: TypeAlias = "asyncio.Future[None]"


class Flight:
    """A request in progress, and the futures of those who wait for its outcome.

    With a ledger a separate task runs it, else the task of the first caller.
    """

    __slots__ = ("_process", "application", "call", "ended", "key", "left", "loop", "task", "waiters")

    def __init__(self, call: Call, application: bytes, key: bytes) -> None:
        self.call = call
        self.application = application
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] | None = None
        self.ended: Outcome | Exception | None = None
        self.left: Unknown | None = None  # what was remembered when the first caller left
        self.waiters: list[Waiter] = []
        self._process = os.getpid()

    def has_died(self) -> bool:
        """Return True if it cannot end any more.

        Its event loop was closed or belongs to the parent of this process, or its task never began.
        """
        has_ended = self.task is not None and self.task.done()
        return has_ended or self.loop.is_closed() or self.is_inherited()

    def is_inherited(self) -> bool:
        """Return True in a forked child of the process that makes the request."""
        return self._process != os.getpid()

    async def wait(self, within: float | None = None) -> Outcome | Exception:
        """Return the outcome once the request has ended.

        Raises:
            TimeoutError: It has not ended within that many seconds.
        """
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        if self.ended is not None:  # in another thread, at the same time
            wake(waiter)
        try:
            async with asyncio.timeout(within):
                await waiter
        except (TimeoutError, CancelledError):
            self._leave(waiter)
            raise
        assert self.ended is not None  # noqa: S101  (it is set before anybody is woken)
        return self.ended

    async def join(
        self, call: Call, key: bytes, within: float, record: CallRecord
    ) -> Outcome | LoanError | None:
        """Return the outcome for another call; None if the first caller has left before there was one."""
        if self.key != key:
            return PayloadMismatchError("approve", call.entry or "", "inflight")
        try:
            ended = await self.wait(within)
        except TimeoutError:
            return InFlightError("approve", call.entry or "")
        if isinstance(ended, AbandonedError):
            return None
        if isinstance(ended, LoanError):
            return anew(ended)
        if isinstance(ended, Exception):
            raise ended
        if isinstance(ended, Approved | Refused):
            record.decided(approved=ended.approved)
        return ended

    def _leave(self, waiter: Waiter) -> None:
        """Remove a caller that waits no longer."""
        if self.is_inherited():
            return
        with suppress(ValueError):  # it has just ended
            self.waiters.remove(waiter)
        self.warn_of_unread_decision()
        if self.waiters:
            return
        if asyncio.get_running_loop() is self.loop:
            self._abandon()  # at once: a turn later the first byte may be sent
        else:
            with suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon_threadsafe(self._abandon)

    def warn_of_unread_decision(self) -> None:
        """Log that a decision is in no ledger, if no caller is left that gets the error which carries it."""
        error = self.ended
        if self.waiters or not isinstance(error, DecisionNotRecordedError):
            return
        if error.file is None:
            LOGGER.error(_IN_MEMORY, error.operation, error.key[:12], error.cause_type)
        else:
            LOGGER.warning(_IN_FILE, error.operation, error.key[:12], error.cause_type)

    def _abandon(self) -> None:
        """Send nothing more; the response to what was sent is still read, and remembered."""
        if not self.waiters and self.task is not None:
            self.call.is_abandoned = True
            if self.call.is_waiting:
                if self.call.sending is not None:  # or it may be written before the task hears of it
                    self.call.sending.is_withdrawn = True
                self.task.cancel()


_IN_FILE = (
    "%s, entry %s: the service decided after the call was cancelled, and the ledger could not be written "
    "(%s); the decision is in a file: import it with import_orphans"
)
_IN_MEMORY = (
    "%s, entry %s: a decision is in danger: the service decided after the call was cancelled, and neither "
    "the ledger (%s) nor a file could be written; only the memory of this client has the decision, for an "
    "hour: call approve again with the same data and client"
)


def wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AbandonedError(LoanError):
    """The first caller was cancelled before its request was sent, or while it waited for a retry."""


class Unknown(NamedTuple):
    """An approval whose outcome is not known."""

    state: Literal["unknown", "lost"]
    note: str
    response: RawResponse | None = None


def unknown_after(ended: object, call: Call) -> Unknown | None:
    match ended:
        case AbandonedError():  # if nobody goes on, the request may have been evaluated
            return Unknown("unknown", "CancelledError") if call.may_be_evaluated else None
        case AlreadyEvaluatedError():
            return Unknown("lost", type(ended).__name__)
        case OutcomeUnknownError():
            return Unknown("unknown", ended.note)
        case LoanError(outcome="unknown"):
            return Unknown("unknown", type(ended).__name__, getattr(ended, "response", None))
        case LoanError():
            return None
        case _:
            return Unknown("unknown", type(ended).__name__) if call.may_be_evaluated else None


def unknown_outcome(call: Call, note: str) -> LoanError:
    return OutcomeUnknownError("approve", call.entry or "", "unknown", note)


def anew(error: Error) -> Error:
    """Return a copy for each caller: one exception cannot be raised in several places."""
    if not isinstance(error, LoanError):
        return error
    again = type(error)(*error.args)
    if isinstance(error, LedgerError) and isinstance(again, LedgerError):
        again.trace_id = error.trace_id
    return again

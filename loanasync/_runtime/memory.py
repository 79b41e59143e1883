"""A client's memory of approvals: those in progress, and the outcomes of earlier ones."""

import asyncio
import os
import threading
from asyncio import CancelledError
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import orjson

from loanasync._lifecycle import free_after_fork
from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, Decision, RawResponse, Refused
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.retry import is_system_fault
from loanasync._settings import RetryPolicy, Timeout
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

if TYPE_CHECKING:
    from loanasync._protocol.messages import NoResponse, Response


Error = TypeVar("Error", bound=Exception)
Waiter: TypeAlias = "asyncio.Future[None]"

_MOST = 10_000  # approvals
_LONGEST = 3600.0  # seconds that an outcome is kept
_LAST = 5.0  # seconds for what is still to be written to a ledger when a client was closed


class Unknown(NamedTuple):
    """An approval whose outcome is not known."""

    state: Literal["unknown", "lost"]
    note: str
    response: RawResponse | None = None


class AbandonedError(LoanError):
    """The first caller was cancelled before its request was sent, or while it waited for a retry."""


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

    async def wait(self) -> Outcome | Exception:
        """Return the outcome once the request has ended."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        if self.ended is not None:  # in another thread, at the same time
            wake(waiter)
        try:
            await waiter
        except CancelledError:
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
            async with asyncio.timeout(within):
                ended = await self.wait()
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


class Approval(Protocol):
    """An approval with a ledger (`loanasync.ledger.recorder.RecordedApproval`)."""

    async def run(self, pipeline: Pipeline, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Return the decision of the ledger or of the service."""


class Recorder(Protocol):
    """The ledger of a client (`loanasync.ledger.recorder.LedgerRecorder`)."""

    def approval(self, call: Call, scope: str, *, repeat_unknown: bool) -> Approval:
        """Return an approval that is to be run with the ledger, and set the key of its entry."""


class Memory:
    """The approvals of a client and its light copies: those in progress, and the outcomes of earlier ones.

    Overlapping calls for one approval share one request. With a ledger, the ledger keeps the outcomes, and
    this keeps only the decisions that could not be written to it.
    """

    def __init__(self, pipeline: Pipeline, recorder: Recorder | None, *, most: int = _MOST) -> None:
        self._pipeline = pipeline
        self._recorder = recorder
        self._most = most
        self._secret = token_bytes(32)
        self._flights: dict[bytes, Flight] = {}
        self._outcomes: OrderedDict[bytes, tuple[Decision | Unknown, float]] = OrderedDict()
        self._renew_lock()
        free_after_fork(self, Memory._renew_lock)

    def _renew_lock(self) -> None:
        """Make the lock anew, which a forked child may inherit from a thread that it has not."""
        # Held for microseconds, and never across an await; the collector of garbage may end a call within it.
        self._lock = threading.RLock()

    async def approve(
        self,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
        scope: str,
        *,
        repeat_unknown: bool,
    ) -> Outcome:
        """Return a decision: a remembered one, that of a request in progress, or the service's.

        Args:
            call: The approval.
            timeout: How long it may take.
            retry: When it is repeated.
            scope: Distinguishes applications of one customer.
            repeat_unknown: Send the request although the outcome of an earlier one is unknown.

        Raises:
            InvalidRequestError: The key of the entry needs an order token.
            LoanError: The call ended without a decision.
        """
        pipeline, approval = self._pipeline, None
        if self._recorder is not None:
            approval = self._recorder.approval(call, scope, repeat_unknown=repeat_unknown)
        application, key = self._keys(call, scope)
        resumed: Unknown | None = None
        while True:
            with self._lock:
                known = None
                if key in self._outcomes:
                    known = self._known(key, resumed, repeat_unknown=repeat_unknown)
                flight = self._flights.get(application)
                if known is None and flight is None:
                    flight = self._flights[application] = Flight(call, application, key)
                    break
            if known is not None or flight is None:
                assert known is not None  # noqa: S101  (one of the two is there)
                with pipeline.start(call, timeout, retry) as run:
                    return run.end(_recalled(call, known, run.record))
            if flight.has_died():
                self._end(flight, self._failure(flight, CancelledError()))
                continue
            with pipeline.start(call, timeout, retry) as run:
                run.record.ledger_result("joined")
                joined = run.end(await flight.join(call, key, timeout.total, run.record))
            if joined is not None:
                return joined
            # The first caller has left: this call sends the request, or retries it.
            call.fault, call.attempts, resumed = flight.call.fault, flight.call.attempts, flight.left
            timeout = pipeline.left(call, timeout)
        if approval is not None:
            return await self._run_in_task(flight, approval, timeout, retry)
        call.after_unknown = repeat_unknown and key in self._outcomes
        call.outlives_caller = True
        try:
            ended = await pipeline.run(call, timeout, retry)
        except BaseException as error:
            self._fail(flight, error)
            raise
        self._end(flight, ended)
        return ended

    def _keys(self, call: Call, scope: str) -> tuple[bytes, bytes]:
        """Return digests of the application (shop, customer, scope) and of the approval (and its payload)."""
        # With a ledger, the key of its entry says which application it is.
        names = call.entry or "\0".join(
            (call.shop.base_url, call.shop.shop_id, call.fiscal_code or "", scope)
        )
        application = blake2b(names.encode(errors="surrogatepass"), key=self._secret, digest_size=16).digest()
        try:
            members = orjson.dumps(orjson.loads(call.body), option=orjson.OPT_SORT_KEYS)
        except ValueError:  # half of a surrogate pair
            members = call.body
        return application, blake2b(application + members, key=self._secret, digest_size=16).digest()

    def _known(
        self, key: bytes, resumed: Unknown | None, *, repeat_unknown: bool
    ) -> Decision | Unknown | None:
        """Return what is remembered of an approval, but the outcome that this call resumes from."""
        outcome, until = self._outcomes[key]
        if until <= monotonic():
            del self._outcomes[key]
            return None
        is_unknown = isinstance(outcome, Unknown) and outcome.state == "unknown"
        if outcome is resumed or (repeat_unknown and is_unknown):
            return None
        return outcome

    async def _run_in_task(
        self, flight: Flight, approval: Approval, timeout: Timeout, retry: RetryPolicy
    ) -> Outcome:
        """Run a call with a ledger in a separate task, which outlives its callers and settles the entry."""
        run = self._fly(flight, approval, timeout, retry)
        flight.task = asyncio.Task(run, loop=flight.loop)
        ended = await flight.wait()
        del flight
        if isinstance(ended, AbandonedError):
            raise CancelledError  # somebody cancelled the task that ran the call, such as the end of its loop
        if isinstance(ended, Exception):
            try:
                raise anew(ended)
            finally:
                del ended  # or error, traceback and frame would hold each other
        return ended

    async def _fly(self, flight: Flight, approval: Approval, timeout: Timeout, retry: RetryPolicy) -> None:
        """Run a request to its end, although its callers may leave."""
        try:
            ended: Outcome | Exception = await approval.run(self._pipeline, timeout, retry)
        except (Exception, CancelledError) as error:  # noqa: BLE001  (raised where each waits for it)
            ended = self._failure(flight, error)
        except BaseException as error:
            self._end(flight, self._failure(flight, error))
            raise
        self._end(flight, ended)

    def _fail(self, flight: Flight, error: BaseException) -> None:
        """End a request with an error.

        Raises:
            OutcomeUnknownError: The error says that nothing was sent, but an earlier caller had a 500.
        """
        if isinstance(error, CancelledError):
            self._leave(flight)
            return
        failure = self._failure(flight, error)
        self._end(flight, failure)
        if isinstance(error, LoanError) and type(failure) is not type(error):
            try:
                raise failure from None
            finally:
                del failure  # or error, traceback and frame would hold each other

    def _leave(self, flight: Flight) -> None:
        """Go on without the caller that was cancelled: read a response that is still to come."""
        call = flight.call
        late = None if call.sending is None else call.sending.late
        if late is not None:
            late.add_done_callback(partial(self._land, flight))
        else:
            self._end(flight, self._failure(flight, CancelledError()))

    def _land(
        self,
        flight: Flight,
        late: "asyncio.Future[Response | NoResponse]",
    ) -> None:
        """Remember what a late response says."""
        error = CancelledError() if late.cancelled() else late.exception()
        if error is not None:
            self._end(flight, self._failure(flight, error))
            return
        answer = late.result()
        if is_system_fault(answer) and flight.waiters:
            flight.call.fault, flight.call.sending = answer, None
            self._end(flight, AbandonedError())  # one of them retries it
            return
        try:
            ended = self._pipeline.read(flight.call, answer, "cancelled" if is_system_fault(answer) else None)
        except Exception as unread:
            self._end(flight, self._failure(flight, unread))
            raise
        what = type(ended).__name__
        LOGGER.info("approve: the response to a call that was cancelled has come: %s", what)
        self._end(flight, cast("Outcome | Exception", ended))

    def _failure(self, flight: Flight, error: BaseException) -> Exception:
        """Return the exception for the callers that wait."""
        call = flight.call
        if isinstance(error, LoanError):
            # An earlier caller's request was answered with 500, and this call could not retry it.
            is_unknown = call.fault is not None and error.outcome == "not_sent"
            return unknown_outcome(call, type(error).__name__) if is_unknown else anew(error)
        if isinstance(error, Exception):
            return error
        if flight.is_inherited():  # the parent of this process makes it
            return unknown_outcome(call, "fork")
        # No request of this call is in progress: another caller can continue it.
        if not call.may_be_evaluated or (call.is_waiting and flight.waiters and not flight.has_died()):
            return AbandonedError()
        return unknown_outcome(call, type(error).__name__)

    def _end(self, flight: Flight, ended: Outcome | Exception) -> None:
        """Remember an outcome, and wake the callers that wait for it."""
        outcome: Decision | Unknown | None = None
        if isinstance(ended, DecisionNotRecordedError):
            outcome = ended.decision
        elif self._recorder is None:
            outcome = ended if isinstance(ended, Approved | Refused) else unknown_after(ended, flight.call)
        with self._lock:
            if flight.ended is not None:  # several threads found it dead, or its first caller was collected
                return
            # A child that is forked by another thread between two of these steps goes on from there: so the
            # outcome is remembered before the request is no longer in progress.
            if isinstance(ended, AbandonedError) and isinstance(outcome, Unknown):
                flight.left = outcome
            if outcome is not None:
                now = monotonic()
                outcomes = self._outcomes
                outcomes.pop(flight.key, None)  # the oldest are in front
                outcomes[flight.key] = outcome, now + _LONGEST
                while len(outcomes) > self._most or next(iter(outcomes.values()))[1] <= now:
                    outcomes.popitem(last=False)
            if self._flights.get(flight.application) is flight:
                del self._flights[flight.application]
            flight.ended = ended
        if isinstance(ended, DecisionNotRecordedError):
            flight.warn_of_unread_decision()
        if flight.waiters and not flight.is_inherited():  # whose parent has that event loop
            self._wake(flight)

    def _wake(self, flight: Flight) -> None:
        for waiter in tuple(flight.waiters):  # in other threads some may leave meanwhile
            with suppress(RuntimeError):  # its event loop was closed meanwhile
                waiter.get_loop().call_soon_threadsafe(wake, waiter)

    async def aclose(self) -> None:
        """Wait until the calls of this event loop that lost their connection have written what is known."""
        here = asyncio.get_running_loop()
        flights = tuple(self._flights.values())
        tasks = [flight.task for flight in flights if flight.loop is here and flight.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST)


def wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _recalled(call: Call, known: Decision | Unknown, record: CallRecord) -> Decision | LoanError:
    if isinstance(known, Unknown):
        record.ledger_result("blocked")
        return OutcomeUnknownError("approve", call.entry or "", *known)
    record.ledger_result("remembered")
    record.decided(approved=known.approved)
    return known


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


_IN_FILE = (
    "%s, entry %s: the service decided after the call was cancelled, and the ledger could not be written "
    "(%s); the decision is in a file: import it with import_orphans"
)
_IN_MEMORY = (
    "%s, entry %s: a decision is in danger: the service decided after the call was cancelled, and neither "
    "the ledger (%s) nor a file could be written; only the memory of this client has the decision, for an "
    "hour: call approve again with the same data and client"
)

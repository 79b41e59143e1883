"""The memory of a client: approvals in progress, and the outcomes of earlier approvals."""

import asyncio
import os
import threading
from asyncio import CancelledError
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from logging import ERROR, INFO, WARNING
from secrets import token_bytes
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from loanasync._lifecycle import free_after_fork
from loanasync._log import log
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import sort_members
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

Outcomes: TypeAlias = "OrderedDict[bytes, tuple[Decision | Unknown, float]]"

_MAX_OUTCOMES = 10_000
_MAX_AGE = 3600.0  # seconds
_CLOSE_TIMEOUT = 5.0  # seconds for writing the last outcomes to the ledger


class Unknown(NamedTuple):
    """The outcome of an approval that the service may have evaluated, without a known decision."""

    state: Literal["unknown", "lost"]
    note: str
    response: RawResponse | None = None


class AbandonedError(LoanError):
    """The result of a `SharedRequest` whose first caller was cancelled, for another caller to continue.

    The first caller was cancelled before the request was sent, or while it waited for a retry. Users never
    receive this error.
    """


class SharedRequest:
    """The request of an approval in progress, which overlapping calls for the same approval share.

    Without a ledger, the first caller runs it in its own task. With a ledger, it runs in a separate task, and
    the first caller waits like the others. When it ends, `Memory._finish` sets `result` to the outcome or the
    error and wakes the waiters, which may be in other event loops and threads.

    If the first caller is cancelled after the request was sent, the response is read in the background. If it
    is cancelled before, `result` is an `AbandonedError`, and one of the waiters sends the request.

    If the event loop is closed or the process forks, the request may never get a result. `is_dead` then
    returns True, and the next caller for this approval calls `Memory._finish`.
    """

    __slots__ = (
        "_process",
        "call",
        "customer_key",
        "key",
        "loop",
        "provisional",
        "result",
        "task",
        "waiters",
    )

    def __init__(self, call: Call, customer_key: bytes, key: bytes) -> None:
        self.call = call
        self.customer_key = customer_key
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] | None = None
        self.result: Outcome | Exception | None = None
        # The unknown outcome that was remembered when the first caller was cancelled. It blocks later calls,
        # but not the waiter that continues this request.
        self.provisional: Unknown | None = None
        self.waiters: list[Waiter] = []
        self._process = os.getpid()

    def is_dead(self) -> bool:
        """Return True if the result will never be set.

        The event loop was closed or belongs to the parent process, or the task ended without a result.
        """
        has_ended = self.task is not None and self.task.done()
        return has_ended or self.loop.is_closed() or self.is_inherited()

    def is_inherited(self) -> bool:
        """Return True in a forked child of the process that runs the request."""
        return self._process != os.getpid()

    async def wait(self) -> Outcome | Exception:
        """Wait for the end of the request, and return the outcome or the error."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        if self.result is not None:  # another thread has just set it
            wake(waiter)
        try:
            await waiter
        except CancelledError:
            self._leave(waiter)
            raise
        assert self.result is not None  # noqa: S101  (it is set before the waiters are woken)
        return self.result

    async def join(self, key: bytes, within: float) -> Outcome | LoanError | None:
        """Wait as another caller, at most `within` seconds; return the outcome, an error, or None.

        None means that the first caller was cancelled and this caller must continue the request.
        """
        if self.key != key:
            return PayloadMismatchError("approve", self.call.entry or "", "inflight")
        try:
            async with asyncio.timeout(within):
                result = await self.wait()
        except TimeoutError:
            return InFlightError("approve", self.call.entry or "")
        if isinstance(result, AbandonedError):
            return None
        if isinstance(result, LoanError):
            return copy_error(result)
        if isinstance(result, Exception):
            raise result
        return result

    def _leave(self, waiter: Waiter) -> None:
        """Remove a cancelled waiter; if no other waiter is left, abandon the request."""
        if self.is_inherited():
            return
        with suppress(ValueError):  # the request has just ended
            self.waiters.remove(waiter)
        if self.waiters:
            return
        if asyncio.get_running_loop() is self.loop:
            self._abandon()  # now, because the request may be sent in the next iteration of the event loop
        else:
            with suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon_threadsafe(self._abandon)
        self.warn_of_unread_decision()

    def warn_of_unread_decision(self) -> None:
        """Log a decision that could not be written to the ledger, if no caller receives the error."""
        error = self.result
        if self.waiters or not isinstance(error, DecisionNotRecordedError):
            return
        if error.file is None:
            log(ERROR, _IN_MEMORY, error.operation, error.key[:12], error.cause_type)
        else:
            log(WARNING, _IN_FILE, error.operation, error.key[:12], error.cause_type)

    def _abandon(self) -> None:
        """Send no further request. The response to a request that was sent is still read and remembered."""
        if not self.waiters and self.task is not None:
            self.call.is_abandoned = True
            if self.call.is_waiting:
                if self.call.sending is not None:
                    # The task stops later, and the transport must not write the request before that.
                    self.call.sending.is_withdrawn = True
                self.task.cancel()


class Approval(Protocol):
    """Protocol of an approval with a ledger (`loanasync.ledger.recorder.RecordedApproval`)."""

    async def run(self, pipeline: Pipeline, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Return the decision from the ledger or from the service."""


class Recorder(Protocol):
    """Protocol of the ledger of a client (`loanasync.ledger.recorder.LedgerRecorder`)."""

    def approval(self, call: Call, scope: str, *, repeat_unknown: bool, wait: float | None) -> Approval:
        """Return an approval that runs with the ledger."""

    def scope_parts(self, scope: str, order_token: str | None) -> tuple[str | None, ...]:
        """Return what distinguishes the approvals of one customer."""


class Memory:
    """The approvals in progress and the outcomes of earlier approvals of a client and its copies.

    `LoanClient.approve` calls `approve`. Overlapping calls for the same approval share one request. Without a
    ledger, a later call for the same approval gets the remembered decision, or an `OutcomeUnknownError` if
    the outcome is unknown. With a ledger, the ledger keeps the outcomes; only decisions that could not be
    written to it are remembered here.

    The keys are digests with a random secret, so that they cannot be guessed from personal data. A
    `customer_key` is made from shop, customer and scope, a `key` from these and the members of the request.
    All methods may be called from several event loops and threads.
    """

    def __init__(
        self, pipeline: Pipeline, recorder: Recorder | None, *, max_outcomes: int = _MAX_OUTCOMES
    ) -> None:
        self._pipeline = pipeline
        self._recorder = recorder
        self._max_outcomes = max_outcomes
        self._hash = blake2b(key=token_bytes(32), digest_size=16)  # copying it is faster than making one
        self._in_flight: dict[bytes, SharedRequest] = {}
        # Ordered by age. If the memory is full, decisions are removed first: after a second request, the
        # service would respond that it has decided, but it might evaluate an unknown approval again.
        self._decisions: Outcomes = OrderedDict()
        self._unknown: Outcomes = OrderedDict()
        self._has_warned = recorder is not None  # a ledger keeps the outcomes
        self._renew_lock()
        free_after_fork(self, Memory._renew_lock)

    def _renew_lock(self) -> None:
        """Create the lock; replace it in a forked child, as a thread of the parent may have held it."""
        # It is never held during an await. It is reentrant, because garbage collection can end another call
        # in the thread that holds it.
        self._lock = threading.RLock()

    async def approve(
        self,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
        scope: str,
        *,
        repeat_unknown: bool,
        wait: float | None,
    ) -> Outcome:
        """Return the remembered decision, or the decision of a request in progress or of a new request.

        Args:
            call: The approval.
            timeout: Its time limits.
            retry: Its retry policy.
            scope: Distinguishes several loan requests of one customer.
            repeat_unknown: Send the request even if the outcome of an earlier request is unknown.
            wait: Seconds to wait for another owner of the ledger's entry; None: as the ledger's policy says.

        Raises:
            InvalidRequestError: The scope of the ledger needs an order token, and the request has none.
            LoanError: The call failed.
        """
        pipeline, approval = self._pipeline, None
        if self._recorder is not None:
            approval = self._recorder.approval(call, scope, repeat_unknown=repeat_unknown, wait=wait)
        customer_key, key = self._keys(call, scope)
        provisional: Unknown | None = None
        while True:
            with self._lock:
                known = None
                if key in self._decisions or key in self._unknown:
                    known = self._look_up(key, provisional, repeat_unknown=repeat_unknown)
                shared = self._in_flight.get(customer_key)
                if known is None and shared is None:
                    shared = self._in_flight[customer_key] = SharedRequest(call, customer_key, key)
                    break
            if known is not None or shared is None:
                assert known is not None  # noqa: S101  (one of the two is set)
                with pipeline.start(call, timeout, retry) as run:
                    return run.finish(_result_of(call, known, run.record))
            if shared.is_dead():
                self._finish(shared, self._error_for_waiters(shared, CancelledError()))
                continue
            with pipeline.start(call, timeout, retry) as run:
                run.record.set_ledger_result("joined")
                joined = run.finish(await shared.join(key, timeout.total))
            if joined is not None:
                return joined
            # The first caller was cancelled: this call sends the request, or continues its retries.
            call.fault, call.attempts = shared.call.fault, shared.call.attempts
            provisional = shared.provisional
            timeout = pipeline.remaining(call, timeout)
        if approval is not None:
            return await self._run_in_task(shared, approval, timeout, retry)
        call.after_unknown = repeat_unknown and key in self._unknown
        call.outlives_caller = True
        try:
            with pipeline.start(call, timeout, retry) as run:  # `Pipeline.run` would add a coroutine
                outcome = run.finish(await run.send())
                self._finish(shared, outcome)  # before the end of the block runs the user's telemetry
        except BaseException as error:
            self._fail(shared, error)
            raise
        return outcome

    def _keys(self, call: Call, scope: str) -> tuple[bytes, bytes]:
        """Return the digest of shop, customer and scope, and the digest of these and the request."""
        parts = (scope,) if self._recorder is None else self._recorder.scope_parts(scope, call.order_token)
        names = "\0".join((call.shop.base_url, call.shop.shop_id, call.fiscal_code or "", *map(str, parts)))
        customer = self._hash.copy()
        customer.update(names.encode(errors="surrogatepass"))
        customer_key = customer.digest()
        # The writer puts the fields in the same order each time, and before `extra`.
        members = sort_members(call.body) if call.has_extra else call.body
        request = self._hash.copy()
        request.update(customer_key + members)
        return customer_key, request.digest()

    def _look_up(
        self, key: bytes, provisional: Unknown | None, *, repeat_unknown: bool
    ) -> Decision | Unknown | None:
        """Return the remembered outcome that ends this call; None if the call has to send the request."""
        outcomes = self._decisions if key in self._decisions else self._unknown
        outcome, expires_at = outcomes[key]
        if expires_at <= monotonic():
            del outcomes[key]
            return None
        is_unknown = isinstance(outcome, Unknown) and outcome.state == "unknown"
        if outcome is provisional or (repeat_unknown and is_unknown):
            return None
        return outcome

    async def _run_in_task(
        self, shared: SharedRequest, approval: Approval, timeout: Timeout, retry: RetryPolicy
    ) -> Outcome:
        """Run a call with a ledger in a separate task, which settles the entry even if all callers leave."""
        run = self._run_to_end(shared, approval, timeout, retry)
        shared.task = asyncio.Task(run, loop=shared.loop)
        result = await shared.wait()
        del shared
        if isinstance(result, AbandonedError):
            raise CancelledError  # the task was cancelled, for example by the end of the event loop
        if isinstance(result, Exception):
            try:
                raise copy_error(result)
            finally:
                del result  # breaks the reference cycle of error, traceback and frame
        return result

    async def _run_to_end(
        self, shared: SharedRequest, approval: Approval, timeout: Timeout, retry: RetryPolicy
    ) -> None:
        """Run an approval with a ledger in a separate task, and set the result for all callers."""
        try:
            result: Outcome | Exception = await approval.run(self._pipeline, timeout, retry)
        except (Exception, CancelledError) as error:  # noqa: BLE001  (each waiter raises it)
            result = self._error_for_waiters(shared, error)
        except BaseException as error:
            self._finish(shared, self._error_for_waiters(shared, error))
            raise
        self._finish(shared, result)

    def _fail(self, shared: SharedRequest, error: BaseException) -> None:
        """Finish a request that the first caller ran, with the error that it raised.

        Raises:
            OutcomeUnknownError: This caller sent nothing, but an earlier caller had received a 500.
        """
        if isinstance(error, CancelledError):
            self._continue_without_caller(shared)
            return
        failure = self._error_for_waiters(shared, error)
        self._finish(shared, failure)
        if isinstance(error, LoanError) and type(failure) is not type(error):
            try:
                raise failure from None
            finally:
                del failure  # breaks the reference cycle of error, traceback and frame

    def _continue_without_caller(self, shared: SharedRequest) -> None:
        """Finish a request whose first caller was cancelled: now, or when its response arrives."""
        call = shared.call
        late = None if call.sending is None else call.sending.late
        if late is not None:
            late.add_done_callback(partial(self._on_late_response, shared))
        else:
            self._finish(shared, self._error_for_waiters(shared, CancelledError()))

    def _on_late_response(
        self,
        shared: SharedRequest,
        late: "asyncio.Future[Response | NoResponse]",
    ) -> None:
        """Finish a request with the response that arrived after its first caller was cancelled."""
        error = CancelledError() if late.cancelled() else late.exception()
        if error is not None:
            self._finish(shared, self._error_for_waiters(shared, error))
            return
        response = late.result()
        if is_system_fault(response) and shared.waiters:
            shared.call.fault, shared.call.sending = response, None
            self._finish(shared, AbandonedError())  # one of the waiters retries it
            return
        try:
            result = self._pipeline.read(
                shared.call, response, "cancelled" if is_system_fault(response) else None
            )
        except Exception as failure:
            self._finish(shared, self._error_for_waiters(shared, failure))
            raise
        self._finish(shared, cast("Outcome | Exception", result))
        log(INFO, "approve: received the response for a cancelled call: %s", type(result).__name__)
        self._pipeline.report_late(shared.call)

    def _error_for_waiters(self, shared: SharedRequest, error: BaseException) -> Exception:
        """Return the exception for the waiters of a request that ended with `error`."""
        call = shared.call
        if isinstance(error, LoanError):
            # An earlier caller received a 500, and this caller sent nothing: the outcome is unknown.
            is_unknown = call.fault is not None and error.outcome == "not_sent"
            return unknown_outcome(call, type(error).__name__) if is_unknown else copy_error(error)
        if isinstance(error, Exception):
            return error
        if shared.is_inherited():  # the parent process continues the request
            return unknown_outcome(call, "fork")
        # Nothing was sent, or the call waits for a retry: a waiter can continue the request.
        if not call.may_be_evaluated or (call.is_waiting and shared.waiters and not shared.is_dead()):
            return AbandonedError()
        return unknown_outcome(call, type(error).__name__)

    def _finish(  # noqa: C901  (another function would add a call to each approval)
        self, shared: SharedRequest, result: Outcome | Exception
    ) -> None:
        """Set the result of a request, remember its outcome, and wake the waiters."""
        outcome: Decision | Unknown | None = None
        is_first_removal = False
        if isinstance(result, DecisionNotRecordedError):
            outcome = result.decision
        elif self._recorder is None:
            call = shared.call
            outcome = result if isinstance(result, Approved | Refused) else unknown_from_result(result, call)
        with self._lock:
            # Another thread may have finished this dead request, or garbage collection may have ended it.
            if shared.result is not None:
                return
            # Another thread may fork the process between two of these steps. Add the outcome before the
            # request is removed, so that the child finds the approval in one of the two dicts.
            if isinstance(result, AbandonedError) and isinstance(outcome, Unknown):
                shared.provisional = outcome
            if outcome is not None:
                now = monotonic()
                decisions, unknown = self._decisions, self._unknown
                decisions.pop(shared.key, None)  # so that the outcomes stay ordered by age
                unknown.pop(shared.key, None)
                added = unknown if isinstance(outcome, Unknown) else decisions
                added[shared.key] = outcome, now + _MAX_AGE
                for outcomes in (decisions, unknown):
                    while outcomes and next(iter(outcomes.values()))[1] <= now:
                        outcomes.popitem(last=False)
                if len(decisions) + len(unknown) > self._max_outcomes:
                    is_first_removal = self._make_room()
            if self._in_flight.get(shared.customer_key) is shared:
                del self._in_flight[shared.customer_key]
            shared.result = result
        if shared.waiters and not shared.is_inherited():  # inherited waiters belong to the parent process
            self._wake(shared)
        if isinstance(result, DecisionNotRecordedError):
            shared.warn_of_unread_decision()
        if is_first_removal:
            log(WARNING, _FULL, self._max_outcomes)

    def _make_room(self) -> bool:
        """Remove an outcome from a full memory; return True if a client without a ledger does so first."""
        (self._decisions or self._unknown).popitem(last=False)
        had_warned, self._has_warned = self._has_warned, True
        return not had_warned

    def _wake(self, shared: SharedRequest) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # garbage collection ended the request in a thread without an event loop
            running = None
        for waiter in tuple(shared.waiters):  # a copy: waiters in other threads may be removed meanwhile
            if (loop := waiter.get_loop()) is running:
                wake(waiter)
                continue
            with suppress(RuntimeError):  # the waiter's event loop was closed
                loop.call_soon_threadsafe(wake, waiter)

    async def aclose(self) -> None:
        """Wait until the tasks of this event loop have written their outcomes to the ledger."""
        current = asyncio.get_running_loop()
        requests = tuple(self._in_flight.values())
        tasks = [shared.task for shared in requests if shared.loop is current and shared.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)


def wake(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _result_of(call: Call, known: Decision | Unknown, record: CallRecord) -> Decision | LoanError:
    if isinstance(known, Unknown):
        record.set_ledger_result("blocked")
        return OutcomeUnknownError("approve", call.entry or "", *known)
    record.set_ledger_result("remembered")
    return known


def unknown_from_result(result: object, call: Call) -> Unknown | None:
    """Return the `Unknown` to remember after a call; None if a later call may send the request again."""
    match result:
        case AbandonedError():  # perhaps no waiter continues the request
            return Unknown("unknown", "CancelledError") if call.may_be_evaluated else None
        case AlreadyEvaluatedError():
            return Unknown("lost", type(result).__name__, result.response)
        case OutcomeUnknownError():
            return Unknown("unknown", result.note)
        case LoanError(outcome="unknown"):
            return Unknown("unknown", type(result).__name__, getattr(result, "response", None))
        case LoanError():
            return None
        case _:
            return Unknown("unknown", type(result).__name__) if call.may_be_evaluated else None


def unknown_outcome(call: Call, note: str) -> LoanError:
    return OutcomeUnknownError("approve", call.entry or "", "unknown", note)


def copy_error(error: Error) -> Error:
    """Return a copy of an error, so that each caller raises its own, with its own traceback."""
    if not isinstance(error, LoanError):
        return error
    again = type(error)(*error.args)
    if isinstance(error, LedgerError) and isinstance(again, LedgerError):
        again.trace_id = error.trace_id
    return again


_IN_FILE = (
    "%s, entry %s: the service decided after the call was cancelled, and writing to the ledger failed "
    "(%s); the decision is in an orphan file: import it with import_orphans"
)
_FULL = (
    "this client remembers %d approvals and now forgets the oldest ones: requesting one of these again sends "
    "it again; pass a ledger to LoanClient, which remembers all"
)
_IN_MEMORY = (
    "%s, entry %s: a decision may be lost, because the service decided after the call was cancelled, and "
    "writing to the ledger (%s) and to an orphan file failed; this client keeps the decision in memory for "
    "one hour; call approve again with the same data on the same client"
)

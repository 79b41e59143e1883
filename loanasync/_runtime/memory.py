"""A client's memory of approvals: one process sends no approval twice."""

import asyncio
import threading
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from secrets import token_bytes
from time import monotonic
from typing import TYPE_CHECKING, cast

import orjson

from loanasync._lifecycle import free_after_fork
from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, Decision, Refused
from loanasync._runtime.flights import (
    AbandonedError,
    Flight,
    JoinedGuard,
    KnownGuard,
    Unknown,
    Waiter,
    anew,
    unknown_after,
    unknown_outcome,
    wake,
)
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.retry import is_system_fault
from loanasync._settings import RetryPolicy, Timeout
from loanasync.errors import DecisionNotRecordedError, LoanError

if TYPE_CHECKING:
    from loanasync._protocol.messages import NoResponse, Response
    from loanasync.ledger.recording import Recorder


_MOST = 10_000  # approvals
_LONGEST = 3600.0  # seconds that an outcome is kept
_LAST = 5.0  # seconds for what is still to be written to a ledger when a client was closed


class Memory:
    """The approvals of a client and its light copies: those in progress, and the outcomes of earlier ones.

    Overlapping calls for one approval share one request. With a ledger, the ledger keeps the outcomes, and
    this keeps only the decisions that could not be written to it.
    """

    def __init__(self, recorder: "Recorder | None", *, most: int = _MOST) -> None:
        self._recorder = recorder
        self._most = most
        self._secret = token_bytes(32)
        self._flights: dict[bytes, Flight] = {}
        self._outcomes: OrderedDict[bytes, tuple[Decision | Unknown, float]] = OrderedDict()
        self._renew_lock()
        free_after_fork(self)

    def _renew_lock(self) -> None:
        """Make the lock anew, which a forked child may inherit from a thread that it has not."""
        # Held for microseconds, and never across an await; the collector of garbage may end a call within it.
        self._lock = threading.RLock()

    async def approve(
        self,
        pipeline: Pipeline,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
        scope: str,
        *,
        repeat_unknown: bool,
    ) -> Outcome:
        """Return a decision: a remembered one, that of a request in progress, or the service's.

        Raises:
            LoanError: The call ended without a decision.
        """
        guard = None
        if self._recorder is not None:
            guard = self._recorder.guard(call, scope, timeout.total, repeat_unknown=repeat_unknown)
        application, key = self._keys(call, scope)
        loop = asyncio.get_running_loop()
        resumed: Unknown | None = None
        while True:
            with self._lock:
                known = (
                    self._known(key, resumed, repeat_unknown=repeat_unknown)
                    if key in self._outcomes
                    else None
                )
                flight = self._flights.get(application)
                if known is None and flight is None:
                    flight = self._flights[application] = Flight(call, key, loop)
                    break
            if known is not None or flight is None:
                assert known is not None  # noqa: S101  (one of the two is there)
                return await pipeline.run(call, timeout, retry, KnownGuard(call, known))
            if flight.has_died():
                self._end(application, flight, self._failure(flight, CancelledError()))
                continue
            joined: Outcome | None = await pipeline.run(
                call, timeout, retry, JoinedGuard(call, key, flight, timeout.total)
            )
            if joined is not None:
                return joined
            # The first caller has left: this call sends the request, or retries it.
            call.fault, call.attempts, resumed = flight.call.fault, flight.call.attempts, flight.left
            timeout = pipeline.left(call, timeout)
        if guard is not None:
            return await self._in_task(
                application, flight, partial(pipeline.run, call, timeout, retry, guard)
            )
        call.after_unknown = repeat_unknown and key in self._outcomes
        call.outlives_caller = True
        try:
            ended = await pipeline.run(call, timeout, retry)
        except CancelledError:
            self._leave(application, flight, pipeline)
            raise
        except BaseException as error:
            self._raise_unknown(application, flight, error)
            raise
        self._end(application, flight, ended)
        return ended

    def _raise_unknown(self, application: bytes, flight: "Flight", error: BaseException) -> None:
        """End a request with an error; raise another if that does not know of an earlier caller's 500."""
        failure = self._failure(flight, error)
        self._end(application, flight, failure)
        if isinstance(error, LoanError) and type(failure) is not type(error):
            try:
                raise failure from None
            finally:
                del failure  # or error, traceback and frame would hold each other

    def _leave(self, application: bytes, flight: "Flight", pipeline: Pipeline) -> None:
        """Go on without the caller that was cancelled: read a response that is still to come."""
        call = flight.call
        late = None if call.sending is None else call.sending.late
        if late is not None:
            late.add_done_callback(partial(self._land, application, flight, pipeline))
        else:
            self._end(application, flight, self._failure(flight, CancelledError()))

    def _land(
        self,
        application: bytes,
        flight: "Flight",
        pipeline: Pipeline,
        late: "asyncio.Future[Response | NoResponse]",
    ) -> None:
        """Remember what a late response says."""
        error = CancelledError() if late.cancelled() else late.exception()
        if error is not None:
            self._end(application, flight, self._failure(flight, error))
            return
        answer = late.result()
        if is_system_fault(answer) and flight.waiters:
            flight.call.fault, flight.call.sending = cast("Response", answer), None
            self._end(application, flight, AbandonedError())  # one of them retries it
            return
        try:
            ended = pipeline.conclude(flight.call, answer)
        except Exception as unread:
            self._end(application, flight, self._failure(flight, unread))
            raise
        what = type(ended).__name__
        LOGGER.info("approve: the response to a call that was cancelled has come: %s", what)
        self._end(application, flight, cast("Outcome | Exception", ended))

    async def _in_task(
        self, application: bytes, flight: "Flight", run: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Run a call with a ledger in a separate task, which outlives its callers and settles the entry."""
        waiter: Waiter = asyncio.Future(loop=flight.loop)
        flight.waiters.append(waiter)
        flight.task = asyncio.Task(self._fly(application, flight, run), loop=flight.loop)
        try:
            await waiter
        except CancelledError:
            flight.leave(waiter)
            raise
        ended = flight.ended
        del flight
        if isinstance(ended, AbandonedError):
            raise CancelledError  # somebody cancelled the task that ran the call, such as the end of its loop
        if isinstance(ended, Exception):
            try:
                raise anew(ended)
            finally:
                del ended  # or error, traceback and frame would hold each other
        assert ended is not None  # noqa: S101  (it is set before anybody is woken)
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
        self, key: bytes, resumed: "Unknown | None", *, repeat_unknown: bool
    ) -> "Decision | Unknown | None":
        """Return what is remembered of an approval, but the outcome that this call resumes from."""
        outcome, until = self._outcomes[key]
        if until <= monotonic():
            del self._outcomes[key]
            return None
        is_unknown = isinstance(outcome, Unknown) and outcome.state == "unknown"
        if outcome is resumed or (repeat_unknown and is_unknown):
            return None
        return outcome

    async def _fly(self, application: bytes, flight: "Flight", run: Callable[[], Awaitable[Outcome]]) -> None:
        """Run a request to its end, although its callers may leave."""
        try:
            ended: Outcome | Exception = await run()
        except (Exception, CancelledError) as error:  # noqa: BLE001  (raised where each waits for it)
            ended = self._failure(flight, error)
        except BaseException as error:
            self._end(application, flight, self._failure(flight, error))
            raise
        self._end(application, flight, ended)

    def _failure(self, flight: "Flight", error: BaseException) -> Exception:
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

    def _end(self, application: bytes, flight: "Flight", ended: "Outcome | Exception") -> None:
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
            if self._flights.get(application) is flight:
                del self._flights[application]
            flight.ended = ended
        if isinstance(ended, DecisionNotRecordedError):
            flight.warn_of_unread_decision()
        if flight.waiters and not flight.is_inherited():  # whose parent has that event loop
            self._wake(flight)

    def _wake(self, flight: "Flight") -> None:
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
        if self._recorder is not None:
            await self._recorder.withdrawals.aclose(_LAST)

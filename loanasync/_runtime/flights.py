"""Flights: the approvals in progress. Overlapping calls for the same approval share one flight."""

import asyncio
import os
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from hashlib import blake2b
from logging import ERROR, INFO, WARNING
from secrets import token_bytes
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from attrs import evolve

from loanasync._models.characters import seen_body
from loanasync._models.classes import ForkSafe
from loanasync._models.decisions import Decision
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import sort_members
from loanasync._protocol.messages import NoResponse, Response
from loanasync._runtime.breaker import verdict_of
from loanasync._runtime.guard import Claim, Guard, ProcessGuard, Unguarded
from loanasync._runtime.pipeline import CLOSE_TIMEOUT, Pipeline
from loanasync._runtime.run import Run, copy_error, no_response
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.log import log
from loanasync._transport.connection import DirectConnection
from loanasync._transport.waits import GRACE, Caller, wake
from loanasync.errors import (
    PROGRAM_FAILED,
    DeadlineExceededError,
    DecisionNotRecordedError,
    InFlightError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    SystemFaultError,
)

Own = TypeVar("Own", bound="Flight | None")
T = TypeVar("T")

_MOMENT = 0.001  # seconds: a time limit cannot be 0
_POLL_INTERVAL = 0.02  # seconds between two looks at a flight of another event loop


class Flight(Run):
    """A call in progress, whose result all of its callers get.

    It always has one owner:

    - the step that runs: `receive`, or `start` if an idle connection and all else that it needs is at hand;
    - a task, while something must be awaited: a slot, a connection, a token, a retry, or the ledger;
    - the connection that has the request, until it calls `receive`. So nobody can cancel the exchange.

    Callers own only the futures in which they wait. When the last one has left and nothing of the request of
    an approval was written, nothing is sent. Otherwise the response is read and settled. The task of a
    request that is sent by `Transport.send` awaits its response, too.

    A call of the same event loop that finds a flight of the same approval joins it. The `Flight` that it has
    created is then used only for the time limit and the span of the call.

    Methods that end something may be called again, after an interrupt in the first call.

    Args:
        pipeline: The state that the calls of the client share.
        call: The call of the first caller.
        timeout: Its time limits.
        retry: Its retry policy.

    Attributes:
        guard: The guard of its approval.
        memory: The memory of its approval; None for other calls.
        is_over: True if `result` is set.
        result: The outcome or the exception.
        context: The context of all steps: a copy of that of the first caller.
        claim: The right to send the request, until it is settled.
    """

    guard: Guard = Unguarded()
    memory: "Memory | None" = None
    is_over: bool = False
    context: Context = Context()
    claim: Claim | None = None
    result: Outcome | BaseException
    _task: asyncio.Task[None] | None = None  # the owner, unless a connection is
    _connection: DirectConnection | None = None  # which has the request

    @property
    def is_dead(self) -> bool:
        """True if nothing will end it: its event loop was closed, or an interrupt has ended its owner."""
        has_owner = self._task is not None or self._connection is not None
        return self.resources.loop.is_closed() or (self.is_here and not (has_owner or self._is_running))

    @property
    def _is_running(self) -> bool:
        """True in one of its steps, which may call code of the user, such as a tracer or a log handler."""
        try:
            self.context.run(bool)
        except RuntimeError:  # the context is entered
            return True
        return False

    @property
    def is_here(self) -> bool:
        """True in the event loop of the flight."""
        try:
            return asyncio.get_running_loop() is self.resources.loop
        except RuntimeError:  # for example of garbage collection in a thread without an event loop
            return False

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process in which the flight runs."""
        return self.resources.process != os.getpid()

    # --- its owners

    def start(self, now: float) -> None:
        """Send the request now, a time of the event loop's clock, or start the task that does.

        This method must run in the context of the flight.
        """
        try:
            self.begin()
            self.claim = self.guard.begin_now(self)
            connection = None if self.claim is None else self.take_connection(now)
            if connection is None:
                self._continue(self._prepare())
            else:
                self.begin_attempt(now)
                self._exchange(connection)
        except BaseException as error:  # for example of a signal handler
            if self._task is None and self._connection is None:
                self._interrupt(error)
            raise

    def _continue(self, steps: Coroutine[Any, Any, None]) -> None:
        """Continue in a task."""
        # Not in a task of the loop's factory: that may start at once, and a context cannot be entered twice.
        task = self._task = asyncio.Task(steps, loop=self.resources.loop, context=self.context)
        task.add_done_callback(self._task_ended, context=self.context)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """End the flight if an exception has ended its task, perhaps before its first step."""
        error: BaseException | None = CancelledError() if task.cancelled() else task.exception()
        if task is self._task:
            self._task = None
            if error is not None and self._connection is None:
                self._interrupt(error)

    async def _prepare(self) -> None:
        """Acquire what the request needs, and send it."""
        if self.claim is None:
            result = await self.guard.begin(self)
            if not isinstance(result, Claim):
                self.end(result)
                return
            self.claim = result
        await self._send()

    async def _send(self) -> None:
        """Make an attempt."""
        if (unsent := await self.prepare_attempt()) is not None:
            self._settle(unsent, self.read(unsent))
        else:
            await self._transmit()

    async def _transmit(self) -> None:
        """Send the request of the attempt."""
        found = await self.connect_or_send()
        if isinstance(found, DirectConnection):
            self._exchange(found)
        else:
            self.receive(found)

    async def _retry(self, fault: Response) -> None:
        """Repeat the request after a response with status 500 (spec §7), or settle the flight with it."""
        stopped_by = await self.wait_for_retry(fault)
        if stopped_by is None:
            await self._send()
            return
        self.telemetry.stopped_by = stopped_by
        result = self.read(fault)
        if isinstance(result, SystemFaultError):
            result = evolve(result, stopped_by=stopped_by)
        self._settle(fault, result)

    def _exchange(self, connection: DirectConnection) -> None:
        """Pass the request of the attempt to a connection, which then owns the flight."""
        run: Callable[..., object] = self.context.run
        direct, request, failed = self.resources.direct, self._sending, None
        assert direct is not None  # noqa: S101  (it has opened the connection)
        assert request is not None  # noqa: S101  (of the attempt)
        try:
            self._connection = connection
            direct.exchange(request, connection, self._until, partial(run, self.receive))
        except BaseException as error:
            connection.cancel()
            self._connection = None
            if not isinstance(error, Exception):
                raise
            failed = no_response(request, PROGRAM_FAILED + type(error).__name__)
        if failed is not None:
            self.receive(failed)

    def receive(self, last: Response | NoResponse) -> None:
        """Continue after an attempt, in a task or to the end."""
        if self._sending is None:  # called again, after an interrupt
            return
        try:
            connection, self._connection = self._connection, None
            if isinstance(last, NoResponse) and self.may_resend(last, connection):
                self._continue(self._transmit())
                return
            self.end_attempt(last)
            result = self.read(last)
            # The reader returns this error only for a response that permits a retry (spec §7).
            if isinstance(result, SystemFaultError) and isinstance(last, Response):
                self._continue(self._retry(last))
            else:
                self._settle(last, result)
        except BaseException as error:
            has_callers = bool(self.callers)
            self._interrupt(error)
            if not (has_callers or isinstance(error, Exception | CancelledError)):
                raise  # to the event loop

    def withdraw(self) -> None:
        """End the flight, as no caller is left. A response to an approval is still read, if it is awaited."""
        is_read = self.is_reading and self.memory is not None
        if self.is_over or self.is_settling or is_read:
            return
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.cancel()
            self.context.run(self._interrupt, CancelledError())
        elif self._task is not None:
            self._task.cancel()
            # An interrupt in `_continue` may have left the task without this. A second call changes nothing.
            self._task.add_done_callback(self._task_ended, context=self.context)
        else:  # an interrupt has ended the step that owned it
            self._interrupt(CancelledError())

    # --- its end

    def _settle(self, last: Response | NoResponse, result: Outcome | LoanError) -> None:
        """Record the result of the call, and end the flight with what its guard makes of it.

        Args:
            last: The last response, or the reason why none arrived.
            result: The result of reading it.
        """
        quota, breaker = self._pipeline.quota, self._pipeline.breaker
        if (
            quota.used  # first, because most calls find it unused
            and self.attempts == 1
            and isinstance(last, Response)
            and not isinstance(result, SystemFaultError)
        ):
            quota.refill()
        # While all is well, a decision does not concern the breaker.
        if breaker is not None and (not breaker.is_quiet or isinstance(result, LoanError)):
            self._record_verdict(verdict_of(last, result, was_written=self.was_written))
        self.is_settling = True
        claim = self.claim
        assert claim is not None  # noqa: S101  (nothing is sent without one)
        if claim.settle_now(self, result):
            self.claim = None
            self.end(result)
        else:
            self.release_slot()  # other calls need not wait for the settlement
            self._continue(self._settle_later(claim, result))

    async def _settle_later(self, claim: Claim, result: Outcome | LoanError) -> None:
        settled = await claim.settle(result)
        self.claim = None
        self.end(settled)

    def _interrupt(self, error: BaseException) -> None:
        """Record what is known, and end the flight with an exception."""
        task, self._task = self._task, None
        if task is not None:  # an interrupt in `_continue` may have left it; it must not repeat the request
            task.cancel()
        self.end_attempt(None)
        self.is_settling = True
        self.release_slot()
        claim = self.claim
        if claim is not None and not self.is_over:
            if (decision := self.received_decision()) is None:
                is_recorded = claim.interrupt_now(self, error)
            else:
                is_recorded = claim.settle_now(self, decision)
            self.claim = None
            if not is_recorded:
                self._continue(self._interrupt_later(claim, error, decision))
                return
        self.end(copy_error(error))

    async def _interrupt_later(self, claim: Claim, error: BaseException, decision: Decision | None) -> None:
        if decision is None:
            await claim.interrupt(error)
        else:
            await claim.settle(decision)
        self.end(copy_error(error))

    def end(self, result: Outcome | BaseException) -> None:
        """Set the result, unless there is one, wake the callers, and record the end."""
        if self.memory is not None:
            self.memory.end(self, result)
        elif not self.is_over:
            self.result, self.is_over = result, True
        if self.is_here:
            for caller in self.callers:
                if not caller.done():  # cancelled
                    caller.set_result(None)  # as `wake` does, without the cost of a call
        else:
            for caller in tuple(self.callers):
                with suppress(RuntimeError):  # the event loop was closed
                    self.resources.loop.call_soon_threadsafe(wake, caller)
        self.record(result)

    def keep_unread(self) -> None:
        """Keep and log the result of an approval, which no caller receives."""
        self.guard.keep_unread(self)
        entry, result = (self.entry or "-")[:12], self.result
        if isinstance(result, DecisionNotRecordedError):
            if result.file is None:
                log(ERROR, _IN_MEMORY, entry, result.cause_type)
            else:
                log(WARNING, _IN_FILE, entry, result.cause_type)
        elif self.may_be_evaluated and self.memory is not None:
            log(INFO, _UNREAD, entry, type(result).__name__)


class Memory(ForkSafe):
    """The approvals of the clients that share it: those in progress, and those of the last hour.

    An approval is identified by service, shop, customer and order. The digests of these have a random secret,
    so that they cannot be guessed from personal data. All methods may be called from several event loops and
    threads.

    Attributes:
        guard: The approvals of the last hour, of clients without a ledger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guard = ProcessGuard()
        self._hash = blake2b(key=token_bytes(32), digest_size=16)  # copying it is faster than making one
        self._in_flight: dict[bytes, Flight] = {}
        self._process = os.getpid()

    def digests_of(self, call: Call) -> tuple[bytes, bytes]:
        """Return the digests of shop, customer and order, and one that includes the request's members."""
        digest = self._hash.copy()
        digest.update(f"{call.shop.base_url}\0{call.shop.shop_id}\0{call.fiscal_code}".encode())
        approval = digest.digest()
        if call.order_id:
            digest.update(f"\0{call.order_id}".encode(errors="surrogatepass"))
            approval += digest.digest()
        # The writer puts the fields in the same order each time, and before `extra`.
        body = call.body if call.body.isascii() else seen_body(call.body)
        digest.update(sort_members(body) if call.has_extra else body)
        return approval, digest.digest()

    def find(self, run: Run, own: Own) -> "Flight | Own":
        """Return the flight of an approval in progress, or else add `own`. End flights that nobody ends."""
        while True:
            with self.lock:
                if self._process != run.resources.process:
                    self._drop_inherited()
                flight = self._in_flight.get(run.approval)
                if flight is None:
                    if own is not None:
                        self._in_flight[run.approval] = own
                    return own
            if not self._ended(flight):
                return flight

    def _ended(self, flight: Flight) -> bool:
        """End a dead flight, or give up an overdue one of another event loop; return False for others."""
        if flight.is_dead:
            if not flight.is_here:  # the event loop was closed
                flight.resources.slots.forget_waiting()
            flight.end(CancelledError())
        elif flight.is_overdue and not flight.is_here:
            flight.guard.give_up(flight)
            with self.lock:  # another thread may have replaced it
                if self._in_flight.get(flight.approval) is flight:
                    del self._in_flight[flight.approval]
        else:
            return False
        return True

    def _drop_inherited(self) -> None:
        """Note the approvals that the parent process is requesting, and forget its flights."""
        for flight in tuple(self._in_flight.values()):
            flight.guard.inherit(flight)
        self._in_flight, self._process = {}, os.getpid()

    def end(self, flight: Flight, result: Outcome | BaseException) -> None:
        """Set the result of a flight and remove it. Another thread or garbage collection may have done it."""
        with self.lock:
            is_first = not flight.is_over
            if is_first:
                # Another thread may fork the process between two of these steps. Change the record before the
                # flight is removed, so that the child finds the approval in one of the two.
                if flight.claim is not None:
                    flight.claim.abandon(flight)
                flight.result = result
                flight.is_over = True
            if self._in_flight.get(flight.approval) is flight:
                del self._in_flight[flight.approval]
        if is_first and not flight.callers:
            flight.keep_unread()

    def finish_dead(self) -> None:
        """End the oldest flights whose event loop was closed or has stopped, as they keep their clients."""
        while True:
            with self.lock:
                oldest = next(iter(self._in_flight.values()), None)
            if oldest is None or oldest.is_inherited or not self._ended(oldest):
                return

    def forget(self) -> None:
        """Forget all approvals. A flight in progress settles in the forgotten guard."""
        with self.lock:
            self.guard, self._in_flight = ProcessGuard(), {}


class Memories(ForkSafe):
    """The memories of this process. Clients share one with their ledger, their session, or the process."""

    def __init__(self) -> None:
        super().__init__()
        self._memories: WeakKeyDictionary[object, Memory] = WeakKeyDictionary()

    def of(self, owner: object) -> Memory:
        """Return the memory of all clients with this ledger or session; that of the process for None."""
        owner = self if owner is None else owner
        with self.lock:
            memory = self._memories.get(owner)
            if memory is None:
                memory = self._memories[owner] = Memory()
            memories = tuple(self._memories.values())
        for each in memories:
            each.finish_dead()
        return memory

    def forget(self) -> None:
        """Empty all memories."""
        with self.lock:
            memories = tuple(self._memories.values())
        for each in memories:
            each.forget()


MEMORIES = Memories()


class Flights:
    """The approvals of a client and its copies. `approve` starts a flight, or joins one.

    Args:
        pipeline: The state that the calls of the client share.
        guard: The guard of the ledger; None without a ledger.
        memory: The memory that the client shares with others; None for a separate one.
    """

    def __init__(self, pipeline: Pipeline, guard: Guard | None, memory: Memory | None) -> None:
        self.pipeline = pipeline
        self.guard = guard
        self.shared = memory
        # For a client that shares none, and for approvals that a mock decides. It is created here, because
        # two threads could create two on first use.
        self._separate = Memory()
        self._followers: set[asyncio.Task[Any]] = set()

    def memory_of(self, run: Run) -> Memory:
        """Return the memory for an approval. Those that a mock decides are not remembered."""
        if self.shared is None or (self.guard is None and run.is_mocked):
            return self._separate
        return self.shared

    async def approve(
        self, call: Call, timeout: Timeout, retry: RetryPolicy, *, waits_for_response: bool = False
    ) -> Outcome:
        """Return the decision of a new flight, or of the flight of the same approval.

        Args:
            call: The approval.
            timeout: Its time limits.
            retry: Its retry policy.
            waits_for_response: Wait for a response even if ``timeout.total`` has passed.

        Raises:
            LoanError: The call failed.
        """
        while True:
            own = Flight(self.pipeline, call, timeout, retry)
            memory = self.memory_of(own)
            own.guard, own.memory = self.guard or memory.guard, memory
            own.approval, own.payload = memory.digests_of(call)
            flight = memory.find(own, own)
            within = None if waits_for_response else timeout.total
            result: Outcome | BaseException | None
            if flight is own:
                result = _result_for(own, flight, is_late=await self._wait(own, flight, within))
            else:
                result = await self._join(own, flight, within)
            if isinstance(result, BaseException):
                try:
                    raise result
                finally:
                    del own, flight, result  # breaks the reference cycle of error, traceback and frame
            if result is not None:
                return result
            timeout = evolve(timeout, total=max(own.deadline - self.pipeline.now(), _MOMENT))

    async def call(self, call: Call, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Return the outcome of a call that is no approval.

        An error is raised outside of any `except` block. Otherwise an error of aiohttp could become its
        context, and the text of that error contains the token and the URL.

        Args:
            call: The call.
            timeout: Its time limits.
            retry: Its retry policy.

        Raises:
            LoanError: The call failed.
        """
        flight = Flight(self.pipeline, call, timeout, retry)
        await self._wait(flight, flight, None)
        result = flight.result
        if not isinstance(result, BaseException):
            return result
        try:
            raise copy_error(result)
        finally:
            del flight, result  # breaks the reference cycle of error, traceback and frame

    async def read(
        self,
        call: Call,
        timeout: Timeout,
        retry: RetryPolicy,
        ask: Callable[[Guard, Run], Awaitable[T | LoanError]],
    ) -> T:
        """Return what the guard answers about an approval; `call` is one of the endpoint `KNOWN`.

        Raises:
            LoanError: The guard answers with this error.
        """
        run = Run(self.pipeline, call, timeout, retry)
        memory = self.memory_of(run)
        run.approval, run.payload = memory.digests_of(call)
        memory.find(run, None)  # its record becomes unknown if its flight never ends
        run.begin()
        try:
            result = await ask(self.guard or memory.guard, run)
        except BaseException as error:
            run.record(error)
            raise
        run.record(result)
        if not isinstance(result, LoanError):
            return result
        try:
            raise result
        finally:
            del run, result  # breaks the reference cycle of error, traceback and frame

    async def _join(
        self, own: Flight, flight: Flight, within: float | None
    ) -> Outcome | BaseException | None:
        """Wait for another caller's flight. Return its result; None if this caller may send the request."""
        is_same = flight.payload == own.payload
        if not flight.is_here and is_same and await self._is_over_in_time(own, flight):
            return None  # the record has the result
        own.begin()
        try:
            result = await self._result_of(own, flight, within, is_same=is_same)
        except BaseException as error:
            own.record(error)
            raise
        own.record(result)
        return result

    async def _result_of(
        self, own: Flight, flight: Flight, within: float | None, *, is_same: bool
    ) -> Outcome | BaseException | None:
        own.telemetry.set_ledger_result("joined" if flight.is_here else "blocked")
        if not is_same:
            return PayloadMismatchError("approve", flight.entry or "", "inflight")
        if not flight.is_here:
            return InFlightError("approve", flight.entry or "")
        own.telemetry.link(flight.span)
        wait = self._wait if flight.resources is own.resources else self._wait_as_guest
        result = _result_for(own, flight, is_late=await wait(own, flight, within))
        return _late_error(own) if result is None and own.deadline <= self.pipeline.now() else result

    async def _is_over_in_time(self, own: Flight, flight: Flight) -> bool:
        """Wait for the end of a flight of another event loop, as for another process."""
        clock = asyncio.get_running_loop().time
        wait = flight.guard.wait if own.call.wait is None else own.call.wait
        until = clock() + min(wait, own.timeout.total)
        while not (flight.is_over or flight.is_dead):
            if (left := until - clock()) <= 0 or own.resources.waits.is_closed:
                return False
            await asyncio.sleep(min(left, _POLL_INTERVAL))
        return True

    async def _wait_as_guest(self, own: Flight, flight: Flight, within: float | None) -> bool:
        """Wait for a flight of another client, at most until the own client is closed."""
        flight.guests += 1
        try:
            async with own.resources.waits.limited_by(asyncio.timeout(None)):
                return await self._wait(own, flight, within)
        except TimeoutError:
            return True
        finally:
            flight.guests -= 1

    async def _wait(self, own: Flight, flight: Flight, within: float | None) -> bool:
        """Start the own flight, or join another; wait for its end. Return True if this caller is late.

        When its time is over, the caller leaves at once if a response is awaited, or if it has joined and
        other callers still wait. Otherwise it waits for the end, which is near: the flight was withdrawn,
        because no caller is left, or its result is being recorded.
        """
        loop, timer = flight.resources.loop, own.resources.timer
        is_late = False
        while True:
            caller = loop.create_future()
            flight.callers.append(caller)
            try:
                now = loop.time()
                if flight is own and not is_late:
                    flight.context = copy_context()
                    flight.context.run(flight.start, now)
                elif flight.is_over:
                    wake(caller)
                limit = CLOSE_TIMEOUT if is_late else within
                if limit is not None:
                    timer.set(caller, now + limit + GRACE, now)
                await caller
            except BaseException:
                self._leave(flight, caller)
                raise
            finally:
                timer.discard(caller)
            if flight.is_over:
                return is_late
            self._leave(flight, caller)
            if is_late or flight.is_reading or (flight.callers and flight is not own):
                return True
            is_late = True

    def _leave(self, flight: Flight, caller: Caller) -> None:
        if flight.is_inherited:
            return
        with suppress(ValueError):  # it has left already
            flight.callers.remove(caller)
        if flight.callers:
            return
        if flight.is_over:  # in this iteration of the event loop
            flight.keep_unread()
            return
        with suppress(RuntimeError):  # the loop was closed
            flight.withdraw()  # now, because it may be sent in the next iteration of the event loop

    def longest(self, timeout: Timeout, within: float | None) -> float:
        """Return how long the client may wait for its calls when it is closed.

        Without `within`, wait for a call with these limits, and for calls that await a response. With it,
        wait longer only for responses that calls of other clients await.
        """
        reading = [each for each in self.pipeline.calls if each.is_reading]
        if within is None:
            return max([timeout.longest, *(each.timeout.longest for each in reading)])
        return max([within, *(each.timeout.attempt for each in reading if each.guests)])

    def follow(self, task: "asyncio.Task[Any]") -> None:
        """Add a task that stores the decision of a flight elsewhere: `aclose` waits for it."""
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def aclose(self) -> None:
        """Wait for the tasks of this event loop that store decisions elsewhere."""
        current = asyncio.get_running_loop()
        if tasks := {task for task in tuple(self._followers) if task.get_loop() is current}:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)


def _result_for(own: Flight, flight: Flight, *, is_late: bool) -> Outcome | BaseException | None:
    """Return the result of a flight for the caller with the call `own`.

    Return None if nothing was sent, and this caller, which has joined, may try again.
    """
    is_own = flight is own
    if not flight.is_over:  # a response may still arrive
        return _late_error(own, is_sent=True) if is_own else InFlightError("approve", flight.entry or "")
    result = flight.result
    if not isinstance(result, BaseException):
        return result
    if isinstance(result, Exception) or (is_own and not isinstance(result, CancelledError | GeneratorExit)):
        is_unsent = isinstance(result, LoanError) and result.outcome == "not_sent"
        return None if is_unsent and not is_own else copy_error(result)
    # Cancelled; or SystemExit or the like, which ends its own caller only.
    if flight.may_be_evaluated and not is_late:
        return OutcomeUnknownError("approve", flight.entry or "", "unknown", type(result).__name__)
    return _late_error(flight) if is_own or flight.may_be_evaluated else None


def _late_error(flight: Flight, *, is_sent: bool = False) -> LoanError:
    """Return the error of a caller whose time limit has passed."""
    return flight.transport_error(DeadlineExceededError, "TimeoutError", is_sent=is_sent)


_UNREAD = "approve, entry %s: received the response after the last caller had left: %s"
_IN_FILE = (
    "approve, entry %s: the service decided after the last caller had left, and writing to the ledger failed "
    "(%s); the decision is in an orphan file: import it with import_orphans"
)
_IN_MEMORY = (
    "approve, entry %s: a decision may be lost, because the service decided after the last caller had left, "
    "and writing to the ledger (%s) and to an orphan file failed; when the ledger works again, call approve "
    "again with the same data, on a client with the same ledger object"
)

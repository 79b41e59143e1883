"""Guards, which decide whether a request may be sent. `ProcessGuard` remembers approvals of this process."""

import asyncio
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from logging import WARNING
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, cast

from loanasync._models.classes import ForkSafe
from loanasync._models.decisions import (
    OTHER_ORDER,
    Approved,
    Decision,
    Known,
    KnownState,
    Meta,
    RawResponse,
    Refused,
)
from loanasync._protocol.endpoints import Outcome
from loanasync._protocol.messages import End, Response
from loanasync._runtime.run import Run
from loanasync._telemetry.log import log
from loanasync.errors import (
    AlreadyEvaluatedError,
    DecisionForgottenError,
    InFlightError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)

if TYPE_CHECKING:
    from loanasync.errors import UnresolvedState


EntryState: TypeAlias = Literal["inflight", "approved", "refused", "released", "unknown", "lost", "final"]

_MAX_AGE = 3600  # seconds
_MAX_RESPONSES = 10_000
_MAX_BYTES = 64 * 1024**2  # of their bodies: 6 kB for each; a usual one has 1 or 2 kB, and the largest 1 MiB
_MAX_UNREADABLE = 16_384  # bytes of a body without a decision
_MANY = 200_000  # approvals in the last hour: a ledger is the better memory
_RECORD = Struct("<BI16s")  # state, time in seconds, digest of the request
_CUSTOMER = 16  # bytes of `Run.approval` before those of the order
_POLL_INTERVAL = 0.02  # seconds between two looks at a claim for another order of the customer
_DECIDED = ("approved", "refused")
# "final" is "lost" with the note `OTHER_ORDER`.
_STATES: tuple[EntryState, ...] = ("inflight", "approved", "refused", "unknown", "lost", "final")
_CODES = {state: code for code, state in enumerate(_STATES)}


def state_of(result: Outcome | LoanError) -> EntryState:
    """Return the state of an approval after a call with this result."""
    match result:
        case Approved():
            return "approved"
        case Refused():
            return "refused"
        case AlreadyEvaluatedError():
            return "lost"
        case LoanError(outcome="not_sent" | "not_evaluated"):
            return "released"
        case _:
            return "unknown"


def is_for_other(result: object) -> TypeGuard[AlreadyEvaluatedError]:
    """Return True if "already evaluated" cannot mean this order, because no earlier request may have been."""
    if not isinstance(result, AlreadyEvaluatedError):
        return False
    return not (result.after_retry or result.meta.after_unknown)


class Claim:
    """The right to send the request of a call. Its flight settles it when the request has ended.

    The methods of this class do nothing. A claim whose `settle_now` or `interrupt_now` returns False must
    implement `settle` and `interrupt`.
    """

    def settle_now(self, run: Run, result: Outcome | LoanError) -> bool:
        """Record the result, which is then that of the call. Return False if `settle` must be awaited."""
        del run, result
        return True

    def interrupt_now(self, run: Run, error: BaseException) -> bool:
        """Do what `interrupt` does. Return False if that must be awaited."""
        del run, error
        return True

    async def settle(self, result: Outcome | LoanError) -> Outcome | LoanError:
        """Record the result of the request; return the result of the call."""
        raise NotImplementedError

    async def interrupt(self, error: BaseException) -> None:
        """Record that the request has ended with an exception: not sent, or with an unknown outcome."""
        raise NotImplementedError

    def abandon(self, run: Run) -> None:
        """Note that nobody settles the claim, because its event loop was closed."""


class Guard:
    """Decides whether the request of a call may be sent.

    Attributes:
        wait: Seconds that a call waits for another event loop or process that is requesting its approval.
    """

    @property
    def wait(self) -> float:
        return 0.0

    def begin_now(self, run: Run) -> Claim | None:
        """Return a claim, with a slot, if that needs no awaiting and nothing is known of the customer."""

    async def begin(self, run: Run) -> Claim | Outcome | LoanError:
        """Acquire a slot and the right to send the request.

        Return the claim, the known decision, or the error that forbids sending.
        """
        raise NotImplementedError

    async def known(self, run: Run) -> Known | LoanError:
        """Return what is known of an approval, or the error of the ledger."""
        del run
        return Known(state="none")

    def keep_unread(self, run: Run) -> None:
        """Keep the recorded decision of an approval, because no caller has received it."""

    def inherit(self, run: Run) -> None:
        """Note, in a forked child, an approval that the parent process is requesting."""

    def give_up(self, run: Run) -> None:
        """Note that an approval has an unknown outcome, because its event loop does not end it."""


class Unguarded(Guard, Claim):
    """The guard of a call that is no approval: it may be sent at any time."""

    def begin_now(self, run: Run) -> Claim | None:
        """See `Guard.begin_now`."""
        return self if run.take_slot_now() else None

    async def begin(self, run: Run) -> Claim | Outcome | LoanError:
        """See `Guard.begin`."""
        error = await run.acquire_slot()
        return self if error is None else error


# Note, status, body, fault and end of a response with a decision; or the note of an unknown outcome, with the
# status and body of its response. A class would take longer to create.
_Kept: TypeAlias = tuple[str, int, bytes, str | None, End]


def _without_response(note: str) -> _Kept:
    return note, 0, b"", None, "stated"


class ProcessGuard(ForkSafe, Guard, Claim):
    """The approvals that this process has requested in the last hour, for clients without a ledger.

    Each order has a record of about 300 bytes; their number is not limited. The responses of the last
    10,000 approvals are kept as bytes, at most 64 MiB. A decision that no caller has received is kept for the
    whole hour, and does not count. If the response of a decision is gone, the result is a
    `DecisionForgottenError`, never a second request.

    It is itself the claim of each approval. The record of an approval is written when the claim is settled.
    Until then, no other call of this process can begin the approval, because it joins the flight, or another
    order of the customer, because `_claims` has the call.

    The records are consistent after each step, because another thread may fork the process at any time. A
    record that is in flight when its approval begins again was left by a parent process.
    """

    wait = 2.0

    def __init__(self) -> None:
        super().__init__()
        # In the order of their times. Taking the first key of a dict whose first keys were deleted is slow.
        self._records: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._unread: dict[bytes, _Kept] = {}
        self._claims: dict[bytes, Run] = {}  # the calls with a claim
        self._orders: dict[bytes, tuple[bytes, ...]] = {}  # records and claims with an order, by customer
        self._has_warned = False
        self._checked = 0  # the second in which expired records were dropped

    def inherit(self, run: Run) -> None:
        """See `Guard.inherit`."""
        self._claims.pop(run.approval, None)
        if self._find(run.approval)[0] in (None, "unknown"):
            self.record(run, "inflight", _without_response(""))

    def give_up(self, run: Run) -> None:
        """See `Guard.give_up`."""
        self.record(run, "unknown", _without_response("TimeoutError"))

    def keep_unread(self, run: Run) -> None:
        """See `Guard.keep_unread`."""
        with self.lock:
            is_decided = self._find(run.approval)[0] in _DECIDED
            if is_decided and (kept := self._drop(run.approval)) is not None:
                self._unread[run.approval] = kept

    def begin_now(self, run: Run) -> Claim | None:
        """See `Guard.begin_now`."""
        approval = run.approval
        customer = approval[:_CUSTOMER]
        with self.lock:
            # All records and claims with an order are in `_orders`.
            is_known = customer in self._orders or customer in self._records or customer in self._claims
            if is_known or not run.take_slot_now():
                return None
            if len(approval) > _CUSTOMER:
                self._orders[customer] = (approval,)
            self._claims[approval] = run
            return self

    async def known(self, run: Run) -> Known | LoanError:
        """See `Guard.known`."""
        if run.approval in self._claims:
            return Known(state="inflight")
        state, seconds, _ = self._find(run.approval)
        age = monotonic() - seconds
        if state is None or age >= _MAX_AGE:
            return Known(state="none")
        kept = self._unread.get(run.approval) or self._kept.get(run.approval)
        note, *_ = kept or _without_response("")
        stated: KnownState = "lost" if state == "final" else "unknown" if state == "inflight" else state
        return Known(
            state=stated,
            decision=None if kept is None or state not in _DECIDED else _decision_in(kept, run),
            changed=datetime.now(UTC) - timedelta(seconds=age),
            note=note,
        )

    async def begin(self, run: Run) -> Claim | Outcome | LoanError:
        """See `Guard.begin`."""
        now, until = asyncio.get_running_loop().time, None
        while True:
            known: Claim | Decision | LoanError | None = self._look_up(run)
            if known is None and (known := await run.acquire_slot()) is None:
                known = self._claim(run)  # another order may have begun while this call waited for its slot
            if not isinstance(known, InFlightError):
                return known
            run.release_slot()
            if until is None:
                wait = self.wait if run.call.wait is None else run.call.wait
                until = now() + min(wait, run.timeout.total)
            if now() >= until or run.resources.waits.is_closed:
                return known
            await asyncio.sleep(_POLL_INTERVAL)

    def _look_up(self, run: Run) -> Decision | LoanError | None:
        """Return the decision or the error that forbids sending, if the customer was requested before."""
        state, seconds, payload = self._find(run.approval)
        if state is not None:
            is_same = payload == run.payload
            with self.lock:
                if int(monotonic()) - seconds >= _MAX_AGE:
                    self._forget(run.approval)
                else:
                    run.after_unknown = run.call.repeat_unknown and state == "unknown" and is_same
                    if not run.after_unknown:
                        return self._known(run, state, is_same=is_same)
        return self._stopped_by_other(run)

    def _claim(self, run: Run) -> Claim | LoanError:
        with self.lock:
            if (error := self._stopped_by_other(run)) is not None:
                return error
            self._index(run.approval)
            self._claims[run.approval] = run
            return self

    def _others(self, approval: bytes) -> list[bytes]:
        """Return the approvals of the customer for other orders, and the one without an order."""
        customer = approval[:_CUSTOMER]
        return [each for each in (customer, *self._orders.get(customer, ())) if each != approval]

    def _stopped_by_other(self, run: Run) -> LoanError | None:
        """Return the error of an approval of the customer that stops this order (readings.md R6)."""
        waiting: LoanError | None = None
        for other in self._others(run.approval):
            if (flight := self._claims.get(other)) is not None:
                if not (flight.is_dead or flight.is_overdue or flight.is_inherited):
                    waiting = InFlightError("approve", "")
                    continue
                self.abandon(flight)
            state, seconds, _ = self._find(other)
            if state is None or int(monotonic()) - seconds >= _MAX_AGE:
                continue
            is_decided = state in _DECIDED
            if (is_decided or state == "final") and len(other) > _CUSTOMER and run.call.order_id:
                continue
            run.telemetry.set_ledger_result("blocked")
            return PayloadMismatchError("approve", "", state) if is_decided else self._error(other, state)
        return waiting

    def _find(self, approval: bytes) -> tuple[EntryState | None, int, bytes]:
        """Return state, time and payload of the record of an approval; the state None without a record."""
        record = self._records.get(approval)
        if record is None:
            return None, 0, b""
        code, seconds, payload = _RECORD.unpack(record)
        return _STATES[code], seconds, payload

    def _known(self, run: Run, state: EntryState, *, is_same: bool) -> Decision | LoanError:
        """Return the decision or the error that follows from a record."""
        run.telemetry.set_ledger_result("blocked")
        if not is_same and state != "final":
            return PayloadMismatchError("approve", "", state)
        kept = self._unread.get(run.approval) or self._kept.get(run.approval)
        if state not in ("approved", "refused"):
            return self._error(run.approval, state)
        if kept is None:
            return DecisionForgottenError("approve", "", state)
        run.telemetry.set_ledger_result("remembered")
        self._unread.pop(run.approval, None)
        self._keep(run.approval, kept)
        return _decision_in(kept, run)

    def _error(self, approval: bytes, state: EntryState) -> OutcomeUnknownError:
        """Return the error of an approval without a decision."""
        if state == "inflight":
            return OutcomeUnknownError("approve", "", "unknown", "fork")
        note, status, body, *_ = self._kept.get(approval) or _without_response(
            OTHER_ORDER if state == "final" else ""
        )
        raw = RawResponse(status, body) if body else None
        unresolved = "lost" if state == "final" else state
        return OutcomeUnknownError("approve", "", cast("UnresolvedState", unresolved), note, raw)

    def _has_other_decision(self, run: Run) -> bool:
        """Return True if another order of the customer is decided."""
        return any(self._find(each)[0] in _DECIDED for each in self._others(run.approval))

    def record(self, run: Run, state: EntryState, kept: _Kept) -> None:
        """Record the outcome of an approval. A decision stays, whatever a request before it ends with."""
        is_first_time, now = False, int(monotonic())
        with self.lock:
            if state not in _DECIDED and self._find(run.approval)[0] in _DECIDED:
                self._claims.pop(run.approval, None)
                return
            if run.approval not in self._claims:  # a claim is in the index
                self._index(run.approval)
            if run.approval in self._records:
                self._records.move_to_end(run.approval)
            self._records[run.approval] = _RECORD.pack(_CODES[state], now, run.payload)
            self._claims.pop(run.approval, None)
            if state != "inflight":  # a parent's flight has no response, and must not replace other ones
                self._keep(run.approval, kept)
            if now != self._checked:
                self._checked = now
                self._drop_expired(now)
            if len(self._records) > _MANY and not self._has_warned:
                is_first_time = self._has_warned = True
        if is_first_time:
            log(WARNING, _MANY_RECORDS, _MANY)

    def _release(self, run: Run) -> None:
        """Forget the claim of a request that was not evaluated."""
        with self.lock:
            self._claims.pop(run.approval, None)
            if run.approval not in self._records:
                self._forget(run.approval)

    def settle_now(self, run: Run, result: Outcome | LoanError) -> bool:
        """See `Claim.settle_now`."""
        state, last = state_of(result), run.last
        if state in _DECIDED and last is not None:
            self.record(run, state, ("", last.status, last.body, last.fault, last.end))
        elif state == "released":
            self._release(run)
        else:
            note = type(result).__name__
            if is_for_other(result) and self._has_other_decision(run):
                result.note = note = OTHER_ORDER
                state = "final"
            response: RawResponse | None = getattr(result, "response", None)
            if response is None or response.is_stray:
                status, body = 0, b""
            else:
                status, body = response.status, response.body
            self.record(run, state, (note, status, body[:_MAX_UNREADABLE], None, "stated"))
        return True

    def interrupt_now(self, run: Run, error: BaseException) -> bool:
        """See `Claim.interrupt_now`."""
        if run.is_inherited:
            self.inherit(run)
        elif run.was_written:
            self.record(run, "unknown", _without_response(type(error).__name__))
        else:
            self._release(run)
        return True

    def abandon(self, run: Run) -> None:
        """See `Claim.abandon`."""
        self.interrupt_now(run, GeneratorExit())

    def _index(self, approval: bytes) -> None:
        customer = approval[:_CUSTOMER]
        orders = self._orders.get(customer, ())
        if len(approval) > _CUSTOMER and approval not in orders:
            self._orders[customer] = (*orders, approval)

    def _keep(self, approval: bytes, kept: _Kept) -> None:
        if approval in self._kept:
            self._drop(approval)
        self._kept[approval] = kept
        self._kept_bytes += len(kept[2])  # the body
        while len(self._kept) > _MAX_RESPONSES or self._kept_bytes > _MAX_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, approval: bytes) -> _Kept | None:
        kept = self._kept.pop(approval, None)
        self._kept_bytes -= 0 if kept is None else len(kept[2])
        return kept

    def _drop_expired(self, now: int) -> None:
        oldest = now - _MAX_AGE
        while self._records:
            approval = next(iter(self._records))
            if _RECORD.unpack(self._records[approval])[1] > oldest:
                break
            self._forget(approval)

    def _forget(self, approval: bytes) -> None:
        self._records.pop(approval, None)
        self._drop(approval)
        self._unread.pop(approval, None)
        if approval in self._claims:
            return
        customer = approval[:_CUSTOMER]
        left = tuple(each for each in self._orders.pop(customer, ()) if each != approval)
        if left:
            self._orders[customer] = left


def _decision_in(kept: _Kept, run: Run) -> Decision:
    """Return the decision in a response that was kept."""
    _, status, body, fault, end = kept
    response = Response(status=status, headers={}, body=body, fault=fault, end=end)
    return cast("Decision", run.call.read(response, Meta(status, 0, 0.0, run.trace_id)))


_MANY_RECORDS = (
    "this process has requested more than %d approvals within an hour; pass a ledger to LoanClient, which "
    "keeps decisions for longer and survives a restart"
)

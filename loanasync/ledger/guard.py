"""`LedgerGuard`: an approval is sent only after its entry in the ledger was claimed."""

import asyncio
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from logging import ERROR, WARNING
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from attrs import evolve

from loanasync._models.decisions import OTHER_ORDER, Approved, Decision, Known, Meta, Refused
from loanasync._protocol.endpoints import Outcome
from loanasync._runtime.guard import Claim, Guard, is_for_other, state_of
from loanasync._runtime.run import Run
from loanasync._telemetry.log import log
from loanasync._telemetry.spans import CLAIMED
from loanasync.errors import (
    DecisionForgottenError,
    DecisionNotRecordedError,
    InFlightError,
    LedgerUnavailableError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.ledger.access import (
    OPERATION,
    Action,
    Keys,
    LedgerAccess,
    T,
    Unwritten,
    claim_until,
    in_thread,
)
from loanasync.ledger.header import Header
from loanasync.ledger.keys import Place, find_entry, places_of_call
from loanasync.ledger.ledger import HeaderChangedError
from loanasync.ledger.model import NO_SUBJECT, NOT_SENT, Entry, Settlement, State
from loanasync.ledger.orphans import Orphan, has_unstored_response, write_orphan
from loanasync.ledger.replay import replay, settlement_of

if TYPE_CHECKING:
    from loanasync.errors import UnresolvedState

CallResult: TypeAlias = Outcome | LoanError

_READ_MARGIN = 0.5  # seconds for the last read of a wait
_NOWHERE = Place("", NO_SUBJECT)  # the place of an entry before the keys of the ledger are known


class LedgerGuard(LedgerAccess, Guard):
    """The guard of a client with a ledger.

    The entries note all that `keep_unread` and `give_up` would note.
    """

    @property
    def wait(self) -> float:
        """Seconds that a call waits for another owner."""
        return self.policy.wait

    async def known(self, run: Run) -> Known | LoanError:
        """See `Guard.known`."""
        read = partial(self._known, run)
        return await self.attempt(read, min(run.timeout.total, self.policy.patience), call="known")

    async def _known(self, run: Run) -> Known | LoanError:
        await self.keys()  # the first call creates the ledger
        await self.ledger.refresh()  # the key may have been rotated
        places = places_of_call(run.call, (await self.keys()).secrets)
        run.entry = places[0].key
        found = await find_entry(self.ledger, places)
        entry = found if isinstance(found, Entry) else None
        if (token := self.unwritten_of(places[0], entry)) is not None:
            entry = await self.write(token)
        if entry is None:
            return Known(state="none", entry=run.entry)
        run.entry = entry.key
        meta, decision = Meta(0, 0, 0.0, run.trace_id), None
        if entry.state.is_decided:
            try:
                decision = cast("Decision", replay(entry, run.call, self.policy, meta))
            except Exception as error:  # noqa: BLE001  (raised by the user's cipher)
                return LedgerUnavailableError("known", entry.key, type(error).__name__, _NO_KEY)
        claimed, changed, expires = (
            datetime.fromtimestamp(each, UTC) for each in (entry.claimed, entry.changed, entry.expires)
        )
        return Known(
            state=entry.state.value,
            decision=decision,
            entry=entry.key,
            claimed=claimed,
            changed=changed,
            expires=expires,
            note=entry.note,
        )

    async def look_up(self, run: Run) -> CallResult | None:
        """Return what `begin` would return at once, or None if it would claim the entry. Claim nothing."""
        return await LedgerClaim(self, run).look_up()

    async def begin(self, run: Run) -> Claim | Outcome | LoanError:
        """See `Guard.begin`."""
        claim = LedgerClaim(self, run)
        result = await claim.begin()
        return result if isinstance(result, Claim) else await claim.end(result)

    def inherit(self, run: Run) -> None:
        """See `Guard.inherit`. The parent may still claim the entry in its copy of a ledger in memory."""
        if self.never_waits:
            with suppress(StopIteration, LoanError):
                self._claim_for_parent(run).send(None)

    async def _claim_for_parent(self, run: Run) -> None:
        """Claim the entry of an approval, unless it is claimed. It is unknown from now on."""
        place = places_of_call(run.call, (await self.keys()).secrets)[0]
        token = os.urandom(16).hex()
        await self.ledger.claim(place.key, token=token, payload=place.payload, lease=0, subject=place.subject)


class LedgerClaim(Claim):
    """One approval with a ledger: sends the request only if the ledger proves that this is safe.

    Before the request is sent, each ledger operation may take `LedgerPolicy.patience` seconds, but never
    longer than the rest of ``timeout.total``. After the request, the settlement may take `patience` seconds
    once more.

    Args:
        guard: The ledger and its policy.
        run: The approval in progress.
    """

    _header: Header
    _places: tuple[Place, ...]

    def __init__(self, guard: LedgerGuard, run: Run) -> None:
        self._guard = guard
        self._ledger = guard.ledger
        self._policy = guard.policy
        self._call = run.call
        self._run = run
        self._at = _NOWHERE
        self._has_failed = False  # the last operation of the ledger
        self._wait_until: float | None = None  # set when an entry of another owner is found
        self._started = time.monotonic()
        self._token = ""
        self._claimed: Entry | None = None
        self._has_other_decision = False  # for another order of the customer

    def _use(self, place: Place) -> None:
        self._at = place
        self._run.entry = place.key

    async def end(self, result: CallResult) -> CallResult:
        """Finish what earlier approvals have left to do, then return the result."""
        left = min(self._time_left(), 0.0) + self._policy.patience
        can_wait = not (self._run.callers and self._has_failed)
        if self._guard.has_unwritten and can_wait and left > 0:
            await self._guard.write_unwritten(left)
        return result

    async def look_up(self) -> CallResult | None:
        """See `LedgerGuard.look_up`."""
        return self._result_of(await self._wait_for_settlement(await self._look_up()))

    async def begin(self) -> "LedgerClaim | CallResult":
        """Derive the keys, look up, take a slot and claim. Return the decision or the error instead."""
        run = self._run
        found = await self._look_up()
        while True:
            found = await self._wait_for_settlement(found)
            if (result := self._result_of(found)) is not None:
                return result
            found = cast("Entry | None", found)  # an error is a result
            try:
                waits = run.cannot_send_now
                if (error := await run.acquire_slot()) is not None:
                    return error
                if waits and (latest := await self._look_up()) != found:  # another order may have begun
                    found = latest
                    continue
                found = await self._claim(found)
                if isinstance(found, Entry) and found.is_claimed_by(self._token):
                    self._claimed = found
                    run.telemetry.set_ledger_result(CLAIMED)
                    return self
            finally:
                if self._claimed is None:
                    run.release_slot()

    async def _wait_for_settlement(self, found: Entry | LoanError | None) -> Entry | LoanError | None:
        """Wait until the last claim of an entry is settled, by this client or by its owner.

        Return the entry that decides then, or an error if the ledger cannot be used.
        """
        while not isinstance(found, LoanError):
            latest: Entry | LoanError | None
            if (token := self._guard.unwritten_of(self._at, found)) is not None:
                latest = await self._in_time(partial(self._guard.write, token))
            elif (
                found is None
                or found.state is not State.INFLIGHT
                or self._is_other_request(found)
                or (left := self._wait_left()) <= 0
            ):
                break
            else:
                self._run.telemetry.set_ledger_result("blocked")
                waiting = partial(self._ledger.wait, found.key, left)
                latest = await self._attempt(waiting, left + _READ_MARGIN)
                is_late = isinstance(latest, LedgerUnavailableError) and latest.cause_type == "TimeoutError"
                if is_late or (isinstance(latest, Entry) and latest.state is State.INFLIGHT):
                    break
            is_of_other = found is not None and found.key != self._at.key
            found = await self._look_up() if is_of_other and not isinstance(latest, LoanError) else latest
        return found

    async def _look_up(self) -> Entry | LoanError | None:
        """Read all entries of the customer, and return the one that decides about this approval.

        It is the entry of this approval, unless that is missing or released: then it is the entry of another
        order which stops this one. Under several keys, prefer a decision, then the newest key.
        """
        keys: Keys | LoanError | None = self._guard.known_keys
        if keys is None:
            keys = await self._in_time(self._guard.keys)
        if isinstance(keys, LoanError):
            return keys
        self._header = keys.header
        self._places = places_of_call(self._call, keys.secrets)
        self._use(self._places[0])
        found: Entry | None = None
        others: list[Entry] = []
        for place in self._places:
            entries = await self._in_time(partial(self._ledger.entries_of, place.subject.customer))
            if isinstance(entries, LoanError):
                return entries
            for entry in entries:
                if entry.key not in {each.key for each in self._places}:
                    others.append(entry)
                elif entry.state is not State.RELEASED and (
                    found is None or (entry.state.is_decided and not found.state.is_decided)
                ):
                    found = entry
                    self._use(place)
        self._has_other_decision = any(entry.state.is_decided for entry in others)
        if found is not None and not self._may_repeat(found):
            return found
        stopping = filter(self._is_stopped_by, others)
        return min(stopping, key=lambda entry: entry.state is State.INFLIGHT, default=found)

    def _is_stopped_by(self, other: Entry) -> bool:
        """Return True if the entry of another order of the customer stops this one (readings.md R6)."""
        if other.state is State.RELEASED:
            return False
        is_final = other.state.is_decided or other.note == OTHER_ORDER
        return not (is_final and other.order and self._call.order_id)

    def _may_repeat(self, entry: Entry) -> bool:
        """Return True if the caller repeats an unknown request with the same data."""
        is_unknown = entry.state is State.UNKNOWN and entry.payload == self._at.payload
        return self._call.repeat_unknown and is_unknown

    def _time_left(self) -> float:
        return self._started + self._run.timeout.total - time.monotonic()

    def _wait_left(self) -> float:
        """Return the seconds left to wait for other owners, counted from the first call of this method."""
        now = time.monotonic()
        if self._wait_until is None:
            wait = self._policy.wait if self._call.wait is None else self._call.wait
            self._wait_until = min(now + wait, self._started + self._run.timeout.total)
        return self._wait_until - now

    async def _in_time(self, action: Action[T]) -> T | LoanError:
        """Run a ledger operation before the request is sent, limited by the rest of ``timeout.total``."""
        return await self._attempt(action, min(self._time_left(), self._policy.patience))

    async def _attempt(self, action: Action[T], within: float, *, once: bool = True) -> T | LoanError:
        """Run ledger operations; return their result, or an error if the ledger cannot be used."""
        result = await self._guard.attempt(action, within, self._at.key, once=once)
        self._has_failed = isinstance(result, LoanError)
        return result

    def _is_other_request(self, entry: Entry) -> bool:
        """Return True if the entry of this approval belongs to a request with other data."""
        # A person creates entries without one.
        return entry.key == self._at.key and entry.payload not in ("", self._at.payload)

    def _result_of(self, entry: Entry | LoanError | None) -> CallResult | None:
        """Return the decision or the error that follows from an entry; None if the request may be sent."""
        if isinstance(entry, LoanError):
            self._run.telemetry.set_ledger_result("unavailable")
            return self._guard.error_of(self._at) or entry
        if entry is None or entry.state is State.RELEASED:
            return None
        key, is_own = entry.key, entry.key == self._at.key
        if is_own and self._may_repeat(entry):
            return None
        self._run.telemetry.set_ledger_result("blocked")
        if entry.note == OTHER_ORDER:  # whatever the data are
            return _error_of(entry)
        if self._is_other_request(entry) or (entry.state.is_decided and not is_own):
            if entry.state.is_decided:
                log(WARNING, _OTHER_DATA, key[:12], entry.state.value)
            return PayloadMismatchError(OPERATION, key, entry.state.value)
        return self._replay(entry) if entry.state.is_decided else _error_of(entry)

    def _replay(self, entry: Entry) -> CallResult:
        """Return the decision of an entry, and record it in the call's telemetry."""
        meta = Meta(0, 0, time.monotonic() - self._started, self._run.telemetry.trace_id)
        try:
            outcome = replay(entry, self._call, self._policy, meta)
        except Exception as error:  # noqa: BLE001  (raised by the user's cipher, for example after a key change)
            self._run.telemetry.set_ledger_result("unavailable")
            return LedgerUnavailableError(OPERATION, self._at.key, type(error).__name__, _NO_KEY)
        self._run.telemetry.set_ledger_result("hit")
        return outcome

    async def _claim(self, over: Entry | None) -> Entry | LoanError | None:
        """Claim the entry immediately before the request is sent, or take over the unsettled entry `over`.

        Returns:
            The claimed entry, the entry of another owner, or an error. After an error the claim is undone,
            because the ledger may have written it. If the keys of the ledger have changed, the entry under
            the new keys, or None.
        """
        if over is None or over.state is State.RELEASED:
            over = None
            self._use(self._places[0])  # create new entries only under the present key
        self._run.after_unknown = over is not None and over.state is State.UNKNOWN
        self._token = os.urandom(16).hex()
        within = min(self._time_left(), self._policy.patience)
        until = time.monotonic() + within
        claim = partial(
            claim_until,
            self._ledger,
            until,
            key=self._at.key,
            token=self._token,
            payload=self._at.payload,
            lease=self._run.timeout.longest + 2 * self._policy.patience,
            over=None if over is None else over.token,
            subject=self._at.subject,
            header=self._header,
        )
        claiming = asyncio.create_task(self._attempt(claim, within))
        try:
            entry = await asyncio.shield(claiming)
        except HeaderChangedError:
            return await self._look_up()
        except asyncio.CancelledError:
            undoing = asyncio.ensure_future(self._undo_when_over(claiming, until))
            while not undoing.done():
                with suppress(asyncio.CancelledError):  # another one changes nothing
                    await asyncio.wait((undoing,))
            raise
        if isinstance(entry, LoanError):
            await self._undo_claim(until)
        elif self._ledger.known_header is not self._header:  # another call found lost writes, or other keys
            await self._undo_claim(until)
            return await self._look_up()
        return entry

    async def _undo_when_over(self, claiming: "asyncio.Task[Entry | LoanError]", until: float) -> None:
        """Undo a claim of a cancelled call. The claim may still reach the ledger, so wait for its end."""
        with suppress(HeaderChangedError, asyncio.CancelledError):  # the end of `asyncio.run` cancels it, too
            await claiming
        await self._undo_claim(until)

    def settle_now(self, run: Run, result: CallResult) -> bool:
        """See `Claim.settle_now`: the ledger must be awaited."""
        del run, result
        return False

    def interrupt_now(self, run: Run, error: BaseException) -> bool:
        """See `Claim.interrupt_now`: the ledger must be awaited."""
        del run, error
        return False

    async def settle(self, result: CallResult) -> CallResult:
        """See `Claim.settle`."""
        state, failure = State(state_of(result)), ""
        try:
            settlement = settlement_of(result, state, self._policy)
        except Exception as error:  # noqa: BLE001  (raised by the user's cipher)
            failure = type(error).__name__
            settlement = Settlement(state=state, note=type(result).__name__)
        if not isinstance(result, Approved | Refused):
            if self._has_other_decision and is_for_other(result):
                result.note = OTHER_ORDER
                settlement = evolve(settlement, note=OTHER_ORDER)
            result = await self._settle_error(result, settlement)
            if failure:
                log(WARNING, _NOT_ENCRYPTED, self._at.key[:12], failure)
        elif failure:  # no orphan file: it would contain the unencrypted decision
            result = self._not_recorded(result, None, failure)
        else:
            result = await self._settle_decision(result, settlement)
        return await self.end(result)

    async def interrupt(self, error: BaseException) -> None:
        """See `Claim.interrupt`."""
        state = State.UNKNOWN if self._run.may_be_evaluated else State.RELEASED
        await self._settle_undecided(Settlement(state=state, note=type(error).__name__))

    async def _settle_error(self, result: CallResult, settlement: Settlement) -> CallResult:
        """Write a result without a decision. If another owner wrote a decision meanwhile, return that."""
        entry = await self._settle_undecided(settlement)
        # The settlement is not written if another claim has taken over the entry.
        is_written = entry is not None and entry.token == self._token
        if settlement.body is not None and not is_written:
            await self._write_orphan(settlement)
        return self._replay(entry) if entry is not None and entry.state.is_decided else result

    async def _undo_claim(self, until: float) -> None:
        """Undo a claim whose request was not sent: release the entry, or set it back to UNKNOWN."""
        state = State.UNKNOWN if self._run.after_unknown else State.RELEASED
        make = partial(Settlement, state=state, note=NOT_SENT)
        self._guard.remember(self._token, Unwritten(self._at, state, make, until))
        undone = await self._attempt(partial(self._guard.write, self._token), self._policy.patience)
        if isinstance(undone, LoanError):
            log(WARNING, _UNDONE_LATER, self._at.key[:12])
        self._token = ""  # this claim is not used, even if it could not be undone yet

    async def _settle_undecided(self, settlement: Settlement) -> Entry | None:
        """Write a settlement that is not a decision; return None if that fails.

        After a failure a later call of this client releases the entry, if the request was not evaluated.
        Otherwise it stays in flight until its lease expires, and is UNKNOWN from then on.
        """
        if settlement.state is State.RELEASED:
            self._guard.remember(self._token, Unwritten(self._at, settlement.state, lambda: settlement))
        entry = await self._write_settlement(settlement)
        if isinstance(entry, LoanError):
            log(WARNING, _STAYS_IN_FLIGHT, self._at.key[:12])
            return None
        self._guard.unwritten.pop(self._token, None)
        return entry

    async def _write_settlement(self, settlement: Settlement) -> Entry | LoanError:
        """Settle the entry within `patience` seconds, even if ``timeout.total`` has passed."""
        settle = partial(
            self._ledger.settle,
            self._at.key,
            token=self._token,
            payload=self._at.payload,
            settlement=settlement,
            claimed=self._claimed,
        )
        return await self._attempt(settle, self._policy.patience, once=False)

    async def _settle_decision(self, decision: Decision, settlement: Settlement) -> CallResult:
        """Write a decision to the ledger, or else to an orphan file if possible.

        Returns:
            The decision once it is stored, or a `DecisionNotRecordedError` that carries it.
        """
        state = settlement.state
        try:
            entry = await self._write_settlement(settlement)
            # If a person resolved the entry first, the ledger did not write this settlement.
            is_stored = not isinstance(entry, LoanError) and (
                entry.state is state and not has_unstored_response(settlement, entry)
            )
        except GeneratorExit:  # the event loop was closed, so no caller can receive an error
            if self._write_orphan_now(settlement) is None:
                log(ERROR, _DECISION_AT_RISK, self._at.key[:12])
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  (a defect, or the end of the event loop)
            return self._not_recorded(decision, self._write_orphan_now(settlement), type(error).__name__)
        if isinstance(entry, LoanError):
            cause = entry.cause_type if isinstance(entry, LedgerUnavailableError) else type(entry).__name__
            return self._not_recorded(decision, await self._write_orphan(settlement), cause)
        if is_stored or entry.state is State.ERASED:
            return decision
        if entry.state is not state:
            log(WARNING, _CONTRADICTION, self._at.key[:12], entry.state)
        is_kept = await self._write_orphan(settlement) is not None
        return decision if is_kept else self._not_recorded(decision, None, "OSError")

    async def _write_orphan(self, settlement: Settlement) -> str | None:
        """Write an orphan file in a thread; return its path, or None if no folder is writable."""
        try:
            return await in_thread(self._write_orphan_now, settlement)
        except asyncio.CancelledError:
            # The thread may write a second file; importing both is harmless.
            return self._write_orphan_now(settlement)

    def _write_orphan_now(self, settlement: Settlement) -> str | None:
        orphan = Orphan(
            ledger=self._header.id,
            key=self._at.key,
            token=self._token,
            payload=self._at.payload,
            subject=self._at.subject,
            settlement=settlement,
        )
        file = write_orphan(self._policy.orphan_folders, orphan)
        self._run.telemetry.instruments.metrics.orphan_files += file is not None
        return None if file is None else str(file)

    def _not_recorded(self, decision: Decision, file: str | None, cause_type: str) -> LoanError:
        """Return the error that carries a decision, which a later call writes to the ledger."""
        outcome: Literal["approved", "refused"] = "approved" if decision.approved else "refused"
        error = DecisionNotRecordedError(OPERATION, self._at.key, outcome, decision, file, cause_type)
        make = partial(settlement_of, decision, State(outcome), self._policy)
        self._guard.remember(self._token, Unwritten(self._at, State(outcome), make, error=error))
        return error


def _error_of(entry: Entry) -> LoanError:
    """Return the error of an entry without a decision, whose approval is not sent."""
    if entry.state is State.INFLIGHT:
        return InFlightError(OPERATION, entry.key)
    if entry.state is State.ERASED:
        return DecisionForgottenError(OPERATION, entry.key, "unknown")
    state = cast("UnresolvedState", entry.state.value)
    return OutcomeUnknownError(OPERATION, entry.key, state, entry.note)


_NO_KEY = (
    "LedgerPolicy.encrypt cannot decrypt the stored response: give the cipher, LOANASYNC_LEDGER_CIPHER, the "
    "key with which it was encrypted"
)
_DECISION_AT_RISK = (
    "approve, entry %s: a decision may be lost, because the event loop was closed before the ledger had "
    "written it, and no orphan file could be written; ask the service for its decision"
)
_STAYS_IN_FLIGHT = (
    "the ledger cannot be written: entry %s stays in flight until its lease expires, then it is unknown"
)
_NOT_ENCRYPTED = "entry %s: the response was not stored: LedgerPolicy.encrypt failed (%s); check the cipher"
_CONTRADICTION = (
    "entry %s stays %s, because a person resolved it, but the service decided otherwise; "
    "check the entry and correct it with loanasync ledger resolve"
)
_UNDONE_LATER = (
    "the ledger cannot be written: a later call undoes the claim of entry %s, whose request was not sent"
)
_OTHER_DATA = (
    "entry %s is %s, and the same customer was requested with other data; if this is another order, pass "
    "its number as order_id"
)

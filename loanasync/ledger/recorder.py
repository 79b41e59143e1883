"""Approvals of a client with a ledger: look up, take a slot, claim, send, settle, return."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from logging import ERROR, WARNING
from random import random
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from loanasync._config import Shop
from loanasync._lifecycle import was_cancelled
from loanasync._log import log
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, Decision, Meta, Problem, Refused
from loanasync._runtime.pipeline import Pipeline, Run
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.spans import CLAIMED, CallRecord
from loanasync.errors import (
    ConfigurationError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LedgerUnavailableError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.ledger.backend import unsuitable_driver_error
from loanasync.ledger.keys import Digests, digests_of, key_of
from loanasync.ledger.memory import MemoryLedger
from loanasync.ledger.model import Entry, Settlement, State
from loanasync.ledger.orphans import Orphan, has_unstored_response, write_orphan
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.protocol import DecisionLedger
from loanasync.ledger.replay import replay, settlement_of, state_of
from loanasync.ledger.unsent_claims import UnsentClaims

if TYPE_CHECKING:
    from loanasync.errors.ledger import UnresolvedState


T = TypeVar("T")
CallResult: TypeAlias = Outcome | LoanError

_MAX_BACKOFF = 0.05  # seconds
_READ_MARGIN = 0.5  # seconds for the last read of a wait
_CLOSE_TIMEOUT = 5.0  # seconds for releasing the last claims while a client closes
# A lease lasts `timeout.total` plus two times `patience`, so that it does not expire before the call settles.
_LEASE_MARGIN = 2


class LedgerRecorder:
    """The ledger and its policy, shared by a client and its light copies.

    Raises:
        ConfigurationError: The ledger or the policy has the wrong type.
    """

    def __init__(self, ledger: object, policy: object) -> None:
        if not isinstance(ledger, DecisionLedger):
            raise ConfigurationError("ledger", "must be a ledger, such as loanasync.ledger.SqliteLedger")
        if policy is None:
            policy = LedgerPolicy()
        if not isinstance(policy, LedgerPolicy):
            raise ConfigurationError("ledger_policy", "must be a loanasync.ledger.LedgerPolicy")
        if policy.key is None and not isinstance(ledger, MemoryLedger):
            log(WARNING, _NO_KEY)
        self.ledger = ledger
        self.never_waits: bool = type(ledger) is MemoryLedger  # so its operations need no time limit
        self.policy = policy
        self.unsent_claims: UnsentClaims = UnsentClaims(ledger, policy.patience)

    def approval(
        self, call: Call, scope: str, *, repeat_unknown: bool, wait: float | None = None
    ) -> "RecordedApproval":
        """Return an approval to run with the ledger, and set ``call.entry`` to the key of its entry.

        Raises:
            InvalidRequestError: The policy's scope is ``order_token``, and the call has no order token.
        """
        if self._lacks_order_token(call.order_token):
            raise InvalidRequestError((_NO_ORDER_TOKEN,))
        wait = self.policy.wait if wait is None else wait
        return RecordedApproval(self, call, scope, repeats_unknown=repeat_unknown, wait=wait)

    def entry_key(
        self, shop: Shop, fiscal_code: str, scope: str, order_token: str | None
    ) -> str | InvalidRequestError:
        """Return the key of an approval's entry, or an error if a required order token is missing."""
        if problems := self.order_token_problems(order_token):
            return InvalidRequestError(problems)
        return key_of(shop, fiscal_code, self.policy, scope, order_token)

    def order_token_problems(self, order_token: object) -> tuple[Problem, ...]:
        """Return a problem if an order token is not a str, or is missing and required."""
        if order_token is not None and not isinstance(order_token, str):
            return (_WRONG_ORDER_TOKEN,)
        return (_NO_ORDER_TOKEN,) if self._lacks_order_token(order_token) else ()

    def _lacks_order_token(self, order_token: str | None) -> bool:
        return self.policy.scope == "order_token" and order_token is None

    async def aclose(self) -> None:
        """Release the claims whose request was never sent. Leave the ledger open."""
        await self.unsent_claims.aclose(_CLOSE_TIMEOUT)


class RecordedApproval:
    """One approval with a ledger: sends the request only if the ledger proves that this is safe.

    Before the request is sent, each ledger operation may take `LedgerPolicy.patience` seconds, but never
    longer than the rest of ``timeout.total``. After the request, the settlement may take `patience` seconds
    once more. So the approval ends after ``timeout.total + patience`` seconds at the latest.

    Args:
        recorder: The ledger, its policy, and the client's claims whose request was never sent.
        call: The approval.
        scope: Distinguishes several applications of one customer.
        repeats_unknown: Send the request even if the outcome of an earlier request is unknown.
        wait: Seconds to wait for other owners of the entry.
    """

    _record: CallRecord

    def __init__(
        self, recorder: LedgerRecorder, call: Call, scope: str, *, repeats_unknown: bool, wait: float
    ) -> None:
        self._ledger = recorder.ledger
        self._policy = recorder.policy
        self._unsent_claims = recorder.unsent_claims
        self._never_waits = recorder.never_waits
        self._call = call
        self._digests = digests_of(call, self._policy, scope)
        self._use_digests(self._digests[0])
        self._repeats_unknown = repeats_unknown
        self._wait = wait
        self._wait_until: float | None = None  # set when an entry of another owner is found
        self._started = 0.0
        self._total = 0.0
        self._token = ""
        self._takeover_token: str | None = None
        self._known_tokens: set[str] = set()  # claim tokens of all entries that this approval has read

    def _use_digests(self, digests: Digests) -> None:
        self._key = self._call.entry = digests.key
        self._payload = digests.payload
        self._subject = digests.subject

    async def run(self, pipeline: Pipeline, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Return the decision in the ledger, or send the request and return the service's decision.

        A decision of the service is returned after it was written to the ledger.

        Raises:
            LoanError: The approval ended without a decision, or the decision could not be written.
        """
        with pipeline.start(self._call, timeout, retry) as run:
            return run.finish(await self._decide(run, timeout.total))

    async def _decide(self, run: Run, within: float) -> CallResult:
        """Look up, take a slot, claim, send and settle.

        `found` is the result of the latest ledger operation. Each iteration does one of these:

        - It returns the decision or the error that follows from `found`.
        - It waits until the owner of the entry settles it.
        - It releases a claim of this client that the ledger wrote late.
        - It claims the entry and sends the request.
        """
        self._record = run.record
        self._started, self._total = time.monotonic(), within
        found: Entry | LoanError | None = None
        # Look up first only if no slot is free or old keys exist. Otherwise the claim itself returns the
        # entry, if there is one.
        if run.must_wait or len(self._digests) > 1:
            found = await self._look_up()
        while True:
            if isinstance(found, LoanError):
                self._record.set_ledger_result("unavailable")
                return found
            if found is not None and self._unsent_claims.owns(found):
                # The ledger wrote a claim of this client late. Its request was never sent, so release it.
                found = await self._call_ledger_in_time(partial(self._unsent_claims.release, found.token))
                continue
            outcome = self._outcome_of(found)
            if isinstance(outcome, InFlightError) and (left := self._wait_left()) > 0:
                found = await self._wait_for_owner(found, left)
                if isinstance(found, Entry) and found.state is State.INFLIGHT:
                    return outcome
                continue
            if outcome is not None:
                return outcome
            self._prepare_claim(found)
            try:
                if (error := await run.acquire_slot()) is not None:
                    return error
                found = await self._claim()
                if isinstance(found, LoanError) or not found.is_claimed_by(self._token):
                    continue
                result = await self._send(run)
            finally:
                run.release_slot()
            return await self._settle(result)

    async def _look_up(self) -> Entry | LoanError | None:
        """Return the entry of this approval under the present key or an old key, and use its digests.

        If there are several entries, prefer one with a decision, then the one under the newest key. Ignore
        released entries.
        """
        found = None
        for digests in self._digests:
            entry = await self._call_ledger_in_time(partial(self._ledger.get, digests.key))
            if isinstance(entry, LoanError):
                return entry
            if entry is None or entry.state is State.RELEASED:
                continue
            self._known_tokens.add(entry.token)
            if found is None or entry.state.is_decided:
                found = entry
                self._use_digests(digests)
            if entry.state.is_decided:
                break
        return found

    def _time_left(self) -> float:
        return self._started + self._total - time.monotonic()

    def _wait_left(self) -> float:
        """Return the seconds left to wait for other owners, counted from the first call of this method."""
        now = time.monotonic()
        if self._wait_until is None:
            self._wait_until = min(now + self._wait, self._started + self._total)
        return self._wait_until - now

    async def _wait_for_owner(self, found: Entry | None, within: float) -> Entry | LoanError | None:
        """Wait until the owner of the entry settles it; return the entry.

        If the ledger does not respond in time, return the entry as `found` before.
        """
        try:
            async with asyncio.timeout(within + _READ_MARGIN):
                return await self._call_ledger(partial(self._ledger.wait, self._key, within), None)
        except TimeoutError:
            return found

    async def _call_ledger_in_time(self, action: Callable[[], Awaitable[T]]) -> T | LoanError:
        """Run a ledger operation before the request is sent, limited by the rest of ``timeout.total``."""
        left = self._time_left()
        if left <= 0:
            return self._unavailable(TimeoutError())
        return await self._call_ledger(action, min(left, self._policy.patience))

    async def _call_ledger(self, action: Callable[[], Awaitable[T]], within: float | None) -> T | LoanError:
        """Run a ledger operation; return its result, or an error if the ledger cannot be used."""
        try:
            if self._never_waits:
                return await action()
            async with asyncio.timeout(within):
                return await action()
        except LoanError as error:  # for example ConfigurationError: the file is not a ledger
            return type(error)(*error.args)  # a copy without traceback: its frames contain personal data
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            return self._unavailable(error)  # raised by the backend, for example when it was closed meanwhile
        except Exception as error:  # noqa: BLE001  (any exception of a backend means that it cannot be used)
            return unsuitable_driver_error(self._ledger, error) or self._unavailable(error)

    def _unavailable(self, error: BaseException) -> LoanError:
        return LedgerUnavailableError(self._call.endpoint.operation, self._key, type(error).__name__)

    def _outcome_of(self, entry: Entry | None) -> CallResult | None:
        """Return the decision or the error that follows from an entry; None if the request may be sent."""
        if entry is None or entry.state is State.RELEASED or self._may_send_again(entry):
            return None
        self._record.set_ledger_result("blocked")
        operation = self._call.endpoint.operation
        if entry.payload != self._payload:
            if entry.state.is_decided:
                log(WARNING, _OTHER_DATA, self._key[:12], entry.state.value)
            return PayloadMismatchError(operation, self._key, entry.state.value)
        match entry.state:
            case State.INFLIGHT:
                return InFlightError(operation, self._key)
            case State.UNKNOWN | State.LOST | State.HELD:
                return OutcomeUnknownError(
                    operation, self._key, cast("UnresolvedState", entry.state.value), entry.note
                )
            case _:
                return self._replay(entry)

    def _may_send_again(self, entry: Entry) -> bool:
        """Return True if the caller allows another request after an unknown outcome."""
        return self._repeats_unknown and entry.state is State.UNKNOWN and entry.payload == self._payload

    def _replay(self, entry: Entry) -> CallResult:
        """Return the decision of an entry, and record it in the call's telemetry."""
        meta = Meta(0, 0, time.monotonic() - self._started, self._record.trace_id)
        try:
            outcome = replay(entry, self._call, self._policy, meta)
        except Exception as error:  # noqa: BLE001  (raised by the user's cipher, for example after a key change)
            self._record.set_ledger_result("unavailable")
            return self._unavailable(error)
        self._record.set_ledger_result("hit")
        return outcome

    def _prepare_claim(self, over: Entry | None) -> None:
        """Create the token of the next claim. If there is an entry `over`, the claim takes it over."""
        if over is None or over.state is State.RELEASED:
            self._use_digests(self._digests[0])  # create new entries only under the present key
        self._token = os.urandom(16).hex()
        self._takeover_token = None if over is None else over.token
        self._call.after_unknown = over is not None and over.state is State.UNKNOWN

    async def _claim(self) -> Entry | LoanError:
        """Claim the entry immediately before the request is sent.

        Returns:
            The claimed entry, the entry of another owner, or an error. After an error the claim is abandoned,
            because the ledger may have written the claim, or may still write it.
        """
        if self._time_left() <= 0:
            return self._unavailable(TimeoutError())
        claim = partial(
            self._ledger.claim,
            self._key,
            token=self._token,
            payload=self._payload,
            lease=self._total + _LEASE_MARGIN * self._policy.patience,
            over=self._takeover_token,
            subject=self._subject,
        )
        other = None
        try:
            entry = await self._call_ledger_in_time(claim)
            if not isinstance(entry, LoanError) and entry.is_claimed_by(self._token):
                other = await self._find_competing_entry()
        except asyncio.CancelledError:
            await self._abandon_claim()
            raise
        if isinstance(other, tuple):
            digests, entry = other
            await self._abandon_claim()
            self._use_digests(digests)
            # Pause for a random time, or two clients could abandon their claims for each other without end.
            await asyncio.sleep(_MAX_BACKOFF * random())  # noqa: S311  (not for cryptography)
            return entry
        if other is not None:
            entry = other
        if isinstance(entry, LoanError):
            await self._abandon_claim()  # the ledger may have written it despite the error
        return entry

    async def _find_competing_entry(self) -> tuple[Digests, Entry] | LoanError | None:
        """Return an entry of this approval under another key, and the digests of that key.

        During a change of keys, two clients may claim one approval under different keys. Each client claims
        first, and then reads the entries under its other keys. So at least one of them sees the claim of the
        other and abandons its own. At most one of them sends the request.
        """
        for digests in self._digests:
            if digests.key == self._key:
                continue
            entry = await self._call_ledger_in_time(partial(self._ledger.get, digests.key))
            if isinstance(entry, LoanError):
                return entry
            if entry is None or entry.state is State.RELEASED:
                continue
            # Ignore an UNKNOWN entry that was read before the claim: this approval may send again despite it.
            if entry.state is not State.UNKNOWN or entry.token not in self._known_tokens:
                self._known_tokens.add(entry.token)
                return digests, entry
        return None

    async def _send(self, run: Run) -> CallResult:
        """Send the request. On an exception, settle the entry before raising it again."""
        self._record.set_ledger_result(CLAIMED)
        try:
            return await run.send()
        except (Exception, asyncio.CancelledError) as error:
            run.release_slot()  # other calls need not wait for the settlement
            state = State.UNKNOWN if self._call.may_be_evaluated else State.RELEASED
            await self._settle_undecided(Settlement(state=state, note=type(error).__name__))
            raise

    async def _settle(self, result: CallResult) -> CallResult:
        """Write the result of the call to the ledger and return it.

        If the call has no decision, but another owner wrote one meanwhile, return that decision.
        """
        if isinstance(result, Approved | Refused):
            return await self._settle_decision(result)
        state, failure = state_of(result), None
        try:
            settlement = settlement_of(result, state, self._policy)
        except Exception as error:  # noqa: BLE001  (raised by the user's cipher)
            failure = type(error).__name__
            settlement = Settlement(state=state, note=type(result).__name__)
        entry = await self._settle_undecided(settlement)
        # The settlement is not written if another claim has taken over the entry.
        is_written = entry is not None and entry.token == self._token
        if settlement.body is not None and not is_written:
            await self._write_orphan(settlement)
        if failure is not None:
            log(WARNING, _NOT_ENCRYPTED, self._key[:12], failure)
        return self._replay(entry) if entry is not None and entry.state.is_decided else result

    async def _abandon_claim(self) -> None:
        """Undo a claim whose request was not sent: release the entry, or set it back to UNKNOWN."""
        state = State.UNKNOWN if self._call.after_unknown else State.RELEASED
        await self._release(Settlement(state=state, note="not sent"))

    async def _release(self, settlement: Settlement) -> Entry | None:
        """Settle a claim whose own request was not evaluated; on failure, retry in the background."""
        self._unsent_claims.add(self._token, self._key, self._payload, settlement)
        try:
            entry = await self._call_ledger(
                lambda: self._unsent_claims.release(self._token), self._policy.patience
            )
        except asyncio.CancelledError:  # no caller waits any more, or asyncio.run() is ending
            if self._call.is_abandoned:
                self._unsent_claims.start_background_release()
            raise
        # If this task is cancelled while callers wait for it, asyncio.run() is ending. Then start no task.
        if not was_cancelled() or self._call.is_abandoned:
            self._unsent_claims.start_background_release()
        if isinstance(entry, LoanError):
            log(WARNING, _RELEASED_LATER, self._key[:12])
            return None
        return entry

    async def _settle_undecided(self, settlement: Settlement) -> Entry | None:
        """Write a settlement that is not a decision; return None if that fails.

        After a failure the entry stays in flight until its lease expires, and is UNKNOWN from then on.
        """
        if settlement.state is State.RELEASED:
            return await self._release(settlement)
        entry = await self._write_settlement(settlement)
        if isinstance(entry, LoanError):
            log(WARNING, _STAYS_IN_FLIGHT, self._key[:12])
            return None
        return entry

    async def _write_settlement(self, settlement: Settlement) -> Entry | LoanError:
        """Settle the entry within `patience` seconds, even if ``timeout.total`` has passed."""
        settle = partial(
            self._ledger.settle,
            self._key,
            token=self._token,
            payload=self._payload,
            settlement=settlement,
        )
        return await self._call_ledger(settle, self._policy.patience)

    async def _settle_decision(self, decision: Decision) -> CallResult:
        """Write a decision to the ledger, or else to an orphan file if possible.

        Returns:
            The decision once it is stored, or a `DecisionNotRecordedError` that carries it.
        """
        state = State.APPROVED if decision.approved else State.REFUSED
        try:
            settlement = settlement_of(decision, state, self._policy)
        except Exception as error:  # noqa: BLE001  (raised by the user's cipher)
            # No orphan file either: it would contain the unencrypted decision.
            return self._not_recorded(decision, None, type(error).__name__)
        try:
            entry = await self._write_settlement(settlement)
            # If a person resolved the entry first, the ledger did not write this settlement.
            is_stored = not isinstance(entry, LoanError) and (
                entry.state is state and not has_unstored_response(settlement, entry)
            )
        except GeneratorExit:  # the event loop was closed, so no caller can receive an error
            if self._write_orphan_now(settlement) is None:
                log(ERROR, _DECISION_AT_RISK, self._key[:12])
            raise
        except asyncio.CancelledError as error:  # asyncio.run() is ending; the ledger may lack the decision
            return self._not_recorded(decision, self._write_orphan_now(settlement), type(error).__name__)
        except Exception as error:  # noqa: BLE001  (a user-defined ledger may return anything)
            return self._not_recorded(decision, await self._write_orphan(settlement), type(error).__name__)
        if is_stored:
            return decision
        file = await self._write_orphan(settlement)
        if not isinstance(entry, LoanError):
            if entry.state is not state:
                log(WARNING, _CONTRADICTION, self._key[:12], entry.state)
            return decision if file is not None else self._not_recorded(decision, None, "OSError")
        cause = entry.cause_type if isinstance(entry, LedgerUnavailableError) else type(entry).__name__
        return self._not_recorded(decision, file, cause)

    async def _write_orphan(self, settlement: Settlement) -> str | None:
        """Write an orphan file in a thread; return its path, or None if no folder is writable."""
        try:
            return await asyncio.to_thread(self._write_orphan_now, settlement)
        except (RuntimeError, asyncio.CancelledError):
            # RuntimeError: no thread can be started while the interpreter or the event loop shuts down.
            # After a cancellation the thread may write a second file; importing both is harmless.
            return self._write_orphan_now(settlement)

    def _write_orphan_now(self, settlement: Settlement) -> str | None:
        orphan = Orphan(
            key=self._key,
            token=self._token,
            payload=self._payload,
            subject=self._subject,
            settlement=settlement,
        )
        file = write_orphan(self._policy.orphan_folders, orphan)
        return None if file is None else str(file)

    def _not_recorded(self, decision: Decision, file: str | None, cause_type: str) -> LoanError:
        outcome: Literal["approved", "refused"] = "approved" if decision.approved else "refused"
        operation = self._call.endpoint.operation
        return DecisionNotRecordedError(operation, self._key, outcome, decision, file, cause_type)


_WRONG_ORDER_TOKEN = Problem(
    "order_token", "orderToken", "must be text", "order_token.type", hint="use a str"
)
_NO_ORDER_TOKEN = Problem(
    "order_token",
    "orderToken",
    "is required",
    "order_token.required",
    hint="LedgerPolicy(scope='order_token') distinguishes applications by it",
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
_RELEASED_LATER = "the ledger cannot be written: the claim of entry %s will be released later"
_OTHER_DATA = (
    "entry %s is %s, and the same customer was requested with other data; if the service evaluates each "
    "order (the specification does not say so), use LedgerPolicy(scope='order_token') or another scope"
)
_NO_KEY = (
    "the ledger has no key: its entries are keyed by the auth token, and after a change of the token each "
    "customer would be requested again; set LedgerPolicy(key=..., old_keys=[<the present auth token>])"
)

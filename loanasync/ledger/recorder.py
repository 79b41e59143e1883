"""An approval with a ledger: look up, take a slot, claim, send, settle, return."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from loanasync._config import Shop
from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, Decision, Meta, Problem, Refused
from loanasync._runtime.pipeline import Pipeline, Run
from loanasync._settings import RetryPolicy, Timeout
from loanasync._telemetry.spans import CLAIMED, CallRecord
from loanasync._transport.failures import was_cancelled
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
Ended: TypeAlias = Outcome | LoanError

_GIVE_WAY = 0.05  # seconds at most
_LAST = 5.0  # seconds for what is still to be written when a client was closed
_GRACE = 2  # times its patience: what a lease outlasts the call by, to be settled in time


class LedgerRecorder:
    """The ledger and the policy that a client and its light copies share.

    Raises:
        ConfigurationError: The ledger or the policy is of a wrong type.
    """

    def __init__(self, ledger: object, policy: object) -> None:
        if not isinstance(ledger, DecisionLedger):
            raise ConfigurationError("ledger", "must be a ledger, such as loanasync.ledger.SqliteLedger")
        if policy is None:
            policy = LedgerPolicy()
        if not isinstance(policy, LedgerPolicy):
            raise ConfigurationError("ledger_policy", "must be a loanasync.ledger.LedgerPolicy")
        if policy.key is None and not isinstance(ledger, MemoryLedger):
            LOGGER.warning(_WITHOUT_KEY)
        self.ledger = ledger
        self.policy = policy
        self.unsent_claims: UnsentClaims = UnsentClaims(ledger, policy.patience)

    def approval(self, call: Call, scope: str, *, repeat_unknown: bool) -> "RecordedApproval":
        """Return an approval that is to be run with the ledger, and set the key of its entry.

        Raises:
            InvalidRequestError: It has no order token, and the policy's scope is the order token.
        """
        if self._lacks_order_token(call.order_token):
            raise InvalidRequestError((_ORDER_TOKEN,))
        return RecordedApproval(self, call, scope, repeats_unknown=repeat_unknown)

    def entry_key(
        self, shop: Shop, fiscal_code: str, scope: str, order_token: str | None
    ) -> str | InvalidRequestError:
        """Return the key of an approval's entry, or an error if it needs an order token."""
        if self._lacks_order_token(order_token):
            return InvalidRequestError((_ORDER_TOKEN,))
        return key_of(shop, fiscal_code, self.policy, scope, order_token)

    def _lacks_order_token(self, order_token: str | None) -> bool:
        return self.policy.scope == "order_token" and order_token is None

    async def aclose(self) -> None:
        """Release the claims whose request was never sent; the ledger stays open."""
        await self.unsent_claims.aclose(_LAST)


class RecordedApproval:
    """One approval with a ledger: the request is sent only if this approval was never sent before.

    Before the request is sent, a call of the ledger takes at most the policy's `patience`, and ends with the
    approval's own time. After that, writing what is still to be written takes at most `patience` once more:
    so an approval takes at most ``timeout.total`` and `patience` together.

    Args:
        recorder: The ledger, its policy, and the client's claims whose request was never sent.
        call: The approval.
        scope: Distinguishes applications of one customer.
        repeats_unknown: Send the request although the outcome of an earlier one is unknown.
    """

    _record: CallRecord

    def __init__(self, recorder: LedgerRecorder, call: Call, scope: str, *, repeats_unknown: bool) -> None:
        self._ledger = recorder.ledger
        self._policy = recorder.policy
        self._unsent_claims = recorder.unsent_claims
        self._call = call
        self._digests = digests_of(call, self._policy, scope)
        self._use(self._digests[0])
        self._repeats_unknown = repeats_unknown
        self._began = 0.0
        self._within = 0.0
        self._token = ""
        self._over: str | None = None
        self._seen: set[str] = set()  # tokens of the entries that were looked up, under any secret

    def _use(self, digests: Digests) -> None:
        self._key = self._call.entry = digests.key
        self._payload = digests.payload
        self._subject = digests.subject

    async def run(self, pipeline: Pipeline, timeout: Timeout, retry: RetryPolicy) -> Outcome:
        """Return the decision of the ledger, or that of the service once the ledger has it.

        Raises:
            LoanError: The approval ended without a decision.
        """
        with pipeline.start(self._call, timeout, retry) as run:
            return run.end(await self._decide(run, timeout.total))

    async def _decide(self, run: Run, within: float) -> Ended:
        """Look up, take a slot, claim, send and settle."""
        self._record = run.record
        self._began, self._within = time.monotonic(), within
        found: Entry | LoanError | None = None
        # A call that would wait for a slot looks first: a known decision needs no slot.
        if run.has_to_wait or len(self._digests) > 1:
            found = await self._look_up()
        while True:
            if isinstance(found, LoanError):
                self._record.ledger_result("unavailable")
                return found
            if found is not None and self._unsent_claims.has(found):  # this client's, and never sent
                found = await self._in_time(partial(self._unsent_claims.release, found.token))
                continue
            known = self._known(found)
            if isinstance(known, InFlightError) and (left := self._left()) > 0:
                waiting = partial(self._ledger.wait, self._key, left)
                found = await self._try(waiting, left + self._policy.patience)
                if isinstance(found, Entry) and found.state is State.INFLIGHT:
                    return known
                continue
            if known is not None:
                return known
            self._prepare_claim(found)
            try:
                if (error := await run.take_slot()) is not None:
                    return error
                found = await self._claim()
                if isinstance(found, LoanError) or not found.is_claimed_by(self._token):
                    continue
                ended = await self._send(run)
            finally:
                run.release_slot()
            return await self._settle(ended)

    async def _look_up(self) -> Entry | LoanError | None:
        """Return the entry of this approval, and use its digests: a decision, or else the first entry."""
        found = None
        for digests in self._digests:
            entry = await self._in_time(partial(self._ledger.get, digests.key))
            if isinstance(entry, LoanError):
                return entry
            if entry is None or entry.state is State.RELEASED:
                continue
            self._seen.add(entry.token)
            if found is None or entry.state.is_decided:
                found = entry
                self._use(digests)
            if entry.state.is_decided:
                break
        return found

    def _left(self) -> float:
        return self._began + self._within - time.monotonic()

    async def _in_time(self, action: Callable[[], Awaitable[T]]) -> T | LoanError:
        """Use the ledger before the request is sent: within the call's own time."""
        left = self._left()
        if left <= 0:
            return self._unavailable(TimeoutError())
        return await self._try(action, min(left, self._policy.patience))

    async def _try(self, action: Callable[[], Awaitable[T]], within: float) -> T | LoanError:
        """Return the result of a call of the ledger, or the error with which the approval ends without it."""
        try:
            async with asyncio.timeout(within):
                return await action()
        except LoanError as error:  # such as that the file is none of a ledger
            return type(error)(*error.args)
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            return self._unavailable(error)  # the ledger's connection was closed, and this call goes on
        except Exception as error:  # noqa: BLE001  (whatever a backend raises: it cannot be used)
            return self._unavailable(error)

    def _unavailable(self, error: BaseException) -> LoanError:
        return LedgerUnavailableError(self._call.endpoint.operation, self._key, type(error).__name__)

    def _known(self, entry: Entry | None) -> Ended | None:
        """Return what an entry says; None if the request may be sent."""
        if entry is None or entry.state is State.RELEASED or self._is_to_be_probed(entry):
            return None
        self._record.ledger_result("blocked")
        operation = self._call.endpoint.operation
        if entry.payload != self._payload:
            if entry.state.is_decided:
                LOGGER.warning(_SCOPE, self._key[:12], entry.state.value)
            return PayloadMismatchError(operation, self._key, entry.state.value)
        match entry.state:
            case State.INFLIGHT:
                return InFlightError(operation, self._key)
            case State.UNKNOWN | State.LOST | State.HELD:
                return OutcomeUnknownError(
                    operation, self._key, cast("UnresolvedState", entry.state.value), entry.note
                )
            case _:
                return self._replayed(entry)

    def _is_to_be_probed(self, entry: Entry) -> bool:
        if entry.state is not State.UNKNOWN or entry.payload != self._payload:
            return False
        return self._repeats_unknown or (self._policy.unknown == "probe" and not entry.takeovers)

    def _replayed(self, entry: Entry) -> Ended:
        meta = Meta(0, 0, time.monotonic() - self._began, self._record.trace_id)
        try:
            outcome = replay(entry, self._call, self._policy, meta)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: another key than then, for one)
            self._record.ledger_result("unavailable")
            return self._unavailable(error)
        self._record.ledger_result("hit")
        if isinstance(outcome, Approved | Refused):
            self._record.decided(approved=outcome.approved)
        return outcome

    def _prepare_claim(self, over: Entry | None) -> None:
        """Choose the token of the next claim, its key, and the unsettled claim that it takes over."""
        if over is None or over.state is State.RELEASED:
            self._use(self._digests[0])  # no entry is made under an old secret
        self._token = token_hex(16)
        self._over = None if over is None else over.token
        self._call.after_unknown = over is not None and over.state is State.UNKNOWN

    async def _claim(self) -> Entry | LoanError:
        """Claim the entry just before the first byte; return it, the entry of another owner, or an error."""
        if self._left() <= 0:
            return self._unavailable(TimeoutError())
        claim = partial(
            self._ledger.claim,
            self._key,
            token=self._token,
            payload=self._payload,
            lease=self._within + _GRACE * self._policy.patience,
            over=self._over,
            subject=self._subject,
        )
        other = None
        try:
            entry = await self._in_time(claim)
            if not isinstance(entry, LoanError) and entry.is_claimed_by(self._token):
                other = await self._raced()
        except asyncio.CancelledError:
            await self._withdraw()
            raise
        if isinstance(other, tuple):
            digests, entry = other
            await self._withdraw()
            self._use(digests)
            await asyncio.sleep(_GIVE_WAY * random())  # noqa: S311  (so that both do not give way again)
            return entry
        if other is not None:
            entry = other
        if isinstance(entry, LoanError):
            await self._withdraw()  # it may have been written all the same
        return entry

    async def _raced(self) -> tuple[Digests, Entry] | LoanError | None:
        """Return another client's entry that was not there before the claim, and its digests.

        The other client may make its entries under an old secret of this one. Each looks under the other's
        secret after its own claim: of two that claim at the same time, one at most sends.
        """
        for digests in self._digests:
            if digests.key == self._key:
                continue
            entry = await self._in_time(partial(self._ledger.get, digests.key))
            if isinstance(entry, LoanError):
                return entry
            is_known = entry is not None and entry.state is State.UNKNOWN and entry.token in self._seen
            if entry is not None and entry.state is not State.RELEASED and not is_known:
                self._seen.add(entry.token)
                return digests, entry
        return None

    async def _send(self, run: Run) -> Ended:
        self._record.ledger_result(CLAIMED)
        try:
            return await run.send()
        except (Exception, asyncio.CancelledError) as error:  # what became of it is not known
            run.release_slot()
            state = State.UNKNOWN if self._call.may_be_evaluated else State.RELEASED
            await self._settle_undecided(Settlement(state=state, note=type(error).__name__))
            raise

    async def _settle(self, ended: Ended) -> Ended:
        """Write the call's end to the ledger; return it, or the decision that the ledger has by now."""
        if isinstance(ended, Approved | Refused):
            return await self._settle_decision(ended)
        state = state_of(ended)
        try:
            settlement = settlement_of(ended, state, self._policy)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: nothing is kept that is not encrypted)
            LOGGER.warning("a response was not kept in the ledger (%s)", type(error).__name__)
            settlement = Settlement(state=state, note=type(ended).__name__)
        entry = await self._settle_undecided(settlement)
        is_written = entry is not None and entry.token == self._token
        if settlement.body is not None and not is_written:  # another claim may own the entry by now
            await self._write_orphan(settlement)
        return self._replayed(entry) if entry is not None and entry.state.is_decided else ended

    async def _withdraw(self) -> None:
        """Take back a claim before anything was sent; an earlier unknown outcome stays unknown."""
        state = State.UNKNOWN if self._call.after_unknown else State.RELEASED
        await self._release(Settlement(state=state, note="not sent"))

    async def _release(self, settlement: Settlement) -> Entry | None:
        """Write that nothing was evaluated; if the ledger fails, go on in the background."""
        self._unsent_claims.add(self._token, self._key, self._payload, settlement)
        try:
            entry = await self._try(lambda: self._unsent_claims.release(self._token), self._policy.patience)
        except asyncio.CancelledError:  # once more, since another caller has come and gone
            if self._call.is_abandoned:
                self._unsent_claims.go_on()
            raise
        if not was_cancelled() or self._call.is_abandoned:  # or the event loop ends
            self._unsent_claims.go_on()
        if isinstance(entry, LoanError):
            LOGGER.warning(_RELEASED_LATER, self._key[:12])
            return None
        return entry

    async def _settle_undecided(self, settlement: Settlement) -> Entry | None:
        """Write down what is no decision; if that fails, the lease will run out, and it is UNKNOWN."""
        if settlement.state is State.RELEASED:
            return await self._release(settlement)
        entry = await self._write(settlement)
        if isinstance(entry, LoanError):
            LOGGER.warning("the ledger cannot be written: an entry stays in flight until its lease runs out")
            return None
        return entry

    async def _write(self, settlement: Settlement) -> Entry | LoanError:
        """Settle the entry, also after the call's own time."""
        settle = partial(
            self._ledger.settle,
            self._key,
            token=self._token,
            payload=self._payload,
            settlement=settlement,
        )
        return await self._try(settle, self._policy.patience)

    async def _settle_decision(self, decision: Decision) -> Ended:
        """Return the decision once it is written to the ledger, or an error that has it."""
        state = State.APPROVED if decision.approved else State.REFUSED
        try:
            settlement = settlement_of(decision, state, self._policy)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: nothing is kept that is not encrypted)
            return self._not_recorded(decision, None, type(error).__name__)
        try:
            entry = await self._write(settlement)
            is_kept = not isinstance(entry, LoanError) and self._is_kept(settlement, entry)
        except GeneratorExit:  # the event loop was closed: no caller is left that could get an error
            if self._write_orphan_now(settlement) is None:
                LOGGER.error(_IN_DANGER, self._key[:12])
            raise
        except asyncio.CancelledError as error:  # the event loop ends: it may not be written
            return self._not_recorded(decision, self._write_orphan_now(settlement), type(error).__name__)
        except Exception as error:  # noqa: BLE001  (a ledger of the shop's own may return anything)
            return self._not_recorded(decision, await self._write_orphan(settlement), type(error).__name__)
        if is_kept:
            return decision
        file = await self._write_orphan(settlement)
        if not isinstance(entry, LoanError):
            return decision if file is not None else self._not_recorded(decision, None, "OSError")
        cause = entry.cause_type if isinstance(entry, LedgerUnavailableError) else type(entry).__name__
        return self._not_recorded(decision, file, cause)

    def _is_kept(self, settlement: Settlement, entry: Entry) -> bool:
        """Return True if the entry has the decision with its response.

        A person may have decided first, after which the entry keeps neither.
        """
        if entry.state is not settlement.state:
            LOGGER.warning("entry %s stays %s: the service decided otherwise", self._key[:12], entry.state)
        return entry.state is settlement.state and not has_unstored_response(settlement, entry)

    async def _write_orphan(self, settlement: Settlement) -> str | None:
        """Write a response to a file in a thread; return its path, or None if no folder took it."""
        try:
            return await asyncio.to_thread(self._write_orphan_now, settlement)
        except (RuntimeError, asyncio.CancelledError):
            # No thread starts while the interpreter or the loop shuts down. After a cancellation the thread
            # may write a second file: importing both has the effect of one.
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


_ORDER_TOKEN = Problem(
    "order_token",
    "orderToken",
    "is required: LedgerPolicy(scope='order_token') distinguishes applications by it",
)
_IN_DANGER = (
    "approve, entry %s: a decision is in danger: the event loop was closed while the decision was being "
    "written to the ledger, and no file could be written: ask the service for its decision"
)
_RELEASED_LATER = "the ledger cannot be written: the claim of entry %s is released later"
_SCOPE = (
    "entry %s is %s, and the same customer is requested with other data: if the service evaluates each order "
    "(the specification does not say so), use LedgerPolicy(scope='order_token') or another scope"
)
_WITHOUT_KEY = (
    "the ledger has no key: its entries are found by the auth token, and with another token each customer "
    "would be requested again; set LedgerPolicy(key=..., old_keys=[the present token])"
)

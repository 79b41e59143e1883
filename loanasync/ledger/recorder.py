"""One call with a ledger: look up, claim, send, settle, and what follows if one of these fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from loanasync._log import LOGGER
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._results import Approved, Decision, Meta, Refused
from loanasync._runtime.pipeline import Claim
from loanasync._telemetry.spans import CLAIMED, CallRecord
from loanasync._transport.failures import was_cancelled
from loanasync.errors import (
    DecisionNotRecordedError,
    InFlightError,
    LedgerUnavailableError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.ledger.keys import Digests
from loanasync.ledger.model import Entry, Settlement, State
from loanasync.ledger.orphans import Orphan, has_more, spool
from loanasync.ledger.policy import LedgerPolicy
from loanasync.ledger.protocol import DecisionLedger
from loanasync.ledger.replay import kept, replayed, state_of
from loanasync.ledger.withdrawals import Withdrawals

if TYPE_CHECKING:
    from loanasync.errors.ledger import Unsettled


T = TypeVar("T")
Ended: TypeAlias = Outcome | LoanError
Ask: TypeAlias = Callable[[Claim], Awaitable[Ended]]

_GIVE_WAY = 0.05  # seconds at most
_GRACE = 2  # times its patience: what a lease outlasts the call by, to be settled in time


class LedgerGuard:
    """Lets one call through to the service, if its key was never asked: the pipeline's guard.

    Args:
        ledger: The memory.
        policy: How it is used.
        call: The approval.
        digests: Its digests under the secret in use, and then those under each old secret.
        within: Seconds that the call may take.
        repeats_unknown: Send the request although the outcome of an earlier one is unknown.
        withdrawals: The client's claims that were given up before their request was sent.

    Before the request is sent, a move of the ledger takes at most the policy's `patience`, and ends with the
    call's own time. After that, what is still to be written takes `patience` once more: so a call takes at
    most `within` and `patience` together.
    """

    def __init__(
        self,
        ledger: DecisionLedger,
        policy: LedgerPolicy,
        call: Call,
        digests: tuple[Digests, ...],
        within: float,
        *,
        repeats_unknown: bool,
        withdrawals: Withdrawals,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._call = call
        self._digests = digests
        self._use(digests[0])
        self._within = within
        self._repeats_unknown = repeats_unknown
        self._withdrawals = withdrawals
        self._token = ""
        self._over: str | None = None
        self._found: Entry | None = None
        self._claimed: Entry | None = None
        self._seen: set[str] = set()  # tokens of the entries that were looked up, under any secret

    def _use(self, digests: Digests) -> None:
        self._key = self._call.entry = digests.key
        self._payload = digests.payload
        self._subject = digests.subject

    async def __call__(self, record: CallRecord, ask: Ask, *, is_busy: bool) -> Ended:
        """What the ledger has; if it has nothing, what the service answers, once that is written down."""
        self._record = record
        self._began = time.monotonic()
        # A call that would wait for a slot looks first: a known decision needs no slot.
        found = await self._looked_up() if is_busy or len(self._digests) > 1 else None
        while not isinstance(found, LoanError):
            if found is not None and self._withdrawals.has(found):  # this client's, and never sent
                found = await self._before(partial(self._withdrawals.release, found.token))
                continue
            ended = self._known(found)
            if ended is None:
                ended = await self._asked(ask, found)
                if self._found is None:
                    return ended
                found = self._found
            elif isinstance(ended, InFlightError) and (left := self._left()) > 0:
                within = left + self._policy.patience
                found = await self._reached(partial(self._ledger.wait, self._key, left), within)
                if isinstance(found, Entry) and found.state is State.INFLIGHT:
                    return ended
            else:
                return ended
        self._record.guarded("unavailable")
        return found

    async def _looked_up(self) -> Entry | LoanError | None:
        """Return the entry of this approval, and use its digests: a decision, or else the first entry."""
        found = None
        for digests in self._digests:
            entry = await self._before(partial(self._ledger.get, digests.key))
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

    async def _before(self, move: Callable[[], Awaitable[T]]) -> T | LoanError:
        """Make a move before anything is sent: within the call's own time."""
        left = self._left()
        if left <= 0:
            return self._unavailable(TimeoutError())
        return await self._reached(move, min(left, self._policy.patience))

    async def _reached(self, move: Callable[[], Awaitable[T]], within: float) -> T | LoanError:
        """Return the result of a move of the ledger, or the error with which the call ends without it."""
        try:
            async with asyncio.timeout(within):
                return await move()
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
        """What an entry says; None when the service may be asked."""
        if entry is None or entry.state is State.RELEASED or self._is_to_be_probed(entry):
            return None
        self._record.guarded("blocked")
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
                    operation, self._key, cast("Unsettled", entry.state.value), entry.note
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
            outcome = replayed(entry, self._call, self._policy, meta)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: another key than then, for one)
            self._record.guarded("unavailable")
            return self._unavailable(error)
        self._record.guarded("hit")
        if isinstance(outcome, Approved | Refused):
            self._record.decided(approved=outcome.approved)
        return outcome

    async def _asked(self, ask: Ask, over: Entry | None) -> Ended:
        if over is None or over.state is State.RELEASED:
            self._use(self._digests[0])  # no entry is made under an old secret
        self._token = token_hex(16)
        self._over = None if over is None else over.token
        self._call.after_unknown = over is not None and over.state is State.UNKNOWN
        self._found = self._claimed = None
        try:
            ended = await ask(self._take)
        except (Exception, asyncio.CancelledError) as error:  # what became of it is not known
            if self._claimed is not None:
                state = State.UNKNOWN if self._call.may_be_evaluated else State.RELEASED
                await self._noted(Settlement(state=state, note=type(error).__name__))
            raise
        return ended if self._claimed is None else await self._settled(ended)

    async def _take(self) -> LoanError | None:
        """Claim the entry, just before the first byte; an error if it is another's, or there is no ledger."""
        lease = self._within + _GRACE * self._policy.patience
        claim = partial(
            self._ledger.claim,
            self._key,
            token=self._token,
            payload=self._payload,
            lease=lease,
            over=self._over,
            subject=self._subject,
        )
        if self._left() <= 0:
            self._record.guarded("unavailable")
            return self._unavailable(TimeoutError())
        other = None
        try:
            entry = await self._before(claim)
            if not isinstance(entry, LoanError) and entry.is_claimed_by(self._token):
                other = await self._raced()
        except asyncio.CancelledError:
            await self._withdraw()
            raise
        if isinstance(other, LoanError):
            entry = other
        elif other is not None:
            await self._withdraw()
            self._use(other)
            await asyncio.sleep(_GIVE_WAY * random())  # noqa: S311  (so that both do not give way again)
            return InFlightError(self._call.endpoint.operation, self._key)
        if isinstance(entry, LoanError):
            self._record.guarded("unavailable")
            await self._withdraw()  # it may have been written all the same
            return entry
        if not entry.is_claimed_by(self._token):
            self._found = entry
            return InFlightError(self._call.endpoint.operation, self._key)
        self._claimed = entry
        self._record.guarded(CLAIMED)
        return None

    async def _raced(self) -> Digests | LoanError | None:
        """Return the digests under which another client has an entry that was not there before the claim.

        The other client may make its entries under an old secret of this one. Each looks under the other's
        secret after its own claim: of two that claim at the same time, one at most sends.
        """
        for digests in self._digests:
            if digests.key == self._key:
                continue
            entry = await self._before(partial(self._ledger.get, digests.key))
            if isinstance(entry, LoanError):
                return entry
            is_known = entry is not None and entry.state is State.UNKNOWN and entry.token in self._seen
            if entry is not None and entry.state is not State.RELEASED and not is_known:
                self._found = entry
                self._seen.add(entry.token)
                return digests
        return None

    async def _settled(self, ended: Ended) -> Ended:
        """Write the call's end to the ledger; return it, or the decision that the ledger has by now."""
        if isinstance(ended, Approved | Refused):
            return await self._committed(ended)
        state = state_of(ended)
        try:
            settlement = kept(ended, state, self._policy)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: nothing is kept that is not encrypted)
            LOGGER.warning("a response was not kept in the ledger (%s)", type(error).__name__)
            settlement = Settlement(state=state, note=type(ended).__name__)
        entry = await self._noted(settlement)
        is_written = entry is not None and entry.token == self._token
        if settlement.body is not None and not is_written:  # another claim may own the entry by now
            await self._spooled(settlement)
        return self._replayed(entry) if entry is not None and entry.state.is_decided else ended

    async def _withdraw(self) -> None:
        """Take back a claim before anything was sent; an earlier unknown outcome stays unknown."""
        state = State.UNKNOWN if self._call.after_unknown else State.RELEASED
        await self._release(Settlement(state=state, note="not sent"))

    async def _release(self, settlement: Settlement) -> Entry | None:
        """Write that nothing was evaluated; if the ledger fails, go on in the background."""
        self._withdrawals.add(self._token, self._key, self._payload, settlement)
        try:
            entry = await self._reached(lambda: self._withdrawals.release(self._token), self._policy.patience)
        except asyncio.CancelledError:  # once more, since another caller has come and gone
            if self._call.is_abandoned:
                self._withdrawals.go_on()
            raise
        if not was_cancelled() or self._call.is_abandoned:  # or the event loop ends
            self._withdrawals.go_on()
        if isinstance(entry, LoanError):
            LOGGER.warning(_RELEASED_LATER, self._key[:12])
            return None
        return entry

    def _settling(self, settlement: Settlement) -> Awaitable[Entry]:
        return self._ledger.settle(self._key, token=self._token, payload=self._payload, settlement=settlement)

    async def _noted(self, settlement: Settlement) -> Entry | None:
        """Write down what is no decision; if that fails, the lease will run out, and it is UNKNOWN."""
        if settlement.state is State.RELEASED:
            return await self._release(settlement)
        entry = await self._after(settlement)
        if isinstance(entry, LoanError):
            LOGGER.warning("the ledger cannot be written: an entry stays in flight until its lease runs out")
            return None
        return entry

    async def _after(self, settlement: Settlement) -> Entry | LoanError:
        """Settle the entry, also after the call's own time."""
        return await self._reached(lambda: self._settling(settlement), self._policy.patience)

    async def _committed(self, decision: Decision) -> Ended:
        """Return the decision once it is written to the ledger, or an error that has it."""
        state = State.APPROVED if decision.approved else State.REFUSED
        try:
            settlement = kept(decision, state, self._policy)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: nothing is kept that is not encrypted)
            return self._not_recorded(decision, None, type(error).__name__)
        try:
            entry = await self._after(settlement)
            is_kept = not isinstance(entry, LoanError) and self._is_kept(settlement, entry)
        except GeneratorExit:  # the event loop was closed: no caller is left that could get an error
            if self._spooled_now(settlement) is None:
                LOGGER.error(_IN_DANGER, self._key[:12])
            raise
        except asyncio.CancelledError as error:  # the event loop ends: it may not be written
            return self._not_recorded(decision, self._spooled_now(settlement), type(error).__name__)
        except Exception as error:  # noqa: BLE001  (a ledger of the shop's own may return anything)
            return self._not_recorded(decision, await self._spooled(settlement), type(error).__name__)
        if is_kept:
            return decision
        file = await self._spooled(settlement)
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
        return entry.state is settlement.state and not has_more(settlement, entry)

    async def _spooled(self, settlement: Settlement) -> str | None:
        """Write a response to a file in a thread; return its path, or None if no folder took it."""
        try:
            return await asyncio.to_thread(self._spooled_now, settlement)
        except (RuntimeError, asyncio.CancelledError):
            # No thread starts while the interpreter or the loop shuts down. After a cancellation the thread
            # may write a second file: importing both has the effect of one.
            return self._spooled_now(settlement)

    def _spooled_now(self, settlement: Settlement) -> str | None:
        orphan = Orphan(
            key=self._key,
            token=self._token,
            payload=self._payload,
            subject=self._subject,
            settlement=settlement,
        )
        file = spool(self._policy.spools, orphan)
        return None if file is None else str(file)

    def _not_recorded(self, decision: Decision, file: str | None, cause_type: str) -> LoanError:
        outcome: Literal["approved", "refused"] = "approved" if decision.approved else "refused"
        operation = self._call.endpoint.operation
        return DecisionNotRecordedError(operation, self._key, outcome, decision, file, cause_type)


_IN_DANGER = (
    "approve, entry %s: a decision is in danger: the event loop was closed while the decision was being "
    "written to the ledger, and no file could be written: ask the service for its decision"
)
_RELEASED_LATER = "the ledger cannot be written: the claim of entry %s is released later"
_SCOPE = (
    "entry %s is %s, and the same customer is requested with other data: if the service evaluates each order "
    "(the specification does not say so), use LedgerPolicy(scope='order_token') or another scope"
)

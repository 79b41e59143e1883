"""The way of one call past its ledger: claim, ask, settle, and what to do when one of them fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

from loanasync._calls import Call, Outcome
from loanasync._decisions import Approved, Refused
from loanasync._events import LOGGER
from loanasync._meta import Meta
from loanasync._pipeline import Claim
from loanasync._telemetry import CLAIMED, CallRecord
from loanasync.errors import (
    DecisionNotRecordedError,
    InFlightError,
    LedgerUnavailableError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.ledger._entries import Entry, Settlement, State
from loanasync.ledger._keys import Digests
from loanasync.ledger._policy import LedgerPolicy
from loanasync.ledger._protocol import DecisionLedger
from loanasync.ledger._settling import kept, replayed, state_of
from loanasync.ledger._spool import Orphan, spool

if TYPE_CHECKING:
    from loanasync.errors._ledger import Unsettled

__all__ = ["LedgerGuard"]

T = TypeVar("T")
Ended: TypeAlias = Outcome | LoanError
Ask: TypeAlias = Callable[[Claim], Awaitable[Ended]]

_GRACE = 2  # times its patience: what a lease outlasts the call by, to be settled in time


class LedgerGuard:
    """Lets one call through to the service, if its key was never asked: the pipeline's guard.

    Args:
        ledger: The memory.
        policy: How it is used.
        call: The approval.
        digests: Its key in the ledger, and what stands there for what it asks.
        within: Seconds that the call may take.
    """

    def __init__(
        self,
        ledger: DecisionLedger,
        policy: LedgerPolicy,
        call: Call,
        digests: Digests,
        within: float,
    ) -> None:
        self._ledger = ledger
        self._policy = policy
        self._call = call
        self._key = digests.key
        self._payload = digests.payload
        self._within = within
        self._token = ""
        self._over: str | None = None
        self._found: Entry | None = None
        self._claimed: Entry | None = None

    async def __call__(self, record: CallRecord, ask: Ask, *, is_busy: bool) -> Ended:
        """What the ledger has; if it has nothing, what the service answers, once that is written down."""
        self._record = record
        self._began = time.monotonic()
        # Who would have to wait for a place looks first: what is known needs none.
        found = await self._reached(self._ledger.get(self._key)) if is_busy else None
        while not isinstance(found, LoanError):
            ended = self._known(found)
            if ended is None:
                ended = await self._asked(ask, found)
                if self._found is None:
                    return ended
                found = self._found
            elif isinstance(ended, InFlightError) and (left := self._left()) > 0:
                found = await self._reached(self._ledger.wait(self._key, left), left)
                if isinstance(found, Entry) and found.state is State.INFLIGHT:
                    return ended
            else:
                return ended
        self._record.guarded("unavailable")
        return found

    def _left(self) -> float:
        return self._began + self._within - time.monotonic()

    async def _reached(self, move: Awaitable[T], more: float = 0.0) -> T | LoanError:
        """What comes of a move of the ledger's, or the error that the call ends with without it."""
        try:
            async with asyncio.timeout(self._policy.patience + more):
                return await move
        except LoanError as error:  # such as that the file is none of a ledger
            return type(error)(*error.args)
        except Exception as error:  # noqa: BLE001  (whatever a backend raises: it cannot be used)
            return self._unavailable(error)

    def _unavailable(self, error: Exception) -> LoanError:
        return LedgerUnavailableError(self._call.endpoint.operation, self._key, type(error).__name__)

    def _known(self, entry: Entry | None) -> Ended | None:
        """What an entry says; None when the service may be asked."""
        if entry is None or entry.state is State.RELEASED or self._is_to_be_probed(entry):
            return None
        self._record.guarded("blocked")
        operation = self._call.endpoint.operation
        if entry.payload != self._payload:
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
        may_be = self._policy.unknown == "probe" and entry.state is State.UNKNOWN
        return may_be and not entry.takeovers and entry.payload == self._payload

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
        self._token = token_hex(16)
        self._over = None if over is None else over.token
        self._found = self._claimed = None
        try:
            ended = await ask(self._take)
        except (Exception, asyncio.CancelledError) as error:  # what became of it is not known
            if self._claimed is not None:
                await self._noted(Settlement(state=State.UNKNOWN, note=type(error).__name__))
            raise
        return ended if self._claimed is None else await self._settled(ended, self._claimed)

    async def _take(self) -> LoanError | None:
        """Claim the entry, just before the first byte; an error if it is another's, or there is no ledger."""
        lease = self._within + _GRACE * self._policy.patience
        claim = self._ledger.claim(
            self._key, token=self._token, payload=self._payload, lease=lease, over=self._over
        )
        try:
            entry = await self._reached(claim)
        except asyncio.CancelledError:
            await self._noted(_NOT_SENT)
            raise
        if isinstance(entry, LoanError):
            self._record.guarded("unavailable")
            await self._noted(_NOT_SENT)  # it may have been written all the same
            return entry
        if not entry.is_claimed_by(self._token):
            self._found = entry
            return InFlightError(self._call.endpoint.operation, self._key)
        self._claimed = entry
        self._record.guarded(CLAIMED)
        return None

    async def _settled(self, ended: Ended, claimed: Entry) -> Ended:
        """The call's end, once it is written down; or the decision, if the ledger has one meanwhile."""
        state = state_of(ended, is_takeover=claimed.takeovers > 0)
        if state.is_decided:
            return await self._committed(ended, state)
        entry = await self._noted(Settlement(state=state, note=type(ended).__name__))
        return self._replayed(entry) if entry is not None and entry.state.is_decided else ended

    def _settling(self, settlement: Settlement) -> Awaitable[Entry]:
        return self._ledger.settle(self._key, token=self._token, payload=self._payload, settlement=settlement)

    async def _noted(self, settlement: Settlement) -> Entry | None:
        """Write down what is no decision; if that fails, the lease will run out, and it is UNKNOWN."""
        entry = await self._reached(self._settling(settlement))
        if isinstance(entry, LoanError):
            LOGGER.warning("the ledger cannot be written: an entry stays in flight until its lease runs out")
            return None
        return entry

    async def _committed(self, ended: Ended, state: State) -> Ended:
        """The decision, once it is written down, or an error that has it."""
        try:
            settlement = kept(ended, state, self._policy)
        except Exception as error:  # noqa: BLE001  (the shop's cipher: nothing is kept that is not encrypted)
            return self._not_recorded(ended, state, None, type(error).__name__)
        try:
            entry = await self._reached(self._settling(settlement))
        except asyncio.CancelledError:  # the loop ends, and whether it is written is not known
            await self._spooled(settlement)
            raise
        if not isinstance(entry, LoanError):
            return ended
        cause = entry.cause_type if isinstance(entry, LedgerUnavailableError) else type(entry).__name__
        return self._not_recorded(ended, state, await self._spooled(settlement), cause)

    async def _spooled(self, settlement: Settlement) -> str | None:
        orphan = Orphan(key=self._key, token=self._token, payload=self._payload, settlement=settlement)
        file = await asyncio.to_thread(lambda: spool(self._policy.spools, orphan))
        return None if file is None else str(file)

    def _not_recorded(self, ended: Ended, state: State, file: str | None, cause_type: str) -> LoanError:
        decision = ended if isinstance(ended, Approved | Refused) else None
        outcome: Literal["approved", "refused"] = "approved" if state is State.APPROVED else "refused"
        operation = self._call.endpoint.operation
        return DecisionNotRecordedError(operation, self._key, outcome, decision, file, cause_type)


_NOT_SENT = Settlement(state=State.RELEASED, note="not sent")

"""Constants and helper methods that the conformance tests of ledgers share."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from loanasync.ledger import DecisionLedger, Entry, Settlement, State

RACERS = 32
HOUR = 3600.0
SOON = 0.05  # seconds of a lease that is meant to run out
PATIENCE = 30.0  # seconds after which a test gives up; none waits for so long if all is well

RELEASED = Settlement(state=State.RELEASED, note="ConnectError")
UNKNOWN = Settlement(state=State.UNKNOWN, note="ReadTimeoutError")
LOST = Settlement(state=State.LOST, note="AlreadyEvaluatedError")
HELD = Settlement(state=State.HELD, note="a person's word")


def approval(body: bytes = b'{"approved":true}') -> Settlement:
    """An approval that may be settled to."""
    return Settlement(state=State.APPROVED, status=201, body=body)


REFUSAL = Settlement(state=State.REFUSED, status=422, fault="truncated")


class LedgerHarness:
    """Open the ledger under test, and bring entries to a state."""

    opener: Callable[[], DecisionLedger]
    keys: int = 2000

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DecisionLedger]:
        """One more handle on the ledger."""
        ledger = self.opener()
        try:
            yield ledger
        finally:
            await ledger.aclose()

    async def claimed(self, ledger: DecisionLedger, key: str, token: str, lease: float = HOUR) -> Entry:
        """A claim that must be won."""
        entry = await ledger.claim(key, token=token, payload="p", lease=lease)
        assert entry.is_claimed_by(token)
        return entry

    async def run_out(self, ledger: DecisionLedger, key: str, token: str) -> Entry:
        """A claim whose lease has run out."""
        await self.claimed(ledger, key, token, SOON)
        entry = await ledger.wait(key, PATIENCE)
        assert entry is not None
        return entry

"""Constants and helper methods for the conformance tests of ledgers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from loanasync.ledger import DecisionLedger, Entry, Settlement, State

RACERS = 32
HOUR = 3600.0
SOON = 0.05  # seconds; lease of a claim that is meant to expire
PATIENCE = 30.0  # seconds after which a test fails; a passing test never waits for so long

RELEASED = Settlement(state=State.RELEASED, note="ConnectError")
UNKNOWN = Settlement(state=State.UNKNOWN, note="ReadTimeoutError")
LOST = Settlement(state=State.LOST, note="AlreadyEvaluatedError")
HELD = Settlement(state=State.HELD, note="blocked by a person")


def approval(body: bytes = b'{"approved":true}') -> Settlement:
    """Return the settlement for an approval with this body."""
    return Settlement(state=State.APPROVED, status=201, body=body)


REFUSAL = Settlement(state=State.REFUSED, status=422, fault="truncated")


class LedgerHarness:
    """Opens the ledger under test, and creates entries in a given state."""

    opener: Callable[[], DecisionLedger]
    keys: int = 2000

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DecisionLedger]:
        """Open the ledger once more, and close it at the end of the block."""
        ledger = self.opener()
        try:
            yield ledger
        finally:
            await ledger.aclose()

    async def claimed(self, ledger: DecisionLedger, key: str, token: str, lease: float = HOUR) -> Entry:
        """Claim an entry, and assert that the claim succeeds."""
        entry = await ledger.claim(key, token=token, payload="p", lease=lease)
        assert entry.is_claimed_by(token)
        return entry

    async def expired_claim(self, ledger: DecisionLedger, key: str, token: str) -> Entry:
        """Claim an entry with a short lease, and wait until the lease has expired."""
        await self.claimed(ledger, key, token, SOON)
        entry = await ledger.wait(key, PATIENCE)
        assert entry is not None
        return entry

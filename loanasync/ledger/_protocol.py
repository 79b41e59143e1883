"""What a client asks of a ledger; anything that keeps these promises will do, ours or a shop's own."""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from loanasync.ledger._entries import Entry, Settlement, State

__all__ = ["DecisionLedger"]


@runtime_checkable
class DecisionLedger(Protocol):
    """A memory of decisions that outlives processes: no approval is asked twice, and no answer is lost.

    Two moves write, and each is one atomic write: `claim` and `settle`. When they return, what they wrote is
    as safe as the ledger can make it, also from a process that is killed or a machine without power.

    - Of all who claim an entry, one wins.
    - A claim that was released may be claimed anew.
    - A claim whose lease has run out is UNKNOWN to whoever looks, and nobody can claim it but by naming its
      token. Leases are measured by one clock, the ledger's, never by those of its clients.
    - A decision (APPROVED, REFUSED) always lands, also late and with the token of an older claim; once it is
      there, nothing changes it, and it never expires.
    - Any other settlement needs the token of the last claim.

    Whatever a method raises means that the ledger cannot be used: a claim that raised is not made use of,
    and a settlement that raised may or may not have been written. Both may be repeated with the same token.

    `loanasync.testing.LedgerConformance` has a test for each of these sentences.

    Example:
        >>> from loanasync.ledger import MemoryLedger, Settlement, State
        >>> async def example(ledger):
        ...     await ledger.claim("k", token="t", payload="p", lease=90.0)
        ...     refused = Settlement(state=State.REFUSED, status=422)
        ...     await ledger.settle("k", token="t", payload="p", settlement=refused)
        ...     print([entry.state.name async for entry in ledger.scan()])
        ...     print(await ledger.get("k") == await ledger.wait("k", within=1.0))
        ...     print(await ledger.purge(older_than=3600))
        ...     await ledger.aclose()
        >>> run(example(MemoryLedger()))
        ['REFUSED']
        True
        0
    """

    async def claim(
        self, key: str, *, token: str, payload: str, lease: float, over: str | None = None
    ) -> Entry:
        """Claim an entry that is not there, or released; or one that is unsettled, by naming its token.

        To be repeated with the same token is no second claim.

        Args:
            key: Which approval, as of `Entry`, and so the others.
            token: Made up for this claim, and unlike all others.
            payload: Digest of what will be asked.
            lease: Seconds for which the claim holds.
            over: Token of the UNKNOWN, LOST or HELD entry that this claim takes over.

        Returns:
            The entry as it stands now. ``entry.is_claimed_by(token)`` says whether the claim was won.
        """

    async def settle(self, key: str, *, token: str, payload: str, settlement: Settlement) -> Entry:
        """Write down what became of a claim.

        Args:
            key: Which approval.
            token: Of the claim; a decision lands with an older one's, too.
            payload: Digest of what was asked, for an entry that is not there any more.
            settlement: What became of it.

        Returns:
            The entry as it stands now, with what it was settled to, or with what had precedence.
        """

    async def get(self, key: str) -> Entry | None:
        """An entry as it stands now."""

    async def wait(self, key: str, within: float) -> Entry | None:
        """The entry as soon as it is not INFLIGHT; after so many seconds as it stands then.

        Args:
            key: Which approval.
            within: Seconds.
        """

    def scan(self, *states: State) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are, in no order, and never all of them in memory.

        Those that change meanwhile may be missed, or come as they were.
        """

    async def purge(self, older_than: float) -> int:
        """Forget what was decided or released and has not changed for so many seconds; say how many it was.

        What is in flight or unsettled stays. What is forgotten can be asked again: purge what the shop must
        not keep any longer, not what is in the way.
        """

    async def aclose(self) -> None:
        """Let go of connections and files; a later call opens them anew."""

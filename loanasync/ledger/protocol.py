"""The ledger protocol: the operations that a client calls, and the promises that each backend keeps."""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from loanasync.ledger.model import NO_SUBJECT, Entry, Settlement, State, Subject


@runtime_checkable
class DecisionLedger(Protocol):
    """An idempotency store for decisions: no approval is requested twice, and no decision is lost.

    Two operations write to the ledger, `claim` and `settle`. Each is one atomic write. When it returns, the
    write is as durable as the backend can make it, even if the process is killed or the machine loses power.

    Every backend keeps these promises:

    - If several clients claim an entry at the same time, exactly one claim succeeds.
    - A released entry can be claimed again, with another token. A claim that arrives after its own release
      does not succeed.
    - A claim whose lease has expired is reported as UNKNOWN. The entry can then be claimed only by naming
      the token of that claim. Leases are measured by one clock, the ledger's, not by the clients' clocks.
    - A decision (APPROVED or REFUSED) of the service is always written, even late and with the token of an
      older claim. A decision never expires and is never overwritten, except by a correction.
    - Any other settlement needs the token of the last claim.
    - A correction changes only an entry that a person decided or released. It names the token of the entry,
      has a note, and has a source other than the service.
    - A claim writes its subject, by which `find` finds the entry. A claim without a subject keeps the
      subject of the entry.
    - The response stored in an entry stays there when the entry is taken over, and when it is settled to
      UNKNOWN, LOST or HELD without a body. A decision or a release replaces it.
    - When an entry leaves a settled state, that state is added to its history, which keeps the last 20.

    An exception from any method means that the ledger cannot be used. After an exception, a claim must not be
    relied on, and a settlement may or may not have been written. Both can be repeated with the same token.

    `loanasync.testing.LedgerConformance` tests each of these promises.

    Example:
        >>> from loanasync.ledger import MemoryLedger, Settlement, State, Subject
        >>> async def example(ledger):
        ...     subject = Subject(customer="5d41", order="9a0b")
        ...     await ledger.claim("k", token="t", payload="p", lease=90.0, subject=subject)
        ...     refused = Settlement(state=State.REFUSED, status=422)
        ...     await ledger.settle("k", token="t", payload="p", settlement=refused)
        ...     print([entry.state.name async for entry in ledger.scan()])
        ...     print([entry.key for entry in await ledger.find(customer="5d41")])
        ...     print(await ledger.get("k") == await ledger.wait("k", within=1.0))
        ...     print(await ledger.purge(older_than=3600))
        ...     await ledger.aclose()
        >>> run(example(MemoryLedger()))
        ['REFUSED']
        ['k']
        True
        0
    """

    async def claim(
        self,
        key: str,
        *,
        token: str,
        payload: str,
        lease: float,
        over: str | None = None,
        subject: Subject = NO_SUBJECT,
    ) -> Entry:
        """Claim an entry that does not exist or is released, or take over an unsettled one.

        To take over an entry that is UNKNOWN, LOST or HELD, name its token in `over`. An entry with a
        decision or an unexpired claim cannot be claimed. Repeating a claim with the same token
        has no further effect.

        Args:
            key: Key of the entry.
            token: A new, unique token for this claim.
            payload: Digest of the request's data.
            lease: Seconds until the claim expires.
            over: Token of the unsettled entry that this claim takes over.
            subject: The customer, the order and the scope of the approval.

        Returns:
            The current entry. The claim succeeded if ``entry.is_claimed_by(token)``.

        Raises:
            Exception: The ledger cannot be used. The claim may have been written.
        """

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """Write the outcome of a claim, or correct what a person wrote.

        A decision of the service is written whatever token is given, unless the entry has a decision. Any
        other settlement is written only with the token of the last claim. If the entry does not exist, the
        settlement creates it.

        Args:
            key: Key of the entry.
            token: Token of the claim; for a correction, a new token.
            payload: Digest of the request's data.
            settlement: The outcome.
            over: For a correction: token of the entry to correct.

        Returns:
            The current entry. If the settlement was not allowed, the entry is unchanged.

        Raises:
            Exception: The ledger cannot be used. The settlement may have been written.
        """

    async def get(self, key: str) -> Entry | None:
        """Return the current entry, or None if it does not exist.

        Raises:
            Exception: The ledger cannot be used.
        """

    async def wait(self, key: str, within: float) -> Entry | None:
        """Wait until the entry is not INFLIGHT, and return it.

        Args:
            key: Key of the entry.
            within: Seconds after which the current entry is returned in any case.

        Returns:
            The current entry, or None if it does not exist.

        Raises:
            Exception: The ledger cannot be used.
        """

    def scan(self, *states: State, begins: str = "", without_redirect: bool = False) -> AsyncIterator[Entry]:
        """Iterate over the entries in these states, in no particular order.

        The entries are read in pages, so they are never all in memory. An entry that changes during the
        iteration may be missed, may be returned in its earlier state, or may be returned twice.
        `SqliteLedger`, `RedisLedger` and `PostgresLedger` use an index and read only the listed entries.

        Args:
            states: States of the entries; all states if none is given.
            begins: Beginning of the entries' keys, such as the short key that a command prints.
            without_redirect: Only approvals without a redirect: the service gave none, the response was
                incomplete, or a person recorded the decision. An encrypted response that a person accepted
                counts as having a redirect.

        Raises:
            Exception: The ledger cannot be used.
        """

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """Return the entries of a customer, of an order, or of both, oldest first.

        Args:
            customer: Digest of the customer, from `Subject`.
            order: Digest of the order token, from `Subject`.

        Returns:
            The current entries that match each given digest; an empty list if no digest is given.

        Raises:
            Exception: The ledger cannot be used.
        """

    async def purge(self, older_than: float) -> int:
        """Delete decided and released entries that have not changed for a time; return their number.

        Entries that are in flight or unsettled are not deleted. The approval of a deleted entry can be
        requested again, so purge only data that the shop must not keep any longer.

        Args:
            older_than: Seconds since the last change.

        Raises:
            Exception: The ledger cannot be used.
        """

    async def aclose(self) -> None:
        """Close connections and files. A later call of any method opens them again."""

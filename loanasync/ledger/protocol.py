"""The ledger protocol: the methods that a client calls, and the promises that each backend keeps."""

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from loanasync.ledger.model import NO_SUBJECT, Entry, Settlement, State, Subject


@runtime_checkable
class DecisionLedger(Protocol):
    """A memory of decisions that outlives processes: no approval is asked twice, and no answer is lost.

    Two moves write, and each is one atomic write: `claim` and `settle`. When they return, what they wrote is
    as safe as the ledger can make it, also from a process that is killed or a machine without power.

    - Of all who claim an entry, one wins.
    - A released entry may be claimed anew, with another token. A claim that arrives after its own release is
      not won.
    - A claim whose lease has run out is UNKNOWN to whoever looks, and nobody can claim it but by naming its
      token. Leases are measured by one clock, the ledger's, never by those of its clients.
    - A decision (APPROVED, REFUSED) of the service always lands, also late and with the token of an older
      claim. A decision never expires, and only a correction changes it.
    - Any other settlement needs the token of the last claim.
    - A correction changes an entry that a person decided or released, and nothing else. It names the token
      of the entry, and has a note and a source other than the service.
    - A claim writes its subject, by which `find` finds the entry. A claim without one keeps the subject.
    - A response that an entry keeps stays when the entry is taken over, or settled to UNKNOWN, LOST or HELD
      without a body. A decision or a release replaces it.
    - Each settled state that an entry leaves is added to its history, which keeps the last 20.

    Whatever a method raises means that the ledger cannot be used: a claim that raised is not made use of,
    and a settlement that raised may or may not have been written. Both may be repeated with the same token.

    `loanasync.testing.LedgerConformance` has a test for each of these sentences.

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
        """Claim an entry that is not there, or released; or one that is unsettled, by naming its token.

        To be repeated with the same token is no second claim.

        Args:
            key: Which approval, as of `Entry`, and so the others.
            token: Made up for this claim, and unlike all others.
            payload: Digest of what will be asked.
            lease: Seconds for which the claim holds.
            over: Token of the UNKNOWN, LOST or HELD entry that this claim takes over.
            subject: The customer and the order that the approval is for.

        Returns:
            The entry as it stands now. ``entry.is_claimed_by(token)`` says whether the claim was won.
        """

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """Write down what became of a claim.

        Args:
            key: Which approval.
            token: Of the claim; a decision lands with an older one's, too.
            payload: Digest of what was asked, for an entry that is not there any more.
            settlement: What became of it.
            over: Token of the entry that a person corrects; `token` is a new one then.

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

    def scan(self, *states: State, begins: str = "", without_redirect: bool = False) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are, in no order, and never all of them in memory.

        Those that change meanwhile may be missed, come as they were, or come twice. `SqliteLedger`,
        `RedisLedger` and `PostgresLedger` read the entries of the list by an index, and no others.

        Args:
            states: States of the entries; all if none is given.
            begins: Beginning of the entries' keys, such as the short key that a command prints.
            without_redirect: Only approvals that have no redirect: the service gave none, the response
                was cut off, or a person stated the decision. An encrypted response that a person
                accepted is taken to have a redirect.
        """

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """The entries of a customer, of an order, or of both, oldest first.

        Args:
            customer: Digest of the customer, from `Subject`.
            order: Digest of the order token, from `Subject`.

        Returns:
            The entries that match each digest given, as they stand now; none if no digest is given.
        """

    async def purge(self, older_than: float) -> int:
        """Forget what was decided or released and has not changed for so many seconds; say how many it was.

        What is in flight or unsettled stays. What is forgotten can be asked again: purge what the shop must
        not keep any longer, not what is in the way.
        """

    async def aclose(self) -> None:
        """Let go of connections and files; a later call opens them anew."""

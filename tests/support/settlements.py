"""Settlements of ledger entries, and short forms of claims and corrections."""

from typing import Any

from loanasync.ledger import Entry, Ledger, Settlement, State

HOUR = 3600.0

RELEASED = Settlement(state=State.RELEASED, note="ConnectError")
UNKNOWN = Settlement(state=State.UNKNOWN, note="ReadTimeoutError")
LOST = Settlement(state=State.LOST, note="AlreadyEvaluatedError")
HELD = Settlement(state=State.HELD, note="blocked by a person")
REFUSAL = Settlement(state=State.REFUSED, status=422, fault="truncated")


def approval(body: bytes = b'{"approved":true}') -> Settlement:
    """Return the settlement for an approval with this body."""
    return Settlement(state=State.APPROVED, status=201, body=body)


def by_person(state: State, note: str = "ticket 17") -> Settlement:
    """Return a settlement that a person wrote."""
    return Settlement(state=state, note=note, source="person")


async def claim(ledger: Ledger, key: str = "k", *, token: str = "t", **options: Any) -> Entry:  # noqa: S107  (of a claim)
    """Claim an entry. With a lease of 0.0, the claim has expired when it is written."""
    return await ledger.claim(key, token=token, **{"payload": "p", "lease": HOUR, **options})


async def settle(
    ledger: Ledger,
    *settlements: Settlement,
    key: str = "k",
    token: str = "t",  # noqa: S107  (of a claim)
    **options: Any,
) -> Entry:
    """Write settlements in order, and return the entry after the last one."""
    for each in settlements:
        entry = await ledger.settle(key, token=token, settlement=each, **{"payload": "p", **options})
    return entry

"""The rules of the two moves, as functions of an entry: each backend makes them one atomic write."""

from attrs import evolve

from loanasync.ledger._entries import UNSETTLED, Entry, Settlement, State

__all__ = ["claim", "seen", "settle"]

RAN_OUT = "the lease ran out"


def seen(entry: Entry, now: float) -> Entry:
    """An entry as anybody sees it who looks now: whose lease has run out may have asked, or not."""
    if entry.state is State.INFLIGHT and entry.expires <= now:
        return evolve(entry, state=State.UNKNOWN, changed=entry.expires, note=RAN_OUT)
    return entry


def claim(
    entry: Entry | None,
    key: str,
    *,
    token: str,
    payload: str,
    lease: float,
    over: str | None,
    now: float,
) -> Entry:
    """What a claim makes of an entry: the claimer's, or what it was before, as seen now."""
    fresh = Entry(
        key=key,
        state=State.INFLIGHT,
        token=token,
        payload=payload,
        claimed=now,
        changed=now,
        expires=now + lease,
    )
    if entry is None or entry.state is State.RELEASED:
        return fresh
    found = seen(entry, now)
    if found.state in UNSETTLED and found.token == over:
        return evolve(fresh, claimed=found.claimed, takeovers=found.takeovers + 1)
    return found


def settle(
    entry: Entry | None, key: str, *, token: str, payload: str, settlement: Settlement, now: float
) -> Entry:
    """What a settlement makes of an entry: a decision always lands, and is never overwritten.

    Any other settlement needs the token of the last claim. Where there is no entry, for instance because
    the ledger was replaced by an empty one, the settlement makes it.
    """
    if entry is None:
        entry = claim(None, key, token=token, payload=payload, lease=0.0, over=None, now=now)
    is_mine = entry.token == token
    if entry.state.is_decided or not (is_mine or settlement.state.is_decided):
        return seen(entry, now)
    return evolve(
        entry,
        state=settlement.state,
        token=token,
        payload=payload,
        changed=now,
        note=settlement.note,
        status=settlement.status,
        body=settlement.body,
        fault=settlement.fault,
    )

"""Transitions of a ledger entry (claim, settle) as pure functions.

A backend runs each transition as one atomic write.
"""

from collections.abc import Iterable

from attrs import evolve

from loanasync.ledger.model import (
    HISTORY_LENGTH,
    NO_SUBJECT,
    SERVICE,
    UNSETTLED,
    Change,
    Entry,
    Settlement,
    State,
    Subject,
)

LEASE_EXPIRED = "the lease expired"  # note of an entry whose lease has expired


def as_of(entry: Entry, now: float) -> Entry:
    """Return the entry as of `now`: an in-flight entry whose lease has expired is UNKNOWN.

    Its owner may or may not have sent the request.
    """
    if entry.state is State.INFLIGHT and entry.expires <= now:
        return evolve(entry, state=State.UNKNOWN, changed=entry.expires, note=LEASE_EXPIRED)
    return entry


def claim(
    entry: Entry | None,
    key: str,
    *,
    token: str,
    payload: str,
    lease: float,
    over: str | None,
    subject: Subject = NO_SUBJECT,
    now: float,
) -> Entry:
    """Return the entry after a claim; unchanged if the claim is not allowed (`DecisionLedger.claim`)."""
    fresh = Entry(
        key=key,
        state=State.INFLIGHT,
        token=token,
        payload=payload,
        claimed=now,
        changed=now,
        expires=now + lease,
        customer=subject.customer,
        order=subject.order,
        scope=subject.scope,
    )
    if entry is None:
        return fresh
    found = as_of(entry, now)
    if subject == NO_SUBJECT:
        fresh = evolve(fresh, customer=found.customer, order=found.order, scope=found.scope)
    fresh = evolve(fresh, history=_history_with(found))
    # A claim with the token of the released entry arrives after its own release, and must not succeed.
    if found.state is State.RELEASED and found.token != token:
        return fresh
    if found.state in UNSETTLED and found.token == over:
        return evolve(
            fresh,
            claimed=found.claimed,
            takeovers=found.takeovers + 1,
            status=found.status,
            body=found.body,
            fault=found.fault,
        )
    return found


def correction_target(token: str, settlement: Settlement, over: str | None) -> str | None:
    """Return the token of the entry that a settlement may correct; None if it is not a correction.

    A correction has a note and a source other than the service. It sets a new token, so that repeating it has
    no effect.
    """
    is_noted = settlement.source != SERVICE and bool(settlement.note.strip())
    return over if is_noted and over != token else None


def settle(
    entry: Entry | None,
    key: str,
    *,
    token: str,
    payload: str,
    settlement: Settlement,
    over: str | None = None,
    now: float,
) -> Entry:
    """Return the entry after a settlement; unchanged if it is not allowed (`DecisionLedger.settle`).

    If the entry does not exist, for example because the ledger was replaced by an empty one, create it.
    """
    if entry is None:
        entry = claim(None, key, token=token, payload=payload, lease=0.0, over=None, now=now)
    corrects = entry.is_correctable and entry.token == correction_target(token, settlement, over)
    if not (corrects or _is_accepted(entry, token, settlement)):
        return as_of(entry, now)
    is_left = corrects or entry.state is not settlement.state
    response = entry if _keeps_response(entry, settlement) else settlement
    return Entry(  # `evolve` takes four times as long
        key=entry.key,
        state=settlement.state,
        token=token,
        payload=payload,
        claimed=entry.claimed,
        changed=now,
        expires=entry.expires,
        takeovers=entry.takeovers,
        note=settlement.note,
        status=response.status,
        body=response.body,
        fault=response.fault,
        customer=entry.customer,
        order=entry.order,
        scope=entry.scope,
        source=settlement.source,
        history=_history_with(entry) if is_left and entry.state is not State.INFLIGHT else entry.history,
    )


def _is_accepted(entry: Entry, token: str, settlement: Settlement) -> bool:
    """Return True if a settlement that is not a correction is allowed."""
    if entry.state.is_decided:
        return False
    return entry.token == token or (settlement.state.is_decided and settlement.source == SERVICE)


def _keeps_response(entry: Entry, settlement: Settlement) -> bool:
    """Return True if the stored response stays: the settlement is not a decision and has no body."""
    if settlement.state not in UNSETTLED or settlement.body is not None:
        return False
    return (entry.status, entry.body, entry.fault) != (None, None, None)


def _history_with(entry: Entry) -> tuple[Change, ...]:
    """Return the history of an entry, extended by its present state."""
    left = Change(state=entry.state, changed=entry.changed, note=entry.note, source=entry.source)
    return (*entry.history, left)[-HISTORY_LENGTH:]


def matches_subject(entry: Entry, sought: Subject) -> bool:
    """Return True if the entry matches all non-empty digests of `sought`; False if all are empty."""
    pairs = ((sought.customer, entry.customer), (sought.order, entry.order))
    given = [(digest, found) for digest, found in pairs if digest]
    return bool(given) and all(digest == found for digest, found in given)


def sort_by_age(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries in the order of `DecisionLedger.find`: oldest first."""
    return sorted(entries, key=lambda entry: (entry.claimed, entry.key))

"""The state machine of a ledger entry (claim, settle) as pure functions.

They return the entry to write, or None if the transition is not allowed. The store sets the times of the new
entry: `changed`, `claimed` if it is 0, and `expires` of a claim.
"""

from attrs import evolve

from loanasync.ledger.model import (
    DECIDED,
    HISTORY_LENGTH,
    NO_SUBJECT,
    PERSON,
    SERVICE,
    UNSETTLED,
    Change,
    Entry,
    Settlement,
    State,
    Subject,
)

LEASE_EXPIRED = "the lease expired"  # note of an entry whose lease has expired
_COPIED = "in flight when the ledger was copied"
# A copy replaces an entry of a lower rank.
_RANKS = {
    State.ERASED: 4,
    **dict.fromkeys(DECIDED, 3),
    **dict.fromkeys(UNSETTLED, 2),
    State.INFLIGHT: 1,
    State.RELEASED: 0,
}


def as_read(entry: Entry) -> Entry:
    """Return an entry as a reader sees it: an in-flight entry whose lease has expired is UNKNOWN.

    Its owner may or may not have sent the request.
    """
    if entry.state is State.INFLIGHT and entry.left <= 0:
        return evolve(entry, state=State.UNKNOWN, changed=entry.expires, note=LEASE_EXPIRED)
    return entry


def claim(
    stored: Entry | None,
    key: str,
    *,
    token: str,
    payload: str,
    over: str | None,
    subject: Subject = NO_SUBJECT,
    revision: str,
) -> Entry | None:
    """Return the entry after a claim, or None if the claim is not allowed (`Ledger.claim`)."""
    fresh = Entry(
        key=key,
        state=State.INFLIGHT,
        token=token,
        payload=payload,
        claimed=0.0,
        changed=0.0,
        expires=0.0,
        customer=subject.customer,
        order=subject.order,
        order_token=subject.order_token,
        revision=revision,
    )
    if stored is None:
        return fresh
    found = as_read(stored)
    if subject == NO_SUBJECT:
        fresh = evolve(fresh, customer=found.customer, order=found.order, order_token=found.order_token)
    fresh = evolve(fresh, history=_history_with(found))
    # A claim with the token of the released entry arrives after its own release, and must not succeed.
    # One that names an entry to take over must not: after a rotation, the approval may have another entry.
    if found.state is State.RELEASED and found.token != token and over is None:
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
    return None


def settle(
    stored: Entry | None,
    key: str,
    *,
    token: str,
    payload: str,
    settlement: Settlement,
    over: str | None = None,
    subject: Subject = NO_SUBJECT,
    revision: str,
) -> Entry | None:
    """Return the entry after a settlement, or None if it is not allowed (`Ledger.settle`).

    If the entry does not exist, for example because it was purged, create it.
    """
    entry = stored
    if entry is None:
        entry = claim(None, key, token=token, payload=payload, over=None, subject=subject, revision=revision)
        assert entry is not None  # noqa: S101  (the first claim is always allowed)
    resolves = _is_resolution(as_read(entry), token, settlement, over)
    if resolves:
        entry = as_read(entry)
    elif not _is_accepted(entry, token, settlement):
        return None
    replaces_note = entry.state is State.UNKNOWN and entry.source != settlement.source  # of a person
    is_left = resolves or entry.state is not settlement.state or replaces_note
    response = entry if _keeps_response(entry, settlement) else settlement
    return Entry(  # `evolve` takes four times as long
        key=entry.key,
        state=settlement.state,
        token=token,
        payload=payload,
        claimed=entry.claimed,
        changed=0.0,
        expires=entry.expires,
        takeovers=entry.takeovers,
        note=settlement.note,
        status=response.status,
        body=response.body,
        fault=response.fault,
        customer=entry.customer,
        order=entry.order,
        order_token=entry.order_token,
        source=settlement.source,
        history=_history_with(entry) if is_left and entry.state is not State.INFLIGHT else entry.history,
        revision=revision,
    )


def put(stored: Entry | None, *, entry: Entry, revision: str) -> Entry | None:
    """Return an entry of another ledger as it is; None if the stored one is worth as much."""
    if stored is not None and _RANKS[as_read(stored).state] >= _RANKS[entry.state]:
        return None
    if entry.state is State.INFLIGHT:
        entry = evolve(entry, state=State.UNKNOWN, note=_COPIED)
    return evolve(entry, revision=revision)


def erase(stored: Entry | None, key: str, *, token: str, customer: str, revision: str) -> Entry | None:
    """Return an entry without data that stops all orders of its customer (`Ledger.erase`)."""
    if stored is not None and as_read(stored).state in (State.INFLIGHT, State.ERASED):
        return None
    return Entry(
        key=key,
        state=State.ERASED,
        source=PERSON,
        changed=0.0,
        claimed=0.0,
        expires=0.0,
        customer=customer,
        payload="",
        token=token,
        revision=revision,
    )


def _is_resolution(entry: Entry, token: str, settlement: Settlement, over: str | None) -> bool:
    """Return True if another source than the service settles or corrects the entry with this revision.

    A resolution has a new token: from then on the earlier owner can write a decision and nothing else. A
    correction has a note. An entry that a client released can only be HELD.
    """
    if settlement.source == SERVICE or entry.revision != over or entry.token == token:
        return False
    if entry.state is State.ERASED:
        return settlement.state is State.RELEASED
    if entry.is_correctable:
        return bool(settlement.note.strip())
    is_held = entry.state is State.RELEASED and settlement.state is State.HELD
    return is_held or entry.state in UNSETTLED


def _is_accepted(entry: Entry, token: str, settlement: Settlement) -> bool:
    """Return True if a settlement that is not a correction is allowed.

    A response of the service is never lost: a decision is accepted from any claim, and a response that could
    not be classified unless the entry is in flight or has another one.
    """
    if entry.state in DECIDED or entry.state is State.ERASED:
        return False
    lacks_response = entry.body is None and as_read(entry).state is State.UNKNOWN
    is_unclassified = settlement.state is State.UNKNOWN and settlement.body is not None
    is_response = settlement.state in DECIDED or (is_unclassified and lacks_response)
    return entry.token == token or (is_response and settlement.source == SERVICE)


def _keeps_response(entry: Entry, settlement: Settlement) -> bool:
    """Return True if the stored response stays: the settlement is not a decision and has no body."""
    if settlement.state not in UNSETTLED or settlement.body is not None:
        return False
    return (entry.status, entry.body, entry.fault) != (None, None, None)


def _history_with(entry: Entry) -> tuple[Change, ...]:
    """Return the history of an entry, extended by its present state."""
    left = Change(state=entry.state, changed=entry.changed, note=entry.note, source=entry.source)
    return (*entry.history, left)[-HISTORY_LENGTH:]

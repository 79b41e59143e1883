"""Transitions of an entry, claim and settle, as pure functions; a backend makes each one atomic write."""

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

LEASE_EXPIRED = "the lease ran out"


def as_of(entry: Entry, now: float) -> Entry:
    """An entry as anybody sees it who looks now: whose lease has run out may have asked, or not."""
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
    """What a claim makes of an entry: the claimer's, or what it was before, as seen now.

    A claim writes its subject; one without a subject keeps the subject of the entry. The state that the
    entry leaves is added to its history. A takeover keeps a response that the entry has. A claim that was
    released is not won again: it arrives after its own release.
    """
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
    """The token of the entry that a settlement may correct; None if the settlement is no correction.

    A correction is a person's settlement with a note. Its token differs from the entry's, so that it can
    be repeated without effect.
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
    """What a settlement makes of an entry: the service's decision always lands, and is never overwritten.

    Any other settlement needs the token of the last claim. A decision or release by a person is changed by
    a correction alone. Where there is no entry, for instance because the ledger was replaced by an empty
    one, the settlement makes it.
    """
    if entry is None:
        entry = claim(None, key, token=token, payload=payload, lease=0.0, over=None, now=now)
    corrects = entry.is_correctable and entry.token == correction_target(token, settlement, over)
    if not (corrects or _is_accepted(entry, token, settlement)):
        return as_of(entry, now)
    is_left = corrects or entry.state is not settlement.state
    response = entry if _keeps_response(entry, settlement) else settlement
    return evolve(
        entry,
        state=settlement.state,
        token=token,
        payload=payload,
        changed=now,
        note=settlement.note,
        status=response.status,
        body=response.body,
        fault=response.fault,
        source=settlement.source,
        history=_history_with(entry) if is_left and entry.state is not State.INFLIGHT else entry.history,
    )


def _is_accepted(entry: Entry, token: str, settlement: Settlement) -> bool:
    """Return True if a settlement that is no correction is written."""
    if entry.state.is_decided:
        return False
    return entry.token == token or (settlement.state.is_decided and settlement.source == SERVICE)


def _keeps_response(entry: Entry, settlement: Settlement) -> bool:
    """Return True if the entry's response is kept: the settlement is no decision and has no body."""
    has_response = (entry.status, entry.body, entry.fault) != (None, None, None)
    return has_response and settlement.state in UNSETTLED and settlement.body is None


def _history_with(entry: Entry) -> tuple[Change, ...]:
    """The history of an entry that leaves its state."""
    left = Change(state=entry.state, changed=entry.changed, note=entry.note, source=entry.source)
    return (*entry.history, left)[-HISTORY_LENGTH:]


def matches_subject(entry: Entry, sought: Subject) -> bool:
    """Return True if an entry matches each digest that is given; no entry matches an empty subject."""
    pairs = ((sought.customer, entry.customer), (sought.order, entry.order))
    asked = [(digest, found) for digest, found in pairs if digest]
    return bool(asked) and all(digest == found for digest, found in asked)


def sort_by_age(entries: Iterable[Entry]) -> list[Entry]:
    """Entries in the order in which `DecisionLedger.find` returns them."""
    return sorted(entries, key=lambda entry: (entry.claimed, entry.key))

"""Display of ledger entries as text and as JSON, without personal data and tokens."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from attrs import evolve, fields

from loanasync._models.decisions import Approved
from loanasync._models.masking import mask
from loanasync._models.requests import field_name
from loanasync.cli.console import counted, duration
from loanasync.cli.ledger.open import short
from loanasync.ledger import Change, Cipher, Entry, State
from loanasync.ledger.ledger import lacks_redirect
from loanasync.ledger.model import SERVICE

_RESPONSE_FIELDS = frozenset(each.name for each in fields(Approved))
_PERSONAL_FIELDS = frozenset(each.name for each in fields(Approved) if each.repr is mask)

_WITHOUT_DECISION = frozenset({State.RELEASED, State.INFLIGHT, State.UNKNOWN})

_NEXT_STEP = {
    State.RELEASED: "none: not evaluated, so the next call requests the approval",
    State.INFLIGHT: "wait: a request is in progress; if its lease expires, the outcome is unknown",
    State.UNKNOWN: "ask the service for its decision, then run: loanasync ledger {option}resolve {key}",
    State.LOST: "the service has decided: ask it for the decision, then run: "
    "loanasync ledger {option}resolve {key}",
    State.HELD: "on hold, so no request is sent; to end that, run: loanasync ledger {option}resolve {key}",
    State.APPROVED: "none: the decision is final",
    State.REFUSED: "none: the decision is final",
    State.ERASED: "none: the customer was erased; for another loan, run: "
    'loanasync ledger {option}resolve {key} --as released --note "ticket 17"',
}
_CORRECTION = (
    "none; to correct this state, which a person entered, run: loanasync ledger {option}resolve {key} "
    '--as approved|refused|released|held|unknown --note "ticket 17"'
)


def utc_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as UTC text with seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _age(seconds: float) -> str:
    return duration(time.time() - seconds)


def entry_line(entry: Entry) -> str:
    """Return an entry as one line of text."""
    start = f"{short(entry.key)}  {entry.state.value:<8}  {utc_time(entry.changed)}  {_age(entry.changed):>6}"
    order = f"  order {entry.order}" if entry.order else ""
    return f"{start}{order}  {entry.note}".rstrip()


def entry_members(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON members, without its response, and without the token that settles it."""
    return {
        "key": entry.key,
        **_state_members(entry),
        "claimed": iso_time(entry.claimed),
        "expires": iso_time(entry.expires),
        "takeovers": entry.takeovers,
        "order": entry.order,
        "status": entry.status,
        "fault": entry.fault,
        "has_response": entry.body is not None,
        "lacks_redirect": lacks_redirect(entry),
        "history": [*map(_state_members, entry.history)],
    }


def _state_members(entry: Entry | Change) -> dict[str, Any]:
    members = {"state": entry.state.value, "changed": iso_time(entry.changed)}
    return {**members, "note": entry.note, "source": entry.source}


def iso_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, in ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def decrypted(entry: Entry, cipher: Cipher | None) -> Entry:
    """Return the entry with its response in clear text, if the cipher can decrypt it."""
    if cipher is None or entry.body is None:
        return entry
    try:
        return evolve(entry, body=cipher.decrypt(entry.body))
    except Exception:  # noqa: BLE001  (raised by any cipher; the entry may be in clear text, or have another key)
        return entry


def response_members(entry: Entry, *, reveal: bool) -> dict[str, Any] | None:
    """Return the members of the stored response. None if none is stored, or it is encrypted or not JSON.

    Args:
        entry: The entry.
        reveal: Show personal data and the redirect, which gives access like a password.
    """
    try:
        members = json.loads(entry.body or b"")
    except ValueError:
        return None
    if not isinstance(members, dict):
        return None
    return {
        name: value if reveal or not _is_personal(name) else mask(value) for name, value in members.items()
    }


def _is_personal(wire_name: str) -> bool:
    """Return True for personal fields, and for unknown ones, which may be personal."""
    name = field_name(wire_name)
    return name in _PERSONAL_FIELDS or name not in _RESPONSE_FIELDS


def _source(entry: Entry | Change) -> str:
    """Return the source of a state. The ledger stores "service" for every state that a client wrote.

    Return "client" for such a state if the service did not decide.
    """
    is_concluded = entry.source == SERVICE and entry.state in _WITHOUT_DECISION
    return "client" if is_concluded else entry.source


def entry_details(entry: Entry, option: str, *, reveal: bool) -> Iterator[tuple[str, str]]:
    """Yield everything about an entry as pairs of a label and a text.

    Args:
        entry: The entry.
        option: The option of the ledger for an advised command.
        reveal: Show personal data and the redirect of the stored response.
    """
    yield "entry", entry.key
    yield "state", f"{entry.state.value} since {utc_time(entry.changed)} ({_age(entry.changed)})"
    is_taken = entry.takeovers and entry.source in ("", SERVICE)
    takeovers = f", taken over {counted(entry.takeovers, 'time')}" if is_taken else ""
    yield "claimed", f"{utc_time(entry.claimed)}{takeovers}; the lease ends {utc_time(entry.expires)}"
    if entry.order:
        yield "order", entry.order
    if entry.source:
        yield "source", _source(entry)
    if entry.note:
        yield "note", entry.note
    if entry.status is not None:
        yield "response", f"HTTP {entry.status}" + (f", {entry.fault}" if entry.fault else "")
    yield "response stored", "no" if entry.body is None else "yes"
    response = response_members(entry, reveal=reveal)
    for name, value in (response or {}).items():
        yield f"  {name}", value if isinstance(value, str) else json.dumps(value)
    if response is None and entry.body is not None:
        yield "  body", "encrypted or not JSON"
    for change in entry.history:
        line = f"{utc_time(change.changed)}  {change.state.value:<8}  {_source(change):<7}  {change.note}"
        yield "history", line.rstrip()
    if lacks_redirect(entry):
        yield "redirect", "missing: ask the service where to send the customer"
    next_step = _CORRECTION if entry.is_correctable else _NEXT_STEP[entry.state]
    yield "next", next_step.format(key=short(entry.key), option=option)

"""Display of ledger entries as text and as JSON, without names and tokens."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from attrs import fields

from loanasync import Approved
from loanasync._display.masking import mask
from loanasync._models.dialect import field_of
from loanasync.cli.ledger.open import short
from loanasync.ledger import Entry, State
from loanasync.ledger.backend import lacks_redirect

_PERSONAL = frozenset(each.name for each in fields(Approved) if each.repr is mask)
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))

ADVICE = {
    State.RELEASED: "it was not evaluated: the next call asks",
    State.INFLIGHT: "somebody is asking; when the lease runs out, the outcome is unknown",
    State.UNKNOWN: "ask the service what it decided, then: loanasync ledger resolve {key}",
    State.LOST: "the service has decided: ask it what, then: loanasync ledger resolve {key}",
    State.HELD: "nobody asks, until: loanasync ledger resolve {key}",
    State.APPROVED: "decided, for ever",
    State.REFUSED: "decided, for ever",
}
CORRECTION = (
    "a person stated this; if it is wrong: loanasync ledger resolve {key}"
    ' --as approved|refused|released|held|unknown --note "ticket 17"'
)


def when(seconds: float) -> str:
    """A time of the ledger's clock."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def _age(seconds: float) -> str:
    past = time.time() - seconds
    for unit, length in _UNITS:
        if past >= length:
            return f"{past / length:.0f} {unit}"
    return f"{max(past, 0):.0f} s"


def line_of(entry: Entry) -> str:
    """An entry in one line."""
    told = f"{short(entry.key)}  {entry.state.value:<8}  {when(entry.changed)}  {_age(entry.changed):>6}"
    return f"{told}  {entry.note}".rstrip()


def facts_of(entry: Entry) -> dict[str, Any]:
    """An entry for a program; not its tokens, with which entries are settled, and not the answer."""
    return {
        "key": entry.key,
        "state": entry.state.value,
        "claimed": _stamp(entry.claimed),
        "changed": _stamp(entry.changed),
        "expires": _stamp(entry.expires),
        "takeovers": entry.takeovers,
        "note": entry.note,
        "source": entry.source,
        "scope": entry.scope,
        "status": entry.status,
        "fault": entry.fault,
        "has_answer": entry.body is not None,
        "lacks_redirect": lacks_redirect(entry),
        "history": [
            {
                "state": change.state.value,
                "changed": _stamp(change.changed),
                "note": change.note,
                "source": change.source,
            }
            for change in entry.history
        ],
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def answer_of(entry: Entry, *, reveal: bool) -> dict[str, Any] | None:
    """What is kept of the service's answer; None where nothing is, or it is encrypted.

    Args:
        entry: Whose.
        reveal: Show what is personal, and the redirect, which is as good as a password.
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
    name = field_of(wire_name)
    return name in _PERSONAL or name not in _NAMES


_NAMES = frozenset(each.name for each in fields(Approved))


def story_of(entry: Entry, *, reveal: bool) -> Iterator[tuple[str, str]]:
    """All of an entry, as names and what is said of them."""
    yield "entry", entry.key
    yield "state", f"{entry.state.value} since {when(entry.changed)} ({_age(entry.changed)})"
    again = f", taken over {entry.takeovers} times" if entry.takeovers else ""
    yield "asked", f"{when(entry.claimed)}{again}; its lease ends {when(entry.expires)}"
    if entry.scope:
        yield "scope", entry.scope
    if entry.source:
        yield "source", entry.source
    if entry.note:
        yield "note", entry.note
    if entry.status is not None:
        yield "answer", f"HTTP {entry.status}" + (f", {entry.fault}" if entry.fault else "")
    yield "response kept", "no" if entry.body is None else "yes"
    answer = answer_of(entry, reveal=reveal)
    for name, value in (answer or {}).items():
        yield f"  {name}", value if isinstance(value, str) else json.dumps(value)
    if answer is None and entry.body is not None:
        yield "  body", "encrypted or not JSON"
    for change in entry.history:
        told = f"{when(change.changed)}  {change.state.value:<8}  {change.source:<7}  {change.note}"
        yield "history", told.rstrip()
    if lacks_redirect(entry):
        yield "redirect", "none is kept: the customer needs one, ask the service for it"
    advice = CORRECTION if entry.is_correctable else ADVICE[entry.state]
    yield "next", advice.format(key=short(entry.key))

"""Resolving one entry: a person states the outcome that the service named."""

from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from loanasync.cli.console import print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.open import OpenLedger, short
from loanasync.ledger import Entry, State, resolve
from loanasync.ledger.orphans import orphan_files

_RESOLVABLE = frozenset({State.UNKNOWN, State.LOST, State.HELD})
_ALLOWED = ((State.RELEASED, State.HELD), (State.ERASED, State.RELEASED))
_NOT_FINAL = (State.UNKNOWN, State.HELD)  # a response that arrives later is still recorded


class Resolution(StrEnum):
    """The values of ``--as``: the state that a person gives to an entry."""

    APPROVED = "approved"
    REFUSED = "refused"
    RELEASED = "released"
    HELD = "held"
    UNKNOWN = "unknown"


def resolve_entry(use: OpenLedger, entry: Entry, resolution: Resolution, note: str) -> Exit:
    """Write a person's resolution of an entry. It replaces an earlier one, but no decision of the service."""
    state = State(resolution.value)
    if state not in _NOT_FINAL and (file := _orphan_file(use, entry)) is not None:
        print_message(
            f"{short(entry.key)} stays {entry.state.value}: its response may be in {file}. Run: loanasync "
            "ledger sweep. If the file is left there, move it away and run this command again"
        )
        return Exit.FAILED
    is_correction = entry.is_correctable and entry.state is not state
    is_written = (entry.state, entry.note) == (state, note)
    is_allowed = (entry.state, state) in _ALLOWED
    if not is_written and (entry.state in _RESOLVABLE or is_correction or is_allowed):
        entry = use.run(resolve(use.ledger, entry, state, note))
    if entry.state is state:
        correction = ": corrected; the earlier state is kept in the history" if is_correction else ""
        print_message(f"{short(entry.key)} is {state.value}{correction}")
        return Exit.DECIDED
    reason = _REASONS.get(entry.state, "a decision of the service is never overwritten")
    if entry.state in _RESOLVABLE or entry.is_correctable:
        reason = "another person changed it in the meantime: look at it, and run this command again"
    print_message(f"{short(entry.key)} stays {entry.state.value}: {reason}")
    return Exit.FAILED


_REASONS = {  # why a person cannot change an entry
    State.INFLIGHT: "a request is in progress: wait until its lease expires",
    State.RELEASED: "it was not evaluated: there is nothing to resolve",
    State.ERASED: "the customer was erased: only --as released is possible",
}


def _orphan_file(use: OpenLedger, entry: Entry) -> Path | None:
    """Return an orphan file for an entry on this machine."""
    for folder in use.policy.orphan_folders:
        with suppress(OSError):
            for file in orphan_files(folder, entry.key):
                return file
    return None

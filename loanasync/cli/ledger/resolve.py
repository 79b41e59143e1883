"""Resolving entries: a person states the outcome that the service named, with options or at prompts."""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import typer

from loanasync.cli.console import print_message
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import entry_line
from loanasync.cli.ledger.open import OpenLedger, short
from loanasync.ledger import Entry, State, resolve
from loanasync.ledger.orphans import orphan_files
from loanasync.ledger.resolution import problem_of_note

_RESOLVABLE = frozenset({State.UNKNOWN, State.LOST, State.HELD})
_ALLOWED = ((State.RELEASED, State.HELD), (State.ERASED, State.RELEASED))
_NOT_FINAL = (State.UNKNOWN, State.HELD)  # a response that arrives later is still recorded
_RESPONSE_IN_FILE = (
    "its response may be in {file}. Run: loanasync ledger sweep. If the file is left there, move it "
    "away and run this command again"
)


class Resolution(StrEnum):
    """The values of ``--as``: the state that a person gives to an entry."""

    APPROVED = "approved"
    REFUSED = "refused"
    RELEASED = "released"
    HELD = "held"
    UNKNOWN = "unknown"


_CHOICES = {
    "a": Resolution.APPROVED,
    "r": Resolution.REFUSED,
    "n": Resolution.RELEASED,
    "h": Resolution.HELD,
}
_SKIP, _QUIT = "s", "q"
_QUESTION = "  What did the service decide? [a]pproved [r]efused [n]ot evaluated; [h]old, [s]kip, [q]uit"


def checked_note(note: str) -> str:
    """Return a note without surrounding spaces. Notes are kept for good and read by many people.

    Raises:
        ValueError: The note seems to contain personal data.
    """
    if (problem := problem_of_note(note)) is not None:
        raise ValueError(problem)
    return note.strip()


def resolve_entry(use: OpenLedger, entry: Entry, resolution: Resolution, note: str) -> Exit:
    """Write a person's resolution of an entry. It replaces an earlier one, but no decision of the service."""
    state = State(resolution.value)
    if state not in _NOT_FINAL and (file := _orphan_file(use, entry)) is not None:
        print_message(f"{short(entry.key)} stays {entry.state.value}: {_RESPONSE_IN_FILE.format(file=file)}")
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
    reason = _reason_not_resolvable(entry) or (
        "another person changed it in the meantime. Look at it with loanasync ledger show, "
        "then run this command again"
    )
    print_message(f"{short(entry.key)} stays {entry.state.value}: {reason}")
    return Exit.FAILED


def _reason_not_resolvable(entry: Entry) -> str | None:
    """Return the reason why a person cannot change an entry; None if they can."""
    if entry.state in _RESOLVABLE or entry.is_correctable:
        return None
    return {
        State.INFLIGHT: "a request is in progress: wait until its lease expires",
        State.RELEASED: "it was not evaluated: there is nothing to resolve",
        State.ERASED: "the customer was erased: only --as released is possible",
    }.get(entry.state, "a decision of the service is never overwritten")


def _orphan_file(use: OpenLedger, entry: Entry) -> Path | None:
    """Return an orphan file for an entry on this machine."""
    for folder in use.policy.orphan_folders:
        with suppress(OSError):
            for file in orphan_files(folder, entry.key):
                return file
    return None


def resolve_interactively(use: OpenLedger, entries: Sequence[Entry], note: str) -> Exit:
    """Prompt for the resolution of each entry. A skipped entry stays unchanged.

    Args:
        use: The ledger.
        entries: The entries.
        note: Note for all entries; if it is empty, prompt for each note.
    """
    worst = Exit.DECIDED
    for number, listed in enumerate(entries, 1):
        entry = use.run(use.ledger.get(listed.key)) or listed  # it may have changed since it was listed
        print_message(f"{number} of {len(entries)}: {entry_line(entry)}")
        file = _orphan_file(use, entry)
        if reason := _reason_not_resolvable(entry) or (file and _RESPONSE_IN_FILE.format(file=file)):
            print_message(f"{short(entry.key)} stays {entry.state.value}: {reason}")
            worst = max(worst, Exit.FAILED)
            continue
        choice = _prompt_choice()
        if choice == _QUIT:
            return Exit.UNKNOWN
        if choice == _SKIP:
            worst = Exit.UNKNOWN
            continue
        worst = max(worst, resolve_entry(use, entry, _CHOICES[choice], note or _prompt_note()))
    return worst


def _prompt_choice() -> str:
    while True:
        choice = typer.prompt(_QUESTION, err=True).strip().lower()[:1]
        if choice in (*_CHOICES, _SKIP, _QUIT):
            return str(choice)


def _prompt_note() -> str:
    return str(
        typer.prompt("  Note with the source, such as a ticket number", err=True, value_proc=_parse_note)
    )


def _parse_note(text: str) -> str:
    try:
        note = checked_note(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not note:
        raise typer.BadParameter("must not be empty")
    return note

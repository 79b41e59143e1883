"""Questions to a person about unknown outcomes, and the settlements from the answers."""

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import typer

from loanasync.cli.console import say
from loanasync.cli.exit_codes import Exit
from loanasync.cli.ledger.display import line_of
from loanasync.cli.ledger.open import Opened, short
from loanasync.ledger import Entry, State, resolve
from loanasync.ledger.orphans import orphan_files
from loanasync.ledger.policy import default_orphan_folders

OPEN = (State.UNKNOWN, State.LOST)  # these wait for a person; HELD is what one has said
_SETTLED = frozenset({*OPEN, State.HELD})
_KEPT_OPEN = (State.UNKNOWN, State.HELD)  # a response can still come to the ledger
_IN_FILE = (
    "its response may be in {file}: loanasync ledger import-orphans, or move a file away that this leaves"
)
_PERSONAL = re.compile(r"\b(?=[A-Za-z0-9]{0,15}[0-9])[A-Za-z0-9]{16}\b|@")


class Word(StrEnum):
    """What a person may say of an approval."""

    APPROVED = "approved"
    REFUSED = "refused"
    RELEASED = "released"
    HELD = "held"
    UNKNOWN = "unknown"


_ANSWERS = {
    "a": Word.APPROVED,
    "r": Word.REFUSED,
    "n": Word.RELEASED,
    "h": Word.HELD,
}
_QUESTION = "  What does the service say? [a]pproved [r]efused [n]ever evaluated; [h]old, [s]kip, [q]uit"


def note_that_is_safe(note: str) -> str:
    """A note, which is kept for ever and read by many.

    Raises:
        ValueError: It looks like a person's.
    """
    if _PERSONAL.search(note):
        raise ValueError(
            "must not name a customer: no fiscal code, no e-mail address; a ticket's number will do"
        )
    return note.strip()


def settle(use: Opened, entry: Entry, word: Word, note: str) -> Exit:
    """Write what a person said of an entry; correct the entry if a person decided or released it."""
    state = State(word.value)
    if state not in _KEPT_OPEN and (file := _file_of(entry)) is not None:
        say(f"{short(entry.key)} stays {entry.state.value}: {_IN_FILE.format(file=file)}")
        return Exit.FAILED
    corrects = entry.is_correctable and entry.state is not state
    if entry.state in _SETTLED or corrects:
        entry = use.run(resolve(use.ledger, entry, state, note))
    if entry.state is state:
        more = ": corrected; the earlier state is kept in the history" if corrects else ""
        say(f"{short(entry.key)} is {state.value}{more}")
        return Exit.DECIDED
    why = _finality(entry) or "another person settled it meanwhile; look at it, then give the command again"
    say(f"{short(entry.key)} stays {entry.state.value}: {why}")
    return Exit.FAILED


def _finality(entry: Entry) -> str | None:
    """Return why a person cannot change an entry; None if they can."""
    if entry.state in _SETTLED or entry.is_correctable:
        return None
    return {
        State.INFLIGHT: "somebody is asking now: wait for the end of the lease",
        State.RELEASED: "it was never evaluated: there is nothing to settle",
    }.get(entry.state, "a decision of the service is never overwritten")


def _file_of(entry: Entry) -> Path | None:
    """Return an orphan file of this machine for an entry, from the default folders."""
    for folder in default_orphan_folders():
        with suppress(OSError):
            for file in orphan_files(folder, entry.key):
                return file
    return None


def settle_by_asking(use: Opened, entries: Sequence[Entry], note: str) -> Exit:
    """Go through entries with a person; what they skip stays as it is."""
    worst = Exit.DECIDED
    for number, listed in enumerate(entries, 1):
        entry = use.run(use.ledger.get(listed.key)) or listed  # others may have settled it since
        say(f"{number} of {len(entries)}: {line_of(entry)}")
        file = _file_of(entry)
        if why := _finality(entry) or (file and _IN_FILE.format(file=file)):
            say(f"{short(entry.key)} stays {entry.state.value}: {why}")
            worst = max(worst, Exit.FAILED)
            continue
        answer = _answer()
        if answer == "q":
            return Exit.UNKNOWN
        if answer == "s":
            worst = Exit.UNKNOWN
            continue
        who = note or _note()
        worst = max(worst, settle(use, entry, _ANSWERS[answer], who))
    return worst


def _answer() -> str:
    while True:
        answer = typer.prompt(_QUESTION, err=True).strip().lower()[:1]
        if answer in (*_ANSWERS, "s", "q"):
            return str(answer)


def _note() -> str:
    return str(typer.prompt("  Who says so, such as a ticket's number", err=True, value_proc=_safe))


def _safe(given: str) -> str:
    try:
        note = note_that_is_safe(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not note:
        raise typer.BadParameter("must not be empty")
    return note

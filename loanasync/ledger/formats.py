"""The stored format of entries, and the parts of it that all backends share."""

import json
from collections.abc import Sequence

from loanasync.errors import ConfigurationError
from loanasync.ledger.model import DECIDED, SERVICE, Change, State

FORMAT = 2  # format 1 has no subject, source and history; its entries are rewritten when they change
PERSON = "person"  # the source of what a person settles


def check_format(number: int) -> None:
    """Refuse an entry that a later version wrote.

    Raises:
        ConfigurationError: Its format is later than ours.
    """
    if not 1 <= number <= FORMAT:
        raise ConfigurationError(
            "ledger", "has entries of a later version of loanasync: install that version here, too"
        )


def source_in_format_1(state: State, body: bytes | None, fault: str | None) -> str:
    """Return the source of an entry that format 1 stored.

    A client always stored a body or a fault with a decision, so a decision without both is a person's.
    """
    if state is State.INFLIGHT:
        return ""
    return PERSON if state in DECIDED and body is None and fault is None else SERVICE


def history_text(history: Sequence[Change]) -> str:
    """Return a history as JSON: a list of [state, changed, note, source]."""
    return json.dumps([[each.state, each.changed, each.note, each.source] for each in history])


def history_from(text: str) -> tuple[Change, ...]:
    """Read a history from its JSON."""
    return tuple(
        Change(state=State(state), changed=float(changed), note=note, source=source)
        for state, changed, note, source in json.loads(text)
    )

"""Lists of entries: which part of a ledger is read for a list, and which of its entries are yielded."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from typing import TypeAlias

from loanasync._models.dialect import APPROVAL_NAMES
from loanasync._protocol.json import Malformed, decode
from loanasync.ledger.model import NO_REDIRECT, Entry, State

_PAGE = 500  # entries that a list reads at once, between which others have their turn

# Parts of a ledger that a backend reads by an index; the others are the stored states.
ALL = "all"
WITHOUT_REDIRECT = "without redirect"  # approved entries that have a note or no body

# In SQL: the condition of each part, and the indexes that a table needs for them. "IS TRUE" keeps SQLite from
# reading all approvals by the other index.
_CONDITIONS: Mapping[str, str] = {
    ALL: "TRUE",
    WITHOUT_REDIRECT: "(state = 'approved' AND (body IS NULL OR note <> '')) IS TRUE",
    **{state: f"state = '{state}'" for state in State},
}
INDEXES = ("(state, key)", f"(key) WHERE {_CONDITIONS[WITHOUT_REDIRECT]}")

# Of a part: its entries from a key on and without that key if it is the last one that was read; and the last
# key of the page, empty after the last page.
Page: TypeAlias = Callable[[str, str, str], Awaitable[tuple[str, list[Entry]]]]


def queries(select: str, first: str, last: str) -> dict[str, str]:
    """Return the statement that reads a page, for each part of a table.

    Args:
        select: Beginning of the statement, as far as the name of the table.
        first: Placeholder of the first key.
        last: Placeholder of the last key that was read.
    """
    page = f"key >= {first} AND key <> {last} ORDER BY key LIMIT {_PAGE}"
    return {part: f"{select} WHERE {condition} AND {page}" for part, condition in _CONDITIONS.items()}


async def listed(
    page: Page, states: Collection[State], begins: str, *, without_redirect: bool
) -> AsyncIterator[Entry]:
    """Yield the entries of a list, as `DecisionLedger.scan` promises.

    Args:
        page: Reads a page of a part.
        states: States of the entries; empty for all.
        begins: Beginning of their keys.
        without_redirect: Only approvals without a redirect.
    """
    for part in _parts(states, without_redirect=without_redirect):
        last, entries = await page(part, begins, "")
        while last:
            for entry in entries:
                if is_listed(entry, states, begins, without_redirect=without_redirect):
                    yield entry
            if not last.startswith(begins):  # keys with this beginning stand together
                break
            last, entries = await page(part, last, last)


def _parts(states: Collection[State], *, without_redirect: bool) -> list[str]:
    """Return the parts to read, in the order in which entries go from one state to the next.

    An entry that changes meanwhile is read twice rather than missed.
    """
    if without_redirect:
        return [WITHOUT_REDIRECT]
    if not states:
        return [ALL]
    # An entry in flight is UNKNOWN from the end of its lease on.
    stored = {*states, *([State.INFLIGHT] if State.UNKNOWN in states else ())}
    return [state for state in State if state in stored]


def is_listed(entry: Entry, states: Collection[State], begins: str, *, without_redirect: bool) -> bool:
    """Return True if an entry, as seen now, is in a list."""
    return (
        (not states or entry.state in states)
        and entry.key.startswith(begins)
        and (not without_redirect or lacks_redirect(entry))
    )


def lacks_redirect(entry: Entry) -> bool:
    """Return True for an approval without a redirect; an encrypted response is taken to have one."""
    if entry.state is not State.APPROVED:
        return False
    if entry.body is None or entry.note == NO_REDIRECT:
        return True
    try:
        redirect = decode(entry.body).get(APPROVAL_NAMES["redirect_url"])
    except Malformed:
        return False
    return not (isinstance(redirect, str) and redirect.strip())

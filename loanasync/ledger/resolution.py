"""Resolution of an entry with an outcome that did not come with the service's response to a client.

Its source is a webhook, a back office, a file, or a person.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import Factory, evolve, frozen

from loanasync._models.decisions import Problem
from loanasync._protocol.json import Malformed, decode, repeated_members
from loanasync.errors import InFlightError, LoanError, NotResolvedError
from loanasync.ledger.keys import Approval, find_entry
from loanasync.ledger.ledger import Ledger, lacks_redirect
from loanasync.ledger.model import (
    CREATED,
    HISTORY_LENGTH,
    NOT_SENT,
    PERSON,
    SERVICE,
    Change,
    Entry,
    Settlement,
    State,
)
from loanasync.ledger.orphans import import_from_folders
from loanasync.ledger.replay import STATUS

if TYPE_CHECKING:
    from loanasync.ledger.access import LedgerAccess  # which loads aiohttp

Result: TypeAlias = Literal["settled", "unchanged", "contradicts", "stated earlier", "inflight"]

STATES: Mapping[str, State] = MappingProxyType(
    {"approved": State.APPROVED, "refused": State.REFUSED, "not_evaluated": State.RELEASED}
)
# If an entry was in one of these states, a statement may be about an earlier request, or a person decides.
_NOT_FIRST = frozenset((State.RELEASED, State.LOST, State.HELD))
_OPERATION = "resolve"
_TEXT = (b"{", b"[", b"<", b'"')  # first byte of JSON and HTML; encrypted bodies begin with another one
_PERSONAL_DATA = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]{0,15}[0-9])[A-Za-z0-9]{16}(?![A-Za-z0-9])|@")
_PERSONAL = "must not contain personal data such as a fiscal code or an e-mail address; use a ticket number"


async def resolve(
    ledger: Ledger,
    entry: Entry,
    state: State,
    note: str,
    *,
    source: str = PERSON,
    body: bytes | None = None,
) -> Entry:
    """Settle an unsettled entry with what a person found out, or correct an earlier resolution.

    An entry that is UNKNOWN, LOST or HELD is settled. An entry that a person decided or released is
    corrected, and its history keeps the earlier state. A decision by the service never changes. An entry that
    a client released can only be HELD.

    If the entry has a stored response, an APPROVED or REFUSED entry keeps it, with its redirect, provided
    that the response contains the same decision or is encrypted.

    Args:
        ledger: The ledger that has the entry.
        entry: The entry as the person saw it. If it has changed since then, nothing is written.
        state: APPROVED or REFUSED, if the service confirmed that decision. RELEASED, if the service did not
            evaluate the customer: the next call sends the request. HELD, to block the entry: no request is
            sent. LOST or UNKNOWN are possible, too.
        note: The person or ticket that gave the information; nothing personal. A correction needs one.
        source: The kind of source, such as ``"person"``; not ``"service"``.
        body: JSON members of the decision that the source states, such as the redirect, encrypted if the
            clients have a cipher. It replaces the stored response.

    Returns:
        The current entry. It is resolved, unless another owner has claimed or settled it meanwhile.

    Raises:
        ValueError: The state is INFLIGHT, the source is ``"service"``, or a correction has no note.
        Exception: The ledger cannot be used; `resolve` can be repeated.

    Example:
        >>> from loanasync.ledger import MemoryLedger, Settlement, State, resolve
        >>> ledger = MemoryLedger()
        >>> entry = run(ledger.claim("k", token="t", payload="p", lease=90.0))
        >>> lost = Settlement(state=State.UNKNOWN, note="ReadTimeoutError")
        >>> entry = run(ledger.settle("k", token="t", payload="p", settlement=lost))
        >>> entry = run(resolve(ledger, entry, State.REFUSED, "by telephone"))
        >>> entry.state, [change.note for change in entry.history]
        (<State.REFUSED: 'refused'>, ['ReadTimeoutError'])
    """
    settlement = Settlement(state=state, note=note, source=source, body=body)
    if source == SERVICE:
        raise ValueError("the source of a resolved entry cannot be 'service': use another, such as 'person'")
    if entry.is_correctable and not note.strip():
        raise ValueError("a correction needs a note, such as the ticket that reported the mistake")
    if entry.state is State.ERASED and state is State.RELEASED:  # this ends the erasure of all orders
        others = await ledger.entries_of(entry.customer)
        for other in [each for each in others if each.state is State.ERASED and each.key != entry.key]:
            await _settle(ledger, other, settlement)
    return await _settle(ledger, entry, _with_response(settlement, entry))


async def _settle(ledger: Ledger, entry: Entry, settlement: Settlement) -> Entry:
    # One write: a claim that is not settled, because the ledger fails then, would look like a second request.
    return await ledger.settle(
        entry.key,
        token=token_hex(16),
        payload=entry.payload,
        settlement=settlement,
        over=entry.revision,
    )


def _with_response(settlement: Settlement, entry: Entry) -> Settlement:
    """Return the settlement with the entry's stored response, if that contains the same decision."""
    if settlement.body is not None:
        return evolve(settlement, status=STATUS[settlement.state])
    if not settlement.state.is_decided or entry.body is None:
        return settlement
    try:
        members = decode(entry.body)
    except Malformed:
        if _is_plain_text(entry.body):  # an incomplete response, which a client could not read either
            return settlement
        status: int | None = STATUS[settlement.state]
    else:
        is_same = members.get("approved") is (settlement.state is State.APPROVED)
        if not is_same or repeated_members(entry.body, members, ["approved"]):
            return settlement
        status = entry.status or STATUS[settlement.state]
    return evolve(settlement, status=status, body=entry.body)


def _is_plain_text(body: bytes) -> bool:
    """Return True if a body that is not a JSON object is plain text rather than encrypted."""
    begin = body.lstrip()
    if begin and not begin.startswith(_TEXT):
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def problem_of_note(note: object) -> str | None:
    """Return the rule that a note breaks, or None. Notes are kept for good and read by many people."""
    if not isinstance(note, str):
        return "must be a str"
    return _PERSONAL if _PERSONAL_DATA.search(note) else None


def problem_of_source(source: object) -> str | None:
    """Return the rule that the source of a stated outcome breaks, or None."""
    if not isinstance(source, str) or source.strip() in ("", SERVICE):
        return "must name the source, such as 'webhook' or 'back office'; it cannot be 'service'"
    return problem_of_note(source)


def statement_problems(
    outcome: object, source: object, note: object, order_token: object
) -> Iterator[Problem]:
    """Yield the problems of a stated outcome."""
    if order_token is not None and not isinstance(order_token, str):
        yield Problem("order_token", "orderToken", "must be text", "order_token.type", hint="use a str")
    if not (isinstance(outcome, str) and outcome in STATES):
        options = {"options": tuple(STATES)}
        yield Problem(
            "outcome", "", "must be 'approved', 'refused' or 'not_evaluated'", "outcome.choice", options
        )
    for field, message in (("source", problem_of_source(source)), ("note", problem_of_note(note))):
        if message is not None:
            yield Problem(field, "", message, f"{field}.format")


@frozen
class Statement:
    """An outcome that a source states.

    Args:
        state: The state that the entry is to have.
        source: The source.
        note: The note that is stored. It is not empty, because a correction needs one.
        body: JSON members of the decision, encrypted if the clients have a cipher; None without any.
        at: When it was stated, by the monotonic clock.
    """

    state: State
    source: str
    note: str
    body: bytes | None = None
    at: float = Factory(time.monotonic)


async def settle_as_stated(
    ledger: Ledger,
    entry: Entry,
    statement: Statement,
    *,
    within: float = 0.0,
    orphan_folders: Iterable[Path] = (),
) -> tuple[Result, Entry]:
    """Settle an entry as a source states it, unless the entry contradicts the statement.

    A decision in the ledger is never changed. A release by another source is corrected to the stated
    decision. Only the first request of an unknown entry is released, and only if it had ended when the
    outcome was stated. Repeating a statement changes nothing.

    Args:
        ledger: The ledger.
        entry: The entry.
        statement: The stated outcome.
        within: Seconds to wait for a request in progress. A release does not wait: it may have been stated
            before that request was sent.
        orphan_folders: Folders with responses that could not be written. The files of the entry are imported
            first, because they contain what the service responded.

    Returns:
        The result, and the current entry.

    Raises:
        Exception: The ledger cannot be used. Repeat the call.
    """
    until = time.monotonic() + within
    if not entry.state.is_decided:
        await import_from_folders(ledger, orphan_folders, entry.key)
        entry = await ledger.get(entry.key) or entry
    while True:
        if entry.state is State.INFLIGHT and statement.state.is_decided:
            entry = await ledger.wait(entry.key, max(0.0, until - time.monotonic())) or entry
        if (result := result_without_writing(entry, statement)) is not None:
            return result, entry
        if statement.state is State.RELEASED and await _is_later(ledger, entry, statement):
            return "stated earlier", entry
        # Another owner may claim or settle the entry first: then look at the new state.
        entry = await resolve(
            ledger, entry, statement.state, statement.note, source=statement.source, body=statement.body
        )
        if entry.state is statement.state:
            return "settled", entry


def result_without_writing(entry: Entry, statement: Statement) -> Result | None:
    """Return the result if the entry must not be changed; None if it can be settled as stated."""
    if entry.state is statement.state:
        adds_redirect = statement.body is not None and entry.is_correctable and lacks_redirect(entry)
        return None if adds_redirect else "unchanged"
    if entry.state is State.INFLIGHT:
        return "inflight"
    if entry.state.is_decided or entry.state is State.ERASED:
        return "contradicts"
    if statement.state is not State.RELEASED:
        # A client releases an entry only with proof that the service evaluated nothing. It may still be held.
        is_released_by_client = entry.state is State.RELEASED and not entry.is_correctable
        return "contradicts" if is_released_by_client and statement.state.is_decided else None
    # LOST: the service reported that it has decided. HELD: a person does not want a request to be sent.
    if entry.state is not State.UNKNOWN:
        return "contradicts"
    # A statement may be delivered again, or late: it releases only the first request of the entry.
    is_first = not entry.takeovers and len(entry.history) < HISTORY_LENGTH
    is_first = is_first and not any(map(_may_be_requested, entry.history))
    return None if is_first else "stated earlier"


async def _is_later(ledger: Ledger, entry: Entry, statement: Statement) -> bool:
    """Return True if an entry became unknown after the outcome was stated."""
    since_change = await ledger.time_of_day() - entry.changed
    return since_change < time.monotonic() - statement.at  # read last: the ledger may be slow


def _may_be_requested(earlier: Change) -> bool:
    """Return True if an entry may have been requested before an earlier state, or a person decided."""
    is_unsent = earlier.source == SERVICE and earlier.note in (CREATED, NOT_SENT)
    return earlier.state in _NOT_FIRST and not is_unsent


async def resolve_customer(
    access: "LedgerAccess", approval: Approval, stated: str, source: str, note: str
) -> Entry | LoanError:
    """Settle the entry of a customer as a source states it; return the current entry, or an error.

    It waits up to `LedgerPolicy.patience` seconds for a request in progress, and as long again for the
    ledger itself.
    """
    source, note = source.strip(), note.strip()
    statement = Statement(STATES[stated], source, note or source)
    patience = access.policy.patience
    resolving = partial(_resolve_stated, access, approval, statement, stated)
    return await access.attempt(resolving, 2 * patience, call=_OPERATION, once=False)


async def _resolve_stated(
    access: "LedgerAccess", approval: Approval, statement: Statement, stated: str
) -> Entry | LoanError:
    policy, places = access.policy, await access.places(approval)
    by_token = approval.order_token is not None and not approval.order_id
    found = await find_entry(access.ledger, places, by_token=by_token)
    if not isinstance(found, Entry):
        return NotResolvedError(_OPERATION, "" if by_token else places[0].key, found, stated)
    result, entry = await settle_as_stated(
        access.ledger,
        found,
        statement,
        within=policy.patience,
        orphan_folders=await asyncio.to_thread(lambda: policy.orphan_folders),
    )
    if result in ("settled", "unchanged"):
        return entry
    if result == "inflight" and statement.state.is_decided:
        return InFlightError(_OPERATION, found.key)
    return NotResolvedError(_OPERATION, found.key, entry.state.value, stated)

"""Maintenance of a ledger by a person or a scheduled job: resolve, correct and sweep entries."""

from secrets import token_hex

from attrs import evolve

from loanasync._protocol.json import Malformed, decode, repeated_members
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import PERSON, SERVICE, Entry, Settlement, State
from loanasync.ledger.replay import STATUS
from loanasync.ledger.transitions import LEASE_EXPIRED

_TEXT = (b"{", b"[", b"<", b'"')  # first byte of JSON and HTML; encrypted bodies begin with another one


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


async def sweep(ledger: Ledger) -> list[Entry]:
    """Settle every claim whose lease has expired as UNKNOWN.

    Run it periodically, and alert on the entries that it returns. A decision that arrives later is still
    written. Calls treat such an entry as UNKNOWN with or without a sweep.

    Args:
        ledger: The ledger.

    Returns:
        The entries that were settled, as they are now. Entries that an earlier sweep
            settled are not returned again.

    Raises:
        Exception: The ledger cannot be used; `sweep` can be repeated.

    Example:
        >>> from loanasync.ledger import MemoryLedger, sweep
        >>> ledger = MemoryLedger()
        >>> _ = run(ledger.claim("k", token="t", payload="p", lease=0.0))
        >>> [entry.state for entry in run(sweep(ledger))]
        [<State.UNKNOWN: 'unknown'>]
        >>> run(sweep(ledger))
        []
    """
    settlement = Settlement(state=State.UNKNOWN, note=LEASE_EXPIRED)
    # An UNKNOWN entry that is stored as INFLIGHT has `changed == expires`: it changed when its lease expired.
    expired = [entry async for entry in ledger.scan(State.UNKNOWN) if entry.changed == entry.expires]
    return [
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
        for entry in expired
    ]

"""Resolving, correcting and sweeping entries: the work of a person or a timer on a ledger."""

from secrets import token_hex

from attrs import evolve

from loanasync._protocol.json import Malformed, decode, repeated
from loanasync.ledger.model import PERSON, SERVICE, Entry, Settlement, State
from loanasync.ledger.protocol import DecisionLedger
from loanasync.ledger.transitions import LEASE_EXPIRED

_LEASE = 60.0  # seconds; between the two moves nobody but a crash can come
_STATUS = {State.APPROVED: 201, State.REFUSED: 422}  # spec §3
_TEXT = (b"{", b"[", b"<", b'"')  # the first byte of JSON and of a page; encrypted bodies begin otherwise


async def resolve(
    ledger: DecisionLedger, entry: Entry, state: State, note: str, *, source: str = PERSON
) -> Entry:
    """Settle an UNKNOWN, LOST or HELD entry with what the service says of it, or correct an earlier mistake.

    An entry that a person decided or released is corrected: its earlier state is kept in its history. A
    decision or release by the service is never changed.

    A response that the entry keeps becomes the decision, with its redirect, if it says the same
    (``approved``) or is encrypted.

    Args:
        ledger: Where it is.
        entry: As it was when the person looked at it.
        state: APPROVED or REFUSED, if the service tells its decision; RELEASED, if it never evaluated the
            customer, so that the approval is asked when it is called for next; LOST or UNKNOWN; or HELD, so
            that nobody asks, and no probe is made.
        note: The person or ticket that says so; nothing personal. A correction needs one.
        source: The kind of source, such as ``"person"``; not ``"service"``.

    Returns:
        The entry as it stands now, settled so, or as somebody else has claimed or settled it meanwhile.

    Raises:
        ValueError: The state is INFLIGHT, the source is ``"service"``, or a correction has no note.

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
    settlement = Settlement(state=state, note=note, source=source)
    if source == SERVICE:
        raise ValueError("the source of a resolved entry cannot be 'service': only a client writes that")
    token = token_hex(16)
    if entry.is_correctable:
        if not note.strip():
            raise ValueError("a correction needs a note that says who found the mistake")
        return await ledger.settle(
            entry.key,
            token=token,
            payload=entry.payload,
            settlement=_with_response(settlement, entry),
            over=entry.token,
        )
    if entry.state is State.RELEASED:  # by the service; a claim would be won
        return await ledger.get(entry.key) or entry
    # A claim of one's own first: whoever held the entry before can bring a decision, and nothing else.
    found = await ledger.claim(entry.key, token=token, payload=entry.payload, lease=_LEASE, over=entry.token)
    if not found.is_claimed_by(token):
        return found
    return await ledger.settle(
        entry.key, token=token, payload=entry.payload, settlement=_with_response(settlement, found)
    )


def _with_response(settlement: Settlement, entry: Entry) -> Settlement:
    """Return the settlement with the response that the entry keeps, if that is the same decision."""
    if not settlement.state.is_decided or entry.body is None:
        return settlement
    try:
        members = decode(entry.body)
    except Malformed:
        if _is_plain_text(entry.body):  # not whole: a client could not read it, either
            return settlement
        status: int | None = _STATUS[settlement.state]
    else:
        says = members.get("approved") is (settlement.state is State.APPROVED)
        if not says or repeated(entry.body, (b"approved",)):
            return settlement
        status = entry.status or _STATUS[settlement.state]
    return evolve(settlement, status=status, body=entry.body)


def _is_plain_text(body: bytes) -> bool:
    """Return True if a body that is no JSON object is plain text, and not encrypted."""
    begin = body.lstrip()
    if begin and not begin.startswith(_TEXT):
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


async def sweep(ledger: DecisionLedger) -> list[Entry]:
    """Settle as UNKNOWN each claim whose lease has run out; a decision still lands after that.

    Args:
        ledger: Where they are.

    Returns:
        Those entries, as they stand now.

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
    # As seen only, and not written down: it changed when its lease ran out, and not when somebody said so.
    expired = [entry async for entry in ledger.scan(State.UNKNOWN) if entry.changed == entry.expires]
    return [
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
        for entry in expired
    ]

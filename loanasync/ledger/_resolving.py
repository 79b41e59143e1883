"""What a person does with an entry that nobody else can settle."""

from secrets import token_hex

from loanasync.ledger._entries import Entry, Settlement, State
from loanasync.ledger._protocol import DecisionLedger

__all__ = ["resolve"]

_LEASE = 60.0  # seconds; between the two moves nobody but a crash can come


async def resolve(ledger: DecisionLedger, entry: Entry, state: State, note: str) -> Entry:
    """Settle an UNKNOWN, LOST or HELD entry, with what the service says of it.

    Args:
        ledger: Where it is.
        entry: As it was when the person looked at it.
        state: APPROVED or REFUSED, if the service tells its decision; RELEASED, if it never evaluated the
            customer, so that the approval is asked when it is called for next; LOST or UNKNOWN; or HELD, so
            that nobody asks, and no probe is made.
        note: Who says so, for who reads the entry later; nothing personal.

    Returns:
        The entry as it stands now, settled so, or as somebody else has claimed or settled it meanwhile.

    Raises:
        ValueError: The state is INFLIGHT.

    Example:
        >>> from loanasync.ledger import MemoryLedger, Settlement, State, resolve
        >>> ledger = MemoryLedger()
        >>> entry = run(ledger.claim("k", token="t", payload="p", lease=90.0))
        >>> lost = Settlement(state=State.UNKNOWN, note="ReadTimeoutError")
        >>> entry = run(ledger.settle("k", token="t", payload="p", settlement=lost))
        >>> run(resolve(ledger, entry, State.REFUSED, "by telephone")).state
        <State.REFUSED: 'refused'>
    """
    settlement = Settlement(state=state, note=note)
    token = token_hex(16)
    # A claim of one's own first: whoever held the entry before can bring a decision, and nothing else.
    found = await ledger.claim(entry.key, token=token, payload=entry.payload, lease=_LEASE, over=entry.token)
    if not found.is_claimed_by(token):
        return found
    return await ledger.settle(entry.key, token=token, payload=entry.payload, settlement=settlement)

"""Leases that have run out, written down as what they are."""

from loanasync.ledger.model import Entry, Settlement, State
from loanasync.ledger.protocol import DecisionLedger
from loanasync.ledger.transitions import RAN_OUT


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
    settlement = Settlement(state=State.UNKNOWN, note=RAN_OUT)
    # As seen only, and not written down: it changed when its lease ran out, and not when somebody said so.
    ran_out = [entry async for entry in ledger.scan(State.UNKNOWN) if entry.changed == entry.expires]
    return [
        await ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
        for entry in ran_out
    ]

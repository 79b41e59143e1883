"""A client's ledger, loaded by who has one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loanasync.ledger.recording import Recorder


def recorder(ledger: object, policy: object) -> "Recorder | None":
    """What a client uses of its ledger, if it has one.

    Raises:
        ConfigurationError: It is none, or the policy is.
    """
    if ledger is None and policy is None:
        return None
    from loanasync.ledger import recording  # noqa: PLC0415  (it brings SQLite)

    return recording.recorder(ledger, policy)

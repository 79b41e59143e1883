"""From what a call came to, to what the ledger keeps of it; and back, from what it keeps to a decision."""

from collections.abc import Mapping

from attrs import evolve, fields

from loanasync._calls import Call, Outcome, Reply
from loanasync._decisions import Approved, Refused
from loanasync._dialect import APPROVAL_NAMES, READ_ALIASES
from loanasync._display import JSON, mask
from loanasync._json import decode, encode
from loanasync._meta import Meta
from loanasync._outcome import outcome_of
from loanasync.errors import (
    AlreadyEvaluatedError,
    LoanError,
    UnexpectedReplyError,
)
from loanasync.ledger._entries import Entry, Settlement, State
from loanasync.ledger._policy import LedgerPolicy

__all__ = ["NOT_KEPT", "kept", "replayed", "state_of"]


def state_of(outcome: Outcome | LoanError, *, is_takeover: bool) -> State:
    """Where an approval stands after a call that came to an outcome.

    Args:
        outcome: The decision, or the error.
        is_takeover: Whether it was asked before with an outcome that is not known: then only the service's
            own word on a decision ends that.
    """
    match outcome:
        case Approved() | UnexpectedReplyError(outcome="approved"):
            return State.APPROVED
        case Refused() | UnexpectedReplyError(outcome="refused"):  # a truncated 422 is a refusal all the same
            return State.REFUSED
        case AlreadyEvaluatedError():
            return State.LOST
        case LoanError() if not is_takeover and outcome_of(outcome, 1) != "unknown":
            return State.RELEASED
        case _:
            return State.UNKNOWN


def kept(ended: Outcome | LoanError, state: State, policy: LedgerPolicy) -> Settlement:
    """What the ledger keeps of a decision: its own members, and by default nothing of the person's.

    Of an answer that was not whole it keeps the status, which decides.
    """
    if not isinstance(ended, Approved | Refused):
        return Settlement(state=state, note=type(ended).__name__, status=_STATUS[state], fault=_NOT_WHOLE)
    is_whole = policy.keep == "body"
    body = _encoded({name: value for name, value in ended.raw.items() if is_whole or name in _OWN})
    encrypted = body if policy.encrypt is None else policy.encrypt.encrypt(body)
    return Settlement(state=state, status=_STATUS[state], body=encrypted)


def _encoded(members: Mapping[str, JSON]) -> bytes:
    try:
        return encode(members)
    except (ValueError, RecursionError):  # a number such as -1e999: no reason to lose the other members
        return encode({name: value for name, value in members.items() if _can_be_written(value)})


def _can_be_written(value: JSON) -> bool:
    try:
        encode({"": value})
    except (ValueError, RecursionError):
        return False
    return True


def replayed(entry: Entry, call: Call, policy: LedgerPolicy, meta: Meta) -> Outcome | LoanError:
    """A decision from what was kept of it, and the echo of what is asked now: the same that was asked then.

    Without a body, as where a person settled the entry, the status still says which decision it is.
    """
    status = _STATUS[entry.state]
    if entry.body is None:
        reply = Reply(status=status, headers={}, body=b"", fault=entry.fault or NOT_KEPT)
    else:
        body = entry.body if policy.encrypt is None else policy.encrypt.decrypt(entry.body)
        echo = {name: value for name, value in decode(call.body).items() if name in _ECHOED}
        members = {"fiscalCode": call.fiscal_code, **echo, **decode(body)}
        reply = Reply(status=status, headers={}, body=encode(members))
    return call.read(reply, evolve(meta, status=status))


def _wire_names(*names: str) -> frozenset[str]:
    wire = {APPROVAL_NAMES[name] for name in names}
    return frozenset(wire | {alias for alias, name in READ_ALIASES.items() if name in wire})


_STATUS = {State.APPROVED: 201, State.REFUSED: 422}  # spec §3
NOT_KEPT = "not kept"  # as where a person settled the entry
_NOT_WHOLE = "not whole"
_MASKED = {each.name: each.repr is mask for each in fields(Approved) if each.name in APPROVAL_NAMES}
_OWN = _wire_names("redirect_url", *(name for name, masked in _MASKED.items() if not masked)) | {"approved"}
_ECHOED = _wire_names(*(name for name, masked in _MASKED.items() if masked)) - {"redirectUrl"}

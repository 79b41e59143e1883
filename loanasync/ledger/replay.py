"""Conversion of a call's outcome to a settlement, and of a stored entry to a decision."""

from collections.abc import Mapping

from attrs import evolve, fields

from loanasync._display.masking import JSON, mask
from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import Malformed, decode, encode
from loanasync._protocol.messages import Response
from loanasync._results import Approved, Meta, RawResponse, Refused
from loanasync.errors import (
    AlreadyEvaluatedError,
    LoanError,
    UnexpectedResponseError,
)
from loanasync.ledger.model import NO_REDIRECT, SERVICE, Entry, Settlement, State
from loanasync.ledger.policy import LedgerPolicy


def state_of(ended: Outcome | LoanError) -> State:
    """Return the state of an approval after a call that ended with a decision or an error."""
    match ended:
        case Approved():
            return State.APPROVED
        case Refused():
            return State.REFUSED
        case AlreadyEvaluatedError():
            return State.LOST
        case LoanError(outcome="not_sent" | "not_evaluated"):
            return State.RELEASED
        case _:
            return State.UNKNOWN


def settlement_of(ended: Outcome | LoanError, state: State, policy: LedgerPolicy) -> Settlement:
    """Return what the ledger keeps: of a decision, and of a response that could not be classified.

    By default these are members of the decision alone, and nothing of the person's.
    """
    if isinstance(ended, Approved | Refused):
        status = ended.meta.status
        note = NO_REDIRECT if isinstance(ended, Approved) and ended.redirect_url is None else ""
        if not ended.raw:
            return Settlement(state=state, note=note, status=status, fault=_NOT_WHOLE)
        body = _encrypt(_encode_members(ended.raw, policy), policy)
        return Settlement(state=state, note=note, status=status, body=body)
    note = type(ended).__name__
    response: RawResponse | None = getattr(ended, "response", None)
    if response is None or not response.body:
        return Settlement(state=state, note=note)
    reasons = ended.reasons if isinstance(ended, UnexpectedResponseError) else ()
    return Settlement(
        state=state,
        note=note,
        status=response.status,
        body=_encrypt(_kept_part(response.body, policy), policy),
        fault="; ".join(reasons) or None,
    )


def _kept_part(body: bytes, policy: LedgerPolicy) -> bytes | None:
    """Return what may be kept of a body that could not be classified."""
    if policy.keep == "body":
        return body
    try:
        members = decode(body)
    except Malformed:
        return None
    own = {name: value for name, value in members.items() if name in _DECISION_MEMBERS}
    return _encode(own) if own else None


def _encode_members(raw: Mapping[str, JSON], policy: LedgerPolicy) -> bytes:
    is_whole = policy.keep == "body"
    return _encode({name: value for name, value in raw.items() if is_whole or name in _DECISION_MEMBERS})


def _encrypt(body: bytes | None, policy: LedgerPolicy) -> bytes | None:
    return body if body is None or policy.encrypt is None else policy.encrypt.encrypt(body)


def _encode(members: Mapping[str, JSON]) -> bytes:
    try:
        return encode(members)
    except (ValueError, RecursionError):  # a number such as -1e999: no reason to lose the other members
        return encode({name: value for name, value in members.items() if _is_encodable(value)})


def _is_encodable(value: JSON) -> bool:
    try:
        encode({"": value})
    except (ValueError, RecursionError):
        return False
    return True


def replay(entry: Entry, call: Call, policy: LedgerPolicy, meta: Meta) -> Outcome | LoanError:
    """Return an entry's decision, with the echo of the current request, whose payload is the same.

    Without a body, as where a person settled the entry, it has neither echo nor redirect.
    """
    meta = evolve(meta, status=entry.status or _STATUS[entry.state], entry=entry.key)
    kind = Approved if entry.state is State.APPROVED else Refused
    known = kind(meta=evolve(meta, unread=("body",)))
    if entry.body is None:
        return known
    body = entry.body if policy.encrypt is None else policy.encrypt.decrypt(entry.body)
    echo = {name: value for name, value in decode(call.body).items() if name in _ECHOED_MEMBERS}
    try:
        kept_members = decode(body)
    except Malformed:
        if entry.source == SERVICE:
            raise
        return known  # a person accepted an encrypted response that cannot be read
    # The entry is this customer's, also if a person accepted a response that echoed another fiscal code.
    members = {**echo, **kept_members, "fiscalCode": call.fiscal_code}
    # With the status of the decision: a person may have accepted a response with any other.
    read = call.read(Response(status=_STATUS[entry.state], headers={}, body=encode(members)), meta)
    # A person may have decided otherwise than the kept response, or accepted one that cannot be read.
    return read if isinstance(read, kind) or entry.source == SERVICE else known


def _wire_names(*names: str) -> frozenset[str]:
    wire = {APPROVAL_NAMES[name] for name in names}
    return frozenset(wire | {alias for alias, name in READ_ALIASES.items() if name in wire})


_STATUS = {State.APPROVED: 201, State.REFUSED: 422}  # spec §3
_NOT_WHOLE = "not whole"
_MASKED = {each.name: each.repr is mask for each in fields(Approved) if each.name in APPROVAL_NAMES}
_DECISION_MEMBERS = _wire_names("redirect_url", *(name for name, masked in _MASKED.items() if not masked)) | {
    "approved"
}
_ECHOED_MEMBERS = _wire_names(*(name for name, masked in _MASKED.items() if masked)) - {"redirectUrl"}

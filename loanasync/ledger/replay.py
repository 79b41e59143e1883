"""Conversion of the result of a call to a settlement, and of a stored entry to a decision."""

from collections.abc import Mapping
from typing import cast

from attrs import evolve, fields

from loanasync._models.decisions import MAX_LEVELS, Approved, Meta, RawResponse, Refused
from loanasync._models.masking import JSON, Body, mask
from loanasync._models.requests import APPROVAL_NAMES, READ_ALIASES
from loanasync._protocol.endpoints import Call, Outcome
from loanasync._protocol.json import Malformed, decode, encode
from loanasync._protocol.messages import Response
from loanasync.errors import LoanError, UnexpectedResponseError
from loanasync.ledger.model import NO_REDIRECT, SERVICE, Entry, Settlement, State
from loanasync.ledger.policy import LedgerPolicy


def settlement_of(result: Outcome | LoanError, state: State, policy: LedgerPolicy) -> Settlement:
    """Return the settlement for the result of a call, with the part of the response that is stored.

    A response is stored with a decision, and with an error whose response could not be classified, unless it
    may be about another customer. It contains only members of the decision, no personal data.
    """
    if isinstance(result, Approved | Refused):
        redirect = result.redirect_url if isinstance(result, Approved) else None
        found: dict[str, JSON] = {} if redirect is None else {"approved": True, "redirectUrl": redirect}
        # Without deep levels, a copy of which may exceed the recursion limit.
        members = cast("Body", result.raw).plain(MAX_LEVELS) or found
        return Settlement(
            state=state,
            note=NO_REDIRECT if isinstance(result, Approved) and redirect is None else "",
            status=result.meta.status,
            body=_encrypt(_encode(_kept(members)), policy) if members else None,
            fault=None if result.raw else _INCOMPLETE,
        )
    note = type(result).__name__
    response: RawResponse | None = getattr(result, "response", None)
    if response is None or not response.body:
        return Settlement(state=state, note=note)
    reasons = result.reasons if isinstance(result, UnexpectedResponseError) else ()
    return Settlement(
        state=state,
        note=note,
        status=response.status,
        body=None if response.is_stray else _encrypt(_stored_part(response.body), policy),
        fault="; ".join(reasons) or None,
    )


def _stored_part(body: bytes) -> bytes | None:
    """Return the part of an unclassified body that is stored."""
    try:
        members = decode(body)
    except Malformed:
        return None
    kept = _kept(members)
    return _encode(kept) if kept else None


def _kept(members: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the members that are stored."""
    return {
        name: value
        for name, value in members.items()
        if name in _REDIRECTS or (name in _DECISION_MEMBERS and _is_impersonal(value))
    }


def _is_impersonal(value: JSON) -> bool:
    """Return True for a number, a boolean, None or text without letters, such as "43,10"."""
    if isinstance(value, str):
        return not any(map(str.isalpha, value))
    return value is None or isinstance(value, bool | int | float)


def _encrypt(body: bytes | None, policy: LedgerPolicy) -> bytes | None:
    return body if body is None or policy.encrypt is None else policy.encrypt.encrypt(body)


def _encode(members: dict[str, JSON]) -> bytes:
    try:
        return encode(members)
    except (ValueError, RecursionError):  # for example the number -1e999: store the other members
        return encode({name: value for name, value in members.items() if _is_encodable(value)})


def _is_encodable(value: JSON) -> bool:
    try:
        encode({"": value})
    except (ValueError, RecursionError):
        return False
    return True


def replay(entry: Entry, call: Call, policy: LedgerPolicy, meta: Meta) -> Outcome | LoanError:
    """Return the decision of an entry.

    The echoed personal fields are not stored: they are taken from the present request, whose payload is the
    same. An entry without a body, such as one that a person resolved, has no echoed fields and no redirect.
    """
    meta = evolve(meta, status=entry.status or STATUS[entry.state], entry=entry.key)
    kind = Approved if entry.state is State.APPROVED else Refused
    without_body = kind(meta=evolve(meta, unread=("body",)))
    if entry.body is None:
        return without_body
    body = entry.body if policy.encrypt is None else policy.encrypt.decrypt(entry.body)
    echo = {name: value for name, value in decode(call.body).items() if name in _ECHOED_MEMBERS}
    try:
        stored_members = decode(body)
    except Malformed:
        if entry.source == SERVICE:
            raise
        return without_body  # a person accepted an encrypted response that cannot be read
    # A person may have accepted a response that echoes another fiscal code.
    members = {**echo, **stored_members, "fiscalCode": call.fiscal_code}
    # Use the status of the decision: a person may have accepted a response with another status.
    read = call.read(Response(status=STATUS[entry.state], headers={}, body=encode(members)), meta)
    if entry.fault == _INCOMPLETE and isinstance(read, Approved):
        return Approved(redirect_url=read.redirect_url, meta=without_body.meta)
    # The response may contradict the decision of a person, or be unreadable: then return the decision only.
    return read if isinstance(read, kind) or entry.source == SERVICE else without_body


def _wire_names(*names: str) -> frozenset[str]:
    wire = {APPROVAL_NAMES[name] for name in names}
    return frozenset(wire | {alias for alias, name in READ_ALIASES.items() if name in wire})


STATUS = {State.APPROVED: 201, State.REFUSED: 422}  # spec §3
_INCOMPLETE = "not whole"
_MASKED = {each.name: each.repr is mask for each in fields(Approved) if each.name in APPROVAL_NAMES}
_REDIRECTS = _wire_names("redirect_url")
_DECISION_MEMBERS = _wire_names(*(name for name, masked in _MASKED.items() if not masked)) | {"approved"}
_ECHOED_MEMBERS = _wire_names(*(name for name, masked in _MASKED.items() if masked)) - _REDIRECTS

"""HMAC digests of customers, orders and payloads, so that ledger keys reveal no person."""

import hmac
from collections.abc import Sequence
from json import JSONEncoder
from json.encoder import encode_basestring_ascii

from attrs import field, frozen

from loanasync._display.masking import mask
from loanasync._protocol.endpoints import Call
from loanasync._protocol.json import decode
from loanasync._text import seen_body
from loanasync.ledger.model import Subject
from loanasync.ledger.policy import LedgerPolicy

_SORTING_ENCODER = JSONEncoder(sort_keys=True)


@frozen
class Approval:
    """The shop, the customer, the scope and the order that identify an approval."""

    shop_id: str
    fiscal_code: str | None = field(repr=mask)
    scope: str = ""
    order_token: str | None = field(default=None, repr=mask)


@frozen
class Place:
    """The key of an approval's entry, the subject of the entry, and the digest of the payload."""

    key: str
    subject: Subject
    payload: str = ""


def places_of_call(call: Call, secrets: Sequence[bytes], policy: LedgerPolicy) -> tuple[Place, ...]:
    """Return the places of an approval's entry, as `places_of` does, with the digest of its payload."""
    approval = Approval(call.shop.shop_id, call.fiscal_code, call.scope, call.order_token)
    places = places_of(approval, secrets, policy)
    members = _SORTING_ENCODER.encode(decode(seen_body(call.body)))  # independent of the order of members
    return tuple(
        Place(place.key, place.subject, _digest(secret, "payload", place.key, members))
        for secret, place in zip(secrets, places, strict=True)
    )


def places_of(approval: Approval, secrets: Sequence[bytes], policy: LedgerPolicy) -> tuple[Place, ...]:
    """Return the places of an approval's entry with each key of its ledger. The present key comes first."""
    shop_id, code, order = approval.shop_id, approval.fiscal_code, approval.order_token
    parts = (shop_id, code, *scope_parts(policy, approval.scope, order))
    return tuple(
        Place(
            _digest(secret, "key", *parts),
            Subject(
                customer=_digest(secret, "customer", shop_id, code),
                order="" if order is None else _digest(secret, "order", shop_id, order),
                scope=approval.scope,
            ),
        )
        for secret in secrets
    )


def scope_parts(policy: LedgerPolicy, scope: str, order_token: str | None) -> tuple[str | None, ...]:
    """Return what distinguishes the approvals of one customer."""
    return (scope, order_token) if policy.scope == "order_token" else (scope,)


def _digest(secret: bytes, *parts: str | None) -> str:
    # Equal to `json.dumps(parts)`, and faster.
    text = ", ".join(["null" if part is None else encode_basestring_ascii(part) for part in parts])
    return hmac.digest(secret, f"[{text}]".encode(), "sha256").hex()

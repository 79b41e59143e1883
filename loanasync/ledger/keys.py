"""HMAC digests of customers, orders and payloads, and the search for entries by these digests."""

import hmac
from collections.abc import Sequence
from json import JSONEncoder
from json.encoder import encode_basestring_ascii
from typing import Literal, TypeAlias

from attrs import field, frozen

from loanasync._models.characters import seen_body
from loanasync._models.masking import mask
from loanasync._protocol.endpoints import Call
from loanasync._protocol.json import decode
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import Entry, State, Subject

NotFound: TypeAlias = Literal["missing", "ambiguous"]

_SORTING_ENCODER = JSONEncoder(sort_keys=True)


@frozen
class Approval:
    """The shop, the customer and the order that identify an approval, or the token of its order."""

    shop_id: str
    fiscal_code: str | None = field(repr=mask)
    order_id: str = ""
    order_token: str | None = field(default=None, repr=mask)


@frozen
class Place:
    """The key of an approval's entry, the subject of the entry, and the digest of the payload."""

    key: str
    subject: Subject
    payload: str = ""


def places_of_call(call: Call, secrets: Sequence[bytes]) -> tuple[Place, ...]:
    """Return the places of an approval's entry, as `places_of` does, with the digest of its payload."""
    approval = Approval(call.shop.shop_id, call.fiscal_code, call.order_id, call.order_token)
    places = places_of(approval, secrets)
    members = _SORTING_ENCODER.encode(decode(seen_body(call.body)))  # independent of the order of members
    return tuple(
        Place(place.key, place.subject, _digest(secret, "payload", place.key, members))
        for secret, place in zip(secrets, places, strict=True)
    )


def places_of(approval: Approval, secrets: Sequence[bytes]) -> tuple[Place, ...]:
    """Return the places of an approval's entry with each key of its ledger. The present key comes first."""
    shop_id, code, token = approval.shop_id, approval.fiscal_code, approval.order_token
    return tuple(
        Place(
            _digest(secret, "key", shop_id, code, approval.order_id),
            Subject(
                customer=_digest(secret, "customer", shop_id, code),
                order=approval.order_id,
                order_token="" if token is None else _digest(secret, "order", shop_id, token),
            ),
        )
        for secret in secrets
    )


async def find_entry(ledger: Ledger, places: Sequence[Place], *, by_token: bool = False) -> Entry | NotFound:
    """Return the entry of an approval under the present key or an old one.

    If there are several entries, prefer one with a decision, then the one under the newest key. An entry that
    is released is the last choice.

    Args:
        ledger: The ledger.
        places: The places of the entry.
        by_token: Find the entry by its customer and the token of its order instead of its key. If several
            orders have this token, the entry is ambiguous.

    Returns:
        The entry, or the reason why no entry was found.

    Raises:
        Exception: The ledger cannot be used.
    """
    found: list[Entry] = []
    for place in places:
        if by_token:
            entries = await ledger.entries_of(place.subject.customer)
            found += [entry for entry in entries if entry.order_token == place.subject.order_token]
        elif (entry := await ledger.get(place.key)) is not None:
            found.append(entry)
    if not found:
        return "missing"
    if len({entry.order for entry in found}) > 1:
        return "ambiguous"
    return min(found, key=_rank)  # the first one of several with the same rank


def _rank(entry: Entry) -> int:
    return 0 if entry.state.is_decided else 2 if entry.state is State.RELEASED else 1


def _digest(secret: bytes, *parts: str | None) -> str:
    # Equal to `json.dumps(parts)`, and faster.
    text = ", ".join(["null" if part is None else encode_basestring_ascii(part) for part in parts])
    return hmac.digest(secret, f"[{text}]".encode(), "sha256").hex()

"""HMAC digests of customers, orders and payloads, so that ledger keys reveal no person."""

import hmac
from json import JSONEncoder
from json.encoder import encode_basestring_ascii

from attrs import frozen

from loanasync._config import Shop
from loanasync._protocol.endpoints import Call
from loanasync._protocol.json import decode
from loanasync.ledger.model import Subject
from loanasync.ledger.policy import LedgerPolicy

_PURPOSE = b"loanasync ledger"
_SORTING_ENCODER = JSONEncoder(sort_keys=True)


@frozen
class Place:
    """The key under which the entry of an approval is stored, and the subject of the entry."""

    key: str
    subject: Subject


@frozen
class Digests:
    """The key of an approval's entry, the digest of its payload, and its subject."""

    key: str
    payload: str
    subject: Subject


def digests_of(call: Call, policy: LedgerPolicy, scope: str) -> tuple[Digests, ...]:
    """Return the digests of an approval: first with the policy's key, then with each of its old keys.

    An approval is identified by the customer, the shop and the scope.
    """
    return tuple(_digests(secret, call, policy, scope) for secret in _secrets(call.shop, policy))


def _digests(secret: bytes, call: Call, policy: LedgerPolicy, scope: str) -> Digests:
    place = _place(secret, call.shop, call.fiscal_code, policy, scope, call.order_token)
    members = _SORTING_ENCODER.encode(decode(call.body))  # independent of the order of members
    return Digests(place.key, _digest(secret, "payload", place.key, members), place.subject)


def places_of(
    shop: Shop, fiscal_code: str, policy: LedgerPolicy, scope: str, order_token: str | None
) -> tuple[Place, ...]:
    """Return the places of an approval's entry: first with the policy's key, then with its old keys."""
    secrets = _secrets(shop, policy)
    return tuple(_place(secret, shop, fiscal_code, policy, scope, order_token) for secret in secrets)


def key_of(
    shop: Shop, fiscal_code: str, policy: LedgerPolicy, scope: str = "", order_token: str | None = None
) -> str:
    """Return the key of an approval's entry, without its payload."""
    return _place(_secret(shop, policy), shop, fiscal_code, policy, scope, order_token).key


def _place(
    secret: bytes,
    shop: Shop,
    fiscal_code: str | None,
    policy: LedgerPolicy,
    scope: str,
    order_token: str | None,
) -> Place:
    names = shop.base_url, shop.shop_id
    key = _digest(secret, "key", *names, fiscal_code, *_scope(policy, scope, order_token))
    customer = _digest(secret, "customer", *names, fiscal_code)
    order = "" if order_token is None else _digest(secret, "order", *names, order_token)
    return Place(key, Subject(customer=customer, order=order, scope=scope))


def _secrets(shop: Shop, policy: LedgerPolicy) -> tuple[bytes, ...]:
    old = (_from_token(each) if isinstance(each, str) else each for each in policy.old_keys)
    return (_secret(shop, policy), *old)


def _secret(shop: Shop, policy: LedgerPolicy) -> bytes:
    return policy.key or _from_token(shop.auth_token)


def _from_token(token: str) -> bytes:
    return hmac.digest(token.encode(), _PURPOSE, "sha256")


def _scope(policy: LedgerPolicy, scope: str, order_token: str | None) -> tuple[str | None, ...]:
    return (scope, order_token) if policy.scope == "order_token" else (scope,)


def _digest(secret: bytes, *parts: str | None) -> str:
    # Equal to `json.dumps(parts)`, and faster.
    text = ", ".join(["null" if part is None else encode_basestring_ascii(part) for part in parts])
    return hmac.digest(secret, f"[{text}]".encode(), "sha256").hex()

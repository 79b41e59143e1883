"""HMAC digests of customers, orders and payloads, so that ledger keys reveal no person."""

import hmac
import json

from attrs import frozen

from loanasync._config import Shop
from loanasync._protocol.endpoints import Call
from loanasync._protocol.json import decode
from loanasync.ledger.model import Subject
from loanasync.ledger.policy import LedgerPolicy

_PURPOSE = b"loanasync ledger"


@frozen
class Digests:
    """The key of an approval's entry, the digest of its payload, and its subject."""

    key: str
    payload: str
    subject: Subject


def digests_of(call: Call, policy: LedgerPolicy, scope: str) -> tuple[Digests, ...]:
    """Return the digests of an approval: first with the policy's key, then with each of its old keys.

    An approval is identified by the customer, the shop, the environment and the scope.
    """
    old = (_from_token(each) if isinstance(each, str) else each for each in policy.old_keys)
    return tuple(_digests(secret, call, policy, scope) for secret in (_secret(call.shop, policy), *old))


def _digests(secret: bytes, call: Call, policy: LedgerPolicy, scope: str) -> Digests:
    names = _names(call.shop, call.fiscal_code, policy)
    order = "" if call.order_token is None else _digest(secret, "order", *names[1:4], call.order_token)
    key = _digest(secret, *names, *_scope(policy, scope, call.order_token))
    members = json.dumps(decode(call.body), sort_keys=True)  # independent of the order of members
    subject = Subject(customer=_digest(secret, "customer", *names[1:]), order=order, scope=scope)
    return Digests(key, _digest(secret, "payload", key, members), subject)


def key_of(
    shop: Shop, fiscal_code: str, policy: LedgerPolicy, scope: str = "", order_token: str | None = None
) -> str:
    """Return the key of an approval's entry, without its payload."""
    names = _names(shop, fiscal_code, policy)
    return _digest(_secret(shop, policy), *names, *_scope(policy, scope, order_token))


def _secret(shop: Shop, policy: LedgerPolicy) -> bytes:
    return policy.key or _from_token(shop.headers["X-Auth-Token"])


def _from_token(token: str) -> bytes:
    return hmac.digest(token.encode(), _PURPOSE, "sha256")


def _names(shop: Shop, fiscal_code: str | None, policy: LedgerPolicy) -> tuple[str | None, ...]:
    return "key", policy.environment, shop.base_url, shop.shop_id, fiscal_code


def _scope(policy: LedgerPolicy, scope: str, order_token: str | None) -> tuple[str | None, ...]:
    return (scope, order_token) if policy.scope == "order_token" else (scope,)


def _digest(secret: bytes, *parts: str | None) -> str:
    return hmac.digest(secret, json.dumps(parts).encode(), "sha256").hex()

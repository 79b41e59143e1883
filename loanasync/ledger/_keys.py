"""What stands in a ledger for a person and for what was asked: digests, which need a secret."""

import hmac
import json

from attrs import frozen

from loanasync._calls import Call
from loanasync._configuration import Shop
from loanasync._json import decode
from loanasync.ledger._policy import LedgerPolicy

__all__ = ["Digests", "digests_of", "key_of"]

_FOR = b"loanasync ledger"


@frozen
class Digests:
    """Which approval, and what is asked."""

    key: str
    payload: str


def digests_of(call: Call, policy: LedgerPolicy, scope: str) -> Digests:
    """The digests of an approval: of one customer of one shop in one environment, and what the shop adds."""
    # The secret is made and used here, and stands in no frame that a traceback could show.
    secret = _secret(call.shop, policy)
    key = _digest(secret, *_names(call.shop, call.fiscal_code, policy, scope))
    members = json.dumps(decode(call.body), sort_keys=True)  # in whatever order they are sent
    return Digests(key, _digest(secret, "payload", key, members))


def key_of(shop: Shop, fiscal_code: str, policy: LedgerPolicy, scope: str = "") -> str:
    """The key alone, for who looks for an approval and does not know what was asked."""
    return _digest(_secret(shop, policy), *_names(shop, fiscal_code, policy, scope))


def _secret(shop: Shop, policy: LedgerPolicy) -> bytes:
    return policy.key or hmac.digest(shop.headers["X-Auth-Token"].encode(), _FOR, "sha256")


def _names(shop: Shop, fiscal_code: str | None, policy: LedgerPolicy, scope: str) -> tuple[str | None, ...]:
    return "key", policy.environment, shop.base_url, shop.shop_id, fiscal_code, scope


def _digest(secret: bytes, *parts: str | None) -> str:
    return hmac.digest(secret, json.dumps(parts).encode(), "sha256").hex()

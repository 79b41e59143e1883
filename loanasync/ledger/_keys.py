"""What stands in a ledger for a person and for what was asked: digests, which need a secret."""

import hmac
import json

from loanasync._calls import Call
from loanasync._json import decode

__all__ = ["key_of", "payload_of", "secret_of"]


def secret_of(call: Call, given: bytes | None) -> bytes:
    """The secret of a shop's digests: its own, or one that is made from its token."""
    if given is not None:
        return given
    return hmac.digest(call.shop.headers["X-Auth-Token"].encode(), b"loanasync ledger", "sha256")


def key_of(secret: bytes, environment: str, call: Call, scope: str) -> str:
    """Which approval: the same customer of the same shop in the same environment, and what the shop adds."""
    parts = ["key", environment, call.shop.base_url, call.shop.shop_id, call.fiscal_code, scope]
    return hmac.digest(secret, json.dumps(parts).encode(), "sha256").hex()


def payload_of(secret: bytes, key: str, call: Call) -> str:
    """What is asked: the members of the request, in whatever order they are sent."""
    members = json.dumps(decode(call.body), sort_keys=True)
    return hmac.digest(secret, json.dumps(["payload", key, members]).encode(), "sha256").hex()

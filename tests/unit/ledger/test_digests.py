"""The digests of entries, on which the entries in existing ledgers depend."""

import hashlib
import hmac
import json

import pytest

from loanasync.testing import approved
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import Shop

KEY = b"0123456789abcdef"


def digest(*parts: str) -> str:
    return hmac.new(KEY, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("order_id", ["", "spring", 'è "\\\U0001f600'])
async def test_entry_key_is_an_hmac_of_its_parts_as_json(order_id: str) -> None:
    known = await Shop(key=KEY).client.known(FISCAL_CODE, order_id=order_id)
    assert known.entry == digest("key", "test-shop", FISCAL_CODE, order_id)


async def test_customer_and_order_are_hmacs_of_the_shop_and_their_names() -> None:
    shop = Shop(approved(), key=KEY)
    await shop.approve(request=approval_request(order_token="A1"), order_id="A-1001")
    entry = await shop.entry()
    assert entry.customer == digest("customer", "test-shop", FISCAL_CODE)
    assert (entry.order, entry.order_token) == ("A-1001", digest("order", "test-shop", "A1"))


async def test_payload_is_an_hmac_of_the_sorted_members_as_json() -> None:
    shop = Shop(approved(), key=KEY)
    await shop.approve(request=approval_request(last_name='È "', extra={"a": {"z": 1, "b": [1.5, None]}}))
    (entry,) = await shop.entries()
    members = dict(shop.script.sent[0].body)
    assert entry.payload == digest("payload", entry.key, json.dumps(members, sort_keys=True))

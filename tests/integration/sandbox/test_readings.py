"""Other readings of the specification: the switches of the sandbox."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.engine import Call, Delivery
from support.raw_shop import BODY, CODE, Raw
from support.sandbox_pages import get

ALREADY = (400, {"errors": {"domain": ["User already evaluated for approval"]}})
USER_DATA = {
    "documentCode": "X1",
    "documentIssueDate": "2020-01-31",
    "profession": "baker",
    "marketing": True,
}


class Shop:
    """A shop that uses the engine of a sandbox without HTTP."""

    def __init__(self, **switches: Any) -> None:
        self.engine = Sandbox(**switches)._engine

    def processed(self, operation: str, body: dict[str, Any], code: str = CODE) -> Delivery:
        call = Call(operation, code, body)
        delivery = self.engine.plan(call) or self.engine.process(call)
        self.engine.record(call, delivery, 0.0)
        return delivery

    def __call__(self, operation: str, body: dict[str, Any], code: str = CODE) -> tuple[int, Any]:
        response = self.processed(operation, body, code).response
        return response.status, response.body

    def create(self, code: str = CODE) -> tuple[int, Any]:
        return self("create_request", {"fiscalCode": code}, code)

    def approve(self, tag: str = "", code: str = CODE, **changes: Any) -> tuple[int, Any]:
        email = f"anna+{tag}@example.com" if tag else "anna@example.com"
        return self("approve", {**BODY, "email": email, **changes}, code)

    def complete(self, **changes: Any) -> tuple[int, Any]:
        return self("complete", {**USER_DATA, **changes})

    def created(self, code: str = CODE) -> "Shop":
        self.create(code)
        self("upload_documents", {}, code)
        return self

    @property
    def findings(self) -> list[str]:
        return [each.rule for each in self.engine.linter.findings]


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Raw]:
    async with Sandbox(**options) as sandbox, aiohttp.ClientSession() as session:
        yield Raw(sandbox, session)


@pytest.mark.parametrize("status", [422, 201])
async def test_refusal_switch_sets_the_status_only(status: Any) -> None:
    async with serving(refusal=status) as raw:
        await raw.create()
        found, body = await raw.approve(email="a+refused@example.com")
        assert (found, body["approved"], "redirectUrl" in body) == (status, False, False)
        await raw.approve()
        assert [each.rule for each in raw.sandbox.findings] == ["post-after-422"]
        page = (await get(raw, "/_sandbox/"))[1]
        assert '<td class="refused">refused</td>' in page


@pytest.mark.parametrize("status", [400, 422])
def test_validation_switch_sets_the_status_of_field_errors(status: Any) -> None:
    shop = Shop(validation=status)
    rejected = [shop("create_request", {"fiscalCode": CODE, "privacy": False})]
    shop.create()
    rejected += [shop.complete(), shop.approve(amount=1), shop.approve("invalid.city"), shop.approve("x")]
    shop("upload_documents", {})
    rejected += [shop.complete(documentIssueDate="soon")]
    assert [(found, [*body]) for found, body in rejected] == [(status, ["errors"])] * 6
    assert shop.approve("nouser")[0] == 400, "a domain error keeps its status"
    assert shop.approve()[0] == 201, "it was no refusal"
    unclear = ["repeat-after-unclear-response"] if status == 422 else []
    assert shop.findings == ["patch-before-documents", *unclear * 2]


def test_evaluates_switch_evaluates_each_customer_or_each_order_once() -> None:
    shop = Shop(evaluates="customer").created()
    assert shop.approve(orderToken="one")[0] == 201
    assert shop.approve(orderToken="two") == shop.create() == ALREADY
    assert shop.findings == ["post-after-201"]
    shop = Shop(evaluates="order").created()
    assert shop.approve(orderToken="one")[0] == 201
    assert shop.approve("refused", orderToken="two")[0] == 422
    assert shop.create()[0] == 201
    assert shop.approve()[0] == 201, "a missing token is one value"
    assert shop.findings == []
    for changes in ({"orderToken": "one"}, {"orderToken": "two"}, {}):
        assert shop.approve(**changes) == ALREADY
    assert shop.findings == ["post-after-201", "post-after-422", "post-after-201"]


def test_order_reading_separates_concurrent_orders() -> None:
    shop = Shop(evaluates="order").created()
    calls = [Call("approve", CODE, {**BODY, "orderToken": token}) for token in ("one", "two")]
    for call in calls:
        assert shop.engine.plan(call) is None
    assert [shop.engine.process(call).response.status for call in calls] == [201, 201]
    shop.engine.client_disconnected(calls[0])
    assert shop.approve(orderToken="one") == shop.approve(orderToken="two") == ALREADY
    assert shop.findings == ["repeat-after-lost-response", "post-after-201"]


async def test_order_reading_keeps_the_page_of_each_order(tmp_path: Path) -> None:
    pages = []
    async with serving(evaluates="order", state=tmp_path / "shop.sqlite") as raw:
        await raw.create()
        for token, amount in (("one", 45_000), ("two", 95_000)):
            _, body = await raw.approve(orderToken=token, amount=amount)
            pages.append("/apply/" + body["redirectUrl"].partition("#")[0].rpartition("/")[2])
        async with raw.session.post(raw.sandbox.base_url + pages[0], data={"action": "accept"}) as done:
            assert done.status == 200
    async with serving(evaluates="order", state=tmp_path / "shop.sqlite") as raw:
        texts = [(await get(raw, page))[1] for page in pages]
        assert ["Application accepted" in text for text in texts] == [True, False]
        assert ["450.00 euro" in text for text in texts] == [True, False]
        for token in ("one", "two"):
            assert await raw.approve(orderToken=token) == ALREADY

"""The example shops on each framework, against a sandbox."""

import asyncio
import json
import logging
import re
import stat
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from attrs import evolve
from checkout import Shop
from settle_orders import main, settle_orders, state_outcome
from shop_orders import Orders

from loanasync import (
    ClientClosedError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanClient,
    RetryPolicy,
)
from loanasync.ledger import SqliteLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import scripted_client
from support.example_shops import CODE, DATA, EXAMPLES, FORM, OTHER_CUSTOMER, SHOPS, shopper, tagged

PAGE = EXAMPLES.parent / "howto" / "web.md"


@pytest.fixture
async def client(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[LoanClient]:
    async with SqliteLedger(tmp_path / "decisions.db") as ledger:
        yield sandbox.client(ledger=ledger, retry=RetryPolicy(base=0.001))


@pytest.fixture
async def shop(client: LoanClient, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """One of the shops, for what does not depend on the framework."""
    async with shopper("fastapi", client, tmp_path) as browser:
        yield browser


def calls(sandbox: Sandbox) -> list[str]:
    return [call.operation for call in sandbox.journal]


@pytest.mark.parametrize("name", SHOPS)
async def test_shop_walk_from_cart_to_completed_data(
    name: str, client: LoanClient, sandbox: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in ("httpx", "httpcore"):
        logging.getLogger(logger).setLevel(logging.WARNING)  # the test's own HTTP client
    async with shopper(name, client, tmp_path) as shop:
        cart = await shop.get("/")
        assert "Total: 450.00 euro" in cart.text
        assert "no-store" in cart.headers["Cache-Control"]
        assert {"HttpOnly", "SameSite=Lax"} <= set(cart.headers["Set-Cookie"].split("; "))
        invalid = {"fiscal_code": "short", "province": "roma", "city": "", "instalments": "1" * 5000}
        page = await shop.post("/pay", data=FORM | invalid | {"address": '"><script>alert(1)</script>'})
        assert page.status_code == 422
        assert all(page.text.count(f'id="{each}-problem"') == 1 for each in invalid)
        assert 'value="roma"' in page.text
        assert "<script>" not in page.text
        assert calls(sandbox) == []
        clicks = await asyncio.gather(*(shop.post("/pay", data=tagged("slow50")) for _ in range(3)))
        [url] = {each.headers["Location"] for each in clicks}
        assert url.startswith(f"{sandbox.base_url}/apply/")
        for path in ("/", "/order"):
            assert "Your loan is approved." in (await shop.get(path, follow_redirects=True)).text
        saved = await shop.post("/complete", data=DATA)
        assert (saved.status_code, saved.headers["Location"]) == (303, "/order")
        assert "Your order is complete." in (await shop.get("/order")).text
        assert [(await shop.get(path)).status_code for path in ("/pay", "/complete")] == [405, 405]
        health = await shop.get("/health")
        assert (health.status_code, health.text, "Set-Cookie" in health.headers) == (200, "ready", False)
        assert set(calls(sandbox)) == {"create_request", "approve", "upload_documents", "complete"}
        sandbox.journal.assert_once(operation="approve", fiscal_code=CODE, body={"amount": 45_000})
        sandbox.journal.assert_once(operation="complete", body={"marketing": True, "usPerson": False})
        assert not [each for each in sandbox.findings if each.rule != "post-after-201"]
        typed = (CODE, FORM["fiscal_code"], "Anna", "anna@", "Prova", "AA00000AA")
        assert [secret for secret in (url.rpartition("/")[2], *typed) if secret in caplog.text] == []
        for cookie in ("", "order=", "order=guessed"):
            shop.cookies.clear()
            assert (await shop.get("/order", headers={"Cookie": cookie})).headers["Location"] == "/"
    with pytest.raises(ClientClosedError):  # when the application stops
        await client.create_request({"fiscalCode": CODE})


async def test_form_shows_additional_fields_if_service_requires_them(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    sandbox.fault("create_request=additional")
    assert "residence" not in (await shop.get("/")).text
    response = await shop.post("/pay", data=FORM)
    assert response.status_code == 422
    assert 'name="residence"' in response.text
    assert 'id="salary-problem"' in response.text
    more = {"residence": "rent", "residence_start_date": "05/2019", "educational_qualification": "diploma"}
    more |= {"children": "2", "salary_type": "net-monthly", "salary": "1.600,00"}
    assert (await shop.post("/pay", data={**FORM, **more})).status_code == 303
    sent = {"residenceStartDate": "05/2019", "salary": 1_600}
    sandbox.journal.assert_once(operation="approve", body=sent)


@pytest.mark.parametrize(
    ("path", "changes", "field"),
    [
        ("/pay", tagged("invalid.city"), "city"),
        ("/pay", tagged("nouser"), "fiscal_code"),
        ("/complete", {"document_code": ""}, "document_code"),
        ("/complete", {"document_issue_date": "yesterday"}, "document_issue_date"),
    ],
)
async def test_problem_is_shown_at_its_field_and_can_be_corrected(
    shop: httpx.AsyncClient, path: str, changes: dict[str, str], field: str
) -> None:
    forms = {"/pay": OTHER_CUSTOMER, "/complete": DATA}
    if path == "/complete":
        await shop.post("/pay", data=FORM)
    response = await shop.post(path, data=forms[path] | FORM | changes)
    assert response.status_code == 422
    assert f'id="{field}-problem"' in response.text
    assert (await shop.post(path, data=forms[path])).status_code == 303


@pytest.mark.parametrize(
    ("operation", "fault", "is_completed"),
    [
        ("create_request", "html502after", False),
        ("upload_documents", "html502after", False),
        ("complete", "html502after", False),
        ("complete", "truncafter", True),  # saved, only the response is unreadable
    ],
)
async def test_failed_call_other_than_the_approval_can_be_repeated(
    shop: httpx.AsyncClient, sandbox: Sandbox, *, operation: str, fault: str, is_completed: bool
) -> None:
    async def pay_and_complete() -> list[httpx.Response]:
        return [await shop.post("/pay", data=FORM), await shop.post("/complete", data=DATA)]

    sandbox.fault(f"{operation}={fault}")
    texts = "".join([page.text for page in await pay_and_complete()])
    for text in ("Please try again in a few minutes.", "also pay by card", "<button>Try again</button>"):
        assert (text in texts) is not is_completed
    sandbox.clear_faults()
    assert [page.status_code for page in await pay_and_complete()] == [303, 303]
    assert "Your order is complete." in (await shop.get("/order")).text
    steps = ["create_request", "approve", "upload_documents", "complete"]
    assert sorted(calls(sandbox)) == sorted([*steps, operation])


async def test_shop_can_be_tried_again_with_each_address_of_the_page(shop: httpx.AsyncClient) -> None:
    """The sandbox evaluates a customer once, so each order has another one."""
    addresses = re.findall(r"^- `(anna\+.+)`: ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(addresses) == 3
    shown = []
    for address in [*addresses, *addresses]:
        form = dict(re.findall(r'name="(\w+)" type="\w+" value="([^"]*)"', (await shop.get("/")).text))
        form |= {"email": address, "citizenship": "italian", "instalments": "12"}
        page = await shop.post("/pay", data=form, follow_redirects=True)
        if page.status_code == 422:
            form["email"] = "anna@example.com"
            page = await shop.post("/pay", data=form)
            assert page.status_code == 303
        else:
            assert "<button>New order</button>" in page.text
        shown.append(page.status_code)
        assert (await shop.post("/new")).headers["Location"] == "/"
    assert shown == [200, 303, 202] * 2


async def test_order_is_known_to_all_workers_and_private(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    worker, other_worker = Orders(file), Orders(file)
    order = await worker.add(45_000)
    [other] = await other_worker.where("cookie = ?", order.cookie)
    held, approved = ("held", "{}"), ("approved", json.dumps({"code": CODE}))
    assert [await each.change(("free", ""), held) for each in (order, other)] == [True, False]
    assert not await evolve(other, amount=450_000).change(held, approved)
    assert await other.change(held, approved)
    assert (await order.loan(), await order.customer(), order.number) == (approved, CODE, "A-1")
    assert (await worker.add(45_000)).number == "A-2"
    assert await worker.where("cookie = ?", "guessed") == await worker.where("cookie = ?", None) == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(("outcome", "shown"), [("approved", "/order"), ("not_evaluated", "/")])
async def test_outcome_that_the_staff_state_reaches_the_order_from_cron(
    client: LoanClient,
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    outcome: Any,
    shown: str,
) -> None:
    async with shopper("fastapi", client, tmp_path) as browser:
        await browser.post("/pay", data=tagged("resetafter"))
        orders = Orders(tmp_path / "orders.db")
        [found] = await settle_orders(client, orders)
        [order] = await orders.where("loan_state = 'held'")
        assert (found.order, found.customer) == (order, CODE)
        assert found.entry == json.loads((await order.loan())[1])["entry"]
        assert found.text == f"Ask the service for its decision. Entry in the ledger: {found.entry}"
        assert CODE not in repr(found)
        later = time.time() + 600  # no click can still begin an approval
        monkeypatch.setattr("loanasync.checkout.time.time", lambda: later)
        page = await state_outcome(client, order, found.entry, outcome, "ticket 7")
        assert page is None or outcome == "approved"
        assert await settle_orders(client, orders) == []
        start = await browser.get("/", follow_redirects=True)
        assert (start.url.path, "<form" in start.text) == (shown, True)
    sandbox.journal.assert_once(operation="approve")


async def test_cron_reports_a_ledger_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = scripted_client(ledger=SqliteLedger("/nowhere/decisions.db"))
    monkeypatch.setattr("settle_orders.open_client", lambda: away)
    with pytest.raises(LedgerUnavailableError):
        await main()


@pytest.mark.parametrize("name", ["fastapi", "django"])
async def test_shop_does_not_start_with_a_wrong_ledger(name: str, tmp_path: Path) -> None:
    ledger, sent = SqliteLedger(tmp_path / "missing.db", must_exist=True), []
    client = LoanClient("http://localhost", shop_id="shop", auth_token="token", ledger=ledger)
    app = import_module(f"shop_{name}").app(Shop(client, tmp_path / "orders.db"))

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with suppress(LedgerMismatchError):
        await app({"type": "lifespan"}, AsyncMock(return_value={"type": "lifespan.startup"}), send)
    assert [each["type"] for each in sent] == ["lifespan.startup.failed"]
    assert "missing.db" in sent[0]["message"]

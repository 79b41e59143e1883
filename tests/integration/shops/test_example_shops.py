"""The example shops in process, against a sandbox."""

import asyncio
import logging
import re
import stat
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkout import PageResponse, Shop, open_client
from shop_orders import Order, Orders

from loanasync import ClientClosedError, LoanClient, RetryPolicy, Timeout
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, DATA, FORM, SHOPS, shopper

OTHER_CUSTOMER = {**FORM, "fiscal_code": "TSTXYZ00A00A000B"}


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    async with SqliteLedger(tmp_path / "decisions.db") as opened:
        yield opened


@pytest.fixture
def service(sandbox: Sandbox, ledger: SqliteLedger) -> LoanClient:
    return sandbox.client(ledger=ledger, retry=RetryPolicy(base=0.001))


@pytest.fixture(params=SHOPS)
async def shop(request: pytest.FixtureRequest, service: LoanClient) -> AsyncIterator[httpx.AsyncClient]:
    async with shopper(request.param, service) as browser:
        assert (await browser.get("/")).status_code == 200
        yield browser


@pytest.fixture
async def one_shop(service: LoanClient) -> AsyncIterator[httpx.AsyncClient]:
    """One of the shops, for what does not depend on the framework."""
    async with shopper("fastapi", service) as browser:
        assert (await browser.get("/")).status_code == 200
        yield browser


def calls(sandbox: Sandbox) -> list[str]:
    return [call.operation for call in sandbox.journal]


def tagged(tag: str) -> dict[str, str]:
    return {**FORM, "email": f"anna+{tag}@example.com"}


async def test_shop_walk_from_cart_to_completed_data(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    cart = await shop.get("/")
    assert "Total: 450.00 euro" in cart.text
    assert "no-store" in cart.headers["Cache-Control"]
    paid = await shop.post("/pay", data=FORM)
    assert paid.status_code == 303
    assert paid.headers["Location"].startswith(f"{sandbox.base_url}/apply/")
    for page in ("/", "/order"):
        shown = await shop.get(page, follow_redirects=True)
        assert "Your loan is approved." in shown.text
    saved = await shop.post("/complete", data=DATA)
    assert (saved.status_code, saved.headers["Location"]) == (303, "/order")
    assert "Your order is complete." in (await shop.get("/order")).text
    assert calls(sandbox) == ["create_request", "approve", "upload_documents", "complete"]
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE, body={"amount": 45_000})
    sandbox.journal.assert_once(operation="complete", body={"marketing": True, "usPerson": False})
    assert sandbox.findings == []


async def test_invalid_fields_are_shown_and_nothing_is_sent(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    form = {**FORM, "fiscal_code": "short", "province": "roma", "city": "", "instalments": "1" * 5000}
    response = await shop.post("/pay", data={**form, "address": '"><script>alert(1)</script>'})
    assert response.status_code == 422
    for name in ("fiscal_code", "province", "city", "instalments"):
        assert response.text.count(f'id="{name}-problem"') == 1
    assert "two capital letters" in response.text
    assert 'value="roma"' in response.text
    assert "<script>" not in response.text
    assert calls(sandbox) == []
    assert (await shop.post("/pay", data=FORM)).status_code == 303


async def test_fields_rejected_by_the_service_are_shown(
    one_shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    response = await one_shop.post("/pay", data=tagged("invalid.city"))
    assert response.status_code == 422
    assert 'id="city-problem"' in response.text
    corrected = {**tagged("invalid.documentCity"), "fiscal_code": OTHER_CUSTOMER["fiscal_code"]}
    assert (await one_shop.post("/pay", data=corrected)).status_code == 303
    saved = await one_shop.post("/complete", data=DATA)
    assert saved.status_code == 422
    assert 'id="document_city-problem"' in saved.text
    assert calls(sandbox)[-2:] == ["upload_documents", "complete"]


async def test_unknown_fiscal_code_is_shown_at_its_field(
    one_shop: httpx.AsyncClient,
) -> None:
    response = await one_shop.post("/pay", data=tagged("nouser"))
    assert response.status_code == 422
    assert 'id="fiscal_code-problem"' in response.text
    assert (await one_shop.post("/pay", data=OTHER_CUSTOMER)).status_code == 303


async def test_invalid_document_fields_are_shown_and_nothing_is_sent(
    one_shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    await one_shop.post("/pay", data=FORM)
    form = {**DATA, "document_code": "", "document_issue_date": "yesterday"}
    response = await one_shop.post("/complete", data=form)
    assert response.status_code == 422
    assert 'id="document_code-problem"' in response.text
    assert 'id="document_issue_date-problem"' in response.text
    assert calls(sandbox) == ["create_request", "approve"]


async def test_form_shows_additional_fields_if_service_requires_them(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    sandbox.on("create_request").respond(201, {"additionalDataNeeded": True}, phase="after")
    assert "residence" not in (await shop.get("/")).text
    response = await shop.post("/pay", data=FORM)
    assert response.status_code == 422
    assert 'name="residence"' in response.text
    assert 'id="salary-problem"' in response.text
    more = {"residence": "rent", "residence_start_date": "05/2019", "educational_qualification": "diploma"}
    more |= {"children": "2", "salary_type": "net-monthly", "salary": "1.600,00"}
    assert (await shop.post("/pay", data={**FORM, **more})).status_code == 303
    call = sandbox.journal.assert_once(operation="approve")
    assert (call.request or {})["residenceStartDate"] == "05/2019"
    assert (call.request or {})["salary"] == 1_600


async def test_refusal_is_shown_and_sends_no_second_approval(
    one_shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    for form in (tagged("refused"), tagged("refused"), FORM):
        response = await one_shop.post("/pay", data=form, follow_redirects=True)
        assert "This decision is final" in response.text
    assert (await one_shop.post("/complete", data=DATA, follow_redirects=True)).status_code == 200
    assert calls(sandbox) == ["create_request", "approve"]


@pytest.mark.parametrize("tag", ["noshop", "forbidden"])
async def test_denied_shop_offers_other_payment_methods(one_shop: httpx.AsyncClient, tag: str) -> None:
    response = await one_shop.post("/pay", data=tagged(tag))
    assert response.status_code == 503
    assert "payment in instalments is not available" in response.text


@pytest.mark.parametrize("tag", ["resetafter", "500after", "garbage", "conflict"])
async def test_unknown_outcome_is_shown_and_not_requested_again(
    one_shop: httpx.AsyncClient, sandbox: Sandbox, tag: str
) -> None:
    first = await one_shop.post("/pay", data=tagged(tag))
    sent = calls(sandbox).count("approve")
    again = await one_shop.post("/pay", data=tagged(tag))
    heading = "already been decided" if tag == "500after" else "We have not received the decision"
    for response in (first, again):
        assert response.status_code == 202
        assert heading in response.text
        assert "<button>" not in response.text
    assert calls(sandbox).count("approve") == sent
    assert not [each for each in sandbox.findings if each.rule != "post-after-201"]


async def test_request_of_another_worker_is_shown_as_in_progress(sandbox: Sandbox, tmp_path: Path) -> None:
    file, go = tmp_path / "decisions.db", asyncio.Event()
    policy = LedgerPolicy(key=b"the same for all workers", wait=0, patience=600.0)

    class BusyLedger(SqliteLedger):
        async def settle(self, key: str, **options: Any) -> Entry:
            await go.wait()
            return await super().settle(key, **options)

    async with (
        BusyLedger(file) as busy_ledger,
        SqliteLedger(file) as ledger,
        shopper("fastapi", sandbox.client(ledger=busy_ledger, ledger_policy=policy)) as busy,
        shopper("fastapi", sandbox.client(ledger=ledger, ledger_policy=policy)) as other,
    ):
        first = asyncio.create_task(busy.post("/pay", data=FORM))
        await sandbox.journal.wait_for(2, timeout=60)
        page = await other.post("/pay", data=FORM)
        assert page.status_code == 202
        assert "still being decided" in page.text
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text))
        assert hidden == FORM
        other_data = await other.post("/pay", data={**FORM, "instalments": "24"})
        assert (other_data.status_code, "already applied with other data" in other_data.text) == (
            409,
            True,
        )
        go.set()
        decided = await first
        again = await other.post("/pay", data=hidden)
    assert again.headers["Location"] == decided.headers["Location"]
    sandbox.journal.assert_once(operation="approve")


@pytest.mark.parametrize(
    ("tag", "status", "heading"),
    [
        ("approved", 409, "You have already applied with other data"),
        ("refused", 409, "You have already applied with other data"),
        ("resetafter", 202, "We have not received the decision"),
    ],
)
async def test_other_data_of_an_evaluated_customer_is_explained(
    one_shop: httpx.AsyncClient, sandbox: Sandbox, tag: str, status: int, heading: str
) -> None:
    first = await one_shop.post("/pay", data=tagged(tag))
    one_shop.cookies.clear()  # another browser
    other = await one_shop.post("/pay", data={**tagged(tag), "instalments": "24"})
    assert other.status_code == status
    assert f"<h1>{heading}" in other.text
    same = await one_shop.post("/pay", data=tagged(tag))
    assert same.headers.get("Location") == first.headers.get("Location")
    sandbox.journal.assert_once(operation="approve")


@pytest.mark.parametrize("operation", ["create_request", "upload_documents"])
async def test_failed_creation_or_upload_can_be_repeated(
    one_shop: httpx.AsyncClient, sandbox: Sandbox, operation: str
) -> None:
    fault = sandbox.on(operation).respond(503)  # type: ignore[arg-type]  # one of them
    responses = [await one_shop.post("/pay", data=FORM), await one_shop.post("/complete", data=DATA)]
    assert 503 in [each.status_code for each in responses]
    assert "Please try again in a few minutes." in "".join(each.text for each in responses)
    sandbox.off(fault)
    assert (await one_shop.post("/pay", data=FORM)).status_code == 303
    assert (await one_shop.post("/complete", data=DATA)).status_code == 303
    assert calls(sandbox).count("approve") == 1


async def test_uploaded_documents_are_not_sent_again(one_shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    await one_shop.post("/pay", data=FORM)
    sandbox.on("complete", call=1).respond(503)
    responses = [await one_shop.post("/complete", data=DATA) for _ in range(2)]
    assert [each.status_code for each in responses] == [503, 303]
    assert calls(sandbox)[2:] == ["upload_documents", "complete", "complete"]


async def test_double_clicks_send_one_approval(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    clicks = await asyncio.gather(*(shop.post("/pay", data=tagged("slow50")) for _ in range(3)))
    again = await shop.post("/pay", data=FORM)
    assert len({each.headers["Location"] for each in (*clicks, again)}) == 1
    assert calls(sandbox).count("approve") == 1


@pytest.mark.parametrize("has_cookie", [True, False])
async def test_double_click_without_ledger_sends_one_approval(sandbox: Sandbox, *, has_cookie: bool) -> None:
    """Without a cookie the two clicks are two orders, and only the client's memory joins them."""
    async with shopper("fastapi", sandbox.client()) as browser:
        if has_cookie:
            await browser.get("/")
        pay = partial(browser.post, "/pay", data=tagged("slow50.refused"), follow_redirects=True)
        pages = [*await asyncio.gather(pay(), pay()), await pay()]
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)
    assert [page.status_code for page in pages] == [200] * 3
    assert all("This decision is final" in page.text for page in pages)


@pytest.mark.parametrize(("tag", "page"), [("approved", "/apply/"), ("refused", "/order")])
async def test_decision_is_known_in_another_browser(sandbox: Sandbox, tag: str, page: str) -> None:
    """The second `create_request` fails, because the customer was evaluated before."""
    async with shopper("fastapi", sandbox.client(ledger=MemoryLedger())) as browser:
        first = await browser.post("/pay", data=tagged(tag))
        browser.cookies.clear()
        second = await browser.post("/pay", data=tagged(tag))
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)
    assert page in first.headers["Location"]
    assert second.headers["Location"] == first.headers["Location"]


async def test_unreadable_response_to_saved_data_completes_the_order(
    one_shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    await one_shop.post("/pay", data=FORM)
    sandbox.on("complete").respond("trunc", phase="after")
    await one_shop.post("/complete", data=DATA)
    assert "Your order is complete." in (await one_shop.get("/order")).text
    assert calls(sandbox).count("complete") == 1


async def test_get_requests_to_form_routes_are_rejected(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    for page in ("/pay", "/complete"):
        assert (await shop.get(page)).status_code == 405
    assert calls(sandbox) == []


async def test_pages_wait_at_most_twenty_seconds(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read the limits of the requests: waiting for them would take 20 seconds."""
    limits: dict[str, float] = {}

    class LimitedClient(LoanClient):
        async def _start(self, call: Any, timeout: Timeout | None, *rest: Any, **options: Any) -> Any:
            limits[call.endpoint.operation] = (timeout or self.timeout).total
            return await super()._start(call, timeout, *rest, **options)

    monkeypatch.setattr("checkout.LoanClient", LimitedClient)
    for name, value in (("BASE_URL", sandbox.base_url), ("SHOP_ID", sandbox.shop_id)):
        monkeypatch.setenv(f"LOANASYNC_{name}", value)
    monkeypatch.setenv("LOANASYNC_AUTH_TOKEN", sandbox.auth_token)
    monkeypatch.chdir(tmp_path)
    async with shopper("fastapi", open_client()) as browser:
        await browser.post("/pay", data=FORM)
        await browser.post("/complete", data=DATA)
    assert limits.keys() == {"create_request", "approve", "upload_documents", "complete"}
    assert limits["create_request"] + limits["approve"] == 20
    assert limits["upload_documents"] + limits["complete"] == 20
    assert (tmp_path / "decisions.db").exists()


async def test_order_is_known_to_all_workers_private_and_never_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    worker, other_worker = Orders(file), Orders(file)
    order = await worker.add()
    other = await other_worker.get(order.number)
    assert other is not None
    assert [await each.hold(CODE) for each in (order, other)] == [1, 2]
    await order.release()  # the first click failed; the second one may evaluate the customer
    assert await order.hold(OTHER_CUSTOMER["fiscal_code"]) == 0
    await order.save("c0ffee", None)
    for decision in ({"approved": True}, {"approved": False}, None):
        await order.save("c0ffee", decision)
    await order.save_completion()
    row = await other.row()
    assert (await other.decision(), row["entry"], row["fiscal_code"]) == ({"approved": True}, "c0ffee", CODE)
    assert (row["holds"], row["has_documents"], row["is_completed"]) == (1, 0, 1)
    assert await other_worker.get("guessed") is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


class TwoWorkers:
    """Two workers with one file of orders.

    The fast worker handles a click while the slow worker creates its request.
    """

    def __init__(self, slow: LoanClient, fast: LoanClient, file: Path) -> None:
        self.client = slow
        self.orders = Orders(file)
        self._slow, self._fast = Shop(slow, file), Shop(fast, file)

    async def pay(
        self, form: dict[str, str], fast_form: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Order, PageResponse, PageResponse]:
        """Return the order, and the response of the slow and of the fast worker."""
        fast: list[PageResponse] = []
        order = await self.orders.add()
        create_request = self.client.create_request

        async def create_slowly(*values: Any, **options: Any) -> Any:
            click = asyncio.create_task(self._fast.respond("/pay", order.number, fast_form))
            fast.append(await click)
            return await create_request(*values, **options)

        monkeypatch.setattr(self.client, "create_request", create_slowly)
        slow = await self._slow.respond("/pay", order.number, form)
        return order, slow, fast[0]


@pytest.fixture
async def workers(sandbox: Sandbox, ledger: SqliteLedger, tmp_path: Path) -> AsyncIterator[TwoWorkers]:
    async with sandbox.client(ledger=ledger) as slow, sandbox.client(ledger=ledger) as fast:
        yield TwoWorkers(slow, fast, tmp_path / "orders.db")


async def test_double_click_in_two_workers_redirects_both(
    workers: TwoWorkers, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slow, fast = await workers.pay(FORM, FORM, monkeypatch)
    assert slow.headers["Location"] == fast.headers["Location"]
    sandbox.journal.assert_once(operation="approve")


async def test_second_tab_with_other_fiscal_code_sends_no_approval(
    workers: TwoWorkers, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, slow, fast = await workers.pay(FORM, OTHER_CUSTOMER, monkeypatch)
    assert fast.status == 409
    assert "<h1>You have already applied" in fast.html
    assert ((await order.decision()) or {})["redirect_url"] == slow.headers["Location"]
    assert (await order.row())["fiscal_code"] == CODE
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)


async def test_unknown_outcome_blocks_another_fiscal_code(
    one_shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    """The service may have approved the order for the first customer."""
    assert (await one_shop.post("/pay", data=tagged("resetafter"))).status_code == 202
    assert (await one_shop.post("/pay", data=OTHER_CUSTOMER)).status_code == 409
    assert calls(sandbox) == ["create_request", "approve"]


async def test_denied_approval_lets_the_shopper_correct_the_fiscal_code(one_shop: httpx.AsyncClient) -> None:
    assert (await one_shop.post("/pay", data=tagged("forbidden"))).status_code == 503
    assert (await one_shop.post("/pay", data=OTHER_CUSTOMER)).status_code == 303


async def test_order_is_not_shown_without_its_cookie(shop: httpx.AsyncClient) -> None:
    await shop.post("/pay", data=FORM)
    cookie = (await shop.get("/order")).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
    for wrong in ("", "order=", "order=guessed"):
        shop.cookies.clear()
        headers = {"Cookie": wrong}
        assert (await shop.get("/order", headers=headers)).headers["Location"] == "/"
        assert (await shop.post("/complete", data=DATA, headers=headers)).headers["Location"] == "/"


async def test_unknown_outcome_is_logged_and_stored_with_its_entry(
    service: LoanClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = await Orders(tmp_path / "orders.db").add()
    async with service:
        await Shop(service, tmp_path / "orders.db").respond("/pay", order.number, tagged("resetafter"))
        entry = await service.entry_key(CODE)
    assert (await order.row())["entry"] == entry
    [record] = [each for each in caplog.records if each.name == "shop"]
    assert f"entry {entry}: approve:" in record.getMessage()
    assert order.number not in record.getMessage()


async def test_logs_contain_no_personal_data_and_no_redirect_token(
    shop: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # the test's own HTTP client
    await shop.post("/pay", data={**FORM, "city": ""})
    paid = await shop.post("/pay", data=FORM)
    await shop.post("/complete", data=DATA)
    token = paid.headers["Location"].rpartition("/")[2]
    assert len(token) > 10
    for secret in (token, CODE, FORM["fiscal_code"], "Anna", "anna@", "Prova", "AA00000AA"):
        assert secret not in caplog.text


@pytest.mark.parametrize("name", SHOPS)
async def test_client_closes_when_the_application_stops(
    name: str, service: LoanClient, sandbox: Sandbox
) -> None:
    async with shopper(name, service) as browser:
        assert (await browser.get("/")).status_code == 200
        await service.create_request({"fiscalCode": CODE})
    with pytest.raises(ClientClosedError):
        await service.create_request({"fiscalCode": CODE})
    assert calls(sandbox) == ["create_request"]

"""Each example shop does what its page promises, in process, against a real sandbox."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from loanasync import ClientClosedError, LoanClient, RetryPolicy
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, SqliteLedger
from loanasync.sandbox import Sandbox
from support.example_shops import CODE, DATA, FORM, SHOPS, shopper


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    async with SqliteLedger(tmp_path / "decisions.db") as made:
        yield made


@pytest.fixture
def service(sandbox: Sandbox, ledger: SqliteLedger) -> LoanClient:
    return sandbox.client(ledger=ledger, retry=RetryPolicy(base=0.001))


@pytest.fixture(params=SHOPS)
async def shop(request: pytest.FixtureRequest, service: LoanClient) -> AsyncIterator[httpx.AsyncClient]:
    async with shopper(request.param, service) as browser:
        assert (await browser.get("/")).status_code == 200
        yield browser


def calls(sandbox: Sandbox) -> list[str]:
    return [call.operation for call in sandbox.journal]


def tagged(tag: str) -> dict[str, str]:
    return {**FORM, "email": f"anna+{tag}@example.com"}


async def test_a_shopper_comes_from_the_cart_to_the_completed_data(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    cart = await shop.get("/")
    assert "Together: 450.00 euro" in cart.text
    assert "no-store" in cart.headers["Cache-Control"]
    asked = await shop.post("/pay", data=FORM)
    assert asked.status_code == 303
    assert asked.headers["Location"].startswith(f"{sandbox.base_url}/apply/")
    for page in ("/", "/back"):
        back = await shop.get(page, follow_redirects=True)
        assert "Your loan is approved." in back.text
    saved = await shop.post("/complete", data=DATA)
    assert (saved.status_code, saved.headers["Location"]) == (303, "/back")
    assert "Your order is complete." in (await shop.get("/back")).text
    assert calls(sandbox) == ["create_request", "approve", "upload_documents", "complete"]
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE, body={"amount": 45_000})
    sandbox.journal.assert_once(operation="complete", body={"marketing": True, "usPerson": False})
    assert sandbox.findings == []


async def test_what_is_wrong_stands_at_its_field_and_nothing_is_sent(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    typed = {**FORM, "fiscal_code": "short", "province": "roma", "city": "", "instalments": "1" * 5000}
    answer = await shop.post("/pay", data={**typed, "address": '"><script>alert(1)</script>'})
    assert answer.status_code == 422
    for name in ("fiscal_code", "province", "city", "instalments"):
        assert answer.text.count(f'id="{name}-problem"') == 1
    assert "must be two upper-case letters" in answer.text
    assert 'value="roma"' in answer.text
    assert "<script>" not in answer.text
    assert calls(sandbox) == []
    assert (await shop.post("/pay", data=FORM)).status_code == 303


async def test_what_the_service_finds_stands_at_its_field_too(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    answer = await shop.post("/pay", data=tagged("invalid.city"))
    assert answer.status_code == 422
    assert 'id="city-problem"' in answer.text
    assert (await shop.post("/pay", data=tagged("invalid.documentCity"))).status_code == 303
    saved = await shop.post("/complete", data=DATA)
    assert saved.status_code == 422
    assert 'id="document_city-problem"' in saved.text
    assert calls(sandbox)[-2:] == ["upload_documents", "complete"]


async def test_a_fiscal_code_that_the_service_does_not_know_stands_at_its_field(
    shop: httpx.AsyncClient,
) -> None:
    answer = await shop.post("/pay", data=tagged("nouser"))
    assert answer.status_code == 422
    assert 'id="fiscal_code-problem"' in answer.text
    assert (await shop.post("/pay", data=FORM)).status_code == 303


async def test_documents_and_days_that_are_none_are_told_before_anything_is_sent(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    await shop.post("/pay", data=FORM)
    typed = {**DATA, "document_code": "", "document_issue_date": "yesterday"}
    answer = await shop.post("/complete", data=typed)
    assert answer.status_code == 422
    assert 'id="document_code-problem"' in answer.text
    assert 'id="document_issue_date-problem"' in answer.text
    assert calls(sandbox) == ["create_request", "approve"]


async def test_additional_data_is_asked_for_when_the_service_wants_it(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    sandbox.on("create_request").respond(201, {"additionalDataNeeded": True}, phase="after")
    assert "residence" not in (await shop.get("/")).text
    answer = await shop.post("/pay", data=FORM)
    assert answer.status_code == 422
    assert 'name="residence"' in answer.text
    assert 'id="salary-problem"' in answer.text
    more = {"residence": "rent", "residence_start_date": "2019-05-01", "educational_qualification": "diploma"}
    more |= {"children": "2", "salary_type": "net-monthly", "salary": "1600"}
    assert (await shop.post("/pay", data={**FORM, **more})).status_code == 303
    asked = sandbox.journal.assert_once(operation="approve")
    assert (asked.request or {})["residenceStartDate"] == "05/2019"
    assert calls(sandbox) == ["create_request", "approve"]


async def test_a_refused_shopper_is_told_so_and_never_asked_for_again(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    for form in (tagged("refused"), tagged("refused"), FORM):
        answer = await shop.post("/pay", data=form, follow_redirects=True)
        assert "refused, which is final" in answer.text
    assert (await shop.post("/complete", data=DATA, follow_redirects=True)).status_code == 200
    assert calls(sandbox) == ["create_request", "approve"]


async def test_a_refusal_whose_body_was_lost_is_a_refusal(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    for _ in range(2):
        answer = await shop.post("/pay", data=tagged("refused.emptyafter"), follow_redirects=True)
        assert "refused, which is final" in answer.text
    assert calls(sandbox) == ["create_request", "approve"]


@pytest.mark.parametrize("tag", ["noshop", "forbidden"])
async def test_what_no_click_can_mend_leads_to_another_way_to_pay(shop: httpx.AsyncClient, tag: str) -> None:
    answer = await shop.post("/pay", data=tagged(tag))
    assert answer.status_code == 503
    assert "Loans cannot be asked for here." in answer.text


@pytest.mark.parametrize("name", SHOPS)
async def test_a_shopper_need_not_know_that_the_disk_is_full(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    class Full(SqliteLedger):
        async def settle(self, *_: object, **__: object) -> Entry:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    policy = LedgerPolicy(orphan_folder=tmp_path / "orphans")
    async with Full(tmp_path / "decisions.db") as ledger:
        client = sandbox.client(ledger=ledger, ledger_policy=policy)
        async with shopper(name, client) as browser:
            await browser.get("/")
            assert (await browser.post("/pay", data=FORM)).headers["Location"].startswith(sandbox.base_url)
    assert len(list((tmp_path / "orphans").iterdir())) == 1


@pytest.mark.parametrize("tag", ["resetafter", "500after", "garbage", "conflict"])
async def test_an_outcome_that_nobody_knows_is_called_so_and_not_asked_for_again(
    shop: httpx.AsyncClient, sandbox: Sandbox, tag: str
) -> None:
    first = await shop.post("/pay", data=tagged(tag))
    asked = calls(sandbox)
    again = await shop.post("/pay", data=tagged(tag))
    for answer in (first, again):
        assert answer.status_code == 202
        assert "We do not know yet" in answer.text
    assert calls(sandbox) == asked
    assert not [each for each in sandbox.findings if each.rule != "post-after-201"]


@pytest.mark.parametrize("operation", ["create_request", "upload_documents"])
async def test_what_was_never_asked_may_be_tried_again(
    shop: httpx.AsyncClient, sandbox: Sandbox, operation: str
) -> None:
    fault = sandbox.on(operation).respond(503)  # type: ignore[arg-type]  # one of them
    answers = [await shop.post("/pay", data=FORM), await shop.post("/complete", data=DATA)]
    assert 503 in [each.status_code for each in answers]
    assert "Your data has not been taken." in "".join(each.text for each in answers)
    sandbox.off(fault)
    assert (await shop.post("/pay", data=FORM)).status_code == 303
    assert (await shop.post("/complete", data=DATA)).status_code == 303
    assert calls(sandbox).count("approve") == 1


async def test_documents_that_were_taken_are_not_sent_again(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    await shop.post("/pay", data=FORM)
    sandbox.on("complete", call=1).respond(503)
    answers = [await shop.post("/complete", data=DATA) for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 303]
    assert calls(sandbox)[2:] == ["upload_documents", "complete", "complete"]


async def test_who_clicks_twice_asks_once(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    clicks = await asyncio.gather(*(shop.post("/pay", data=tagged("slow50")) for _ in range(3)))
    again = await shop.post("/pay", data=FORM)
    assert len({each.headers["Location"] for each in (*clicks, again)}) == 1
    await asyncio.gather(*(shop.post("/complete", data=DATA) for _ in range(3)))
    assert calls(sandbox) == ["create_request", "approve", "upload_documents", "complete"]


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
    assert all("refused, which is final" in page.text for page in pages)


@pytest.mark.parametrize(("tag", "page"), [("approved", "/apply/"), ("refused", "/back")])
async def test_decision_is_known_in_another_browser(sandbox: Sandbox, tag: str, page: str) -> None:
    """The customer was created and evaluated before, so that creating them again is refused."""
    async with shopper("fastapi", sandbox.client(ledger=MemoryLedger())) as browser:
        first = await browser.post("/pay", data=tagged(tag))
        browser.cookies.clear()
        second = await browser.post("/pay", data=tagged(tag))
    sandbox.journal.assert_once(operation="approve", fiscal_code=CODE)
    assert page in first.headers["Location"]
    assert second.headers["Location"] == first.headers["Location"]


async def test_data_that_are_saved_complete_the_order_whatever_is_read(
    shop: httpx.AsyncClient, sandbox: Sandbox
) -> None:
    await shop.post("/pay", data=FORM)
    sandbox.on("complete").respond("trunc", phase="after")
    await shop.post("/complete", data=DATA)
    assert "Your order is complete." in (await shop.get("/back")).text
    assert calls(sandbox).count("complete") == 1


async def test_nothing_is_asked_for_but_by_a_form(shop: httpx.AsyncClient, sandbox: Sandbox) -> None:
    for page in ("/pay", "/complete"):
        assert (await shop.get(page)).status_code == 405
    assert calls(sandbox) == []


async def test_a_stranger_sees_nothing_of_the_order(shop: httpx.AsyncClient) -> None:
    await shop.post("/pay", data=FORM)
    cookie = (await shop.get("/back")).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
    for wrong in ("", "order=", "order=guessed"):
        shop.cookies.clear()
        told = {"Cookie": wrong}
        assert (await shop.get("/back", headers=told)).headers["Location"] == "/"
        assert (await shop.post("/complete", data=DATA, headers=told)).headers["Location"] == "/"


async def test_neither_the_shopper_nor_where_they_were_sent_is_logged(
    shop: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for quiet in ("httpx", "httpcore"):
        logging.getLogger(quiet).setLevel(logging.WARNING)  # the shopper's browser
    await shop.post("/pay", data={**FORM, "city": ""})
    asked = await shop.post("/pay", data=FORM)
    await shop.post("/complete", data=DATA)
    token = asked.headers["Location"].rpartition("/")[2]
    assert len(token) > 10
    for secret in (token, CODE, FORM["fiscal_code"], "Anna", "anna@", "Prova", "AA00000AA"):
        assert secret not in caplog.text


@pytest.mark.parametrize("name", SHOPS)
async def test_the_client_ends_with_the_application_and_not_before(
    name: str, service: LoanClient, sandbox: Sandbox
) -> None:
    async with shopper(name, service) as browser:
        assert (await browser.get("/")).status_code == 200
        await service.create_request({"fiscalCode": CODE})
    with pytest.raises(ClientClosedError):
        await service.create_request({"fiscalCode": CODE})
    assert calls(sandbox) == ["create_request"]

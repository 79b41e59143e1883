"""The sandbox's pages over plain HTTP, without a browser: contents, masking and forms."""

import re
from pathlib import Path

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import CODE, TOKEN, Raw
from support.sandbox_pages import INSPECTOR, approved, get, post, section

SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"
# Personal data that pages mask by default; CODE is the fiscal code.
PERSONAL = (CODE, "anna@", "Anna", "Prova", "3330000000", "Via Prova", "00100", "Roma", "italian")
EVERY_PAGE = ["/shop", INSPECTOR, "/_sandbox/calls/2", "{page}", "/_sandbox/calls/99", "/apply/unknown"]


async def test_application_page_shows_the_order_and_the_choices(raw: Raw) -> None:
    status, page = await get(raw, await approved(raw, orderToken="order-7"))
    assert status == 200
    for text in ("sandbox-shop", "450.00 euro", "<dd>12</dd>", "order-7", "The loan is approved."):
        assert text in page
    assert 'value="accept"' in page
    assert 'value="cancel"' in page
    assert 'href="/shop"' in page
    assert "stands in for the website of sandbox-shop" in (await get(raw, "/shop"))[1]


async def test_application_page_links_to_the_shop_url() -> None:
    async with Sandbox(shop_url="http://shop.example/basket") as sandbox, aiohttp.ClientSession() as session:
        raw = Raw(sandbox, session)
        assert 'href="http://shop.example/basket"' in (await get(raw, await approved(raw)))[1]


async def test_pages_are_masked_by_default(raw: Raw) -> None:
    page = await approved(raw)
    paths = (page, INSPECTOR, "/_sandbox/calls/1", "/_sandbox/calls/2", "/_sandbox/journal.jsonl")
    for path in (*paths, "/_sandbox/findings.json"):
        text = (await get(raw, path))[1]
        assert not [word for word in PERSONAL if word in text], path
    for path in (page, "/_sandbox/calls/2"):
        unmasked = (await get(raw, f"{path}?personal=shown"))[1]
        assert not [word for word in PERSONAL if word not in unmasked and word != "anna@"], path
        assert "anna@example.com" in unmasked
    unmasked = (await get(raw, f"{INSPECTOR}?personal=shown"))[1]
    assert CODE in section(unmasked, "requests")
    assert "anna@example.com" in section(unmasked, "requests")


async def test_unknown_tag_is_masked(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="anna+bianchi@example.com")
    for path in (INSPECTOR, "/_sandbox/calls/2", "/_sandbox/journal.jsonl"):
        assert "bianchi" not in (await get(raw, path))[1]
    await raw.approve(email="anna+500after@example.com")
    for path in (INSPECTOR, "/_sandbox/calls/3", "/_sandbox/journal.jsonl"):
        assert "***+500after@***" in (await get(raw, path))[1]


async def test_request_values_are_escaped(raw: Raw) -> None:
    page = await approved(raw, firstname=SCRIPT, orderToken=SCRIPT)
    for path in (page, "/_sandbox/calls/2"):
        text = (await get(raw, f"{path}?personal=shown"))[1]
        assert ESCAPED in text
        assert SCRIPT not in text


async def test_rule_texts_are_escaped(raw: Raw) -> None:
    raw.sandbox.on(fiscal_code=SCRIPT).respond(500)
    unmasked = (await get(raw, f"{INSPECTOR}?personal=shown"))[1]
    assert "&lt;SCRIPT&gt;" in section(unmasked, "faults"), "a fiscal code is in capitals"
    assert SCRIPT.upper() not in (await get(raw, INSPECTOR))[1] + unmasked
    status, text = await post(raw, "/_sandbox/faults", {"Accept": "text/html"}, rule=SCRIPT)
    assert status == 400
    assert text.count(ESCAPED) == 2, "in the message and in the form field"
    assert SCRIPT not in text


@pytest.mark.parametrize("kept", [True, False], ids=["with a state file", "in memory"])
async def test_unpaired_surrogates_do_not_break_pages(tmp_path: Path, *, kept: bool) -> None:
    state = tmp_path / "state" if kept else None
    async with (
        Sandbox(state=state, faults=["approve=slow1:0.5"]) as sandbox,
        aiohttp.ClientSession() as session,
    ):
        raw = Raw(sandbox, session)
        assert (await raw("POST", "", b'{"fiscalCode": "\\ud800", "amount": "\\udfff"}'))[0] == 400
        page = await approved(raw, firstname="\ud800")
        for path in (page, INSPECTOR, "/_sandbox/calls/1", "/_sandbox/calls/3"):
            assert (await get(raw, path))[0] == 200
            assert (await get(raw, f"{path}?personal=shown"))[0] == 200
        assert "\\ud800" in (await get(raw, f"{page}?personal=shown"))[1]
        assert "\\udfff" not in (await get(raw, "/_sandbox/journal.jsonl"))[1]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [("accept", "cancel", "Application accepted."), ("cancel", "accept", "Application cancelled.")],
)
async def test_first_choice_of_the_customer_is_final(raw: Raw, first: str, then: str, message: str) -> None:
    page = await approved(raw)
    for action in (first, then):
        status, text = await post(raw, page, action=action)
        assert (status, message in text) == (200, True)
        assert "<form" not in text
    assert (await post(raw, f"{page}?personal=shown", action=then))[1].count("Anna"), "the choice is kept"


async def test_unknown_action_is_400(raw: Raw) -> None:
    page = await approved(raw)
    assert await post(raw, page, action="pay") == (400, "the field action must be accept or cancel")
    assert await post(raw, page) == (400, "the field action must be accept or cancel")
    assert "The loan is approved." in (await get(raw, page))[1]


async def test_refused_customer_cannot_accept(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="anna+refused@example.com")
    page = re.findall(r'href="(/apply/[^"]+)"', (await get(raw, INSPECTOR))[1])[0]
    status, text = await get(raw, page)
    assert (status, "This request was refused." in text, "<form" in text) == (200, True, False)
    assert (await post(raw, page, action="accept"))[0] == 404


@pytest.mark.parametrize("path", ["/apply/unknown", "/_sandbox/calls/7", "/_sandbox/calls/x"])
async def test_unknown_page_is_404(raw: Raw, path: str) -> None:
    status, text = await get(raw, path)
    assert (status, "Page not found" in text) == (404, True)
    if path.startswith("/apply"):
        assert (await post(raw, path, action="accept"))[0] == 404


async def test_page_of_a_removed_customer_is_404(raw: Raw) -> None:
    page = await approved(raw)
    raw.sandbox.reset(CODE)
    assert (await get(raw, page))[0] == 404


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_form_of_another_site_is_403(raw: Raw, origin: str) -> None:
    page = await approved(raw)
    raw.sandbox.on(operation="complete").respond(500)
    before = await get(raw, INSPECTOR)
    forms = {page: "accept", "/_sandbox/reset": "", "/_sandbox/faults": "", "/_sandbox/faults/clear": ""}
    for path, action in forms.items():
        status, text = await post(raw, path, {"Origin": origin}, action=action, rule="500")
        assert (status, text) == (403, "a page of another site cannot change the sandbox")
    assert await get(raw, INSPECTOR) == before
    assert (await post(raw, page, {"Origin": raw.sandbox.base_url}, action="accept"))[0] == 200


@pytest.mark.parametrize("path", EVERY_PAGE)
async def test_pages_have_security_headers(raw: Raw, path: str) -> None:
    page = await approved(raw)
    async with raw.session.get(raw.sandbox.base_url + path.format(page=page)) as response:
        rules = [rule.split() for rule in response.headers["Content-Security-Policy"].split(";")]
        text = await response.text()
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    allowed = {name: " ".join(sources) for name, *sources in rules}
    assert allowed.pop("default-src") == allowed.pop("base-uri") == allowed.pop("frame-ancestors") == "'none'"
    assert set(allowed.values()) == {"'self'"}
    assert " style=" not in text, "the policy forbids inline styles"
    assert not re.findall(r'(?:src|href)="(?!/|\?|#|[a-z]+\.json)', text), "nothing from other sites"


@pytest.mark.parametrize("name", ["icon.svg", "live.js", "style.css"])
async def test_assets_are_served(raw: Raw, name: str) -> None:
    status, text = await get(raw, f"/_sandbox/{name}")
    assert status == 200
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text


@pytest.mark.parametrize("path", ["/", "/_sandbox", "/_sandbox/faults"])
async def test_root_redirects_to_the_inspector(raw: Raw, path: str) -> None:
    assert "<h1>Sandbox of sandbox-shop</h1>" in (await get(raw, path))[1]


async def test_empty_inspector_reports_that_there_are_no_calls(raw: Raw) -> None:
    text = (await get(raw, INSPECTOR))[1]
    assert "0 customers, 0 calls so far." in text
    for message in ("No misuse of the protocol found.", "No requests yet.", "No calls yet.", "No faults."):
        assert message in text


async def test_inspector_lists_requests_calls_faults_and_findings(raw: Raw) -> None:
    raw.sandbox.on(operation="complete").respond("slow1")
    await approved(raw)
    await raw.approve()
    await raw("POST", f"/{CODE}/documents", {})
    await raw("PATCH", f"/{CODE}", {"usPerson": False})
    await raw("POST", "/x/y/z", {})
    page = (await get(raw, INSPECTOR))[1]
    assert "1 customer, 6 calls so far." in page
    for word in ("approved", "uploaded", "completed", ">open<"):
        assert word in section(page, "requests")
    journal = section(page, "journal")
    assert [journal.index(f">{number}</a>") for number in (6, 5, 4, 3, 2, 1)] == sorted(
        journal.index(f">{number}</a>") for number in range(1, 7)
    ), "newest first"
    assert "201, evaluated" in journal
    assert len(re.findall(r'data-label="ms">[0-9]+\.[0-9]</td>', journal)) == 6
    assert "post-after-201" in section(page, "findings")
    assert "post-after-201" in journal
    assert '<td class="odd">slow1</td><td>complete</td>' in section(page, "faults")


async def test_inspector_reports_a_journal_switched_off() -> None:
    async with Sandbox(journal=0, customers=1) as sandbox, aiohttp.ClientSession() as session:
        raw = Raw(sandbox, session)
        await raw.create()
        await raw("POST", "", {"fiscalCode": "TSTXYZ00A00A000B"})
        text = (await get(raw, INSPECTOR))[1]
    assert "1 customer, 1 older customer forgotten, 2 calls so far; the journal is switched off." in text
    assert "calls are counted but not kept" in text


async def test_inspector_truncates_long_lists(raw: Raw) -> None:
    for _ in range(101):
        await raw("POST", "/x/y/z", {})
    journal = section((await get(raw, INSPECTOR))[1], "journal")
    assert journal.count("<tr>") == 101, "the header row and the newest hundred"
    assert "The newest 100 of 101;" in journal


async def test_call_page_shows_request_response_and_commands(raw: Raw) -> None:
    await raw.create()
    raw.sandbox.on(operation="approve", call=1).respond(500, phase="after")
    await raw.approve()
    page = (await get(raw, "/_sandbox/calls/2"))[1]
    for message in ("Call 2: approve", "500, evaluated by this call", "500after", "&#34;amount&#34;: 45000"):
        assert message in page
    assert "POST /api/shops/sandbox-shop/requests/***</dd>" in page
    assert "curl -i -X POST" in page
    assert "aiohttp.ClientSession" in page
    assert TOKEN not in page.replace("X-Auth-Token", "")


async def test_call_page_of_an_unknown_path_has_no_commands(raw: Raw) -> None:
    await raw("POST", "/x/y/z", {})
    page = (await get(raw, "/_sandbox/calls/1"))[1]
    assert "This path is not part of the specification" in page
    assert "curl" not in page
    assert "The body was not a JSON object and was not kept." in page


async def test_call_page_quotes_an_unusual_fiscal_code(raw: Raw) -> None:
    await raw("POST", "/a%2Fb%3F%20c", {})
    page = (await get(raw, "/_sandbox/calls/1?personal=shown"))[1]
    assert "requests/a%2Fb%3F%20c" in page

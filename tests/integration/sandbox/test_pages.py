"""The sandbox's pages and admin calls over plain HTTP: contents, masking, forms, errors and events."""

import asyncio
import html
import io
import json
import re
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import BODY, CODE, TOKEN, Raw, codes
from support.sandbox_pages import INSPECTOR, approved, get, post, section

SCRIPT = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"
OTHER = "TSTXYZ00A00A000B"
# Personal data that pages mask by default; CODE is the fiscal code.
PERSONAL = (CODE, "anna@", "Anna", "Prova", "3330000000", "Via Prova", "00100", "Roma", "italian")
EXPORTS = ("/_sandbox/journal.jsonl", "/_sandbox/findings.json")
UNKNOWN = "no customer has this handle"


async def send(raw: Raw, path: str, **sent: Any) -> tuple[int, str]:
    """Send a POST without following a redirect, as programs do."""
    url = f"{raw.sandbox.base_url}{path}"
    async with raw.session.post(url, allow_redirects=False, **sent) as response:
        return response.status, await response.text()


async def findings(raw: Raw) -> Any:
    return json.loads((await get(raw, "/_sandbox/findings.json"))[1])


async def test_application_page_shows_the_order_and_the_choices(raw: Raw) -> None:
    status, page = await get(raw, await approved(raw, orderToken="order-7"))
    assert status == 200
    for text in ("sandbox-shop", "450.00 euro", "<dd>12</dd>", "order-7", "The loan is approved."):
        assert text in page
    assert page.count("<button") == 2
    assert "Back to the shop" not in page
    async with Sandbox(shop_url="http://shop.example/basket") as sandbox:
        shop = Raw(sandbox, raw.session)
        assert 'href="http://shop.example/basket"' in (await get(shop, await approved(shop)))[1]


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [("accept", "cancel", "Application accepted."), ("cancel", "accept", "Application cancelled.")],
)
async def test_first_choice_of_the_customer_is_final(raw: Raw, first: str, then: str, message: str) -> None:
    page = await approved(raw)
    assert await send(raw, page, data={"action": "pay"}) == (400, "the field action must be accept or cancel")
    for action in (first, then):
        status, text = await post(raw, page, action=action)
        assert (status, message in text, "<form" in text) == (200, True, False)
    assert "Anna" in (await post(raw, f"{page}?personal=shown", action=then))[1], "the choice is kept"
    assert (await send(raw, page, data={"action": then}))[0] == 303
    assert message in (await get(raw, page))[1]


async def test_refused_customer_cannot_accept(raw: Raw) -> None:
    await raw.create()
    await raw.approve(email="anna+refused@example.com")
    page = re.findall(r'href="(/apply/[^"]+)"', (await get(raw, INSPECTOR))[1])[0]
    status, text = await get(raw, page)
    assert (status, "This request was refused." in text, "<form" in text) == (200, True, False)
    assert (await post(raw, page, action="accept"))[0] == 404
    raw.sandbox.reset(CODE)
    for path in (page, "/apply/unknown", "/_sandbox/calls/7", "/_sandbox/calls/x"):
        status, text = await get(raw, path)
        assert (status, "Page not found" in text) == (404, True)


async def test_pages_are_masked_by_default(raw: Raw) -> None:
    page = await approved(raw)
    for path in (page, INSPECTOR, "/_sandbox/calls/1", "/_sandbox/calls/2", *EXPORTS):
        text = (await get(raw, path))[1]
        assert not [word for word in PERSONAL if word in text], path
    for path in (page, "/_sandbox/calls/2"):
        unmasked = (await get(raw, f"{path}?personal=shown"))[1]
        assert not [word for word in PERSONAL if word not in unmasked], path
    requests = section((await get(raw, f"{INSPECTOR}?personal=shown"))[1], "requests")
    assert CODE in requests
    assert "anna@example.com" in requests


async def response_of_last_call(raw: Raw) -> tuple[str, dict[str, Any]]:
    """Return the inspector's page of the last call, and its response in the exported journal."""
    number = raw.sandbox.journal[-1].number
    page = html.unescape((await get(raw, f"/_sandbox/calls/{number}"))[1])
    line = (await get(raw, "/_sandbox/journal.jsonl"))[1].splitlines()[-1]
    return page.partition('id="response"')[2].partition("</section>")[0], json.loads(line)["response"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": ""}, "This value should not be blank."),
        ({"instalments": 2}, "The number of installments must be between 3 and 60"),
        ({"email": "a+nouser@example.com"}, "User not found"),
        ({"email": "a+conflict@example.com"}, "The request cannot be completed"),
        ({"email": "a+forbidden@example.com"}, "Access denied"),
        ({"email": "a+500x1@example.com"}, "System error"),
        ({"email": "a+refus@example.com"}, "did you mean +refused?"),
    ],
)
async def test_message_of_the_service_is_readable(raw: Raw, changes: dict[str, Any], message: str) -> None:
    await raw.create()
    _, response = await raw.approve(**changes)
    page, exported = await response_of_last_call(raw)
    assert message in page
    assert exported == response


@pytest.mark.parametrize("sent", ["Anna Prova", ["Anna Prova"], {"Anna Prova": ["x"]}])
async def test_texts_that_are_not_messages_of_the_service_are_masked(raw: Raw, sent: object) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}/documents", {})
    assert (await raw("PATCH", f"/{CODE}", {"errors": sent, "error": sent}))[0] == 200
    page, exported = await response_of_last_call(raw)
    assert (exported, "Prova" in page) == ({"errors": "***", "error": "***"}, False)


@pytest.mark.parametrize(
    "name", ["Anna Prova", "Prova.pdf", CODE, CODE.lower(), "anna@example.com", "333000"]
)
async def test_member_named_like_a_person_is_masked(raw: Raw, name: str) -> None:
    """A member of documents can be named like a file or a fiscal code."""
    for number, path in enumerate(("", f"/{CODE}/documents"), 1):
        await raw("POST", path, {"fiscalCode": CODE, "documentFront2": "x", name: "x"})
        line = (await get(raw, "/_sandbox/journal.jsonl"))[1].splitlines()[-1]
        assert list(json.loads(line)["request"]) == ["fiscalCode", "documentFront2", "***"]
        assert name not in line + (await get(raw, f"/_sandbox/calls/{number}"))[1]


@pytest.mark.parametrize(
    "body",
    [
        {"documents": [{"owner": "Bianchi"}], "loanFinality": "for Bianchi", "paymentDayOfMonth": "Bianchi"},
        {"errors": "Bianchi", "error": "Bianchi", "amount": "Bianchi", "zeroInterestRate": "Bianchi"},
        {"email": "mario+bianchi@bianchi.example"},
        {"email": "a+invalid.bianchi@x.example"},
    ],
)
async def test_personal_value_in_a_wrong_field_is_masked(raw: Raw, body: dict[str, Any]) -> None:
    await raw.create()
    await raw("POST", f"/{CODE}", {**BODY, **body})
    await raw("POST", f"/{CODE}/documents", body)
    await raw("PATCH", f"/{CODE}", body)
    journal = raw.sandbox.journal
    texts = [journal.to_jsonl(), str(list(journal)), (await get(raw, INSPECTOR))[1]]
    texts += [(await get(raw, f"/_sandbox/calls/{number}"))[1] for number in range(1, 5)]
    for wanted in (body, {"loanFinality": "Bianchi"}):
        with pytest.raises(AssertionError) as caught:
            journal.assert_once(operation="create_request", body=wanted)
        texts.append(str(caught.value))
    assert "bianchi" not in "".join(texts).lower()
    await raw.approve(email="anna+500after@example.com")
    assert "***+500after@***" in (await get(raw, INSPECTOR))[1]


async def test_texts_from_requests_and_faults_are_escaped(raw: Raw) -> None:
    page = await approved(raw, firstname=SCRIPT, orderToken=SCRIPT)
    raw.sandbox.fault("500", SCRIPT)
    for path in (page, "/_sandbox/calls/2"):
        text = (await get(raw, f"{path}?personal=shown"))[1]
        assert (ESCAPED in text, SCRIPT in text) == (True, False)
    unmasked = (await get(raw, f"{INSPECTOR}?personal=shown"))[1]
    assert "&lt;SCRIPT&gt;" in section(unmasked, "faults"), "a fiscal code is in capitals"
    assert SCRIPT.upper() not in (await get(raw, INSPECTOR))[1] + unmasked
    async with raw.session.post(
        f"{raw.sandbox.base_url}/_sandbox/faults", data={"fault": SCRIPT}
    ) as response:
        assert (response.status, response.content_type) == (400, "text/plain")


async def test_unpaired_surrogates_do_not_break_pages(raw: Raw) -> None:
    assert (await raw("POST", "", b'{"fiscalCode": "\\ud800", "amount": "\\udfff"}'))[0] == 400
    page = await approved(raw, firstname="\ud800")
    for path in (page, INSPECTOR, "/_sandbox/calls/1", "/_sandbox/calls/3"):
        for query in ("", "?personal=shown"):
            assert (await get(raw, path + query))[0] == 200
    assert "\\ud800" in (await get(raw, f"{page}?personal=shown"))[1]
    assert "\\udfff" not in (await get(raw, "/_sandbox/journal.jsonl"))[1]


async def test_inspector_lists_requests_calls_faults_and_findings(raw: Raw) -> None:
    page = (await get(raw, "/"))[1]  # redirects
    shown = ("0 customers, 0 calls so far.", "No misuse", "No requests yet.", "No calls yet.", "No faults.")
    assert [message for message in shown if message not in page] == []
    raw.sandbox.fault("complete=slow1")
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
    assert re.findall(r">(\d)</a>", journal) == ["6", "5", "4", "3", "2", "1"], "newest first"
    assert "201, evaluated" in journal
    assert len(re.findall(r'data-label="ms">[0-9]+\.[0-9]</td>', journal)) == 6
    assert "post-after-201" in section(page, "findings")
    assert '<td class="odd">slow1</td><td>complete</td>' in section(page, "faults")
    for _ in range(95):
        await raw("POST", "/x/y/z", {})
    journal = section((await get(raw, INSPECTOR))[1], "journal")
    assert (journal.count("<tr>"), "The newest 100 of 101;" in journal) == (101, True)


async def test_call_page_shows_request_and_response(raw: Raw) -> None:
    await raw.create()
    raw.sandbox.fault("approve=500after")
    await raw.approve()
    page = (await get(raw, "/_sandbox/calls/2"))[1]
    for message in ("Call 2: approve", "500, evaluated by this call", "500after", "&#34;amount&#34;: 45000"):
        assert message in page
    assert "POST /api/shops/sandbox-shop/requests/***</dd>" in page
    assert TOKEN not in page
    await raw("POST", "/a%2Fb%3F%20c", {})
    assert "requests/a%2Fb%3F%20c" in (await get(raw, "/_sandbox/calls/3?personal=shown"))[1]
    await raw("POST", "/x/y/z", {})
    page = (await get(raw, "/_sandbox/calls/4"))[1]
    assert "This path is not part of the specification" in page
    assert "The body was not a JSON object and was not kept." in page


@pytest.mark.parametrize(
    "path", ["{page}", INSPECTOR, *(f"/_sandbox/{name}" for name in ("calls/2", "calls/99", "live.js"))]
)
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
async def test_assets_are_served_and_load_nothing_from_other_sites(raw: Raw, name: str) -> None:
    status, text = await get(raw, f"/_sandbox/{name}")
    assert status == 200
    assert not re.search("https?:", text.replace("http://www.w3.org/2000/svg", ""))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[::1"])
async def test_form_of_another_site_is_403(raw: Raw, origin: str) -> None:
    page = await approved(raw)
    before = await get(raw, INSPECTOR)
    for path in (page, "/_sandbox/reset", "/_sandbox/faults", "/_sandbox/faults/clear"):
        assert await post(raw, path, {"Origin": origin}, action="accept", fault="500") == (
            403,
            "a page of another site cannot change the sandbox",
        )
    assert await get(raw, INSPECTOR) == before
    assert (await post(raw, page, {"Origin": raw.sandbox.base_url}, action="accept"))[0] == 200


@pytest.mark.parametrize("host", ["rebound.example:80", "127.0.0.1:abc"])
async def test_foreign_host_name_is_403(raw: Raw, host: str) -> None:
    for path in ("/_sandbox/?personal=shown", "/_sandbox/journal.jsonl"):
        async with raw.session.get(raw.sandbox.base_url + path, headers={"Host": host}) as response:
            assert (response.status, await response.text()) == (
                403,
                "open this page at the URL that the sandbox printed",
            )
    foreign = {"Host": "rebound.example:80"}
    async with (
        Sandbox(allow_remote=True) as sandbox,
        raw.session.get(f"{sandbox.base_url}/_sandbox/", headers=foreign) as response,
    ):
        assert response.status == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://rebound.example", 403), ("null", 403), ("http://[::1", 403), ("http://localhost:5173", 201)],
)
async def test_call_from_a_page_of_another_site_is_403(raw: Raw, origin: str, status: int) -> None:
    raw.session.headers["Origin"] = origin
    assert (await raw.create())[0] == status


async def test_page_of_a_customer_keeps_no_connection(raw: Raw) -> None:
    """A browser opens six connections to a host, and a shop's test may leave as many pages open."""
    assert "live.js" not in (await get(raw, await approved(raw)))[1]


async def test_findings_and_health_are_json(raw: Raw) -> None:
    await approved(raw)
    await raw.approve()
    [found] = await findings(raw)
    assert (found["rule"], found["call"]) == ("post-after-201", 3)
    assert "Keep the first response" in found["message"]
    assert json.loads((await get(raw, "/_sandbox/health"))[1]) == {"status": "ok"}


async def test_customer_is_reset_by_handle(raw: Raw) -> None:
    await approved(raw)
    await raw("POST", "", {"fiscalCode": OTHER})
    await raw("POST", "/uncreated", {})
    lines = (await get(raw, "/_sandbox/journal.jsonl"))[1].splitlines()
    first, _, other, uncreated = (json.loads(line)["customer"] for line in lines)
    await post(raw, "/_sandbox/reset", customer=other)
    assert await send(raw, "/_sandbox/reset", data={"customer": uncreated}) == (303, "303: See Other")
    assert first in (await get(raw, INSPECTOR))[1]
    assert (codes(raw.sandbox), len(raw.sandbox.journal)) == ([CODE], 4)
    for wrong in (CODE, "", "nobody", other):
        status, text = await send(raw, "/_sandbox/reset", data={"customer": wrong})
        assert (status, text[: len(UNKNOWN)]) == (404, UNKNOWN)
    assert codes(raw.sandbox) == [CODE]


async def test_fault_is_added_counted_and_removed(raw: Raw) -> None:
    status, page = await post(raw, "/_sandbox/faults", fault=" approve=500 ")
    assert (status, '<td class="odd">500</td><td>approve</td>' in page) == (200, True)
    await raw.create()
    assert (await raw.approve())[0] == 500
    faults = section((await get(raw, INSPECTOR))[1], "faults")
    assert 'data-label="matched">1</td></tr>' in faults, "number of matched calls"
    status, page = await post(raw, "/_sandbox/faults/clear")
    assert (status, "<table>" in section(page, "faults")) == (200, False)
    assert (await raw.approve())[0] == 201


@pytest.mark.parametrize(("text", "message"), [("refus", "did you mean +refused?"), ("", "no outcome")])
async def test_invalid_fault_is_400_with_a_suggestion(raw: Raw, text: str, message: str) -> None:
    status, shown = await send(raw, "/_sandbox/faults", data={"fault": text})
    assert (status, message in shown, "<html" in shown) == (400, True, False)
    assert not [*raw.sandbox._engine.faults]


ONE = "send a form with each of these fields at most once: "
JSON_TYPE = {"Content-Type": "application/json"}
URL_ENCODED = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        ("reset", {"data": {"fiscal_code": CODE}}, f"{ONE}customer"),
        ("reset", {"json": {"customer": "a"}}, f"{ONE}customer"),
        ("reset", {"data": b"customer=a"}, f"{ONE}customer"),
        ("reset", {"params": {"customer": "a"}}, f"{ONE}customer"),
        ("reset", {"data": [("customer", "a"), ("customer", "b")]}, f"{ONE}customer"),
        ("reset", {"data": {"customer": io.BytesIO(b"a")}}, f"{ONE}customer"),
        ("faults", {"data": {"fault": "500", "operation": "approve"}}, f"{ONE}fault"),
        ("faults", {"data": b"a", "headers": {"Content-Type": f"{URL_ENCODED}; charset=no"}}, f"{ONE}fault"),
        ("faults", {"data": b"a", "headers": {"Content-Type": "multipart/form-data"}}, f"{ONE}fault"),
        ("faults/clear", {"data": {"fault": "500"}}, "send no fields"),
        ("faults/clear", {"params": {"fault": "500"}}, "send no fields"),
    ],
)
async def test_admin_call_with_an_unknown_field_changes_nothing(
    raw: Raw, path: str, sent: dict[str, Any], message: str
) -> None:
    await raw.create()
    raw.sandbox.fault("complete=500")
    assert await send(raw, f"/_sandbox/{path}", **sent) == (400, f"unexpected body or field: {message}")
    assert (
        codes(raw.sandbox),
        len([*raw.sandbox._engine.faults]),
    ) == ([CODE], 1)


@pytest.mark.parametrize(
    "sent", [{}, {"data": {}}, {"headers": JSON_TYPE}, {"headers": {"X-Auth-Token": TOKEN}}]
)
async def test_empty_post_applies_to_everything(raw: Raw, sent: dict[str, Any]) -> None:
    await approved(raw)
    await raw.approve()
    for path in ("faults/clear", "reset"):
        raw.sandbox.fault("complete=500")
        assert await send(raw, f"/_sandbox/{path}", **sent) == (303, "303: See Other")
        assert not [*raw.sandbox._engine.faults]
    assert "0 customers, 3 calls so far." in (await get(raw, INSPECTOR))[1]
    assert [(await get(raw, path))[1] for path in EXPORTS] == ["", "[]"]


@pytest.mark.parametrize(("method", "path"), [("GET", "fault"), ("POST", "fault"), ("GET", "reset")])
async def test_unknown_admin_call_lists_the_known_ones(raw: Raw, method: str, path: str) -> None:
    async with raw.session.request(method, f"{raw.sandbox.base_url}/_sandbox/{path}") as response:
        assert response.status == 404
        assert "POST /_sandbox/faults/clear" in await response.text()


class Events:
    """Server-sent events read byte by byte from a socket."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def __aenter__(self) -> Self:
        address = urlsplit(self._sandbox.base_url)
        self._reader, self._writer = await asyncio.open_connection(address.hostname, address.port)
        self._writer.write(f"GET /_sandbox/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        assert "Content-Type: text/event-stream" in await self.until(b"\r\n\r\n")
        assert "retry: 500" in await self.until(b"\n\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def until(self, end: bytes) -> str:
        return (await asyncio.wait_for(self._reader.readuntil(end), 5)).decode()

    async def rest(self) -> str:
        return (await asyncio.wait_for(self._reader.read(), 5)).decode()


async def test_each_change_sends_an_event(raw: Raw) -> None:
    async with Events(raw.sandbox) as events:
        page = await approved(raw)
        while "data: 2" not in await events.until(b"\n\n"):  # two calls may be one event
            pass
        for path, name, value in ((page, "action", "accept"), ("/_sandbox/faults", "fault", "500")):
            await post(raw, path, None, **{name: value})
            assert "data: 2" in await events.until(b"\n\n")
        for change in (
            lambda: raw.sandbox.fault("500"),
            raw.sandbox.clear_faults,
            lambda: raw.sandbox.reset(CODE),
            raw.sandbox.reset,
        ):
            await asyncio.to_thread(change)
            assert "data: 2" in await events.until(b"\n\n")


async def test_event_stream_ends_with_the_sandbox_or_its_client(raw: Raw) -> None:
    async with raw.session.head(f"{raw.sandbox.base_url}/_sandbox/events") as response:
        assert response.status == 404
    async with Events(raw.sandbox):
        assert len(raw.sandbox._engine.listeners) == 1
    while raw.sandbox._engine.listeners:  # the next write detects the disconnect
        await raw.create()
    async with Events(raw.sandbox) as events:
        await raw.sandbox.stop()
        assert (await events.rest()).endswith("0\r\n\r\n"), "a regular end, not a lost connection"
        assert not raw.sandbox._engine.listeners

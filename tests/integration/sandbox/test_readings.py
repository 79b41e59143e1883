"""The effect of each switch of `Readings` on the sandbox."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Readings, Sandbox
from loanasync.sandbox.engine import Call, Delivery
from loanasync.sandbox.responder import DOMAIN
from support.raw_shop import BODY, CODE, Raw
from support.sandbox_pages import get

ALREADY = (400, {"errors": {"domain": ["User already evaluated for approval"]}})
USER_DATA = {
    "documentCode": "X1",
    "documentIssueDate": "2020-01-31",
    "profession": "baker",
    "marketing": True,
}
CHOICES = Readings.choices()


class Shop:
    """A shop that uses the engine of a sandbox without HTTP."""

    def __init__(self, *, dialect: Any = None, **switches: Any) -> None:
        self.engine = Sandbox(readings=Readings(**switches), dialect=dialect)._engine

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


@pytest.mark.parametrize("status", CHOICES["refusal"])
async def test_refusal_switch_sets_the_status_only(status: Any) -> None:
    async with serving(readings=Readings(refusal=status)) as raw:
        await raw.create()
        found, body = await raw.approve(email="a+refused@example.com")
        assert (found, body["approved"], "redirectUrl" in body) == (int(status), False, False)
        await raw.approve()
        assert [each.rule for each in raw.sandbox.findings] == ["post-after-422"]
        page = (await get(raw, "/_sandbox/"))[1]
        assert '<td class="refused">refused</td>' in page
        assert ("refusal=201" in page) == (status == "201")


@pytest.mark.parametrize("status", CHOICES["validation"])
def test_validation_switch_sets_the_status_of_field_errors(status: Any) -> None:
    shop = Shop(validation=status)
    rejected = [shop("create_request", {"fiscalCode": CODE, "privacy": False})]
    shop.create()
    rejected += [shop.complete(), shop.approve(amount=1), shop.approve("invalid.city"), shop.approve("x")]
    shop("upload_documents", {})
    rejected += [shop.complete(documentIssueDate="soon")]
    assert [(found, [*body]) for found, body in rejected] == [(int(status), ["errors"])] * 6
    assert shop.approve("nouser")[0] == 400, "a domain error keeps its status"
    assert shop.approve()[0] == 201, "it was no refusal"
    unclear = ["repeat-after-unclear-response"] if status == "422" else []
    assert shop.findings == ["patch-before-documents", *unclear * 2]


@pytest.mark.parametrize(
    ("when", "evaluated", "repeat"),
    [("before", False, (409, {"errors": "The request cannot be completed"})), ("after", True, ALREADY)],
)
def test_conflict_switch_sets_if_the_409_decides(when: Any, evaluated: Any, repeat: object) -> None:
    shop = Shop(conflict=when).created()
    delivery = shop.processed("approve", {**BODY, "email": "anna+conflict.refused@example.com"})
    assert (delivery.response.status, delivery.response.evaluated) == (409, evaluated)
    assert delivery.response.body == {"errors": "The request cannot be completed"}
    assert shop.approve("conflict") == repeat
    assert shop.engine.customers.of(CODE).order.approved is (False if evaluated else None)


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
    readings = Readings(evaluates="order")
    pages = []
    async with serving(readings=readings, state=tmp_path / "shop.sqlite") as raw:
        await raw.create()
        for token, amount in (("one", 45_000), ("two", 95_000)):
            _, body = await raw.approve(orderToken=token, amount=amount)
            pages.append("/apply/" + body["redirectUrl"].partition("#")[0].rpartition("/")[2])
        async with raw.session.post(raw.sandbox.base_url + pages[0], data={"action": "accept"}) as done:
            assert done.status == 204
    async with serving(readings=readings, state=tmp_path / "shop.sqlite") as raw:
        texts = [(await get(raw, page))[1] for page in pages]
        assert ["Application accepted" in text for text in texts] == [True, False]
        assert ["450.00 euro" in text for text in texts] == [True, False]
        for token in ("one", "two"):
            assert await raw.approve(orderToken=token) == ALREADY


@pytest.mark.parametrize(
    ("how", "code", "echoed"),
    [
        ("exact", CODE, CODE),
        ("masked", CODE, "TSTX********000A"),
        ("missing", CODE, None),
        ("omocodia", CODE, "TSTXYZ00A00A00LA"),
        ("omocodia", "TSTXYZLMANPAQRS1", "TSTXYZLMANPAQRS1"),  # no digit at one of the seven positions
        ("omocodia", "TSTXYZ9MANPAQRSA", "TSTXYZVMANPAQRSA"),
    ],
)
@pytest.mark.parametrize("tag", ["approved", "refused"])
def test_fiscal_code_switch_changes_its_echo(how: Any, code: str, echoed: str | None, tag: str) -> None:
    _, body = Shop(fiscal_code=how).created(code).approve(tag, code)
    assert body.get("fiscalCode") == echoed


@pytest.mark.parametrize("wording", CHOICES["domain"])
def test_domain_switch_changes_every_domain_message(wording: Any) -> None:
    shop = Shop(domain=wording, dialect="civic_number").created()
    texts = DOMAIN[wording]
    fields: dict[str, Any] = {"streetNumber": None, "civicNumber": "12", "orderToken": "one"}
    responses = [shop.approve(tag, **fields) for tag in ("already", "nouser", "noshop")]
    responses += [shop.approve(code="x"), shop("complete", {}, "x"), shop("upload_documents", {}, "y")]
    wanted = [texts[name] for name in ("already", "nouser", "noshop", "code", "code", "nouser")]
    assert responses == [(400, {"errors": {"domain": [text]}}) for text in wanted]


def test_domain_messages_differ_beyond_case_spaces_and_full_stop() -> None:
    texts = [text for each in DOMAIN.values() for text in each.values()]
    assert len({" ".join(text.casefold().split()).rstrip(".") for text in texts}) == len(texts) == 12


@pytest.mark.parametrize("status", CHOICES["already_evaluated"])
@pytest.mark.parametrize("wording", CHOICES["domain"])
def test_already_evaluated_switch_sets_its_status_and_shape(status: Any, wording: Any) -> None:
    shop = Shop(already_evaluated=status, domain=wording).created()
    assert shop.approve()[0] == 201
    text = DOMAIN[wording]["already"]
    errors = text if status == "409" else {"domain": [text]}
    assert shop.approve() == shop.approve() == shop.create() == (int(status), {"errors": errors})
    assert shop.findings == ["post-after-201", "repeat-after-already-evaluated"]


@pytest.mark.parametrize(
    ("switches", "body"),
    [
        ({"dates": "day"}, USER_DATA),
        ({"dates": "time"}, {**USER_DATA, "documentIssueDate": "2020-01-31T00:00:00+00:00"}),
        ({"completion": "partial"}, dict(list(USER_DATA.items())[:2])),
        ({"completion": "empty"}, None),
    ],
)
def test_completion_switches_change_the_returned_fields(switches: Any, body: object) -> None:
    shop = Shop(**switches).created()
    assert shop.complete() == (200, body)
    assert shop.engine.customers.of(CODE).user_data == USER_DATA


@pytest.mark.parametrize("fault", ["truncafter", "drip", "emptyafter"])
async def test_empty_completion_can_have_a_fault(fault: str) -> None:
    async with serving(readings=Readings(completion="empty"), faults=[f"complete={fault}"]) as raw:
        await raw.create()
        await raw("POST", f"/{CODE}/documents", {})
        assert await raw("PATCH", f"/{CODE}", USER_DATA, decoded=False) == (200, b"")


@pytest.mark.parametrize(("how", "found"), [("present", True), ("missing", None), ("empty", "")])
def test_redirect_url_switch_changes_an_approval(how: Any, found: object) -> None:
    _, body = Shop(redirect_url=how).created().approve()
    assert (body["redirectUrl"].startswith("/apply/") if found is True else body.get("redirectUrl")) == found
    assert ("redirectUrl" in body) is (how != "missing")


@pytest.mark.parametrize("switch", ["creation", "documents"])
@pytest.mark.parametrize("shape", CHOICES["creation"])
async def test_prerequisite_switches_change_the_body_over_http(switch: str, shape: Any) -> None:
    objects = {
        "creation": {"fiscalCode": CODE, "additionalDataNeeded": False},
        "documents": {"fiscalCode": CODE, "documents": "received"},
    }
    shapes = {"object": objects[switch], "array": [objects[switch]], "empty": None}
    expected = {**objects, switch: shapes[shape]}
    async with serving(readings=Readings(**{switch: shape})) as raw:
        for path, name in (("", "creation"), (f"/{CODE}/documents", "documents")):
            status, body = await raw("POST", path, {"fiscalCode": CODE}, decoded=False)
            assert (status, json.loads(body) if body else None) == (201, expected[name])
            entry = raw.sandbox.journal[-1]
            assert entry.response == expected[name]
            page = (await get(raw, f"/_sandbox/calls/{entry.number}"))[1]
            assert CODE not in page + raw.sandbox.journal.to_jsonl()
            assert ("No body." in page) is (expected[name] is None)

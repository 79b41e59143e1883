"""The effect of each switch of `Readings` on the sandbox."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Readings, Sandbox
from loanasync.sandbox.engine import Call, Delivery, Engine
from loanasync.sandbox.responder import DOMAIN
from support.raw_shop import BODY, CODE, Raw

ALREADY = "User already evaluated for approval"
# A customer in a state file of a version without readings
OLD_RECORD = {
    "created": True,
    "additional_data_needed": False,
    "approved": True,
    "documents": False,
    "request": {},
    "user_data": {},
    "email": "",
    "page": "a-page",
    "application": "open",
    "told": "approved",
    "calls": {"approve": 1},
    "faults": {},
}
USER_DATA = {
    "documentCode": "X1",
    "documentIssueDate": "2020-01-31",
    "profession": "baker",
    "marketing": True,
}


class Shop:
    """A shop that uses an engine in memory, without HTTP."""

    def __init__(self, *, dialect: str | None = None, **switches: Any) -> None:
        self.engine = Engine.in_memory(Readings(**switches), dialect=dialect)

    def processed(self, operation: str, body: dict[str, Any], code: str = CODE) -> Delivery:
        call = Call(operation, code, body)
        unreadable = self.engine.plan(call)
        delivery = self.engine.process(call) if unreadable is None else Delivery(unreadable)
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


@pytest.mark.parametrize("status", Readings.choices()["refusal"])
def test_refusal_switch_sets_the_status_of_a_refusal(status: Any) -> None:
    shop = Shop(refusal=status).created()
    response_status, body = shop.approve("refused")
    assert (response_status, body["approved"]) == (int(status), False)
    assert "redirectUrl" not in body


@pytest.mark.parametrize("status", Readings.choices()["refusal"])
def test_linter_reads_a_refusal_from_the_body(status: Any) -> None:
    shop = Shop(refusal=status).created()
    shop.approve("refused")
    shop.approve("refused")
    assert shop.findings == ["post-after-422"]


async def test_refusal_with_201_is_a_refusal_on_every_page() -> None:
    async with serving(readings=Readings(refusal="201")) as raw:
        await raw.create()
        status, body = await raw.approve(email="a+refused@example.com")
        assert (status, body["approved"]) == (201, False)
        [(_, customer)] = raw.sandbox._engine.customers.items()
        async with raw.session.get(f"{raw.sandbox.base_url}/_sandbox/") as page:
            text = await page.text()
        assert '<td class="refused">refused</td>' in text
        assert "refusal=201" in text
        async with raw.session.get(f"{raw.sandbox.base_url}/apply/{customer.page}") as page:
            assert "This request was refused" in await page.text()


@pytest.mark.parametrize("status", Readings.choices()["validation"])
def test_validation_switch_sets_the_status_of_field_errors(status: Any) -> None:
    shop = Shop(validation=status)
    rejected = [shop("create_request", {"fiscalCode": CODE, "privacy": False})]
    shop.create()
    rejected += [
        shop.complete(),
        shop.approve(amount=1),
        shop.approve("invalid.city"),
        shop.approve("unheard"),
    ]
    shop("upload_documents", {})
    rejected += [shop.complete(documentIssueDate="soon")]
    for response_status, body in rejected:
        assert response_status == int(status)
        assert body.keys() == {"errors"}
    assert shop.approve("nouser")[0] == 400, "a domain error keeps its status"


def test_validation_error_with_422_is_not_a_refusal() -> None:
    shop = Shop(validation="422").created()
    assert shop.approve(amount=1)[0] == 422
    assert shop.approve()[0] == 201
    assert shop.findings == []


@pytest.mark.parametrize(
    ("when", "evaluated", "repeat"),
    [
        ("before", False, (409, "The request cannot be completed")),
        ("after", True, (400, {"domain": [ALREADY]})),
    ],
)
def test_conflict_switch_sets_if_the_409_decides(when: Any, evaluated: Any, repeat: object) -> None:
    shop = Shop(conflict=when).created()
    delivery = shop.processed("approve", {**BODY, "email": "anna+conflict.refused@example.com"})
    assert (delivery.response.status, delivery.response.evaluated) == (409, evaluated)
    assert delivery.response.body == {"errors": "The request cannot be completed"}
    status, body = shop.approve("conflict")
    assert (status, body["errors"]) == repeat
    assert shop.engine.customers.of(CODE).approved is (False if evaluated else None)


def test_customer_reading_evaluates_a_customer_once() -> None:
    shop = Shop(evaluates="customer").created()
    assert shop.approve(orderToken="one")[0] == 201
    assert shop.approve(orderToken="two") == (400, {"errors": {"domain": [ALREADY]}})
    assert shop.create() == (400, {"errors": {"domain": [ALREADY]}})
    assert shop.findings == ["post-after-201"]


def test_order_reading_evaluates_each_order_once() -> None:
    shop = Shop(evaluates="order").created()
    assert shop.approve(orderToken="one")[0] == 201
    assert shop.approve("refused", orderToken="two")[0] == 422
    assert shop.create()[0] == 201
    assert shop.approve()[0] == 201, "a missing token is one value"
    assert shop.findings == []
    for changes in ({"orderToken": "one"}, {"orderToken": "two"}, {}):
        assert shop.approve(**changes) == (400, {"errors": {"domain": [ALREADY]}})
    assert shop.findings == ["post-after-201", "post-after-422", "post-after-201"]


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
        texts = []
        for page in pages:
            async with raw.session.get(raw.sandbox.base_url + page) as response:
                texts.append(await response.text())
        assert ["Application accepted" in text for text in texts] == [True, False]
        assert ["450.00 euro" in text for text in texts] == [True, False]
        for token in ("one", "two"):
            assert (await raw.approve(orderToken=token))[0] == 400
        raw.sandbox.reset(CODE)
        assert raw.sandbox._engine.customers._by_page == {}


def test_order_reading_separates_concurrent_orders() -> None:
    shop = Shop(evaluates="order").created()
    calls = [Call("approve", CODE, {**BODY, "orderToken": token}) for token in ("one", "two")]
    for call in calls:
        assert shop.engine.plan(call) is None
    assert [shop.engine.process(call).response.status for call in calls] == [201, 201]
    shop.engine.client_disconnected(calls[0])
    assert shop.approve(orderToken="one")[0] == shop.approve(orderToken="two")[0] == 400
    assert shop.findings == ["repeat-after-lost-response", "post-after-201"]


def test_state_without_orders_can_be_read_in_both_readings() -> None:
    record = OLD_RECORD | {"request": {**BODY, "orderToken": "one"}}
    for evaluates, status in (("customer", 400), ("order", 201)):
        shop = Shop(evaluates=evaluates)
        shop.engine.customers.restore({CODE: json.dumps(record)})
        assert shop.approve(orderToken="one")[0] == 400
        assert shop.approve(orderToken="two")[0] == status


@pytest.mark.parametrize(
    "orders",
    [
        {"one": {}},
        {"one": {**dict.fromkeys(("approved", "request", "page", "application", "told"), 1)}},
        {"one": 1},
    ],
)
def test_snapshot_with_broken_orders_is_rejected(orders: object) -> None:
    with pytest.raises(ValueError, match="pass the value that snapshot"):
        Shop().engine.customers.restore({CODE: json.dumps({"created": True, "orders": orders})})


@pytest.mark.parametrize(
    ("how", "echoed"),
    [
        ("exact", {"fiscalCode": CODE}),
        ("masked", {"fiscalCode": "TSTX********000A"}),
        ("omocodia", {"fiscalCode": "TSTXYZ00A00A00LA"}),
        ("missing", {}),
    ],
)
@pytest.mark.parametrize("tag", ["approved", "refused"])
def test_fiscal_code_switch_changes_its_echo(how: Any, echoed: dict[str, str], tag: str) -> None:
    _, body = Shop(fiscal_code=how).created().approve(tag)
    assert {name: value for name, value in body.items() if name == "fiscalCode"} == echoed


def test_omocodia_needs_a_digit_at_one_of_its_positions() -> None:
    without_digit, with_digit = "TSTXYZLMANPAQRS1", "TSTXYZ9MANPAQRSA"
    shop = Shop(fiscal_code="omocodia").created(without_digit).created(with_digit)
    assert shop.approve(code=without_digit)[1]["fiscalCode"] == without_digit
    assert shop.approve(code=with_digit)[1]["fiscalCode"] == "TSTXYZVMANPAQRSA"


@pytest.mark.parametrize("wording", Readings.choices()["domain"])
def test_domain_switch_changes_every_domain_message(wording: Any) -> None:
    shop = Shop(domain=wording, dialect="civic_number").created()
    texts = DOMAIN[wording]
    fields: dict[str, Any] = {"streetNumber": None, "civicNumber": "12", "orderToken": "one"}
    responses = [shop.approve(tag, **fields) for tag in ("already", "nouser", "noshop")]
    responses += [shop.approve(code="x"), shop("complete", {}, "x"), shop("upload_documents", {}, "y")]
    wanted = [texts[name] for name in ("already", "nouser", "noshop", "code", "code", "nouser")]
    assert responses == [(400, {"errors": {"domain": [text]}}) for text in wanted]


def test_domain_messages_differ_beyond_case_spaces_and_full_stop() -> None:
    plain = [
        " ".join(text.casefold().split()).rstrip(".") for texts in DOMAIN.values() for text in texts.values()
    ]
    assert len(set(plain)) == len(plain) == 12
    assert list(DOMAIN["verbatim"].values()) == [
        *("User not found", ALREADY, "This sales point cannot apply for a loan", "Invalid fiscalCode."),
    ]


@pytest.mark.parametrize("status", Readings.choices()["already_evaluated"])
@pytest.mark.parametrize("wording", Readings.choices()["domain"])
def test_already_evaluated_switch_sets_its_status_and_shape(status: Any, wording: Any) -> None:
    shop = Shop(already_evaluated=status, domain=wording).created()
    assert shop.approve()[0] == 201
    text = DOMAIN[wording]["already"]
    errors = text if status == "409" else {"domain": [text]}
    assert shop.approve() == shop.approve() == shop.create() == (int(status), {"errors": errors})
    assert shop.findings == ["post-after-201", "repeat-after-already-evaluated"]


@pytest.mark.parametrize(("how", "end"), [("day", ""), ("time", "T00:00:00+00:00")])
def test_dates_switch_changes_dates_of_a_completion(how: Any, end: str) -> None:
    shop = Shop(dates=how).created()
    assert shop.complete() == (200, {**USER_DATA, "documentIssueDate": f"2020-01-31{end}"})
    assert (
        shop.complete(documentExpirationDate="2030-01-31")[1]["documentExpirationDate"] == f"2030-01-31{end}"
    )


@pytest.mark.parametrize(
    ("how", "body"),
    [("complete", USER_DATA), ("partial", dict(list(USER_DATA.items())[:2])), ("empty", None)],
)
def test_completion_switch_changes_the_returned_fields(how: Any, body: object) -> None:
    shop = Shop(completion=how).created()
    assert shop.complete() == (200, body)
    assert shop.engine.customers.of(CODE).user_data == USER_DATA


@pytest.mark.parametrize(("how", "found"), [("present", True), ("missing", None), ("empty", "")])
def test_redirect_url_switch_changes_an_approval(how: Any, found: object) -> None:
    _, body = Shop(redirect_url=how).created().approve()
    assert (body["redirectUrl"].startswith("/apply/") if found is True else body.get("redirectUrl")) == found
    assert ("redirectUrl" in body) is (how != "missing")


@pytest.mark.parametrize("operation", ["creation", "documents"])
@pytest.mark.parametrize("shape", Readings.choices()["creation"])
async def test_prerequisite_switches_change_the_body_over_http(operation: str, shape: Any) -> None:
    async with serving(readings=Readings(**{operation: shape})) as raw:
        body = {"fiscalCode": CODE}
        created = await raw("POST", "", body, decoded=False)
        received = await raw("POST", f"/{CODE}/documents", {}, decoded=False)
        shaped, other = (created, received) if operation == "creation" else (received, created)
        objects: dict[str, Any] = {"creation": {**body, "additionalDataNeeded": False}}
        objects["documents"] = {**body, "documents": "received"}
        wanted = objects.pop(operation)
        assert (other[0], json.loads(other[1])) == (201, *objects.values())
        assert shaped[0] == 201
        if shape == "empty":
            assert shaped[1] == b""
        else:
            assert json.loads(shaped[1]) == (wanted if shape == "object" else [wanted])
        entry = raw.sandbox.journal.assert_once(
            operation={"creation": "create_request", "documents": "upload_documents"}[operation]
        )
        assert entry.response == {"object": wanted, "array": [wanted], "empty": None}[shape]
        assert CODE not in raw.sandbox.journal.to_jsonl()
        async with raw.session.get(f"{raw.sandbox.base_url}/_sandbox/calls/{entry.number}") as page:
            text = await page.text()
        assert CODE not in text
        assert ("No body." in text) is (shape == "empty")


@pytest.mark.parametrize("fault", ["truncafter", "drip", "emptyafter"])
async def test_empty_completion_can_have_a_fault(fault: str) -> None:
    async with serving(readings=Readings(completion="empty"), faults=[f"complete={fault}"]) as raw:
        await raw.create()
        await raw("POST", f"/{CODE}/documents", {})
        assert await raw("PATCH", f"/{CODE}", USER_DATA, decoded=False) == (200, b"")


@pytest.mark.parametrize("date", ["01/2030", "2030-01-31"])
def test_creation_accepts_both_formats_of_a_job_end(date: str) -> None:
    assert Shop()("create_request", {"fiscalCode": CODE, "actualJobEndingDate": date})[0] == 201


@pytest.mark.parametrize("date", ["13/2030", "1/2030", "31/01/2030", "2030-02-30", 2030, None])
def test_creation_rejects_a_job_end_in_another_format(date: object) -> None:
    rejected = Shop()("create_request", {"fiscalCode": CODE, "actualJobEndingDate": date})
    assert rejected == (400, {"errors": {"actualJobEndingDate": ["Invalid date format"]}})

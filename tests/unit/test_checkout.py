"""The page that `checkout` returns for each end of the creation and of the approval."""

import logging
from collections.abc import Mapping
from traceback import TracebackException
from typing import Any

import attrs
import pytest

from loanasync import LoanClient, LoanError, Refused
from loanasync.checkout import Ask, Form, Page, Redirect, Waiting, checkout
from loanasync.ledger import Entry, MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    conflict,
    connection_lost,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    scripted_client,
    system_error,
    timed_out,
)
from support.builders import FISCAL_CODE, additional_data, approval_request

ADDITIONAL = ["residence", "salary"]
FIELDS = ["fiscal_code", "email", "city", *ADDITIONAL]
CREATED = response(201, {"additionalDataNeeded": False})


async def page_of(client: LoanClient, **options: Any) -> Page:
    request = options.pop("request", approval_request(email="anna@example.com"))
    code = options.pop("code", FISCAL_CODE)
    return await checkout(
        client,
        code,
        request,
        payload={"fiscalCode": code},
        fields=FIELDS,
        approved_url="/order",
        **options,
    )


async def after(*steps: ScriptedResponse, **options: Any) -> Page:
    return await page_of(scripted_client(*steps, ledger=MemoryLedger()), **options)


async def test_approval_redirects_to_the_service_and_repeats_nothing() -> None:
    script = ScriptedTransport(CREATED, approved(redirect_url="https://loans.example.com/#t"), CREATED)
    client = script.client(ledger=MemoryLedger())
    pages = [await page_of(client) for _ in range(2)]
    for page in pages:
        assert isinstance(page, Redirect)
        assert (page.url, page.decision.approved) == ("https://loans.example.com/#t", True)
        assert page.entry is not None
    assert "#t" not in repr(pages)
    assert [each.operation for each in script.sent].count("approve") == 1


async def test_approval_without_url_redirects_to_the_page_of_the_shop() -> None:
    page = await after(CREATED, response(201, {"approved": True}))
    assert isinstance(page, Redirect)
    assert page.url == "/order"


async def test_refusal_is_returned_as_the_decision() -> None:
    assert isinstance(await after(CREATED, refused()), Refused)


async def test_invalid_form_creates_nothing() -> None:
    script = ScriptedTransport()
    page = await page_of(script.client(), request=approval_request(city=""), code="short")
    assert isinstance(page, Form)
    assert [*page.problems] == ["fiscal_code", "city"]
    assert (page.for_the_shop, page.additional_data_needed) == ((), False)
    assert script.sent == []


BLANK = {"city": ["This value should not be blank."]}
PRIVACY = {"privacy": ["This value should be equal to 'true'."]}


@pytest.mark.parametrize("step", [domain_error("User not found"), domain_error("Invalid fiscalCode.")])
async def test_unknown_fiscal_code_is_shown_at_its_field(step: ScriptedResponse) -> None:
    for page in (await after(step), await after(CREATED, step)):
        assert isinstance(page, Form)
        assert [*page.problems] == ["fiscal_code"]


async def test_problem_without_a_field_is_logged_with_the_entry(caplog: pytest.LogCaptureFixture) -> None:
    page = await after(CREATED, rejected({**BLANK, **PRIVACY}))
    assert isinstance(page, Form)
    assert ([*page.problems], [each.field for each in page.for_the_shop]) == (["city"], ["privacy"])
    [record] = [each for each in caplog.records if "no field for" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert str(page.entry) in record.getMessage()
    assert "privacy: This value should be equal to 'true'." in record.getMessage()


async def test_form_that_the_shopper_cannot_correct_is_not_shown() -> None:
    for page in (
        await after(rejected(PRIVACY)),
        await after(CREATED, request=approval_request(loan_finality="")),
    ):
        assert isinstance(page, Ask)
        assert (
            page.text()
            == "Payment in instalments is not available now. Please choose another payment method."
        )
        assert page.text("it") != page.error.text("it")


def says_needed(created: object) -> bool:
    return isinstance(created, Mapping) and created.get("additionalDataNeeded") is True


async def test_needed_additional_data_are_asked_for_and_then_sent() -> None:
    needed = response(201, {"additionalDataNeeded": True})
    page = await after(needed, additional_data_needed=says_needed)
    assert isinstance(page, Form)
    assert (page.additional_data_needed, [*page.problems]) == (True, ADDITIONAL)
    request = attrs.evolve(approval_request(), additional=additional_data())
    page = await after(needed, approved(), request=request, additional_data_needed=says_needed)
    assert isinstance(page, Redirect)


async def test_additional_data_that_the_approval_misses_are_asked_for() -> None:
    page = await after(CREATED, rejected({"salary": ["This value should not be blank."]}))
    assert isinstance(page, Form)
    assert (page.additional_data_needed, [*page.problems]) == (True, ["salary"])


async def test_error_of_the_function_sends_no_approval() -> None:
    def fails(_: object) -> bool:
        raise KeyError

    script = ScriptedTransport(CREATED)
    with pytest.raises(KeyError) as caught:
        await page_of(script.client(), additional_data_needed=fails)
    frames = TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith("loanasync/checkout.py")]
    assert ours
    assert FISCAL_CODE not in str(ours)
    page = await after(CREATED, connection_lost())
    assert isinstance(page, Ask)
    assert (page.error.__traceback__, page.error.__context__) == (None, None)
    assert [each.operation for each in script.sent] == ["create_request"]


def says_conflict(error: LoanError) -> bool:
    return getattr(error, "status", 0) == 409


async def test_error_of_the_creation_may_mean_that_it_exists() -> None:
    evaluated = domain_error("User already evaluated for approval")
    assert isinstance(await after(evaluated, approved()), Redirect)
    assert isinstance(await after(conflict()), Ask)
    assert isinstance(await after(conflict(), approved(), already_created=says_conflict), Redirect)


FAULTS = [system_error(), system_error(), system_error()]


@pytest.mark.parametrize(
    ("of_creation", "of_approval", "steps"),
    [
        (Waiting, Waiting, [not_connected()]),
        (Waiting, Ask, [connection_lost()]),
        (Waiting, Ask, [timed_out()]),
        (Waiting, Ask, [response(502)]),
        (Waiting, Ask, FAULTS),
        (Waiting, Waiting, [response(429)]),
        (Ask, Ask, [denied()]),
        (Ask, Ask, [response(404)]),
        (Ask, Ask, [domain_error("The campaign has ended")]),
    ],
)
async def test_fault_leads_to_a_page_that_never_repeats_an_approval(
    of_creation: type, of_approval: type, steps: list[ScriptedResponse]
) -> None:
    assert type(await after(*steps)) is of_creation
    ledger, script = MemoryLedger(), ScriptedTransport(CREATED, *steps, CREATED, approved())
    client = script.client(ledger=ledger)
    first = await page_of(client)
    assert type(first) is of_approval
    assert isinstance(first, Waiting | Ask)
    assert first.entry is not None
    again = await page_of(client)
    decided = first.error.outcome in ("not_sent", "not_evaluated")
    assert isinstance(again, Redirect) is decided
    if not decided:
        assert isinstance(again, Ask)
        assert again.text("it") == first.text("it")


async def test_other_data_of_the_customer_are_explained() -> None:
    client = scripted_client(CREATED, approved(), CREATED, ledger=MemoryLedger())
    await page_of(client)
    page = await page_of(client, request=approval_request(amount=70_000))
    assert isinstance(page, Ask)
    assert page.error.advice == "other_data"


async def test_decision_that_the_ledger_does_not_store_is_used(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryLedger):
        async def settle(self, *_: object, **__: object) -> Entry:
            raise OSError(28, "full")

    page = await page_of(scripted_client(CREATED, approved(), ledger=Full()))
    assert isinstance(page, Redirect)
    assert "the ledger could not be written" in caplog.text


@pytest.mark.parametrize("fault", [system_error(), denied(), not_connected(), timed_out()])
@pytest.mark.parametrize(
    ("first", "kind"),
    [(approved(redirect_url="https://loans.example.com/#t"), Redirect), (connection_lost(), Ask)],
)
async def test_known_approval_does_not_depend_on_another_creation(
    first: ScriptedResponse, kind: type, fault: ScriptedResponse
) -> None:
    """A shopper whose loan is approved, or may be, must not be shown another way to pay."""
    script = ScriptedTransport(CREATED, first, *[fault] * 3)
    client = script.client(ledger=MemoryLedger())
    for _ in range(2):
        assert isinstance(await page_of(client), kind)
    assert [each.operation for each in script.sent] == ["create_request", "approve"]

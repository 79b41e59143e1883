"""The page that `checkout` returns for each end of the creation and of the approval."""

import asyncio
import json
import math
import time
from collections.abc import Mapping
from traceback import TracebackException
from typing import Any

import pytest

from loanasync import DeadlineExceededError, LoanClient, LoanError, Refused, Timeout
from loanasync.checkout import Ask, Form, OrderError, Page, Paid, Redirect, Waiting, checkout, settle
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    approved,
    computed,
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
from support.ledger_clients import FailingLedger, broken
from support.memory_order import MemoryOrder
from support.virtual_time import VirtualTime

URL = "https://loans.example.com/#t"
ADDITIONAL = ["residence", "salary"]
CREATED = response(201, {"additionalDataNeeded": False})
BLANK = ["This value should not be blank."]
PRIVACY = {"privacy": ["This value should be equal to 'true'."]}
FAULTS = [system_error(), system_error(), system_error()]


async def page_of(client: LoanClient, order: MemoryOrder | None = None, **options: Any) -> Page:
    code = options.pop("code", FISCAL_CODE)
    changes = options.pop("changes", {})
    order = order or MemoryOrder(amount=changes.get("amount", 45_000))
    request = approval_request(email="anna@example.com", **changes)
    options = {"fields": ["fiscal_code", "email", "city", *ADDITIONAL], **options}
    options |= {"order": order, "payload": {"fiscalCode": code}}
    return await checkout(client, code, request, approved_url="/order", **options)


async def after(*steps: ScriptedResponse, **options: Any) -> Page:
    return await page_of(scripted_client(*steps, ledger=MemoryLedger()), **options)


async def end_of_other_tasks() -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


def sent_by(script: ScriptedTransport) -> list[str]:
    return [each.operation for each in script.sent]


@pytest.mark.parametrize("step", [approved(redirect_url=URL), refused()])
async def test_decision_is_stored_and_shown_whatever_is_typed(step: ScriptedResponse) -> None:
    script, order = ScriptedTransport(CREATED, step), MemoryOrder()
    client = script.client(ledger=MemoryLedger())
    first = await page_of(client, order)
    assert isinstance(first, Redirect | Refused)
    entry = first.meta.entry if isinstance(first, Refused) else first.entry
    assert (order.holds, order.entry) == (1, entry)
    for changes in ({"code": "TSTABC00A00A000A"}, {"changes": {"city": ""}}):
        assert await page_of(client, order, **changes) == first
    assert getattr(first, "url", URL) == URL
    assert "#t" not in repr(first)
    assert sent_by(script) == ["create_request", "approve"]


@pytest.mark.parametrize(
    ("steps", "changes", "beside", "for_the_shop"),
    [
        ([], {"city": ""}, ["city"], []),
        ([CREATED, rejected({"city": BLANK, **PRIVACY})], {}, ["city"], ["privacy"]),
        ([CREATED, rejected({"salary": BLANK})], {}, ["salary"], []),  # only the approval asks for it
        ([rejected(PRIVACY)], {}, [], ["privacy"]),
        ([], {"loan_finality": ""}, [], ["loan_finality"]),
    ],
)
async def test_problem_without_a_field_of_the_form_is_logged(
    steps: list[ScriptedResponse],
    changes: dict[str, str],
    beside: list[str],
    for_the_shop: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    script, order = ScriptedTransport(*steps), MemoryOrder()
    page = await page_of(script.client(ledger=MemoryLedger()), order, changes=changes)
    assert isinstance(page, Form | Ask)
    if isinstance(page, Form):
        assert ([*page.problems], page.additional_data_needed) == (beside, beside == ["salary"])
        assert [each.field for each in page.for_the_shop] == for_the_shop
    else:  # the shopper cannot correct it
        assert (beside, page.advice, "not available" in page.text()) == ([], "fix_setup", True)
    assert (f"entry {page.entry or '-'}: the form has no field for" in caplog.text) == bool(for_the_shop)
    assert all(f"{name}: " in caplog.text for name in for_the_shop)
    assert (len(script.sent), order.holds) == (len(steps), 0)


def says_needed(created: object) -> bool:
    return isinstance(created, Mapping) and created.get("additionalDataNeeded") is True


async def test_needed_additional_data_are_asked_for_and_then_sent() -> None:
    needed = response(201, {"additionalDataNeeded": True})
    page = await after(needed, additional_data_needed=says_needed)
    assert isinstance(page, Form)
    assert (page.additional_data_needed, [*page.problems]) == (True, ADDITIONAL)
    filled: dict[str, Any] = {"changes": {"additional": additional_data()}}
    filled["additional_data_needed"] = says_needed
    page = await after(needed, rejected({"city": BLANK}), **filled)
    assert isinstance(page, Form)
    assert (page.additional_data_needed, [*page.problems]) == (True, ["city"])
    page = await after(needed, approved(), **filled)
    assert isinstance(page, Redirect)


async def test_error_of_the_function_sends_no_approval() -> None:
    def fails(_: object) -> bool:
        raise KeyError

    script, order = ScriptedTransport(CREATED), MemoryOrder()
    with pytest.raises(KeyError) as caught:
        await page_of(script.client(), order, additional_data_needed=fails)
    frames = TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals for frame in frames if frame.filename.endswith("loanasync/checkout.py")]
    assert ours
    assert FISCAL_CODE not in str(ours)
    assert (sent_by(script), order.holds) == (["create_request"], 0)


async def test_error_of_the_creation_may_mean_that_it_exists() -> None:
    def says_conflict(error: LoanError) -> bool:
        return getattr(error, "status", 0) == 409

    evaluated, without_url = domain_error("User already evaluated for approval"), {"approved": True}
    page = await after(evaluated, response(201, without_url))
    assert isinstance(page, Redirect)
    assert page.url == "/order"
    assert isinstance(await after(conflict()), Ask)
    assert isinstance(await after(conflict(), approved(), already_created=says_conflict), Redirect)


@pytest.mark.parametrize(
    ("of_creation", "of_approval", "may_be_evaluated", "steps"),
    [
        (Form, Form, False, [domain_error("User not found")]),
        (Form, Form, False, [domain_error("Invalid fiscalCode.")]),
        (Waiting, Waiting, False, [not_connected()]),
        (Waiting, Ask, True, [connection_lost()]),
        (Waiting, Ask, True, [timed_out()]),
        (Waiting, Ask, True, [response(502)]),
        (Waiting, Ask, True, FAULTS),
        (Waiting, Waiting, False, [response(429)]),
        (Ask, Ask, False, [denied()]),
        (Ask, Ask, False, [response(404)]),
        (Ask, Ask, True, [domain_error("The campaign has ended")]),
    ],
)
async def test_fault_leads_to_a_page_that_never_repeats_an_approval(
    of_creation: type, of_approval: type, *, may_be_evaluated: bool, steps: list[ScriptedResponse]
) -> None:
    order = MemoryOrder()
    assert type(await after(*steps, order=order)) is of_creation
    assert order.holds == 0
    client = scripted_client(CREATED, *steps, CREATED, approved(), ledger=MemoryLedger())
    first = await page_of(client, order)
    assert type(first) is of_approval
    assert isinstance(first, Form | Waiting | Ask)
    assert (first.error.__traceback__, first.error.__context__) == (None, None)
    assert order.entry == (first.entry if may_be_evaluated else "")
    assert order.holds == may_be_evaluated
    again = await page_of(client, order)
    assert isinstance(again, Ask if may_be_evaluated else Redirect)
    if isinstance(again, Ask):
        assert again.text("it") == first.text("it")
    assert order.holds == 1


@pytest.mark.parametrize(
    ("left_at", "end", "holds"),
    [("create_request", CREATED, 0), ("approve", denied(), 0), ("approve", approved(), 1)],
)
async def test_shopper_who_leaves_keeps_the_decision_but_no_other_hold(
    left_at: str, end: ScriptedResponse, holds: int
) -> None:
    arrived, go = asyncio.Event(), asyncio.Event()

    async def wait(_: SentRequest) -> ScriptedResponse:
        arrived.set()
        await go.wait()
        return end

    steps = [computed(wait)] if left_at == "create_request" else [CREATED, computed(wait)]
    script, order = ScriptedTransport(*steps), MemoryOrder()
    click = asyncio.create_task(page_of(script.client(ledger=MemoryLedger()), order))
    await arrived.wait()
    click.cancel()
    await asyncio.wait([click])
    go.set()
    await end_of_other_tasks()
    assert click.cancelled()
    assert (sent_by(script)[-1], order.holds, order.stored is None) == (left_at, holds, not holds)


async def test_shopper_who_leaves_before_the_order_is_held_sends_nothing() -> None:
    asked, held = asyncio.Event(), asyncio.Event()

    class WaitingOrder(MemoryOrder):
        async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
            asked.set()
            await held.wait()
            return await super().change(old, new)

    script, order = ScriptedTransport(CREATED, approved()), WaitingOrder()
    click = asyncio.create_task(page_of(script.client(), order))
    await asked.wait()
    click.cancel()
    await asyncio.wait([click])
    held.set()
    await end_of_other_tasks()
    assert (script.sent, order.holds) == ([], 0)


class SlowOrder(MemoryOrder):
    """An order whose statements take effect some time before or after they are called."""

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        await asyncio.sleep(0)
        is_changed = await super().change(old, new)
        await asyncio.sleep(0)
        return is_changed


@pytest.mark.parametrize("steps", [[response(502)], [CREATED, denied()]])
async def test_shopper_who_leaves_at_any_moment_keeps_no_hold(steps: list[ScriptedResponse]) -> None:
    was_cancelled = True
    moments = iter(range(100))
    while was_cancelled:
        order = SlowOrder()
        click = asyncio.create_task(page_of(scripted_client(*steps), order))
        for _ in range(next(moments)):
            await asyncio.sleep(0)
        was_cancelled = click.cancel()
        await asyncio.wait([click])
        await end_of_other_tasks()
        assert order.holds == 0


class FailingOrder(MemoryOrder):
    """An order of which a method fails with a personal value, after a number of calls."""

    line = 0

    def __init__(self, method: str, after: int = 0, number: str = "A-1001") -> None:
        super().__init__(number)
        self._works, self.left = getattr(self, method), after
        setattr(self, method, self._fail)
        FailingOrder.line = FailingOrder._fail.__code__.co_firstlineno + 2

    async def _fail(self, *columns: Any) -> Any:
        if not self.left:
            raise OSError(FISCAL_CODE)
        self.left -= 1
        return await self._works(*columns)


@pytest.mark.parametrize(("end", "kind"), [(approved(), Redirect), (connection_lost(), Ask), (denied(), Ask)])
async def test_order_that_fails_after_the_approval_is_logged_and_the_page_shown(
    end: ScriptedResponse, kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    order = FailingOrder("change", after=1)
    page = await after(CREATED, end, order=order)
    assert isinstance(page, kind)
    assert isinstance(page, Redirect | Ask)
    assert page.entry
    assert order.row[0] == "held"
    entry = "-" if end == denied() else page.entry
    place = f"Order.change failed: OSError in {__file__}, line {FailingOrder.line}"
    assert caplog.messages[-1] == f"checkout, entry {entry}: the order was not changed: {place}"


@pytest.mark.parametrize(("method", "works"), [("loan", page_of), ("change", page_of), ("loan", settle)])
async def test_order_that_fails_first_raises_its_line_without_values(method: str, works: Any) -> None:
    script, order = ScriptedTransport(), FailingOrder(method)
    with pytest.raises(OrderError) as caught:
        await works(script.client(), order)
    error = caught.value
    assert str(error) == f"Order.{method} failed: OSError in {__file__}, line {order.line}"
    assert isinstance(error.original, OSError)
    frames = TracebackException.from_exception(error, capture_locals=True)
    shown = "".join(frames.format()).partition("loanasync/checkout.py")[2]
    assert FISCAL_CODE not in shown
    assert (error.__cause__, error.__context__) == (None, None)
    assert script.sent == []


@pytest.mark.parametrize(("fields", "kind"), [(["fiscal_code"], Form), ([], Ask)])
async def test_invalid_fiscal_code_is_not_passed_to_the_database(fields: list[str], kind: type) -> None:
    code = f"{FISCAL_CODE}\0"
    page = await page_of(scripted_client(), FailingOrder("change"), code=code, fields=fields)
    assert isinstance(page, kind)


async def test_error_after_the_shopper_has_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Left(FailingOrder):
        async def _fail(self, *columns: Any) -> Any:
            click.cancel()
            await asyncio.wait([click])
            return await super()._fail(*columns)

    click = asyncio.create_task(page_of(scripted_client(), Left("change")))
    await asyncio.wait([click])
    await end_of_other_tasks()
    assert click.cancelled()
    [message] = caplog.messages
    assert message.startswith(
        "checkout: failed after the shopper had left: Order.change failed: OSError in /"
    )


async def test_creation_has_its_own_time_limits() -> None:
    limits = Timeout(total=5, attempt=4, connect=2)
    page = await after(system_error(retry_after=10), create_timeout=limits)
    assert isinstance(page, Waiting)
    assert "1 attempt, stopped by deadline" in str(page.error)


@pytest.mark.parametrize(("limits", "total"), [(None, 20), (Timeout(total=300, attempt=9, connect=2), 300)])
@pytest.mark.parametrize("has_ledger", [True, False])
async def test_hold_lasts_until_the_latest_approval_has_ended(
    limits: Timeout | None, total: float, monkeypatch: pytest.MonkeyPatch, *, has_ledger: bool
) -> None:
    holds: list[float] = []

    def held(_: SentRequest) -> ScriptedResponse:
        holds.extend(order.members["holds"].values())
        return denied()

    monkeypatch.setattr("loanasync.checkout.time.time", lambda: 1_000.0)
    timeout, order = Timeout(total=20, attempt=15, connect=2), MemoryOrder()
    ledger, patience = (MemoryLedger(), LedgerPolicy().patience) if has_ledger else (None, 0)
    client = scripted_client(computed(held), ledger=ledger, timeout=timeout)
    await page_of(client, order, create_timeout=limits)
    begins = 1_000 + total + 30
    assert holds == [begins + timeout.longest + 30 + 2 * patience]


@pytest.mark.parametrize("other", [{"code": "TSTABC00A00A000A"}, {"changes": {"amount": 50_000}}])
async def test_another_customer_or_amount_of_the_order_sends_nothing(other: dict[str, Any]) -> None:
    script, order = ScriptedTransport(CREATED, connection_lost()), MemoryOrder()
    client = script.client(ledger=MemoryLedger())
    await page_of(client, order)
    order.amount = other.get("changes", {}).get("amount", order.amount)
    page = await page_of(client, order, **other)
    assert isinstance(page, Ask)
    assert (page.advice, page.entry, order.holds) == ("other_data", order.entry, 1)
    assert page.entry
    assert sent_by(script) == ["create_request", "approve"]


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_second_order_with_the_same_data_is_another_application(*, has_ledger: bool) -> None:
    """Its page must not have the URL, with a token, of the first order."""
    steps = [CREATED, approved(redirect_url=URL), CREATED, approved(redirect_url=f"{URL}2")]
    client = scripted_client(*steps, ledger=MemoryLedger() if has_ledger else None)
    pages = [await page_of(client, MemoryOrder(number)) for number in ("A-1001", "A-1002", "A-1001")]
    assert [getattr(page, "url", "") for page in pages] == [URL, f"{URL}2", URL]


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_changed_cart_is_not_stored_as_approved(*, has_ledger: bool) -> None:
    script, order, changed = (
        ScriptedTransport(CREATED, approved()),
        MemoryOrder(),
        MemoryOrder(amount=450_000),
    )
    client = script.client(ledger=MemoryLedger() if has_ledger else None)
    await page_of(client, order)
    page = await page_of(client, changed, changes={"amount": 450_000})
    assert isinstance(page, Ask)
    assert (page.advice, changed.stored, changed.holds) == ("other_data", None, 0)
    order.amount = 450_000  # after its decision was stored
    for shown in (await page_of(client, order, changes={"amount": 450_000}), await settle(client, order)):
        assert isinstance(shown, Ask)
        assert shown.advice == "already_decided"
    assert sent_by(script) == ["create_request", "approve"]


async def test_refusal_is_shown_after_the_amount_has_changed() -> None:
    client, order = scripted_client(CREATED, refused(), ledger=MemoryLedger()), MemoryOrder()
    await page_of(client, order)
    order.amount = 50_000
    assert isinstance(await settle(client, order), Refused)


@pytest.mark.parametrize("step", [approved(), refused()])
async def test_late_decision_is_not_stored_if_the_amount_has_changed(step: ScriptedResponse) -> None:
    client, order = scripted_client(CREATED, step, ledger=MemoryLedger()), FailingOrder("change", after=1)
    await page_of(client, order)
    order.left, order.amount = 99, 50_000
    page = await settle(client, order)
    assert isinstance(page, Ask)
    assert (page.advice, order.row[0], order.stored) == ("already_decided", "held", None)


async def test_decision_about_another_amount_is_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    order = MemoryOrder()
    page = await after(CREATED, approved(amount=70_000), order=order)
    assert isinstance(page, Ask)
    assert (page.advice, order.stored, order.holds) == ("already_decided", None, 1)
    assert page.entry == order.entry
    assert f"entry {page.entry}: approved, but the order was paid, or has another amount" in caplog.text


async def test_decision_that_the_ledger_does_not_store_is_used(caplog: pytest.LogCaptureFixture) -> None:
    ledger, order = FailingLedger(settle=broken), MemoryOrder()
    page = await page_of(scripted_client(CREATED, approved(), ledger=ledger), order)
    assert isinstance(page, Redirect)
    assert order.stored is not None
    assert "the ledger could not be written" in caplog.text


@pytest.mark.parametrize(
    ("faults", "holds", "changes", "advice"),
    [
        ({"get": broken}, 0, {}, "try_later"),
        ({"get": broken}, 1, {}, "wait"),  # another click may have evaluated the customer
        ({"get": broken}, 1, {"city": ""}, "correct_form"),
        ({}, 1, {"loan_finality": ""}, "wait"),  # the shopper cannot correct it
        ({}, 1, {}, "try_later"),  # the ledger knows that it has not
    ],
)
async def test_failing_ledger_waits_if_another_click_holds_the_order(
    faults: dict[str, Any], holds: int, changes: dict[str, str], advice: str
) -> None:
    ledger, order = FailingLedger(**faults), MemoryOrder()
    if holds:
        order.is_held_until(0)
    page = await page_of(scripted_client(not_connected(), ledger=ledger), order, changes=changes)
    assert isinstance(page, Form | Waiting)
    assert (page.advice, order.holds) == (advice, holds)


async def test_click_that_another_worker_overtakes_keeps_no_hold() -> None:
    class Overtaken(MemoryLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            await super().claim(key, **{**options, "token": "other"})
            return await super().claim(key, **options)

    order, policy = MemoryOrder(), LedgerPolicy(wait=0)
    client = scripted_client(CREATED, ledger=Overtaken(), ledger_policy=policy)
    page = await page_of(client, order)
    assert isinstance(page, Waiting)
    assert (page.advice, order.row) == ("wait", ("free", ""))


@pytest.mark.parametrize("fault", [system_error(), denied(), not_connected(), timed_out()])
@pytest.mark.parametrize(("first", "kind"), [(approved(), Redirect), (connection_lost(), Ask)])
async def test_known_approval_does_not_depend_on_another_creation(
    first: ScriptedResponse, kind: type, fault: ScriptedResponse
) -> None:
    """A shopper whose loan is approved, or may be, must not be shown another way to pay."""
    script = ScriptedTransport(CREATED, first, *[fault] * 3)
    client = script.client(ledger=MemoryLedger())
    for _ in range(2):
        assert isinstance(await page_of(client), kind)
    assert sent_by(script) == ["create_request", "approve"]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_closing_waits_for_the_order_of_a_shopper_who_has_left(
    caplog: pytest.LogCaptureFixture, *, is_closed: bool
) -> None:
    class SlowToSave(MemoryOrder):
        async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
            if new[0] == "approved":
                click.cancel()
                await asyncio.sleep(0.01)
            return await super().change(old, new)

    client, order = scripted_client(CREATED, approved()), SlowToSave()
    click = asyncio.create_task(page_of(client, order))
    await asyncio.wait([click])
    if is_closed:
        await client.aclose()
    for each in asyncio.all_tasks() - {asyncio.current_task()}:  # the event loop ends
        each.cancel()
    await end_of_other_tasks()
    lost = "checkout, entry -: the order was not changed: CancelledError"
    assert (order.stored is not None, lost in caplog.messages) == (is_closed, not is_closed)


@pytest.mark.parametrize("result", [None, 1])
async def test_change_that_returns_no_bool_is_a_type_error(result: object) -> None:
    class Wrong(MemoryOrder):
        async def change(self, *_: object) -> Any:
            return result

    with pytest.raises(TypeError, match=f"Order.change must return a bool, not {type(result).__name__}$"):
        await page_of(scripted_client(), Wrong())


@pytest.mark.parametrize(
    "row",
    [
        None,
        ("held",),
        ("held", ""),
        ("held", None),
        ("held", FISCAL_CODE),
        ("approved", "{}"),
        ("approved", '{"order": "A-1000", "amount": 45000}'),  # the row was copied from another order
        (None, ""),
    ],
)
async def test_columns_that_change_did_not_write_are_a_value_error(row: Any) -> None:
    order = MemoryOrder()
    order.row = row
    for work in (page_of, settle):
        with pytest.raises(ValueError, match=r"Order\.loan must return the columns") as caught:
            await work(scripted_client(), order)
        frames = TracebackException.from_exception(caught.value, capture_locals=True).format()
        assert FISCAL_CODE not in "".join(frames).partition("loanasync/checkout.py")[2]


async def test_request_with_another_amount_than_the_order_is_a_value_error() -> None:
    script, order = ScriptedTransport(), MemoryOrder()
    with pytest.raises(ValueError, match=r"pass amount=order\.amount"):
        await page_of(script.client(), order, changes={"amount": 70_000})
    assert (script.sent, order.row) == ([], ("free", ""))


async def test_order_is_held_for_the_fiscal_code_in_its_normal_form() -> None:
    order = MemoryOrder()
    await page_of(scripted_client(CREATED, approved()), order, code=f" {FISCAL_CODE.lower()} ")
    assert order.code == FISCAL_CODE


async def test_without_a_ledger_an_order_with_another_hold_sends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other click was before a restart, or in another process."""
    first, second = ScriptedTransport(CREATED, connection_lost()), ScriptedTransport(CREATED, approved())
    order = MemoryOrder()
    assert isinstance(await page_of(first.client(), order), Ask)
    page = await page_of(restarted := second.client(), order)
    assert (type(page), order.holds, second.sent) == (Waiting, 1, [])
    assert "nothing is sent: another click holds the order" in caplog.text
    order.row = ("free", order.row[1])  # by the staff
    assert isinstance(await page_of(restarted, order), Redirect)


async def test_slow_creation_may_be_tried_again() -> None:
    """Nobody was evaluated: the shopper need not wait, and may pay otherwise."""
    order, limits = MemoryOrder(), Timeout(total=4, attempt=5, connect=1)
    page = await after(timed_out(), order=order, create_timeout=limits)
    assert isinstance(page, Waiting)
    assert isinstance(page.error, DeadlineExceededError)
    assert (page.error.operation, page.advice, order.holds) == ("create_request", "try_later", 0)


@pytest.mark.parametrize(
    ("end", "outcome", "state", "kind"),
    [
        (connection_lost(), None, "held", Ask),
        (connection_lost(), "approved", "approved", Redirect),
        (connection_lost(), "refused", "refused", Refused),
        (response(502), "not_evaluated", "free", None),
        (approved(), None, "approved", Redirect),
        (denied(), None, "free", None),
    ],
)
async def test_settled_order_learns_what_the_ledger_knows(
    end: ScriptedResponse,
    outcome: Any,
    state: str,
    kind: type | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order could not be changed after the approval, and a person may have resolved the entry."""
    script, order = ScriptedTransport(CREATED, end), FailingOrder("change", after=1)
    client = script.client(ledger=MemoryLedger())
    page = await page_of(client, order)
    assert order.row[0] == "held"
    order.left = 99
    if outcome is not None:
        await client.resolve(FISCAL_CODE, outcome, source="a person", order_id=order.number)
    if state == "free":
        assert isinstance(await settle(client, order), Waiting)  # the click may be alive
    passed = time.time() + 600
    monkeypatch.setattr("loanasync.checkout.time.time", lambda: passed)
    for _ in range(2):
        settled = await settle(client, order, approved_url="/order")
        assert (order.row[0], settled if settled is None else type(settled)) == (state, kind)
        assert "#t" not in repr(settled)
    if isinstance(page, Redirect):
        assert getattr(settled, "url", None) == page.url
    assert sent_by(script) == ["create_request", "approve"]


@pytest.mark.parametrize("has_ledger", [True, False])
@pytest.mark.parametrize(("state", "kind"), [("free", type(None)), ("paid", Paid)])
async def test_order_without_a_click_is_settled_without_the_ledger(
    state: str, kind: type, *, has_ledger: bool
) -> None:
    ledger = FailingLedger(get=broken) if has_ledger else None
    order = MemoryOrder()
    order.row = (state, "")
    client = scripted_client(ledger=ledger)
    assert isinstance(await settle(client, order), kind)
    if state == "paid":
        assert isinstance(await page_of(client, order), Paid)


@pytest.mark.parametrize(
    ("step", "kind"), [(approved(), Redirect), (refused(), Refused), (connection_lost(), Ask)]
)
async def test_click_sees_what_another_click_did_since_it_began(step: ScriptedResponse, kind: type) -> None:
    class Late(MemoryOrder):
        async def loan(self) -> tuple[str, str]:
            row, self.row = self.row, others.pop(0) if others else self.row
            return row

    others: list[tuple[str, str]] = []
    decided, order = MemoryOrder(), Late()
    await after(CREATED, step, order=decided, code="TSTABC00A00A000A")
    others.append(decided.row)
    script = ScriptedTransport()
    assert isinstance(await page_of(script.client(), order), kind)
    assert (script.sent, order.row) == ([], decided.row)


async def test_order_is_not_freed_without_a_ledger() -> None:
    order = MemoryOrder()
    order.is_held_until(0)
    for _ in range(2):
        assert isinstance(await settle(scripted_client(), order), Waiting)
    assert order.holds == 1


@pytest.mark.parametrize("others", [{"first": 0.0, "last": math.inf}, {"first": math.inf, "last": 0.0}])
async def test_order_is_not_freed_before_its_last_click_is_over(others: dict[str, float]) -> None:
    order = MemoryOrder()
    order.is_held_until(0)
    order.row = ("held", json.dumps({**order.members, "holds": others}))
    assert isinstance(await settle(scripted_client(ledger=MemoryLedger()), order), Waiting)
    assert order.holds == 2


async def test_order_that_another_click_holds_meanwhile_is_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    client, order = scripted_client(ledger=MemoryLedger()), MemoryOrder()
    order.is_held_until(0)
    known = client.known

    async def clicked(*arguments: Any, **options: Any) -> Any:
        found = await known(*arguments, **options)
        order.row = ("held", json.dumps({**order.members, "holds": {"new": math.inf}}))
        return found

    monkeypatch.setattr(client, "known", clicked)
    assert isinstance(await settle(client, order), Waiting)
    assert order.holds == 1


async def test_open_outcome_is_not_noted_for_the_next_customer_of_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next customer holds it while the ledger is read."""
    client, order = scripted_client(CREATED, connection_lost(), ledger=MemoryLedger()), MemoryOrder()
    await page_of(client, order)
    known = client.known

    async def clicked(*arguments: Any, **options: Any) -> Any:
        found = await known(*arguments, **options)
        order.is_held_until(math.inf, "TSTABC00A00A000A")
        return found

    monkeypatch.setattr(client, "known", clicked)
    assert isinstance(await settle(client, order), Ask)
    assert (order.code, order.entry) == ("TSTABC00A00A000A", "")


async def test_settling_ends_if_it_is_cancelled_while_the_order_changes() -> None:
    class Slow(MemoryOrder):
        async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
            settling.cancel()
            await asyncio.sleep(0)
            return await super().change(old, new)

    order = Slow()
    order.is_held_until(0)
    settling = asyncio.create_task(settle(scripted_client(ledger=MemoryLedger()), order))
    await asyncio.wait([settling])
    assert settling.cancelled()


async def test_order_keeps_its_page_while_the_ledger_cannot_be_read() -> None:
    ledger, order = FailingLedger(), MemoryOrder()
    client = scripted_client(CREATED, connection_lost(), ledger=ledger)
    first = await page_of(client, order)
    ledger.faults = {"get": broken}
    for page in (await settle(client, order), await page_of(client, order)):
        assert isinstance(page, Ask)
        assert isinstance(first, Ask)
        assert (page.advice, page.text()) == ("ask_service", first.text())


async def test_live_click_keeps_its_hold_between_hold_and_claim() -> None:
    async def settled(_: SentRequest) -> ScriptedResponse:
        assert isinstance(await settle(client, order), Waiting)
        assert order.holds == 1
        return CREATED

    order = MemoryOrder()
    client = scripted_client(computed(settled), approved(), ledger=MemoryLedger())
    assert isinstance(await page_of(client, order), Redirect)


async def test_click_that_was_stopped_for_long_sends_no_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another customer may have held the order since then, or it was paid."""

    def sleeps(_: SentRequest) -> ScriptedResponse:
        passed = time.time() + client.timeout.total + 31
        monkeypatch.setattr("loanasync.checkout.time.time", lambda: passed)
        return CREATED

    script, order = ScriptedTransport(computed(sleeps)), MemoryOrder()
    client = script.client(ledger=MemoryLedger())
    page = await page_of(client, order)
    assert isinstance(page, Waiting)
    assert (page.advice, order.row, len(script.sent)) == ("try_later", ("free", ""), 1)


@pytest.mark.parametrize(
    ("state", "changes"),
    [("paid", None), ("held", {"code": "TSTABC00A00A000A"}), ("held", {"amount": 50_000})],
)
async def test_order_that_changed_during_the_approval_is_not_decided(
    state: str, changes: dict[str, Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The shop has ignored the state when it took the payment or changed the order."""

    def changed(_: SentRequest) -> ScriptedResponse:
        order.row = (state, "" if changes is None else json.dumps({**order.members, **changes}))
        return approved()

    order = MemoryOrder()
    page = await after(CREATED, computed(changed), order=order)
    assert isinstance(page, Ask)
    assert (page.advice, order.row[0], order.stored) == ("already_decided", state, None)
    assert "approved, but the order was paid" in caplog.text


async def test_order_whose_amount_changes_in_another_tab_sends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Changed(MemoryOrder):
        async def change(self, *_: object) -> bool:
            return False

    script = ScriptedTransport()
    page = await page_of(script.client(), Changed())
    assert isinstance(page, Waiting)
    assert (page.advice, script.sent) == ("try_later", [])
    assert "Order.change changed nothing" in caplog.text


async def test_clicks_at_the_same_moment_hold_and_free_the_order() -> None:
    order, client = SlowOrder(), scripted_client(*[response(502)] * 40)
    pages = await asyncio.gather(*(page_of(client, order) for _ in range(20)))
    assert {type(page) for page in pages} == {Waiting}
    assert order.row == ("free", "")


def test_late_decision_without_a_ledger_is_saved_by_the_next_click() -> None:
    async def slow(_: SentRequest) -> ScriptedResponse:
        await asyncio.sleep(2)
        return approved()

    async def click_twice() -> None:
        client = scripted_client(CREATED, computed(slow), timeout=Timeout(total=1, attempt=5, connect=1))
        page = await page_of(client, order := MemoryOrder())
        assert isinstance(page, Waiting)
        assert (page.advice, order.stored) == ("wait", None)
        await asyncio.sleep(2)
        assert isinstance(await page_of(client, order), Redirect)
        assert order.stored is not None

    VirtualTime().run(click_twice())


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_free_order_whose_approval_is_unknown_is_held_by_its_next_click(*, has_ledger: bool) -> None:
    """The staff may have set it free, or restored the orders from a backup. It must not be paid otherwise."""
    script, order = ScriptedTransport(CREATED, connection_lost()), MemoryOrder()
    client = script.client(ledger=MemoryLedger() if has_ledger else None)
    await page_of(client, order)
    order.row = ("free", "")
    assert isinstance(await page_of(client, order), Ask)
    assert (order.row[0], sent_by(script)) == ("held", ["create_request", "approve"])


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_order_of_a_customer_evaluated_for_another_order_is_free(*, has_ledger: bool) -> None:
    already = domain_error("User already evaluated for approval")
    script, order = ScriptedTransport(CREATED, approved(), CREATED, already), MemoryOrder(number="A-2")
    client = script.client(ledger=MemoryLedger() if has_ledger else None)
    await page_of(client, MemoryOrder(number="A-1"))
    for _ in range(2):  # the second click sends nothing
        page = await page_of(client, order)
        assert isinstance(page, Ask)
        assert (page.advice, page.status, order.row) == ("other_order", 409, ("free", ""))
        assert "choose another payment method" in page.text()
        assert len(script.sent) == 4


async def test_held_order_of_a_customer_evaluated_for_another_order_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    already = domain_error("User already evaluated for approval")
    client = scripted_client(CREATED, approved(), CREATED, already, ledger=MemoryLedger())
    await page_of(client, MemoryOrder(number="A-1"))
    order = FailingOrder("change", after=1, number="A-2")
    await page_of(client, order)
    order.left = 99
    assert order.row[0] == "held"
    passed = time.time() + 600
    monkeypatch.setattr("loanasync.checkout.time.time", lambda: passed)
    assert (await settle(client, order), order.row) == (None, ("free", ""))


async def test_settling_process_that_was_stopped_frees_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A click may have begun its approval meanwhile."""
    order = FailingOrder("change", after=1)
    client = scripted_client(not_connected(), ledger=MemoryLedger())
    await page_of(client, order)
    order.left, known = 99, client.known

    async def stops(*arguments: Any, **options: Any) -> Any:
        found = await known(*arguments, **options)
        passed = time.time() + 600
        monkeypatch.setattr("loanasync.checkout.time.time", lambda: passed)
        return found

    monkeypatch.setattr(client, "known", stops)
    assert isinstance(await settle(client, order), Waiting)
    assert order.row[0] == "held"


async def test_late_error_of_a_customer_is_not_noted_for_another_one() -> None:
    order = MemoryOrder()

    def held_by_another(_: SentRequest) -> ScriptedResponse:
        text = json.loads(order.row[1])
        order.row = ("held", json.dumps({**text, "code": "TSTABC00A00A000A", "holds": {"other": 0.0}}))
        return connection_lost()

    client = scripted_client(CREATED, computed(held_by_another), ledger=MemoryLedger())
    await page_of(client, order)
    assert (json.loads(order.row[1])["entry"], json.loads(order.row[1])["advice"]) == ("", "wait")

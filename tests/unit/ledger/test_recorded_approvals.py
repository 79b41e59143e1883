"""Approvals with a ledger: the entry after each result, and the effect on the next call."""

import asyncio
from typing import Any

import attrs
import pytest
from cryptography.fernet import Fernet

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    InFlightError,
    InvalidRequestError,
    LedgerMismatchError,
    OutcomeUnknownError,
    PayloadMismatchError,
    Refused,
    Timeout,
)
from loanasync.ledger import MemoryLedger, Settlement, State
from loanasync.ledger.administration import move_service
from loanasync.testing import (
    approved,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    timed_out,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, held_response
from support.virtual_time import turns

EVALUATED = "User already evaluated for approval"


async def test_replayed_decision_equals_the_original() -> None:
    request = approval_request(
        iban="IT60X0542811101000000123456",
        zero_interest_rate=True,
        order_token="order-17",
        payment_day_of_month=5,
        citizenship="italian",
    )
    shop = Shop(approved(net_amount="43,10"))
    first = await shop.approve(request=request)
    again = await shop.approve(request=request)
    assert attrs.evolve(again, meta=first.meta) == first
    assert again.meta.unread == first.meta.unread == ("netAmount",)


@pytest.mark.parametrize("odd", ['"\\ud800"', "-1e999", '["x", {"y": -1e999, "z": "\\udfff"}]'])
@pytest.mark.parametrize("name", ["redirectUrl", "netAmount", "new"])
@pytest.mark.parametrize("keep", ["decision", "body"])
async def test_decision_is_stored_with_any_readable_response(name: str, odd: str, keep: str) -> None:
    shop = Shop(response(422, f'{{"approved": false, "{name}": {odd}}}'.encode()), keep=keep)
    first = await shop.approve()
    again = await shop.approve()
    assert isinstance(first, Refused)
    assert isinstance(again, Refused)
    assert len(shop.script.sent) == 1
    # A number that JSON cannot express is left out, not stored as null.
    body = (await shop.entry()).body
    assert body is not None
    assert b"null" not in body


async def test_held_entry_is_not_sent() -> None:
    shop = Shop(approved())
    await shop.put(State.HELD)
    with pytest.raises(OutcomeUnknownError, match="a person blocked this entry") as caught:
        await shop.approve()
    assert caught.value.state == "held"
    assert shop.script.left == 1


async def test_decision_resolved_without_response_is_replayed() -> None:
    shop = Shop()
    entry = await shop.put(State.UNKNOWN)
    settlement = Settlement(state=State.REFUSED, note="by telephone")
    await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
    decision = await shop.approve()
    assert isinstance(decision, Refused)
    assert (decision.meta.status, decision.meta.unread, decision.amount) == (422, ("body",), None)


async def test_claim_is_made_just_before_the_first_byte() -> None:
    first, arrived, go = held_response(approved())
    shop = Shop(first, approved(), options={"max_concurrency": 1})
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    waiting = asyncio.create_task(shop.approve(code="TSTXYZ00A00A000B"))
    await turns()
    assert [entry.state for entry in await shop.entries()] == [State.INFLIGHT]
    go.set()
    await asyncio.gather(call, waiting)
    assert [entry.state for entry in await shop.entries()] == [State.APPROVED] * 2


async def test_known_decision_needs_no_slot() -> None:
    first, arrived, go = held_response(approved())
    shop = Shop(refused(), first, options={"max_concurrency": 1})
    await shop.approve()
    call = asyncio.create_task(shop.approve(code="TSTXYZ00A00A000B"))
    await arrived.wait()
    assert isinstance(await shop.approve(), Refused)
    go.set()
    await call


async def test_released_entry_accepts_corrected_data() -> None:
    shop = Shop(rejected({"email": "is taken"}), approved())
    await shop.result()
    mended = approval_request(email="other@example.com")
    assert isinstance(await shop.approve(request=mended), Approved)


@pytest.mark.parametrize("state", [State.INFLIGHT, State.UNKNOWN, State.LOST, State.HELD, State.APPROVED])
async def test_other_data_under_the_same_key_is_a_mismatch(state: State) -> None:
    shop = Shop(approved())
    await shop.put(state)
    with pytest.raises(PayloadMismatchError) as caught:
        await shop.approve(request=approval_request(amount=99_000), repeat_unknown=True)
    assert caught.value.state == state
    assert shop.script.left == 1
    assert isinstance(await shop.approve(request=approval_request(amount=99_000), scope="2"), Approved)


async def test_order_of_members_does_not_change_the_payload() -> None:
    shop = Shop(approved())
    one = approval_request(extra={"a": {"x": 1, "y": 2}, "b": 2})
    other = approval_request(extra={"b": 2, "a": {"y": 2, "x": 1}})
    await shop.approve(request=one)
    assert isinstance(await shop.approve(request=other), Approved)
    assert len(shop.script.sent) == 1


async def test_call_waits_for_the_decision_of_another_worker() -> None:
    step, arrived, go = held_response(refused())
    shop = Shop(step)
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    waiting = asyncio.create_task(shop.approve(shop.new_client()))
    await turns()
    assert not waiting.done()
    go.set()
    assert isinstance(await waiting, Refused)
    assert isinstance(await call, Refused)
    assert len(shop.script.sent) == 1


async def test_waiting_call_sends_after_another_worker_released() -> None:
    step, arrived, go = held_response(not_connected())
    shop = Shop(step, approved())
    call = asyncio.create_task(shop.result())
    await arrived.wait()
    waiting = asyncio.create_task(shop.approve(shop.new_client()))
    await turns()
    go.set()
    assert isinstance(await waiting, Approved)
    await call


async def test_call_waits_for_another_worker_until_its_deadline() -> None:
    shop = Shop(approved())
    entry = await shop.put(State.INFLIGHT)
    with pytest.raises(InFlightError) as caught:
        await shop.approve(timeout=Timeout(total=0.05, attempt=0.04, connect=0.01))
    assert caught.value.key == entry.key
    assert shop.script.left == 1


class TestRepeatUnknown:
    """With ``repeat_unknown=True``, a request whose outcome is unknown is sent once more."""

    async def test_repeat_with_a_decision_settles_the_entry(self) -> None:
        shop = Shop(timed_out(), refused())
        await shop.result()
        assert isinstance(await shop.approve(repeat_unknown=True), Refused)
        entry = await shop.entry()
        assert (entry.state, entry.takeovers) == (State.REFUSED, 1)
        assert isinstance(await shop.approve(), Refused)

    async def test_repeat_with_already_evaluated_is_lost(self) -> None:
        shop = Shop(timed_out(), domain_error(EVALUATED))
        await shop.result()
        assert isinstance(await shop.result(repeat_unknown=True), AlreadyEvaluatedError)
        assert (await shop.entry()).state is State.LOST
        again = await shop.result()
        assert isinstance(again, OutcomeUnknownError)
        assert again.state == "lost"

    async def test_late_decision_replaces_already_evaluated(self) -> None:
        step, arrived, go = held_response(domain_error(EVALUATED))
        shop = Shop(timed_out(), step)
        await shop.result()
        first = await shop.entry()
        repeat = asyncio.create_task(shop.approve(repeat_unknown=True))
        await arrived.wait()
        late = Settlement(state=State.APPROVED, status=201, body=b'{"approved":true,"redirectUrl":"u"}')
        await shop.ledger.settle(first.key, token=first.token, payload=first.payload, settlement=late)
        go.set()
        decision = await repeat
        assert isinstance(decision, Approved)
        assert decision.redirect_url == "u"

    async def test_repeated_entry_released_by_a_person_is_like_a_new_one(self) -> None:
        shop = Shop(timed_out(), timed_out(), denied(), approved())
        await shop.result()
        await shop.result(repeat_unknown=True)
        entry = await shop.entry()
        released = Settlement(state=State.RELEASED, note="the service has nothing of it")
        await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=released)
        await shop.result()
        assert (await shop.entry()).state is State.RELEASED
        assert isinstance(await shop.approve(), Approved)


async def test_other_calls_do_not_use_the_ledger() -> None:
    ledger = FailingLedger()
    shop = Shop(response(200, {}), ledger=ledger)
    await shop.client.create_request({"fiscalCode": FISCAL_CODE})
    assert ledger.operations == []


async def test_approval_uses_one_claim_and_one_settlement() -> None:
    ledger = FailingLedger()
    shop = Shop(approved(), ledger=ledger)
    await shop.approve()
    assert ledger.operations == ["claim", "settle"]
    await shop.approve()
    assert ledger.operations[2:] == ["claim"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"code": FISCAL_CODE}, {"code": "TSTXYZ00A00A000B"}),
        ({"scope": "1"}, {"scope": "2"}),
    ],
)
async def test_customers_and_scopes_have_separate_entries(one: Any, other: Any) -> None:
    shop = Shop(approved(), refused())
    assert isinstance(await shop.approve(**one), Approved)
    assert isinstance(await shop.approve(**other), Refused)
    # The payload digests must not show either that both requests are the same.
    assert len({entry.payload for entry in await shop.entries()}) == 2


@pytest.mark.parametrize("scope", [None, 7])
async def test_scope_that_is_not_text_is_rejected(scope: Any) -> None:
    shop = Shop(refused(), approved())
    await shop.approve()
    with pytest.raises(InvalidRequestError, match="scope: must be text; use a str, not"):
        await shop.approve(scope=scope)
    assert len(shop.script.sent) == 1


async def test_shops_have_separate_entries() -> None:
    ledger = MemoryLedger()
    for shop_id in ("one", "another"):
        await Shop(approved(), ledger=ledger, options={"shop_id": shop_id}).approve()
    assert len([entry async for entry in ledger.scan()]) == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"options": {"base_url": "https://other.example.com"}}, "belongs to https://loans.example.com"),
        ({"options": {"base_url": "https://loans.example.com/test"}}, "belongs to https://loans.example.com"),
        ({"key": b"0123456789abcdeF"}, "has another key"),
        ({"encrypt": Fernet(Fernet.generate_key())}, "was created without a cipher"),
        ({"scope": "order_token"}, "was created with LedgerPolicy(scope='')"),
    ],
)
async def test_client_that_does_not_fit_the_ledger_sends_nothing(other: dict[str, Any], message: str) -> None:
    first = Shop(approved())
    await first.approve()
    shop = Shop(approved(), ledger=first.ledger, **other)
    error = await shop.result(request=approval_request(order_token="1"))
    assert isinstance(error, LedgerMismatchError)
    assert message in error.reason
    assert (error.outcome, error.repeatable, shop.script.sent) == ("not_sent", False, [])


async def test_client_fits_again_after_the_service_has_moved() -> None:
    first = Shop(approved())
    await first.approve()
    moved = Shop(ledger=first.ledger, options={"base_url": "https://other.example.com"})
    assert isinstance(await moved.result(), LedgerMismatchError)
    await move_service(first.ledger, "https://other.example.com/")
    assert isinstance(await moved.result(), Approved)
    assert isinstance(await first.result(code="TSTXYZ00A00A000B"), LedgerMismatchError)


async def test_policy_key_finds_decisions_made_with_another_auth_token() -> None:
    shop = Shop(approved(), key=b"0123456789abcdef")
    await shop.approve()
    assert isinstance(await shop.approve(shop.new_client(auth_token="renewed")), Approved)
    assert len(shop.script.sent) == 1

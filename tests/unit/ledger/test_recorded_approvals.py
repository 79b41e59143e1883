"""Approvals with a ledger: claims, repeats, replays. The outcome matrix owns the state after each result."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest
from cryptography.fernet import Fernet

from loanasync import Approved, LoanError, Refused, Timeout, errors
from loanasync.ledger import MemoryLedger, Settlement, State, resolve
from loanasync.ledger.administration import move_service
from loanasync.testing import approved, domain_error, refused, rejected, response, timed_out
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, Shop, held_response
from support.memory_clients import started
from support.virtual_time import turns

EVALUATED = "User already evaluated for approval"
OTHER = "TSTXYZ00A00A000B"
ORDERS = [approval_request(order_token=token) for token in ("1", "2")]


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
async def test_decision_is_stored_with_any_readable_response(odd: str) -> None:
    shop = Shop(response(422, f'{{"approved": false, "redirectUrl": {odd}}}'.encode()))
    for _ in range(2):
        assert isinstance(await shop.approve(), Refused)
    assert len(shop.script.sent) == 1
    # A number that JSON cannot express is left out, not stored as null.
    body = (await shop.entry()).body
    assert body is not None
    assert b"null" not in body


@pytest.mark.parametrize("member", ["other", "redirectUrl"])
async def test_decision_with_deep_json_is_stored(member: str) -> None:
    """A copy of 900 levels exceeds the recursion limit. A body that is deeper still is read in part."""
    shop = Shop(response(422, f'{{"approved": false, "{member}": {"[" * 900}{"]" * 900}}}'.encode()))
    assert isinstance(await shop.approve(), Refused)
    assert (await shop.entry()).state is State.REFUSED
    assert isinstance(await shop.approve(), Refused)


async def test_claim_is_made_just_before_the_first_byte() -> None:
    """A known decision needs no slot."""
    first, arrived, go = held_response(approved())
    shop = Shop(refused(), first, approved(), options={"max_concurrency": 1})
    await shop.approve()
    calls = [asyncio.create_task(shop.approve(code=f"TSTXYZ00A00A000{letter}")) for letter in "BC"]
    await arrived.wait()
    await turns()
    assert sorted(entry.state for entry in await shop.entries()) == [State.INFLIGHT, State.REFUSED]
    assert isinstance(await shop.approve(), Refused)
    go.set()
    await asyncio.gather(*calls)
    assert len(await shop.entries()) == 3


async def test_approval_uses_one_read_one_claim_and_one_settlement() -> None:
    ledger = FailingLedger()
    shop = Shop(approved(), response(200, {}), ledger=ledger)
    with mock.patch.object(ledger._store, "read", wraps=ledger._store.read) as read:
        await shop.approve()
    read.assert_not_called()  # the list of the customer's entries is the only read
    assert ledger.operations == ["entries_of", "claim", "settle"]
    await shop.approve()
    assert ledger.operations[3:] == ["entries_of"]
    await shop.client.create_request({"fiscalCode": FISCAL_CODE})
    assert len(ledger.operations) == 4


@pytest.mark.parametrize(("total", "patience"), [(30.0, 5.0), (2.0, 60.0)])
async def test_lease_outlasts_the_latest_settlement_by_patience(total: float, patience: float) -> None:
    """A call settles at most `total + attempt + patience` seconds after its claim.

    The lease needs a margin, or the claim of a living call may expire. Other workers wait for a dead one
    until the lease expires, so the margin is not longer than `patience`.
    """
    shop = Shop(approved(), patience=patience)
    await shop.approve(timeout=Timeout(total=total, attempt=1, connect=0.5))
    entry = await shop.entry()
    assert entry.expires - entry.claimed == pytest.approx(total + 1 + 2 * patience)


# The customer, the order and the data


@pytest.mark.parametrize("state", [State.INFLIGHT, State.UNKNOWN, State.LOST, State.HELD, State.APPROVED])
async def test_other_data_under_the_same_key_is_a_mismatch(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(approved())
    await shop.put(state)
    with pytest.raises(errors.PayloadMismatchError) as caught:
        await shop.approve(request=approval_request(amount=99_000), repeat_unknown=True)
    assert (caught.value.state, caught.value.entry) == (state, (await shop.entry()).key)
    assert ("pass its number as order_id" in caplog.text) is state.is_decided
    assert "TSTXYZ" not in caplog.text
    assert shop.script.left == 1


async def test_released_entry_accepts_corrected_data() -> None:
    shop = Shop(rejected({"email": "is taken"}), approved())
    await shop.result()
    assert isinstance(await shop.approve(request=approval_request(email="other@example.com")), Approved)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"code": FISCAL_CODE}, {"code": OTHER}),
        ({"order_id": "1"}, {"order_id": "2"}),
        ({"request": ORDERS[0], "order_id": "1"}, {"request": ORDERS[0], "order_id": "2"}),
    ],
)
async def test_customers_and_orders_have_separate_entries(one: Any, other: Any) -> None:
    steps = [held_response(approved()), held_response(refused())]
    shop = Shop(*(step for step, _, _ in steps))
    calls = [asyncio.create_task(shop.approve(**each)) for each in (one, other)]
    for _, arrived, go in steps:
        await arrived.wait()
        go.set()
    assert [type(each) for each in await asyncio.gather(*calls)] == [Approved, Refused]
    assert isinstance(await shop.approve(**one), Approved)
    # The payload digests must not show either that both requests are the same.
    assert len({entry.payload for entry in await shop.entries()}) == 2


async def test_shops_have_separate_entries() -> None:
    ledger = MemoryLedger()
    for shop_id in ("one", "another"):
        await Shop(approved(), ledger=ledger, options={"shop_id": shop_id}).approve()
    assert len([entry async for entry in ledger.scan()]) == 2


@pytest.mark.parametrize("order_id", [None, 7])
async def test_order_id_that_is_not_text_is_rejected(order_id: Any) -> None:
    shop = Shop(approved())
    with pytest.raises(errors.InvalidRequestError, match="order_id: must be text; use a str, not"):
        await shop.approve(order_id=order_id)
    assert shop.script.left == 1


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"options": {"base_url": "https://other.example.com"}}, "belongs to https://loans.example.com"),
        ({"options": {"base_url": "https://loans.example.com/test"}}, "belongs to https://loans.example.com"),
        ({"key": b"0123456789abcdeF"}, "has another key"),
        ({"encrypt": Fernet(Fernet.generate_key())}, "was created without a cipher"),
    ],
)
async def test_client_that_does_not_fit_the_ledger_sends_nothing(other: dict[str, Any], message: str) -> None:
    first = Shop(approved())
    await first.approve()
    shop = Shop(approved(), ledger=first.ledger, **other)
    error = await shop.result(request=ORDERS[0])
    assert isinstance(error, errors.LedgerMismatchError)
    assert message in error.reason
    assert (error.outcome, error.repeatable, shop.script.sent) == ("not_sent", False, [])


async def test_client_fits_again_after_the_service_has_moved() -> None:
    first = Shop(approved())
    await first.approve()
    moved = Shop(ledger=first.ledger, options={"base_url": "https://other.example.com"})
    assert isinstance(await moved.result(), errors.LedgerMismatchError)
    await move_service(first.ledger, "https://other.example.com/")
    assert isinstance(await moved.result(), Approved)
    assert isinstance(await first.result(code=OTHER), errors.LedgerMismatchError)


# Repeats


@pytest.mark.parametrize("state", [State.LOST, State.HELD])
async def test_repeat_unknown_does_not_apply_to_other_states(state: State) -> None:
    shop = Shop(approved())
    await shop.put(state)
    error = await shop.result(repeat_unknown=True)
    assert isinstance(error, errors.OutcomeUnknownError)
    assert error.state == state
    assert ("a person blocked this entry" in str(error)) is (state is State.HELD)
    assert shop.script.left == 1


async def test_repeat_returns_a_decision_of_the_first_request_that_arrived_late() -> None:
    step, arrived, go = held_response(domain_error(EVALUATED))
    shop = Shop(timed_out(), step)
    await shop.result()
    first = await shop.entry()
    repeat = await started(shop.approve(repeat_unknown=True), arrived)
    late = Settlement(state=State.APPROVED, status=201, body=b'{"approved":true,"redirectUrl":"u"}')
    await shop.ledger.settle(first.key, token=first.token, payload=first.payload, settlement=late)
    go.set()
    decision = await repeat
    assert isinstance(decision, Approved)
    assert decision.redirect_url == "u"


async def test_repeat_that_was_evaluated_earlier_is_lost() -> None:
    shop = Shop(timed_out(), domain_error(EVALUATED))
    await shop.result()
    assert isinstance(await shop.result(repeat_unknown=True), errors.AlreadyEvaluatedError)
    assert (await shop.entry()).state is State.LOST


# Entries that others change during the request


@pytest.mark.parametrize("state", [State.UNKNOWN, State.APPROVED, State.REFUSED])
async def test_response_of_a_lost_claim_is_kept(state: State, tmp_path: Path) -> None:
    """Another claim took over the entry, or a person decided without the response."""
    another = response(201, b'{"approved": true, "fiscalCode": "TSTXYZ99T99T999T"}')
    step, arrived, go = held_response(another if state is State.UNKNOWN else approved())
    shop = Shop(step, orphan_folder=tmp_path)
    call = await started(shop.result(), arrived)
    entry = await shop.entry()
    unknown = Settlement(state=State.UNKNOWN, note="the lease expired")
    entry = await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=unknown)
    await resolve(shop.ledger, entry, state, "by telephone")
    go.set()
    result = await call
    assert result.outcome == "unknown" if isinstance(result, LoanError) else isinstance(result, Approved)
    files = [*tmp_path.glob("*.json")]
    if state is State.UNKNOWN:
        assert ((await shop.entry()).body, files) == (b'{"approved":true}', [])
        return
    settlement = json.loads(files[0].read_bytes())["settlement"]
    assert (settlement["state"], bool(settlement["body"]), len(files)) == ("approved", True, 1)

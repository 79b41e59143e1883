"""Claims of a client with a ledger: keys, cancelled calls and takeovers."""

import asyncio
from typing import Any

import pytest

from loanasync import (
    Approved,
    ConfigurationError,
    InvalidRequestError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    Refused,
    Timeout,
)
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, State
from loanasync.testing import (
    ScriptedResponse,
    approved,
    denied,
    domain_error,
    not_connected,
    refused,
    rejected,
    response,
    system_error,
    timed_out,
)
from support.builders import approval_request
from support.ledger_clients import FailingLedger, Shop, held_response
from support.memory_clients import cancelled


class TestScopeOfOrders:
    """With ``scope="order_token"`` a customer has one entry for each order."""

    async def test_order_tokens_have_separate_entries(self) -> None:
        shop = Shop(approved(), refused(), scope="order_token")
        first, second = (approval_request(order_token=token) for token in ("1", "2"))
        assert isinstance(await shop.approve(request=first), Approved)
        assert isinstance(await shop.approve(request=second), Refused)
        assert isinstance(await shop.approve(request=first), Approved)
        entries = await shop.entries()
        assert len({entry.key for entry in entries}) == len({entry.order for entry in entries}) == 2
        assert len({entry.customer for entry in entries}) == 1
        assert len(shop.script.sent) == 2

    async def test_orders_of_one_customer_are_requested_at_the_same_time(self) -> None:
        steps = [held_response(approved()), held_response(refused())]
        shop = Shop(*(step for step, _, _ in steps), scope="order_token")
        calls = [
            asyncio.create_task(shop.approve(request=approval_request(order_token=token)))
            for token in ("1", "2")
        ]
        for _, arrived, go in steps:
            await arrived.wait()
            go.set()
        assert [type(each) for each in await asyncio.gather(*calls)] == [Approved, Refused]

    async def test_order_token_missing_sends_nothing(self) -> None:
        ledger = FailingLedger()
        shop = Shop(approved(), ledger=ledger, scope="order_token")
        error = await shop.result()
        assert isinstance(error, InvalidRequestError)
        [problem] = error.problems
        assert (problem.field, error.outcome, error.repeatable) == ("order_token", "not_sent", False)
        assert (shop.script.left, ledger.operations) == (1, [])

    async def test_order_token_with_other_data_is_a_mismatch(self) -> None:
        shop = Shop(approved(), scope="order_token")
        await shop.approve(request=approval_request(order_token="1"))
        error = await shop.result(request=approval_request(order_token="1", amount=99_000))
        assert isinstance(error, PayloadMismatchError)

    async def test_order_token_and_scope_are_both_part_of_the_key(self) -> None:
        shop = Shop(approved(), refused(), scope="order_token")
        order = approval_request(order_token="1")
        assert isinstance(await shop.approve(request=order, scope="a"), Approved)
        assert isinstance(await shop.approve(request=order, scope="b"), Refused)


def test_policy_with_invalid_scope_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="scope"):
        LedgerPolicy(scope="customer")  # type: ignore[arg-type]


async def test_decided_key_with_another_payload_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(approved())
    await shop.approve()
    assert isinstance(await shop.result(request=approval_request(amount=99_000)), PayloadMismatchError)
    assert "LedgerPolicy(scope='order_token')" in caplog.text
    assert "TSTXYZ" not in caplog.text


async def test_unknown_key_with_another_payload_logs_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(timed_out())
    await shop.result()
    assert isinstance(await shop.result(request=approval_request(amount=99_000)), PayloadMismatchError)
    assert "order_token" not in caplog.text


class TestCancelledCalls:
    """The entry of a call whose callers were all cancelled."""

    async def test_call_cancelled_before_sending_is_released(self) -> None:
        claimed, go = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            claimed.set()
            await go.wait()

        shop = Shop(approved(), ledger=FailingLedger(claim=slow), patience=0.01)
        call = asyncio.create_task(shop.approve())
        await claimed.wait()
        await cancelled(call)
        assert isinstance(shop.ledger, FailingLedger)
        shop.ledger.faults.clear()
        assert shop.client._flights is not None
        await shop.client._flights.aclose()
        assert shop.script.left == 1
        assert await shop.entries() == []
        assert isinstance(await shop.approve(), Approved)

    async def test_call_cancelled_while_waiting_for_a_slot_creates_no_entry(self) -> None:
        step, arrived, go = held_response(approved())
        shop = Shop(step, refused(), options={"max_concurrency": 1})
        first = asyncio.create_task(shop.approve())
        await arrived.wait()
        queued = asyncio.create_task(shop.approve(code="TSTXYZ00A00A000B"))
        await asyncio.sleep(0)
        await cancelled(queued)
        go.set()
        await first
        assert [entry.state for entry in await shop.entries()] == [State.APPROVED]
        assert isinstance(await shop.approve(code="TSTXYZ00A00A000B"), Refused)

    async def test_call_cancelled_in_a_retry_wait_is_unknown(self) -> None:
        began, go = asyncio.Event(), asyncio.Event()

        async def sleep(_: float) -> None:
            began.set()
            await go.wait()

        shop = Shop(system_error(), approved())
        shop.client._pipeline.sleep = sleep
        call = asyncio.create_task(shop.approve())
        await began.wait()
        await cancelled(call)
        assert shop.client._flights is not None
        await shop.client._flights.aclose()
        entry = await shop.entry()
        assert (entry.state, entry.note) == (State.UNKNOWN, "CancelledError")
        assert isinstance(await shop.result(), OutcomeUnknownError)
        assert shop.script.left == 1

    async def test_call_cancelled_after_sending_is_not_retried(self) -> None:
        step, arrived, go = held_response(system_error())
        shop = Shop(step, approved())
        call = asyncio.create_task(shop.approve())
        await arrived.wait()
        await cancelled(call)
        await asyncio.sleep(0)
        go.set()
        await shop.client.aclose()
        entry = await shop.entry()
        assert (entry.state, entry.note) == (State.UNKNOWN, "SystemFaultError")
        assert shop.script.left == 1

    async def test_call_cancelled_after_sending_settles_its_decision(self) -> None:
        step, arrived, go = held_response(approved(redirect_url="https://pay.example.com/#t"))
        shop = Shop(step)
        call = asyncio.create_task(shop.approve())
        await arrived.wait()
        await cancelled(call)
        go.set()
        decision = await shop.approve()
        assert isinstance(decision, Approved)
        assert decision.redirect_url == "https://pay.example.com/#t"
        assert len(shop.script.sent) == 1


NOTHING_DONE = [
    not_connected(),
    denied(),
    rejected({"email": "is taken"}),
    domain_error("User not found"),
    response(429),
]


class TestTakeovers:
    """A request that is sent again after an unknown outcome proves nothing about the first one."""

    @pytest.mark.parametrize("step", NOTHING_DONE)
    async def test_takeover_never_releases(self, step: ScriptedResponse) -> None:
        shop = Shop(timed_out(), step, approved())
        await shop.result()
        assert isinstance(await shop.result(repeat_unknown=True), LoanError)
        entry = await shop.entry()
        assert (entry.state, entry.takeovers) == (State.UNKNOWN, 1)
        assert isinstance(await shop.result(), OutcomeUnknownError)
        assert shop.script.left == 1

    async def test_takeover_cancelled_before_sending_stays_unknown(self) -> None:
        claimed = asyncio.Event()
        ledger = FailingLedger()
        shop = Shop(timed_out(), approved(), ledger=ledger, patience=0.01)
        await shop.result()

        async def slow() -> None:
            claimed.set()
            await asyncio.Event().wait()

        ledger.faults["claim"] = slow
        call = asyncio.create_task(shop.approve(repeat_unknown=True))
        await claimed.wait()
        await cancelled(call)
        assert shop.client._flights is not None
        await shop.client._flights.aclose()
        assert (await shop.entry()).state is State.UNKNOWN
        assert shop.script.left == 1

    async def test_repeat_unknown_is_needed_for_each_repeat(self) -> None:
        shop = Shop(timed_out(), timed_out(), approved())
        await shop.result()
        await shop.result(repeat_unknown=True)
        assert isinstance(await shop.result(), OutcomeUnknownError)
        assert isinstance(await shop.result(repeat_unknown=True), Approved)
        assert (await shop.entry()).takeovers == 2

    async def test_repeat_unknown_with_other_data_is_a_mismatch(self) -> None:
        shop = Shop(timed_out(), approved())
        await shop.result()
        other = approval_request(amount=99_000)
        assert isinstance(await shop.result(request=other, repeat_unknown=True), PayloadMismatchError)
        assert shop.script.left == 1

    @pytest.mark.parametrize("state", [State.LOST, State.HELD])
    async def test_repeat_unknown_does_not_apply_to_other_states(self, state: State) -> None:
        shop = Shop(approved())
        await shop.put(state)
        assert isinstance(await shop.result(repeat_unknown=True), OutcomeUnknownError)
        assert shop.script.left == 1


@pytest.mark.parametrize(("total", "patience"), [(30.0, 5.0), (2.0, 60.0)])
async def test_lease_outlasts_the_latest_settlement_by_patience(total: float, patience: float) -> None:
    """A call settles at most `total + attempt + patience` seconds after its claim.

    The lease needs a margin, or the claim of a living call may expire. Other workers wait for a dead one
    until the lease expires, so the margin is not longer than `patience`.
    """
    leases: list[float] = []

    class RecordingLedger(MemoryLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            leases.append(options["lease"])
            return await super().claim(key, **options)

    shop = Shop(approved(), ledger=RecordingLedger(), patience=patience)
    await shop.approve(timeout=Timeout(total=total, attempt=1, connect=0.5))
    latest_settlement = total + 1 + patience
    assert leases == [latest_settlement + patience]


def test_claim_in_progress_is_released_at_the_end_of_asyncio_run() -> None:
    class SlowLedger(MemoryLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            entry = await super().claim(key, **options)
            claimed.set()
            await asyncio.sleep(60)
            return entry

    async def start() -> None:
        calls.append(asyncio.create_task(shop.approve()))
        await claimed.wait()

    claimed = asyncio.Event()
    calls: list[asyncio.Task[Any]] = []
    shop = Shop(approved(), ledger=SlowLedger())
    asyncio.run(start())
    entry = asyncio.run(shop.entry())
    assert (entry.state, entry.note, shop.script.sent) == (State.RELEASED, "not sent", [])

"""Time that a call waits for another owner of its ledger entry."""

import asyncio
import math
from typing import Any

import pytest

from loanasync import Approved, ConfigurationError, InFlightError, PayloadMismatchError, Refused, Timeout
from loanasync.ledger import Entry, LedgerPolicy, MemoryLedger, Settlement, State
from loanasync.testing import approved, not_connected, refused, timed_out
from loanasync.worker import handle, message
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, NotWaitingLedger, Shop, held_response
from support.memory_clients import started
from support.virtual_time import turns


async def busy_shop(**policy: Any) -> tuple[Shop, NotWaitingLedger]:
    """Return a shop whose approval belongs to another owner, and its ledger."""
    ledger = NotWaitingLedger()
    shop = Shop(approved(), ledger=ledger, **policy)
    await shop.put(State.INFLIGHT)
    return shop, ledger


@pytest.mark.parametrize(
    ("policy", "arguments", "longest"),
    [
        ({}, {}, 2.0),
        ({"wait": 7.0}, {}, 7.0),
        ({}, {"wait": 20}, 20.0),
        ({"wait": 7.0}, {"wait": 1.0}, 1.0),
        ({"wait": math.inf}, {}, 20.0),
        ({}, {"wait": 7.0, "timeout": Timeout(total=1.5)}, 1.5),
    ],
)
async def test_wait_is_that_of_the_call_or_else_of_the_policy(
    policy: dict[str, float], arguments: dict[str, Any], longest: float
) -> None:
    shop, ledger = await busy_shop(**policy)
    error = await shop.result(**arguments)
    assert isinstance(error, InFlightError)
    assert len(ledger.waits) == 1
    assert longest / 2 < ledger.waits[0] <= longest
    assert shop.script.left == 1


@pytest.mark.parametrize(("response", "kind"), [(refused(), Refused), (not_connected(), Approved)])
async def test_call_waits_for_the_outcome_of_another_worker(response: Any, kind: type) -> None:
    """If the other worker releases the entry, the waiting call sends."""
    step, arrived, go = held_response(response)
    shop = Shop(step, approved())
    call = await started(shop.result(), arrived)
    waiting = asyncio.create_task(shop.approve(shop.new_client()))
    await turns()
    assert not waiting.done()
    go.set()
    assert isinstance(await waiting, kind)
    await call
    assert len(shop.script.sent) == (1 if kind is Refused else 2)


async def test_call_with_other_data_does_not_wait() -> None:
    shop, ledger = await busy_shop()
    error = await shop.result(request=approval_request(amount=70_000))
    assert isinstance(error, PayloadMismatchError)
    assert ledger.waits == []
    assert shop.script.left == 1


async def test_outcome_at_the_end_of_the_wait_is_returned() -> None:
    class LateLedger(MemoryLedger):
        async def wait(self, key: str, within: float) -> Entry | None:
            await asyncio.sleep(within)
            entry = await self.get(key)
            assert entry is not None
            decision = Settlement(state=State.APPROVED)
            return await self.settle(key, token=entry.token, payload=entry.payload, settlement=decision)

    shop = Shop(ledger=LateLedger())
    await shop.put(State.INFLIGHT)
    assert isinstance(await shop.result(wait=0.05), Approved)


@pytest.mark.parametrize("repeat_unknown", [False, True])
async def test_wait_of_zero_seconds_returns_at_once(*, repeat_unknown: bool) -> None:
    shop, ledger = await busy_shop()
    assert isinstance(await shop.result(wait=0, repeat_unknown=repeat_unknown), InFlightError)
    assert ledger.waits == []
    assert shop.script.left == 1


async def test_repeat_that_another_worker_starts_first_waits_for_it() -> None:
    class OvertakenLedger(NotWaitingLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            if options["over"] is not None:
                await super().claim(key, **{**options, "token": "of another repeat"})
            return await super().claim(key, **options)

    ledger = OvertakenLedger()
    shop = Shop(timed_out(), approved(), ledger=ledger)
    await shop.result()
    assert isinstance(await shop.result(wait=5.0, repeat_unknown=True), InFlightError)
    assert len(ledger.waits) == 1
    assert 2.0 < ledger.waits[0] <= 5.0
    assert shop.script.left == 1


async def test_waits_for_several_owners_share_one_limit() -> None:
    class ChangingLedger(NotWaitingLedger):
        async def wait(self, key: str, within: float) -> Entry | None:
            """Release the entry, and let the next owner claim it at once."""
            self.waits.append(within)
            await asyncio.sleep(0.05)
            entry = await self.get(key)
            assert entry is not None
            released = Settlement(state=State.RELEASED)
            await self.settle(key, token=entry.token, payload=entry.payload, settlement=released)
            after = await self.get(key)
            await self.claim(key, token=f"owner {len(self.waits)}", payload=entry.payload, lease=60.0)
            return after

    shop = Shop(approved(), ledger=ChangingLedger())
    await shop.put(State.INFLIGHT)
    assert isinstance(await shop.result(wait=0.2), InFlightError)
    ledger = shop.ledger
    assert isinstance(ledger, ChangingLedger)
    assert len(ledger.waits) > 1
    assert all(
        later <= earlier - 0.04 for earlier, later in zip(ledger.waits, ledger.waits[1:], strict=False)
    )


async def test_hanging_ledger_does_not_lengthen_the_wait() -> None:
    """For example, a write of another call waits for the lock of an SQLite file."""
    ledger = FailingLedger(wait=asyncio.Event().wait)
    shop = Shop(approved(), ledger=ledger, patience=3600.0)
    await shop.put(State.INFLIGHT)
    async with asyncio.timeout(30):  # less than `patience`, and much more than the wait
        assert isinstance(await shop.result(wait=0.01), InFlightError)
    assert ledger.operations[-1] == "wait"
    assert shop.script.left == 1


@pytest.mark.parametrize("has_ledger", [True, False])
async def test_second_call_of_one_client_waits_for_the_first(*, has_ledger: bool) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step)
    client = shop.client if has_ledger else shop.new_client(ledger=None, ledger_policy=None)
    first = await started(shop.approve(client, wait=0), arrived)
    second = asyncio.create_task(shop.approve(client, wait=0))
    await turns()
    assert not second.done()
    go.set()
    assert isinstance(await first, Approved)
    assert isinstance(await second, Approved)


async def test_client_with_another_ledger_does_not_join_the_call() -> None:
    step, arrived, go = held_response(approved())
    first = asyncio.create_task(Shop(step).approve())
    await arrived.wait()
    other = asyncio.create_task(Shop(refused()).approve())
    await turns()
    go.set()
    assert (type(await first), type(await other)) == (Approved, Refused)


async def test_bulk_approvals_and_workers_wait_until_the_deadline() -> None:
    shop, ledger = await busy_shop()
    async with shop.client.approve_many([(FISCAL_CODE, approval_request())]) as results:
        errors = [result.error async for result in results]
    assert [type(error) for error in errors] == [InFlightError]
    with pytest.raises(InFlightError):
        await handle(shop.client, message(FISCAL_CODE, approval_request()))
    assert len(ledger.waits) == 2
    assert all(15.0 < within <= 20.0 for within in ledger.waits)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((value, "must be a number of seconds, 0 or more$") for value in (-0.001, math.nan, True, "2")),
        (10**400, r"is too large; use math\.inf to wait"),
    ],
)
async def test_invalid_wait_is_a_configuration_error(value: Any, message: str) -> None:
    shop = Shop(approved())
    for client in (shop.client, shop.new_client(ledger=None, ledger_policy=None)):
        with pytest.raises(ConfigurationError, match=f"^wait: {message}"):
            await shop.approve(client, wait=value)
    assert shop.script.left == 1
    with pytest.raises(ConfigurationError, match=r"^ledger_policy\.wait: "):
        LedgerPolicy(wait=value)

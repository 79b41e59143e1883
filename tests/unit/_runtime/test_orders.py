"""Several orders of one customer: an open order stops the next one (readings.md R6)."""

import asyncio
from typing import Any

import pytest

from loanasync import Approved, LoanError, Refused, errors
from loanasync.ledger import Ledger, MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    domain_error,
    not_connected,
    refused,
    rejected,
    scripted_client,
    system_error,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import held_response, of_another_process
from support.memory_clients import cancelled, request, started

ALREADY = domain_error("User already evaluated for approval")
OTHER_DATA = approval_request(amount=99_000)


@pytest.mark.parametrize(
    ("step", "first", "second", "expected"),
    [
        (approved(), "A-1", "A-2", Approved),
        (refused(), "A-1", "A-2", Approved),
        (not_connected(), "A-1", "A-2", Approved),
        (rejected({"city": ["blank"]}), "", "A-2", Approved),
        (connection_lost(), "A-1", "A-2", ("unknown", "ConnectionLostError")),
        (ALREADY, "A-1", "A-2", ("lost", "AlreadyEvaluatedError")),
        (connection_lost(), "", "A-2", ("unknown", "ConnectionLostError")),
        (connection_lost(), "A-1", "", ("unknown", "ConnectionLostError")),
        (approved(), "", "A-2", "approved"),
        (approved(), "A-1", "", "approved"),
        (refused(), "A-1", "", "refused"),
    ],
)
async def test_order_is_stopped_by_an_open_one_of_the_customer(
    ledger: Ledger | None, step: ScriptedResponse, first: str, second: str, expected: Any
) -> None:
    script = ScriptedTransport(step, approved())
    client = script.client(ledger=ledger)
    await request(client, order_id=first)
    result = await request(client, order_id=second, payload=OTHER_DATA, repeat_unknown=True)
    if expected is Approved:
        assert isinstance(result, Approved)
        return
    assert isinstance(result, LoanError)
    assert len(script.sent) == 1
    assert result.entry == (await client.known(FISCAL_CODE, order_id=first)).entry
    if isinstance(expected, str):
        assert isinstance(result, errors.PayloadMismatchError)
        assert (result.state, "or pass the order_id of a new order" in str(result)) == (expected, True)
    else:
        assert isinstance(result, errors.OutcomeUnknownError)
        assert (result.state, result.note) == expected


async def test_order_waits_for_one_in_flight_and_is_sent_then(ledger: Ledger | None) -> None:
    step, arrived, go = held_response(approved())
    script = ScriptedTransport(step, refused())
    async with script.client(ledger=ledger, max_concurrency=2) as client:
        first = await started(request(client, order_id="A-1"), arrived)
        stopped = await request(client, order_id="A-2", wait=0)
        assert isinstance(stopped, errors.InFlightError)
        assert (stopped.entry, len(script.sent)) == (
            (await client.known(FISCAL_CODE, order_id="A-1")).entry,
            1,
        )
        second = asyncio.create_task(request(client, order_id="A-2"))
        left = asyncio.create_task(request(client, order_id="A-3"))
        await asyncio.sleep(0.05)
        await cancelled(left)
        go.set()
        assert isinstance(await first, Approved)
        assert isinstance(await second, Refused)
        assert [sent.body["amount"] for sent in script.sent] == [45_000, 45_000]


async def test_order_that_waited_for_its_slot_is_stopped_by_one_sent_meanwhile(ledger: Ledger | None) -> None:
    busy, arrived, go = held_response(approved())
    script = ScriptedTransport(busy, connection_lost(), approved())
    async with script.client(ledger=ledger, max_concurrency=1) as client:
        other = await started(request(client, "TSTXYZ00A00A000B"), arrived)
        calls = [asyncio.create_task(request(client, order_id=each, wait=0)) for each in ("A-1", "A-2")]
        await asyncio.sleep(0.05)
        go.set()
        await other
        results = await asyncio.gather(*calls)
    lost, stopped = results
    assert isinstance(lost, errors.ConnectionLostError)
    assert isinstance(
        stopped, errors.InFlightError | errors.OutcomeUnknownError
    )  # before or after the settlement
    assert len(script.sent) == 2


async def test_order_in_flight_in_another_process_stops_the_next() -> None:
    ledger = MemoryLedger()
    step, arrived, go = held_response(approved())
    async with (
        ScriptedTransport(step).client(ledger=ledger) as client,
        ScriptedTransport(approved()).client(ledger=of_another_process(ledger)) as other,
    ):
        first = await started(request(client, order_id="A-1"), arrived)
        assert isinstance(await request(other, order_id="A-2", wait=0.01), errors.InFlightError)
        go.set()
        assert isinstance(await first, Approved)
        assert isinstance(await request(other, order_id="A-2"), Approved)


async def test_already_evaluated_beside_a_decision_for_another_order_is_final(ledger: Ledger | None) -> None:
    script = ScriptedTransport(approved(), ALREADY, refused())
    client = script.client(ledger=ledger)
    await request(client, order_id="A-1")
    error = await request(client, order_id="A-2")
    assert isinstance(error, errors.AlreadyEvaluatedError)
    assert error.note == "evaluated for another order"
    assert "evaluated for another order, whose decision you have" in str(error)
    again = await request(client, order_id="A-2", repeat_unknown=True)
    assert isinstance(again, errors.OutcomeUnknownError)
    assert (again.state, again.note, again.advice) == (
        "lost",
        "evaluated for another order",
        "other_order",
    )
    assert str(again).endswith("this customer was evaluated for another order; request not sent")
    changed = await request(client, payload=approval_request(amount=50_000), order_id="A-2")
    assert isinstance(changed, errors.OutcomeUnknownError), "final whatever the data are"
    known = await client.known(FISCAL_CODE, order_id="A-2")
    assert (known.state, known.note) == ("lost", "evaluated for another order")
    if ledger is not None:
        unresolved = {entry.order: entry.is_unresolved async for entry in ledger.scan()}
        assert unresolved == {"A-1": False, "A-2": False}
    assert isinstance(await request(client, order_id="A-1"), Approved)
    assert isinstance(await request(client, order_id="A-3"), Refused)  # not stopped
    assert isinstance(await request(client), errors.PayloadMismatchError | errors.OutcomeUnknownError)
    assert len(script.sent) == 3


@pytest.mark.parametrize("earlier", [[system_error()], [connection_lost()]], ids=["500", "lost response"])
async def test_already_evaluated_after_an_earlier_request_may_mean_this_order(
    earlier: list[ScriptedResponse], ledger: Ledger | None
) -> None:
    client = scripted_client(approved(), *earlier, ALREADY, ledger=ledger)
    await request(client, order_id="A-1")
    error = await request(client, order_id="A-2")
    if isinstance(error, errors.ConnectionLostError):
        error = await request(client, order_id="A-2", repeat_unknown=True)
    assert isinstance(error, errors.AlreadyEvaluatedError)
    assert (error.note, error.advice) == ("", "already_decided")
    known = await client.known(FISCAL_CODE, order_id="A-2")
    assert (known.state, known.note) == ("lost", "AlreadyEvaluatedError")


async def test_orders_of_an_earlier_hour_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("loanasync._runtime.guard.monotonic", lambda: now)
    script = ScriptedTransport(connection_lost(), approved())
    client = script.client()
    await request(client, order_id="A-1")
    now += 3600
    assert (await client.known(FISCAL_CODE, order_id="A-1")).state == "none"
    assert isinstance(await request(client, order_id="A-2"), Approved)

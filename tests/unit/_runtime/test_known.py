"""`LoanClient.known`: what a client knows of an approval, without the form and without a request."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve

from loanasync import ApprovalRequest, Approved, Known, LoanError, errors
from loanasync.ledger import Ledger, MemoryLedger, resolve
from loanasync.ledger.model import State
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
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import FailingLedger, broken, held_response
from support.memory_clients import request, started


async def test_known_without_an_approval_is_none_and_sends_nothing(ledger: Ledger | None) -> None:
    script = ScriptedTransport(approved())
    async with script.client(ledger=ledger) as client:
        known = await client.known(f" {FISCAL_CODE.lower()}")
        assert known == Known(state="none", entry=known.entry)
        assert (known.entry is None, script.sent) == (ledger is None, [])
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


@pytest.mark.parametrize("step", [approved(), refused()])
async def test_known_after_a_decision_has_it(ledger: Ledger | None, step: ScriptedResponse) -> None:
    script = ScriptedTransport(step)
    client = script.client(ledger=ledger)
    decision = await client.approve(FISCAL_CODE, approval_request(), order_id="A-1001")
    known = await client.known(FISCAL_CODE, order_id="A-1001")
    assert known.decision is not None
    assert (known.state, type(known.decision)) == (
        "approved" if decision.approved else "refused",
        type(decision),
    )
    assert (known.decision.amount, known.decision.meta.status) == (decision.amount, decision.meta.status)
    assert getattr(known.decision, "redirect_url", None) == getattr(decision, "redirect_url", None)
    assert known.entry == decision.meta.entry
    assert known.changed is not None
    assert datetime.now(UTC) - known.changed < timedelta(minutes=1)
    assert (known.claimed is None, known.expires is None) == (ledger is None,) * 2
    assert (await client.known(FISCAL_CODE)).state == "none"
    assert len(script.sent) == 1


@pytest.mark.parametrize(
    ("step", "state", "note"),
    [
        (not_connected(), "released", "ConnectError"),
        (rejected({"city": ["blank"]}), "released", "RejectedError"),
        (connection_lost(), "unknown", "ConnectionLostError"),
        (domain_error("User already evaluated for approval"), "lost", "AlreadyEvaluatedError"),
    ],
)
async def test_known_after_an_error_has_its_state(
    ledger: Ledger | None, step: ScriptedResponse, state: str, note: str
) -> None:
    script = ScriptedTransport(step)
    client = script.client(ledger=ledger)
    assert isinstance(await request(client), LoanError)
    known = await client.known(FISCAL_CODE)
    is_forgotten = ledger is None and state == "released"  # the memory keeps no record of it
    assert (known.state, known.note, known.decision) == (
        ("none", "", None) if is_forgotten else (state, note, None)
    )


@pytest.mark.parametrize(
    "copied",
    [lambda order: pickle.loads(pickle.dumps(order)), copy.deepcopy, lambda order: evolve(order, extra={})],  # noqa: S301  (our own bytes)
    ids=["pickle", "deepcopy", "empty extra"],
)
async def test_copy_of_an_order_has_its_decision(
    ledger: Ledger | None, copied: Callable[[ApprovalRequest], ApprovalRequest]
) -> None:
    step, arrived, leave = held_response(approved())
    script = ScriptedTransport(step)
    order = approval_request()
    async with script.client(ledger=ledger) as client:
        first = await started(client.approve(FISCAL_CODE, order), arrived)
        second = asyncio.create_task(client.approve(FISCAL_CODE, copied(order)))
        await asyncio.sleep(0)
        leave.set()
        assert isinstance(await first, Approved)
        assert isinstance(await second, Approved)
        assert isinstance(await client.approve(FISCAL_CODE, copied(order)), Approved)
    assert len(script.sent) == 1


async def test_known_during_the_approval_is_in_flight(ledger: Ledger | None) -> None:
    step, arrived, leave = held_response(approved())
    script = ScriptedTransport(step)
    async with script.client(ledger=ledger) as client:
        approval = await started(client.approve(FISCAL_CODE, approval_request()), arrived)
        known = await client.known(FISCAL_CODE)
        assert (known.state, known.decision) == ("inflight", None)
        leave.set()
        assert isinstance(await approval, Approved)


async def test_known_to_another_client_after_a_person_resolved_it() -> None:
    ledger = MemoryLedger()
    async with (
        scripted_client(connection_lost(), ledger=ledger) as client,
        scripted_client(ledger=ledger) as other,
    ):
        await request(client)
        [entry] = [entry async for entry in ledger.scan()]
        await resolve(ledger, entry, State.APPROVED, "ticket 17")
        known = await other.known(FISCAL_CODE)
        assert isinstance(known.decision, Approved)
        assert (known.state, known.note, known.entry) == ("approved", "ticket 17", entry.key)


async def test_known_of_an_unusable_ledger_raises_its_error() -> None:
    ledger = FailingLedger(get=broken)
    with pytest.raises(errors.LedgerUnavailableError) as caught:
        await scripted_client(ledger=ledger).known(FISCAL_CODE)
    assert (caught.value.operation, caught.value.outcome) == ("known", "not_sent")


@pytest.mark.parametrize(("code", "order_id"), [("RSSMRA", ""), (FISCAL_CODE, 7), (FISCAL_CODE, "A-1 ")])
async def test_known_of_an_invalid_customer_or_a_closed_client_raises(code: str, order_id: str) -> None:
    client = scripted_client()
    with pytest.raises(errors.InvalidRequestError):
        await client.approve(code, approval_request(), order_id=order_id)
    with pytest.raises(errors.InvalidRequestError) as caught:
        await client.known(code, order_id=order_id)
    assert caught.value.operation == "known"
    await client.aclose()
    with pytest.raises(errors.ClientClosedError):
        await client.known(FISCAL_CODE)

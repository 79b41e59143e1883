"""`LoanClient.recall`: what a client knows of an approval, without a request."""

import asyncio
import copy
import pickle
from collections.abc import Callable

import pytest
from attrs import evolve

from loanasync import (
    ApprovalRequest,
    Approved,
    ClientClosedError,
    InvalidRequestError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from loanasync.ledger import Ledger, MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    not_connected,
    refused,
    rejected,
    scripted_client,
)
from support.builders import FISCAL_CODE, approval_request
from support.ledger_clients import held_response
from support.memory_clients import request


async def test_recall_without_an_approval_is_none_and_sends_nothing(ledger: Ledger | None) -> None:
    script = ScriptedTransport(approved())
    async with script.client(ledger=ledger) as client:
        assert await client.recall(FISCAL_CODE, approval_request()) is None
        assert script.sent == []
        assert isinstance(await client.approve(FISCAL_CODE, approval_request()), Approved)


@pytest.mark.parametrize("step", [approved(), refused()])
async def test_recall_after_a_decision_returns_it(ledger: Ledger | None, step: ScriptedResponse) -> None:
    script = ScriptedTransport(step)
    client = script.client(ledger=ledger)
    decision = await client.approve(FISCAL_CODE, approval_request())
    known = await client.recall(FISCAL_CODE, approval_request())
    assert known is not None
    assert (type(known), known.raw) == (type(decision), decision.raw)
    assert (known.meta.status, known.meta.attempts) == (decision.meta.status, 0)
    assert len(script.sent) == 1


@pytest.mark.parametrize("step", [not_connected(), rejected({"city": ["blank"]})])
async def test_recall_after_no_evaluation_is_none(ledger: Ledger | None, step: ScriptedResponse) -> None:
    script = ScriptedTransport(step)
    client = script.client(ledger=ledger)
    assert isinstance(await request(client), LoanError)
    assert await client.recall(FISCAL_CODE, approval_request()) is None


async def test_recall_after_an_unknown_outcome_raises_it(ledger: Ledger | None) -> None:
    script = ScriptedTransport(connection_lost())
    client = script.client(ledger=ledger)
    assert isinstance(await request(client), LoanError)
    with pytest.raises(OutcomeUnknownError):
        await client.recall(FISCAL_CODE, approval_request())
    with pytest.raises(PayloadMismatchError):
        await client.recall(FISCAL_CODE, approval_request(amount=60_000))
    assert await client.recall(FISCAL_CODE, approval_request(), scope="another order") is None


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
        first = asyncio.create_task(client.approve(FISCAL_CODE, order))
        await arrived.wait()
        second = asyncio.create_task(client.approve(FISCAL_CODE, copied(order)))
        await asyncio.sleep(0)
        leave.set()
        assert isinstance(await first, Approved)
        assert isinstance(await second, Approved)
        assert isinstance(await client.recall(FISCAL_CODE, copied(order)), Approved)
    assert len(script.sent) == 1


async def test_recall_during_the_approval_waits_for_its_decision(ledger: Ledger | None) -> None:
    step, arrived, leave = held_response(approved())
    script = ScriptedTransport(step)
    async with script.client(ledger=ledger) as client:
        approval = asyncio.create_task(client.approve(FISCAL_CODE, approval_request()))
        await arrived.wait()
        recall = asyncio.create_task(client.recall(FISCAL_CODE, approval_request()))
        await asyncio.sleep(0)
        leave.set()
        assert isinstance(await recall, Approved)
        assert isinstance(await approval, Approved)
        assert len(script.sent) == 1


async def test_approval_that_joins_a_recall_sends_its_request(ledger: Ledger | None) -> None:
    script = ScriptedTransport(approved())
    async with script.client(ledger=ledger) as client:
        known, decision = await asyncio.gather(
            client.recall(FISCAL_CODE, approval_request()), client.approve(FISCAL_CODE, approval_request())
        )
        assert known is None
        assert isinstance(decision, Approved)
        assert len(script.sent) == 1


async def test_recall_with_another_client_finds_the_decision_in_the_ledger() -> None:
    ledger = MemoryLedger()
    script = ScriptedTransport(approved())
    async with script.client(ledger=ledger) as client, scripted_client(ledger=ledger) as other:
        await client.approve(FISCAL_CODE, approval_request())
        assert isinstance(await other.recall(FISCAL_CODE, approval_request()), Approved)


async def test_recall_of_an_invalid_request_or_a_closed_client_raises() -> None:
    client = scripted_client()
    with pytest.raises(InvalidRequestError):
        await client.recall("RSSMRA", approval_request())
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await client.recall(FISCAL_CODE, approval_request())

"""The result of each kind of row: status, outcome, decision and error."""

import asyncio
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import attrs

from loanasync import (
    Approved,
    ConnectError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LoanClient,
    Refused,
    TransportError,
)
from loanasync.bulk import Row
from loanasync.ledger import LedgerPolicy, MemoryLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import approved, fiscal_code, not_connected, refused, response, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.bulk import approvals_of, tagged_rows
from support.ledger_clients import of_another_process

REQUEST = approval_request()


async def created(sandbox: Sandbox, *tags: str) -> list[Row]:
    rows = tagged_rows(*tags)
    async with sandbox.client() as client:
        for row in rows:
            await client.create_request({"fiscalCode": row.fiscal_code})
    return rows


async def test_summary_has_counts_and_amounts(sandbox: Sandbox, client: LoanClient) -> None:
    tags = ("approved", "truncafter", "refused", "invalid.city", "forbidden", "resetafter", "conflict")
    async with client.approve_many(await created(sandbox, *tags)) as results:
        read = {result.id: result.status async for result in results}
    expected = ("approved", "approved", "refused", "rejected", "failed", "unknown", "unknown")
    assert read == dict(zip(tags, expected, strict=True))
    summary = results.summary
    amounts = (summary.amount_approved, summary.amount_refused, summary.amount_unknown, summary.net_amount)
    assert amounts == (90_000, 45_000, 90_000, 43_650), "one net amount was cut off"
    assert (summary.rows, summary.elapsed > 0, summary.errors["ConnectionLostError"]) == (7, True, 1)


async def test_concurrency_above_max_concurrency_waits_for_slots(sandbox: Sandbox) -> None:
    rows = await created(sandbox, *["approved"] * 60)
    async with sandbox.client(max_concurrency=2) as client:
        results = [result async for result in client.approve_many(iter(rows), concurrency=50)]
    assert [result.status for result in results] == ["approved"] * 60


async def test_invalid_rows_are_rejected_and_do_not_raise(sandbox: Sandbox, client: LoanClient) -> None:
    class Odd:
        amount = property(lambda _: 1 / 0)

    broken: list[Any] = [
        *(None, 5, "a row", (FISCAL_CODE,), (FISCAL_CODE, REQUEST, True), {"fiscal_code": FISCAL_CODE}),
        *((FISCAL_CODE, None), (None, REQUEST), (FISCAL_CODE, Odd()), Row(FISCAL_CODE, None)),  # type: ignore[arg-type]
        *((FISCAL_CODE, attrs.evolve(REQUEST, amount=cast("int", "450"))), ("RSSMRA", REQUEST)),
        Row(FISCAL_CODE, REQUEST, additional_data_needed=True),
    ]
    results = sorted([each async for each in client.approve_many(broken)], key=lambda each: each.index)
    assert [result.index for result in results] == [*range(len(broken))]
    assert {(each.status, each.outcome, each.repeatable, type(each.error)) for each in results} == {
        ("rejected", "not_sent", False, InvalidRequestError)
    }
    for result in results[:6]:
        shown: list[Any] = [result.fiscal_code, result.request, result.id]
        assert shown == ["", None, None]
    assert results[9].fiscal_code == FISCAL_CODE
    assert "must be a Row or a pair (fiscal_code, ApprovalRequest), not NoneType" in str(results[0].error)
    assert sandbox.journal.calls() == []


async def test_pair_and_row_are_passed_to_the_call_whose_defect_is_unknown() -> None:
    calls: list[tuple[object, ...]] = []

    async def approve(*arguments: object, **options: object) -> object:
        calls.append((*arguments, options["additional_data_needed"], options["order_id"]))
        raise LookupError("Anna")

    rows = [
        (FISCAL_CODE, REQUEST),
        Row(FISCAL_CODE, REQUEST, additional_data_needed=True, order_id="a", id=7),
    ]
    results = [each async for each in approvals_of(approve, rows)]
    assert [(each.fiscal_code, each.request, each.id) for each in results] == [
        (FISCAL_CODE, REQUEST, None), (FISCAL_CODE, REQUEST, 7)
    ]  # fmt: skip
    assert calls == [(FISCAL_CODE, REQUEST, False, ""), (FISCAL_CODE, REQUEST, True, "a")]
    assert results[0].error == TransportError("approve", "LookupError", "unknown", 1)
    assert "no response (LookupError)" in str(results[0].error)
    assert (results[0].error.__cause__, results[0].error.__context__) == (None, None)


async def test_results_are_masked_and_can_be_pickled() -> None:
    async with scripted_client(not_connected(), response(201, {"approved": True}), response(201)) as client:
        rows = [Row(fiscal_code(), REQUEST, id="order 7") for _ in range(4)]
        rows[3] = attrs.evolve(rows[3], fiscal_code="RSSMRA")
        results = [result async for result in client.approve_many(rows, concurrency=1)]
    assert [(result.status, result.outcome, result.repeatable) for result in results] == [
        ("not_sent", "not_sent", True), ("approved", "approved", False), ("unknown", "unknown", False),
        ("rejected", "not_sent", False),
    ]  # fmt: skip
    for result in results:
        again = pickle.loads(pickle.dumps(result))  # noqa: S301  (pickled in this test)
        assert again == result
        assert result.error is None or (result.error.__traceback__, result.error.__context__) == (None, None)
        shown = repr(result) + repr(result.row)
        for personal in (result.fiscal_code, result.request.email, "Prova"):
            assert personal not in shown
    assert repr(results[0]) == "<RowResult: not_sent, id='order 7', index=0, error=ConnectError>"
    assert repr(rows[2]).startswith("Row(id='order 7', fiscal_code=***, request=ApprovalRequest(amount=")
    assert results[0].at <= results[1].at <= datetime.now(UTC)
    assert isinstance(results[0].error, ConnectError)


class HeldLedger(MemoryLedger):
    """A ledger in which a decision stays in progress until the test releases it, or cannot be written."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.is_settling, self.release, self.fails = asyncio.Event(), asyncio.Event(), fails

    async def settle(self, *args: Any, **settings: Any) -> Any:
        if self.fails:
            raise OSError
        self.is_settling.set()
        await self.release.wait()
        return await super().settle(*args, **settings)


async def test_decision_that_the_ledger_did_not_record_is_in_the_result(tmp_path: Path) -> None:
    policy = LedgerPolicy(orphan_folder=tmp_path)
    client = scripted_client(approved(), refused(), ledger=HeldLedger(fails=True), ledger_policy=policy)
    async with client.approve_many([(fiscal_code(), REQUEST) for _ in range(2)], concurrency=1) as results:
        read = [result async for result in results]
    assert [(each.status, each.outcome, type(each.decision)) for each in read] == [
        ("approved", "approved", Approved), ("refused", "refused", Refused)
    ]  # fmt: skip
    assert {(type(each.error), each.repeatable) for each in read} == {(DecisionNotRecordedError, False)}


async def test_wait_zero_reports_a_row_of_another_process_at_once() -> None:
    ledger, row = HeldLedger(), (FISCAL_CODE, REQUEST)
    other = asyncio.create_task(scripted_client(approved(), ledger=ledger).approve(*row))
    await ledger.is_settling.wait()
    client = scripted_client(ledger=of_another_process(ledger))
    [result] = [each async for each in client.approve_many([row], wait=0)]
    assert isinstance(result.error, InFlightError)
    waiting = asyncio.create_task(anext(client.approve_many([row])))
    ledger.release.set()
    assert (await other).approved
    assert (await waiting).status == "approved"

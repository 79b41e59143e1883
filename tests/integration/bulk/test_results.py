"""The result of each kind of row: status, outcome, decision and error."""

import asyncio
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from loanasync import (
    Approved,
    ClientClosedError,
    ConnectError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LedgerUnavailableError,
    LoanClient,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
    Refused,
    RetryPolicy,
    TransportError,
)
from loanasync.bulk import Row
from loanasync.bulk.rows import result_of
from loanasync.ledger import LedgerPolicy, MemoryLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    approved,
    connection_lost,
    fiscal_code,
    not_connected,
    refused,
    response,
    scripted_client,
)
from support.builders import FISCAL_CODE, approval_request
from support.bulk import approvals_of, tagged_rows
from support.ledger_clients import of_another_process

ONCE = RetryPolicy(attempts=1)


async def created(sandbox: Sandbox, rows: list[Row]) -> list[Row]:
    async with sandbox.client() as client:
        for row in rows:
            await client.create_request({"fiscalCode": row.fiscal_code})
    return rows


async def test_summary_has_counts_and_amounts(sandbox: Sandbox, client: LoanClient) -> None:
    tags = ("approved", "truncafter", "refused", "invalid.city", "forbidden", "resetafter", "conflict")
    rows = await created(sandbox, tagged_rows(*tags))
    async with client.approve_many(rows) as results:
        read = {result.id: result async for result in results}
    assert [read[tag].status for tag in ("truncafter", "forbidden")] == ["approved", "failed"]
    summary = results.summary
    counts = ("approved", "refused", "rejected", "unknown", "failed", "rows")
    assert [getattr(summary, name) for name in counts] == [2, 1, 1, 2, 1, 7]
    amounts = (summary.amount_approved, summary.amount_refused, summary.amount_unknown, summary.net_amount)
    assert amounts == (90_000, 45_000, 90_000, 43_650), "one net amount was cut off"
    assert (summary.elapsed > 0, summary.errors["ConnectionLostError"]) == (True, 1)


async def test_invalid_rows_are_rejected_and_do_not_raise(sandbox: Sandbox, client: LoanClient) -> None:
    request = approval_request()

    class Odd:
        amount = property(lambda _: 1 / 0)

    broken: list[Any] = [
        *(None, 5, "a row", (FISCAL_CODE,), (FISCAL_CODE, request, True), {"fiscal_code": FISCAL_CODE}),
        *((FISCAL_CODE, None), (None, request), (FISCAL_CODE, Odd()), Row(FISCAL_CODE, None)),  # type: ignore[arg-type]
        *((FISCAL_CODE, attrs.evolve(request, amount=cast("int", "450"))), ("RSSMRA", request)),
        Row(FISCAL_CODE, request, additional_data_needed=True),
    ]
    results = sorted([each async for each in client.approve_many(broken)], key=lambda each: each.index)
    assert [result.index for result in results] == [*range(len(broken))]
    assert {(result.status, type(result.error)) for result in results} == {("rejected", InvalidRequestError)}
    assert {(result.outcome, result.repeatable) for result in results} == {("not_sent", False)}
    for result in results[:6]:
        shown: list[Any] = [result.fiscal_code, result.request, result.id]
        assert shown == ["", None, None]
    assert results[9].fiscal_code == FISCAL_CODE
    assert "must be a Row or a pair (fiscal_code, ApprovalRequest), not NoneType" in str(results[0].error)
    assert sandbox.journal.calls() == []


async def test_error_that_is_not_a_loan_error_is_unknown() -> None:
    async def approve(*_: object, **__: object) -> object:
        raise LookupError("Anna")

    row = (FISCAL_CODE, approval_request(amount="?"))
    [result] = [result async for result in approvals_of(approve, [row])]
    assert (result.status, result.outcome, result.repeatable) == ("unknown", "unknown", False)
    assert result.error == TransportError("approve", "LookupError", "unknown", 1)
    assert "no response (LookupError)" in str(result.error)
    assert "Anna" not in result._repr_html_()
    assert (result.error.__cause__, result.error.__context__) == (None, None)


async def test_results_are_masked_and_can_be_pickled() -> None:
    async with scripted_client(not_connected(), response(201, {"approved": True}), response(201)) as client:
        rows = [Row(fiscal_code(), approval_request(), id="order 7") for _ in range(4)]
        rows[3] = attrs.evolve(rows[3], fiscal_code="RSSMRA")
        results = [result async for result in client.approve_many(rows, concurrency=1)]
    assert [result.status for result in results] == ["not_sent", "approved", "unknown", "rejected"]
    assert [result.outcome for result in results] == ["not_sent", "approved", "unknown", "not_sent"]
    assert [result.repeatable for result in results] == [True, False, False, False]
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


@pytest.mark.parametrize(
    ("error", "status", "outcome", "repeatable"),
    [
        (ClientClosedError(), "not_sent", "not_sent", False),
        (InvalidRequestError(()), "rejected", "not_sent", False),
        (InFlightError("approve", "c0ffee"), "unknown", "unknown", False),
        (LedgerUnavailableError("approve", "c0ffee", "OSError"), "not_sent", "not_sent", True),
        (PayloadMismatchError("approve", "c0ffee", "inflight"), "unknown", "unknown", False),
        (PayloadMismatchError("approve", "c0ffee", "refused"), "failed", "refused", False),
        (LookupError(), "unknown", "unknown", False),
        (asyncio.CancelledError(), "unknown", "unknown", False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_result_of_an_error_has_its_outcome_and_a_status(
    error: BaseException, status: str, outcome: str, *, repeatable: bool
) -> None:
    result = result_of(0, Row(FISCAL_CODE, approval_request()), error)
    assert (result.status, result.outcome, result.repeatable) == (status, outcome, repeatable)
    assert isinstance(result.error, LoanError)
    assert not result.is_decided


async def test_pair_and_row_are_passed_to_the_call() -> None:
    calls: list[tuple[object, ...]] = []

    async def approve(*arguments: object, **options: object) -> object:
        calls.append((*arguments, options["additional_data_needed"], options["order_id"]))
        raise LookupError

    request = approval_request()
    rows = [
        (FISCAL_CODE, request),
        Row(FISCAL_CODE, request, additional_data_needed=True, order_id="a", id=7),
    ]
    results = [each async for each in approvals_of(approve, rows)]
    assert [(each.fiscal_code, each.request, each.id) for each in results] == [
        (FISCAL_CODE, request, None), (FISCAL_CODE, request, 7)
    ]  # fmt: skip
    assert calls == [(FISCAL_CODE, request, False, ""), (FISCAL_CODE, request, True, "a")]


async def test_concurrency_above_max_concurrency_waits_for_slots(sandbox: Sandbox) -> None:
    rows = await created(sandbox, tagged_rows(*["approved"] * 60))
    async with sandbox.client(max_concurrency=2) as client:
        results = [result async for result in client.approve_many(iter(rows), concurrency=50)]
    assert [result.status for result in results] == ["approved"] * 60


class Unwritable(MemoryLedger):
    """A ledger that takes claims and cannot write decisions."""

    async def settle(self, *_: Any, **__: Any) -> Any:
        raise OSError


async def test_decision_that_the_ledger_did_not_record_is_in_the_result(tmp_path: Path) -> None:
    policy = LedgerPolicy(orphan_folder=tmp_path)
    client = scripted_client(approved(), refused(), ledger=Unwritable(), ledger_policy=policy)
    rows = [(fiscal_code(), approval_request()) for _ in range(2)]
    async with client.approve_many(rows, concurrency=1) as results:
        read = [result async for result in results]
    assert [(each.status, each.outcome, type(each.decision)) for each in read] == [
        ("approved", "approved", Approved), ("refused", "refused", Refused)
    ]  # fmt: skip
    assert {(type(each.error), each.repeatable) for each in read} == {(DecisionNotRecordedError, False)}


async def test_known_customer_of_the_ledger_is_not_requested_again() -> None:
    script = [connection_lost(), approved()]
    client = scripted_client(*script, ledger=MemoryLedger())
    lost, decided = (fiscal_code() for _ in range(2))
    rows = [(lost, approval_request())] * 2
    rows += [(decided, approval_request(amount=amount)) for amount in (45_000, 46_000)]
    results = [each async for each in client.approve_many(rows, concurrency=1)]
    assert [(each.status, each.outcome, type(each.error), each.repeatable) for each in results[1::2]] == [
        ("unknown", "unknown", OutcomeUnknownError, False),
        ("failed", "approved", PayloadMismatchError, False),
    ]


class HeldLedger(MemoryLedger):
    """A ledger in which a decision stays in progress until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_settling, self.release = asyncio.Event(), asyncio.Event()

    async def settle(self, *args: Any, **settings: Any) -> Any:
        self.is_settling.set()
        await self.release.wait()
        return await super().settle(*args, **settings)


async def test_wait_zero_reports_a_row_of_another_process_at_once() -> None:
    ledger, row = HeldLedger(), (FISCAL_CODE, approval_request())
    other = asyncio.create_task(scripted_client(approved(), ledger=ledger).approve(*row))
    await ledger.is_settling.wait()
    client = scripted_client(ledger=of_another_process(ledger))
    [result] = [each async for each in client.approve_many([row], wait=0)]
    assert isinstance(result.error, InFlightError)
    waiting = asyncio.create_task(anext(client.approve_many([row])))
    ledger.release.set()
    assert (await other).approved
    assert (await waiting).status == "approved"

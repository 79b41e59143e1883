"""What becomes of each kind of row, and what is said of it."""

import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import attrs
from builders import FISCAL_CODE, approval_request
from bulking import bulk, tags

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    CannotCompleteError,
    ConnectError,
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanClient,
    Meta,
    OutcomeUnknownError,
    PayloadMismatchError,
    Refused,
    RetryPolicy,
    UnexpectedReplyError,
)
from loanasync.bulk import Row, RowResult
from loanasync.ledger import LedgerPolicy, MemoryLedger
from loanasync.sandbox import Sandbox
from loanasync.testing import (
    approved,
    connection_lost,
    fiscal_code,
    not_connected,
    refused,
    reply,
    scripted_client,
)

ONCE = RetryPolicy(attempts=1)

WORDS = {
    "approved": "approved",
    "refused": "refused",
    "invalid.city": "rejected",
    "nouser": "rejected",
    "already": "rejected",
    "500": "unknown",
    "500after": "unknown",
    "resetafter": "unknown",
    "truncafter": "unknown",  # an approval without where to send the customer
    "refused.truncafter": "refused",
    "html502": "unknown",
    "forbidden": "error",
    "conflict": "error",
}


async def created(sandbox: Sandbox, rows: list[Row]) -> list[Row]:
    async with sandbox.client() as client:
        for row in rows:
            await client.create_request({"fiscalCode": row.fiscal_code})
    return rows


async def test_every_outcome_of_the_service_becomes_a_status(sandbox: Sandbox, client: LoanClient) -> None:
    rows = await created(sandbox, tags(*WORDS))
    async with client.approve_many(rows, retry=ONCE) as results:
        read = {result.id: result async for result in results}
    assert {word: result.status for word, result in read.items()} == WORDS
    for word, result in read.items():
        kind = {"approved": Approved, "refused": Refused}.get(str(word), type(None))
        assert type(result.decision) is kind
        assert (result.error is None) == result.is_decided or word == "refused.truncafter"
    assert isinstance(read["already"].error, AlreadyEvaluatedError)
    assert {word for word, result in read.items() if result.may_be_repeated} == {
        *("invalid.city", "nouser", "forbidden")
    }
    summary = results.summary
    assert (summary.approved, summary.refused, summary.rejected, summary.unknown, summary.error) == (
        *(1, 2, 3, 5, 2),
    )
    assert summary.rows == len(WORDS)
    assert (summary.amount_approved, summary.amount_refused, summary.amount_unknown) == (
        45_000,
        90_000,
        225_000,
    )
    assert summary.net_amount == 43_650
    assert 0 < summary.latency_50 <= summary.latency_99 <= summary.latency_max < summary.elapsed * 1.1


async def test_no_row_makes_the_iteration_raise_and_broken_ones_are_not_sent(
    sandbox: Sandbox, client: LoanClient
) -> None:
    request = approval_request()

    class Odd:
        amount = property(lambda _: 1 / 0)

    broken: list[Any] = [
        *(None, 5, "a row", (FISCAL_CODE,), (FISCAL_CODE, request, True), {"fiscal_code": FISCAL_CODE}),
        *((FISCAL_CODE, None), (None, request), (FISCAL_CODE, Odd()), Row(FISCAL_CODE, None)),  # type: ignore[arg-type]
        *((FISCAL_CODE, attrs.evolve(request, amount=cast("int", "450"))), ("RSSMRA", request)),
        Row(FISCAL_CODE, request, additional_data_needed=True),
    ]
    results = [result async for result in client.approve_many(broken, ordered=True)]
    assert [result.index for result in results] == [*range(len(broken))]
    assert {(result.status, type(result.error)) for result in results} == {("rejected", InvalidRequestError)}
    assert "must be a Row or a pair (fiscal_code, ApprovalRequest), not NoneType" in str(results[0].error)
    assert sandbox.journal.calls() == []


async def test_a_call_of_the_shops_own_that_breaks_is_unknown() -> None:
    async def approve(*_: object, **__: object) -> object:
        raise LookupError("Anna")

    row = (FISCAL_CODE, approval_request(amount="?"))
    [result] = [result async for result in bulk(approve, [row])]
    assert (result.status, type(result.error)) == ("unknown", LookupError)


async def test_results_are_masked_and_cross_process_boundaries() -> None:
    async with scripted_client(reply(201, {"approved": True}), reply(201), not_connected()) as client:
        rows = [Row(fiscal_code(), approval_request(), id="order 7") for _ in range(4)]
        rows[3] = attrs.evolve(rows[3], fiscal_code="RSSMRA")
        results = [result async for result in client.approve_many(rows, concurrency=1)]
    assert [result.status for result in results] == ["approved", "unknown", "error", "rejected"]
    for result in results:
        again = pickle.loads(pickle.dumps(result))  # noqa: S301  (our own)
        assert again == result
        assert result.error is None or (result.error.__traceback__, result.error.__context__) == (None, None)
        shown = repr(result) + repr(result.row)
        for personal in (result.fiscal_code, result.request.email, "order 7", "Prova"):
            assert personal not in shown
    assert repr(results[2]) == (
        "RowResult(index=2, row=***, status='error', decision=None, error=ConnectError)"
    )
    assert isinstance(results[2].error, ConnectError)


def test_a_broken_refusal_is_final_and_a_broken_approval_needs_a_person() -> None:
    def error(outcome: Any) -> UnexpectedReplyError:
        return UnexpectedReplyError("approve", (), outcome, Meta(status=0, attempts=1, elapsed=0))

    row = Row(FISCAL_CODE, approval_request())
    result = RowResult(0, row, "unknown", None, error("approved"))
    assert not result.may_be_repeated
    assert not RowResult(
        0, row, "error", None, CannotCompleteError("approve", (), Meta(409, 1, 0))
    ).may_be_repeated


async def test_a_pair_and_a_row_are_the_same(client: LoanClient, sandbox: Sandbox) -> None:
    [row] = await created(sandbox, tags("approved"))
    [result] = [each async for each in client.approve_many([(row.fiscal_code, row.request)])]
    assert (result.fiscal_code, result.request, result.id) == (row.fiscal_code, row.request, None)
    assert result.is_decided


async def test_a_row_may_say_that_additional_data_are_needed() -> None:
    needed = []

    async def approve(*_: object, **options: object) -> object:
        needed.append(options["additional_data_needed"])
        raise LookupError

    row = Row(FISCAL_CODE, approval_request(), additional_data_needed=True)
    assert [result.status async for result in bulk(approve, [row])] == ["unknown"]
    assert needed == [True]


async def test_more_at_once_than_the_client_lets_in_wait_for_each_other(sandbox: Sandbox) -> None:
    rows = await created(sandbox, tags(*["approved"] * 60))
    async with sandbox.client(max_concurrency=2) as client:
        results = [result async for result in client.approve_many(iter(rows), concurrency=50)]
    assert [result.status for result in results] == ["approved"] * 60


async def test_rows_may_come_over_time(client: LoanClient, sandbox: Sandbox) -> None:
    async def source() -> AsyncIterator[Row]:
        async with sandbox.client() as other:
            for row in tags(*["approved"] * 5):
                await other.create_request({"fiscalCode": row.fiscal_code})
                yield row

    results = [result async for result in client.approve_many(source())]
    assert {result.status for result in results} == {"approved"}
    assert len(results) == 5


async def test_after_the_client_was_closed_each_row_says_so(client: LoanClient) -> None:
    await client.aclose()
    results = [result async for result in client.approve_many(tags("approved", "refused"))]
    assert [(result.status, result.may_be_repeated) for result in results] == [("error", True)] * 2


class Unwritable(MemoryLedger):
    """A ledger that forgets how to write when there is something to write."""

    async def settle(self, *_: Any, **__: Any) -> Any:
        raise OSError


async def test_a_decision_that_the_ledger_could_not_keep_is_in_the_result(tmp_path: Path) -> None:
    policy = LedgerPolicy(spool=tmp_path)
    client = scripted_client(approved(), refused(), ledger=Unwritable(), ledger_policy=policy)
    rows = [(fiscal_code(), approval_request()) for _ in range(2)]
    async with client.approve_many(rows, concurrency=1) as results:
        read = [result async for result in results]
    assert [(result.status, type(result.decision)) for result in read] == [
        ("approved", Approved),
        ("refused", Refused),
    ]
    assert all(isinstance(result.error, DecisionNotRecordedError) for result in read)


async def test_what_a_ledger_does_not_know_of_a_call_before_is_unknown_and_not_asked_again() -> None:
    client = scripted_client(connection_lost(), ledger=MemoryLedger())
    row = (fiscal_code(), approval_request())
    for _ in range(2):  # the second time the script has no step left
        async with client.approve_many([row]) as results:
            [result] = [result async for result in results]
        assert (result.status, result.may_be_repeated) == ("unknown", False)
    assert isinstance(result.error, OutcomeUnknownError)


async def test_another_request_of_the_same_customer_is_not_to_be_given_again() -> None:
    client = scripted_client(approved(), ledger=MemoryLedger())
    rows = [(FISCAL_CODE, approval_request(amount=amount)) for amount in (45_000, 46_000)]
    async with client.approve_many(rows, concurrency=1) as results:
        _, second = [result async for result in results]
    assert isinstance(second.error, PayloadMismatchError)
    assert (second.status, second.may_be_repeated) == ("error", False)

"""`RowResult`: its flat row and status; the summary of many results; the progress bar; `repr()`."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from loanasync import Approved, ConfigurationError, LoanError, Meta, Problem, Refused, errors
from loanasync.bulk import Row, RowResult, Summary
from loanasync.bulk.rows import result_of
from loanasync.bulk.summary import Tally
from support.builders import FISCAL_CODE, approval_request
from support.bulk import HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows

STATES: list[tuple[Any, str]] = [("lost", "d"), ("unknown", ""), ("held", "")]
META = Meta(status=201, attempts=2, elapsed=0.5, trace_id="7" * 32, entry="c0ffee")
DECISION = Approved(
    amount=45_000, net_amount=43_650, instalments=12, redirect_url="https://pay.example.com/#t", meta=META
)


def result(outcome: Approved | Refused | BaseException, **changes: Any) -> RowResult:
    return result_of(3, Row(FISCAL_CODE, approval_request(**changes), id="A0001"), outcome)


def test_row_of_a_decision_is_flat_and_not_personal() -> None:
    approved = result(DECISION)
    row = {
        "index": 3, "id": "A0001", "status": "approved", "outcome": "approved", "repeatable": False,
        "sent": True, "at": approved.at,
        "amount": 45_000, "net_amount": 43_650, "instalments": 12, "error": None, "message": None,
        "entry": "c0ffee", "attempts": 2, "elapsed": 0.5, "trace_id": "7" * 32,
    }  # fmt: skip
    assert approved.as_row() == row
    personal = {"fiscal_code": FISCAL_CODE, "redirect_url": "https://pay.example.com/#t"}
    assert approved.as_row(personal=True) == row | personal
    refused = result(Refused(net_amount=1, meta=META), amount=70_000).as_row(personal=True)
    assert (refused["status"], refused["amount"], refused["redirect_url"]) == ("refused", 70_000, None)
    assert refused["net_amount"] is None, "the shop receives nothing"


def test_error_of_a_row_keeps_no_other_exception() -> None:
    """Exceptions and frames of a user's token function or transport may contain personal data."""
    error = errors.ConnectError("approve", "OSError", "not_sent", 1)
    try:
        int("Anna")
    except ValueError as other:
        with pytest.raises(errors.ConnectError):
            raise error from other
    kept = result(error).error
    assert kept is error
    assert (kept.__cause__, kept.__context__, kept.__traceback__) == (None, None, None)


UNRECORDED = errors.DecisionNotRecordedError("approve", "c0ffee", "approved", DECISION, None, "OSError")
LOST = errors.ConnectionLostError("approve", "OSError", "unknown", 2, "7" * 32, "c0ffee")
INVALID = errors.InvalidRequestError((Problem("amount", "amount", "must be less"),))
BEFORE = attrs.evolve(DECISION, meta=attrs.evolve(META, attempts=0))
# By outcome: status, outcome, flags (repeatable, sent, already decided), and other members of its row.
RESULTS: list[tuple[Any, str, str, str, dict[str, Any]]] = [
    (DECISION, "approved", "approved", "s", {}),
    (BEFORE, "approved", "approved", "", {"attempts": 0}),
    (UNRECORDED, "approved", "approved", "s", {"net_amount": 43_650}),
    (LOST, "unknown", "unknown", "s", {"attempts": 2, "trace_id": "7" * 32, "entry": "c0ffee"}),
    (INVALID, "rejected", "not_sent", "", {"attempts": None, "elapsed": None, "entry": None}),
    (errors.ConnectError("approve", "OSError", "not_sent", 1), "not_sent", "not_sent", "r", {"attempts": 1}),
    (errors.ClientClosedError(), "not_sent", "not_sent", "", {}),
    (errors.InFlightError("approve", "c0ffee"), "unknown", "unknown", "", {}),
    (errors.LedgerUnavailableError("approve", "c0ffee", "OSError"), "not_sent", "not_sent", "r", {}),
    (errors.DomainError("approve", (), META), "unknown", "unknown", "s", {"attempts": 2, "elapsed": 0.5}),
    (errors.AlreadyEvaluatedError("approve", (), META), "unknown", "unknown", "sd", {}),
    *((errors.PayloadMismatchError("approve", "c0ffee", state), "failed", state, "d", {"entry": "c0ffee"})
      for state in ("approved", "refused")),
    (errors.PayloadMismatchError("approve", "c0ffee", "inflight"), "unknown", "unknown", "", {}),
    *((errors.OutcomeUnknownError("approve", "c0ffee", state, ""), "unknown", "unknown", flags, {})
      for state, flags in STATES),
    (LookupError("Anna"), "unknown", "unknown", "s", {"error": "TransportError"}),
    (asyncio.CancelledError(), "unknown", "unknown", "s", {"error": "TransportError"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "status", "meaning", "flags", "members"),
    RESULTS,
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)
def test_result_of_an_outcome_has_its_status_and_facts(
    outcome: Any, status: str, meaning: str, flags: str, members: dict[str, Any]
) -> None:
    found = result(outcome)
    row, shown = found.as_row(personal=True), "already decided" if "d" in flags else status
    assert (found.status, found.outcome, row["outcome"], row["status"]) == (status, meaning, meaning, shown)
    assert (found.repeatable, found.sent, found.already_decided) == tuple(each in flags for each in "rsd")
    assert (found.is_decided, found.error is None) == (
        found.decision is not None,
        "error" not in str(row["error"]).lower(),
    )
    assert (row["amount"], row["fiscal_code"], row | members) == (45_000, FISCAL_CODE, row)
    assert row["message"] == (None if found.error is None else str(found.error))
    assert f">{shown}</td>" in found._repr_html_()
    assert "Anna" not in found._repr_html_()
    if isinstance(outcome, LoanError):
        assert (found.error, row["error"]) == (outcome, type(outcome).__name__)


def test_row_or_amount_of_a_wrong_type_is_not_in_the_flat_row() -> None:
    broken: list[Any] = [None, {"fiscal_code": FISCAL_CODE}, (FISCAL_CODE, None)]
    for row in broken:
        flat = result_of(0, row, errors.InvalidRequestError(())).as_row(personal=True)
        assert (flat["id"], flat["amount"], flat["redirect_url"]) == (None, None, None)
    for amount in ("450", 450.0, True, None):
        assert result(errors.InvalidRequestError(()), amount=amount).as_row()["amount"] is None


def test_summary_counts_statuses_amounts_and_errors_without_personal_data() -> None:
    assert repr(Tally().summary()) == "<Summary of 0 rows: 0 approved; 0.00 euro approved>"
    assert "already decided" not in Tally().summary()._repr_html_()
    now = [10.0]
    tally = Tally(lambda: now[0])
    assert tally.summary().elapsed == 0
    tally.start()
    now[0] = 12.5
    tally.start()
    for outcome in (
        attrs.evolve(DECISION, amount=40_000),
        attrs.evolve(DECISION, amount=None, net_amount=None),
    ):
        tally.add(result(outcome))
    for outcome, *_ in RESULTS[3:]:
        tally.add(result(outcome))
    summary = tally.summary()
    counts = "2 approved, 1 rejected, 10 unknown, 2 failed, 3 not_sent, 4 of them already decided"
    assert repr(summary).startswith(f"<Summary of 18 rows: {counts}; 850.00 euro approved; 3 × ")
    assert (summary.amount_approved, summary.net_amount, summary.elapsed) == (85_000, 43_650, 2.5)
    assert (summary.amount_unknown, summary.amount_refused) == (10 * 45_000, 0)
    found = summary._repr_html_()
    assert "<strong>Summary of 18 rows, 4 of them already decided</strong>" in found
    assert "<div>2 × TransportError</div>" in found
    assert [*summary.errors.values()] == sorted(summary.errors.values(), reverse=True)
    with pytest.raises(TypeError):
        summary.errors["ConnectError"] = 3  # type: ignore[index]
    one = Summary(refused=1, amount_refused=123_456)
    assert repr(one).startswith("<Summary of 1 row: 0 approved, 1 refused;")
    assert "1,234.56 euro" in one._repr_html_()


async def test_progress_bar_counts_rows_and_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    async for _ in approvals_of(approve_at_once, list(rows(7)), progress=True):
        pass
    shown = [capsys.readouterr().err]
    async with approvals_of(approve_at_once, rows(7), progress=True) as results:
        await anext(results)
        await let_tasks_run()
    assert len([each async for each in results]) == 6
    shown.append(capsys.readouterr().err)
    assert ("7/7 [" in shown[0], " rows [" in shown[1]) == (True, True), "the second number is not known"
    assert [text[-1] for text in shown] == ["\n", "\n"]


async def test_progress_bar_shows_calls_that_continue_after_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the service, or for another process that requests the same customer."""
    pytest.importorskip("tqdm")
    now = [100.0]
    monkeypatch.setattr("loanasync.bulk.pool.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("loanasync.bulk.notebook._BAR_INTERVAL", 0)
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(3), progress=True)
    assert repr(approvals) == "<Approvals: 0 rows taken, 0 unread results>"
    cell = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    cell.cancel()
    now[0] = 112.0
    await let_tasks_run()
    assert "3 in progress, one for 12 s" in capsys.readouterr().err
    calls.finish_all()
    await approvals.aclose()
    assert repr(approvals) == "<Approvals: 3 rows taken, 3 unread results>"
    assert len([each async for each in approvals]) == 3


def test_progress_bar_without_tqdm_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm")
    monkeypatch.setattr("loanasync.bulk.options.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[notebook\]'"):
        approvals_of(approve_at_once, rows(1), progress=True)

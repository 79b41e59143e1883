"""The summary of many results, the progress bar, and `repr()`."""

import asyncio
import sys
from types import SimpleNamespace

import attrs
import pytest

from loanasync import ConfigurationError, ConnectError, InvalidRequestError, Meta
from loanasync.bulk import Row, RowResult, Summary
from loanasync.bulk.rows import result_of
from loanasync.bulk.summary import Tally
from support.builders import FISCAL_CODE, approval_request
from support.bulk import DECISION, HeldCalls, approvals_of, approve_at_once, let_tasks_run, rows


def test_summary_repr_is_one_line_without_personal_data() -> None:
    assert repr(Tally().summary()) == "<Summary of 0 rows: 0 approved; 0.00 euro approved>"
    summary = Summary(approved=3, unknown=1, amount_approved=123_456, errors={"ConnectError": 1})
    assert repr(summary) == (
        "<Summary of 4 rows: 3 approved, 1 unknown; 1234.56 euro approved; 1 × ConnectError>"
    )
    assert "<div>1 × ConnectError</div>" in summary._repr_html_()
    assert repr(Summary(refused=1)).startswith("<Summary of 1 row: 0 approved, 1 refused;")


def test_summary_counts_errors_by_name() -> None:
    tally = Tally()
    errors = [InvalidRequestError(()), ConnectError("approve", "OSError", "not_sent", 1), ValueError("Anna")]
    for error in (*errors, errors[1]):
        tally.add(result_of(0, Row(FISCAL_CODE, approval_request()), error))
    found = tally.summary().errors
    assert next(iter(found.items())) == ("ConnectError", 2)
    assert found == {"ConnectError": 2, "InvalidRequestError": 1, "TransportError": 1}
    with pytest.raises(TypeError):
        found["ConnectError"] = 3  # type: ignore[index]


@pytest.mark.parametrize(("amount", "counted"), [(40_000, 40_000), (None, 45_000)])
async def test_summary_counts_decided_amount_else_requested(amount: int | None, counted: int) -> None:
    tally = Tally()
    decision = attrs.evolve(DECISION, amount=amount, net_amount=None, meta=Meta(201, 1, 0.0))
    tally.add(RowResult(0, Row(FISCAL_CODE, approval_request()), "approved", decision))
    assert (tally.summary().amount_approved, tally.summary().net_amount) == (counted, 0)


async def test_elapsed_starts_with_the_first_read() -> None:
    now = [10.0]
    tally = Tally(lambda: now[0])
    assert tally.summary().elapsed == 0
    tally.start()
    now[0] = 12.5
    tally.start()
    assert tally.summary().elapsed == 2.5


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
    monkeypatch.setattr("loanasync.bulk.approvals._BAR_INTERVAL", 0)
    calls = HeldCalls()
    approvals = approvals_of(calls.approve, rows(3), progress=True)
    cell = asyncio.create_task(anext(approvals))
    await let_tasks_run()
    cell.cancel()
    now[0] = 112.0
    await let_tasks_run()
    assert "3 in progress, one for 12 s" in capsys.readouterr().err
    calls.finish_all()
    await approvals.aclose()
    assert len([each async for each in approvals]) == 3


def test_progress_bar_without_tqdm_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm")
    monkeypatch.setattr("loanasync.bulk.approvals.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[notebook\]'"):
        approvals_of(approve_at_once, rows(1), progress=True)


async def test_approvals_repr_counts_taken_and_unread_rows() -> None:
    approvals = approvals_of(approve_at_once, rows(3))
    assert repr(approvals) == "<Approvals: 0 rows taken, 0 unread results>"
    await anext(approvals)
    await let_tasks_run()
    assert repr(approvals) == "<Approvals: 3 rows taken, 2 unread results>"
    assert len([each async for each in approvals]) == 2

"""The summary of many results, the progress bar, and `repr()`."""

import random
import sys

import attrs
import pytest

from loanasync import ConfigurationError, Meta
from loanasync.bulk import Row, RowResult, Summary
from loanasync.bulk.summary import Tally
from support.builders import FISCAL_CODE, approval_request
from support.bulk import DECISION, approvals_of, approve_at_once, rows


def test_latencies_are_precise_to_three_per_cent() -> None:
    source = random.Random(7)  # noqa: S311  (not a secret)
    taken = sorted(source.lognormvariate(-2, 1.5) for _ in range(10_000))
    tally = Tally()
    for elapsed in taken:
        decision = attrs.evolve(DECISION, meta=Meta(201, 1, elapsed))
        tally.add(RowResult(0, Row(FISCAL_CODE, approval_request()), "approved", decision))
    summary = tally.summary()
    for found, rank in ((summary.latency_50, 4999), (summary.latency_99, 9899), (summary.latency_max, 9999)):
        assert taken[rank] * 0.999 <= found <= taken[rank] * 1.03
    assert len(tally._latencies) < 600


def test_summary_repr_is_one_line_without_personal_data() -> None:
    assert repr(Tally().summary()) == (
        "<Summary of 0 rows: 0 approved; 0.00 euro approved;"
        " half of the decisions within 0 s, 99 % within 0 s>"
    )
    summary = Summary(approved=3, unknown=1, amount_approved=123_456, latency_50=0.12345, latency_99=1.5)
    assert repr(summary) == (
        "<Summary of 4 rows: 3 approved, 1 unknown; 1234.56 euro approved;"
        " half of the decisions within 0.123 s, 99 % within 1.5 s>"
    )
    assert repr(Summary(refused=1)).startswith("<Summary of 1 row: 0 approved, 1 refused;")


async def test_decision_without_amount_counts_the_requested_amount() -> None:
    tally = Tally()
    decision = attrs.evolve(DECISION, amount=None, net_amount=None, meta=Meta(201, 1, 0.0))
    tally.add(RowResult(0, Row(FISCAL_CODE, approval_request()), "approved", decision))
    assert (tally.summary().amount_approved, tally.summary().net_amount) == (45_000, 0)


async def test_elapsed_starts_with_the_first_read() -> None:
    now = [10.0]
    tally = Tally(lambda: now[0])
    assert tally.summary().elapsed == 0
    tally.start()
    now[0] = 12.5
    tally.start()
    assert tally.summary().elapsed == 2.5


async def test_progress_bar_counts_rows_and_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("tqdm")
    approvals = approvals_of(approve_at_once, list(rows(7)), progress=True)
    async for _ in approvals:
        pass
    shown = capsys.readouterr().err
    assert "7/7 [" in shown
    assert shown.endswith("\n")
    async with approvals_of(approve_at_once, rows(7), progress=True) as results:
        await anext(results)
    assert len(results.unread) == 5
    shown = capsys.readouterr().err
    assert " rows [" in shown, "the number of rows is not known"
    assert shown.endswith("\n")


def test_progress_bar_without_tqdm_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.delitem(sys.modules, "tqdm")
    monkeypatch.setattr("loanasync.bulk.approvals.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'loanasync\[notebook\]'"):
        approvals_of(approve_at_once, rows(1), progress=True)


async def test_approvals_repr_counts_taken_and_unread_rows() -> None:
    approvals = approvals_of(approve_at_once, rows(3))
    assert repr(approvals) == "<Approvals: 0 rows taken, 0 unread results>"
    await anext(approvals)
    assert repr(approvals) == "<Approvals: 3 rows taken, 2 unread results>"
    assert len(approvals.unread) == 2
    await approvals.aclose()

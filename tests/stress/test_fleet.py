"""A small version of `nox -s fleet`, and the table that is generated from its report."""

from support.fleet.run import BEGIN, END, PAGE, Plan, render_tables, run, with_table
from support.servers import Valkey

TIMES = {"total": 4.0, "patience": 1.0, "cap": 0.2, "redelivery": 14.0}


async def test_fleet_loses_no_decision_and_repeats_no_request() -> None:
    plan = Plan(customers=300, workers=2, faults=0.05, kills_every=0.5, kills=1, broker=Valkey, times=TIMES)
    report = await run(plan)
    assert report.wrong == ()
    assert report.by_faults == report.faulted == 15
    assert report.killed == 1
    states = report.states
    assert states["unknown"] + states["lost"] == report.by_faults + report.by_kills
    assert states["approved"] + states["refused"] == 300 - report.by_faults - report.by_kills
    page = with_table(f"before {BEGIN} old {END} after", render_tables([report], [report]))
    assert page.startswith(f"before {BEGIN}\n\n| | Redis streams, SQLite ledger |")
    assert "| customers | 300 |" in page
    assert page.endswith(f"{END} after")
    assert "old" not in page


def test_workers_page_has_markers_for_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.index(BEGIN) < page.index(END)

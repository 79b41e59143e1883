"""Queue workers killed at any point: the next worker reports the result and repeats no request."""

from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.fleet.worker_process import SHORT
from support.fleet.workers import Fleet, evaluated, kill, posts, until


# Before the request, after it, after the response and after the settlement; each queue and each ledger.
@pytest.mark.parametrize(
    ("point", "broker", "ledger", "status", "requests"),
    [
        ("after claim", "valkey", "postgres", "unknown", 0),
        ("after send", "nats", "sqlite", "unknown", 1),
        ("before commit", "nats", "valkey", "unknown", 1),
        ("before ack", "valkey", "sqlite", "approved", 1),
    ],
)
async def test_message_of_a_killed_worker_gets_a_result_and_no_request(
    point: str,
    broker: str,
    ledger: str,
    status: str,
    requests: int,
    served: Sandbox,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    queue = request.getfixturevalue(broker).url
    decisions = tmp_path / "decisions.db" if ledger == "sqlite" else request.getfixturevalue(ledger).url
    fleet = Fleet(served, queue, str(decisions), tmp_path)
    await fleet.create_ledger()
    is_sent = point == "after send"
    customer = await fleet.customer("+hangafter" if is_sent else "")
    (task,) = await fleet.put(customer)
    with fleet.worker(point="" if is_sent else point, times=SHORT) as killed:
        await until(lambda: bool(evaluated(served)) if is_sent else fleet.reached(point))
        kill(killed)
    earlier = fleet.results_of(task)
    assert len(earlier) == (point == "before ack"), "a message is acknowledged after its result was saved"
    with fleet.worker():
        first = await fleet.result(task, times=len(earlier) + 1)  # no new message arrives
        (again,) = await fleet.put(customer)
        second = await fleet.result(again)
    assert {each["status"] for each in (first, second, *earlier)} == {status}
    assert first["decision"] == second["decision"]
    assert len(posts(served)) == len(evaluated(served)) == requests

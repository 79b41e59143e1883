"""Queue workers killed at any point: the next worker reports the result and repeats no request."""

from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.fleet.worker_process import SHORT
from support.fleet.workers import Fleet, evaluated, kill, posts, until

CASES = [
    # point, tag, status that each later worker reports, number of requests that the service received
    ("before claim", "", "approved", 1),
    ("after claim", "", "unknown", 0),
    ("after send", "+hangafter", "unknown", 1),
    ("before commit", "", "unknown", 1),
    ("before commit", "+500after", "unknown", 1),
    ("after commit", "", "approved", 1),
    ("after commit", "+refused", "refused", 1),
    ("after commit", "+resetafter", "unknown", 1),
    ("before ack", "", "approved", 1),
    ("before ack", "+hangafter", "unknown", 1),
]
# Before the request, after it, after the response and after the settlement; each queue and each ledger.
IN_GATE = {
    ("after claim", "", "valkey", "postgres"),
    ("after send", "+hangafter", "nats", "sqlite"),
    ("before commit", "", "nats", "valkey"),
    ("before ack", "", "valkey", "sqlite"),
}
TURNS = [
    pytest.param(
        *case,
        broker,
        ledger,
        id=f"{case[0]}{case[1]}-{broker}-{ledger}".replace(" ", "-"),
        marks=[] if (case[0], case[1], broker, ledger) in IN_GATE else pytest.mark.scheduled,
    )
    for case in CASES
    for broker in ("valkey", "nats")
    for ledger in ("sqlite", "valkey", "postgres")
]


@pytest.mark.parametrize(("point", "tag", "status", "requests", "broker", "ledger"), TURNS)
async def test_message_of_a_killed_worker_gets_a_result_and_no_request(
    point: str,
    tag: str,
    status: str,
    requests: int,
    broker: str,
    ledger: str,
    served: Sandbox,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    queue = request.getfixturevalue(broker).url
    decisions = tmp_path / "decisions.db" if ledger == "sqlite" else request.getfixturevalue(ledger).url
    fleet = Fleet(served, queue, str(decisions), tmp_path)
    await fleet.create_ledger()
    customer = await fleet.customer(tag)
    (task,) = await fleet.put(customer)
    with fleet.worker(point="" if point == "after send" else point, times=SHORT) as killed:
        await until(lambda: bool(evaluated(served)) if point == "after send" else fleet.reached(point))
        kill(killed)
    earlier = fleet.results_of(task)
    assert [each["status"] for each in earlier] == ([status] if point == "before ack" else [])
    with fleet.worker():
        first = await fleet.result(task, times=len(earlier) + 1)  # no new message arrives
        (again,) = await fleet.put(customer)
        second = await fleet.result(again)
    assert first["status"] == second["status"] == status
    assert first["decision"] == second["decision"]
    assert {each["status"] for each in fleet.results_of(task)} == {status}
    assert len(posts(served)) == requests
    assert len(evaluated(served)) == requests

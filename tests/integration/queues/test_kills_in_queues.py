"""Queue workers killed at any point: the next worker reports the result and repeats no request."""

import asyncio
import os
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


BROKERS, LEDGERS = ["valkey", "nats"], ["sqlite", "valkey", "postgres"]
# Each case once, with alternating brokers and ledgers; `nox -s fleet` covers more combinations.
ALL = [(*case, broker, ledger) for case in CASES for broker in BROKERS for ledger in LEDGERS]
TURNS = ALL if "LOANASYNC_FLEET" in os.environ else [
    (*case, BROKERS[number % 2], LEDGERS[number % 3]) for number, case in enumerate(CASES)
]  # fmt: skip
NAMES = [f"{point}{tag}-{broker}-{ledger}".replace(" ", "-") for point, tag, _, _, broker, ledger in TURNS]


@pytest.mark.parametrize(("point", "tag", "status", "requests", "broker", "ledger"), TURNS, ids=NAMES)
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
    customer = await fleet.customer(tag)
    (task,) = await fleet.put(customer)
    with fleet.worker(point="" if point == "after send" else point, times=SHORT) as killed:
        if point == "after send":
            await until(lambda: bool(evaluated(served)))
        else:
            assert killed.stdout is not None
            reached = await asyncio.to_thread(killed.stdout.readline)
            assert reached.strip() == point, fleet.log.read_text(encoding="utf-8")
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

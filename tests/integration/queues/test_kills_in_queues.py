"""A worker is killed anywhere, and nothing else comes: the next tells what came of it, and asks no more."""

import asyncio
import os
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.fleet.worker_process import SHORT
from support.fleet.workers import Fleet, evaluated, kill, posts, until

CASES = [
    # point, tag, what every later worker tells, how many requests the service got
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
# All of them are for `nox -s fleet`; here each case, and by turns each broker and each ledger, is seen once.
ALL = [(*case, broker, ledger) for case in CASES for broker in BROKERS for ledger in LEDGERS]
TURNS = ALL if "LOANASYNC_FLEET" in os.environ else [
    (*case, BROKERS[number % 2], LEDGERS[number % 3]) for number, case in enumerate(CASES)
]  # fmt: skip
NAMES = [f"{point}{tag}-{broker}-{ledger}".replace(" ", "-") for point, tag, _, _, broker, ledger in TURNS]


@pytest.mark.parametrize(("point", "tag", "status", "asked", "broker", "ledger"), TURNS, ids=NAMES)
async def test_message_of_a_killed_worker_gets_a_result_and_no_request(
    point: str,
    tag: str,
    status: str,
    asked: int,
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
    told = fleet.results_of(task)
    assert [each["status"] for each in told] == ([status] if point == "before ack" else [])
    with fleet.worker():
        first = await fleet.result(task, times=len(told) + 1)  # nothing new comes to the queue
        (again,) = await fleet.put(customer)
        second = await fleet.result(again)
    assert first["status"] == second["status"] == status
    assert first["decision"] == second["decision"]
    assert {each["status"] for each in fleet.results_of(task)} == {status}
    assert len(posts(served)) == asked
    assert len(evaluated(served)) == asked

"""``approve-many`` pauses while the circuit breaker is open."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from loanasync import CircuitBreaker
from loanasync._runtime.breaker import Breaker
from loanasync.cli.console import print_message
from loanasync.sandbox import Sandbox
from support.cli import Bulk

SHOP_DENIED = "the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN"
PAUSED = "paused because the service responds only with errors or not at all; one row at a time tries again"
PAUSED_SHOP = f"paused because {SHOP_DENIED}; one row at a time tries again"
OUTAGE = ("approved", *["resetafter"] * 5, *["approved"] * 4)


@pytest.fixture
def when_printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Return a function that sets an action of the moment when the command prints a message."""

    def set_action(message: str, action: Callable[[], object]) -> None:
        def print_and_act(printed: str) -> None:
            print_message(printed)
            if printed == message:
                action()

        monkeypatch.setattr("loanasync.cli.approve_many.loop.print_message", print_and_act)

    return set_action


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_command_prints_when_it_pauses_and_continues(
    tmp_path: Path, served: Sandbox, when_printed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, calls = Breaker(CircuitBreaker()), list[int]()
    monkeypatch.setattr("loanasync._client.Breaker", lambda _: breaker)
    bulk = Bulk(tmp_path, served, *OUTAGE)

    def end_pause() -> None:
        calls.append(bulk.calls)
        for circuit in breaker.circuits.values():
            circuit.open_until = 0.0

    when_printed(PAUSED, end_pause)
    code, output = bulk.run("--concurrency", "1")
    assert (code, calls, bulk.calls) == (3, [6], 10)
    assert f"{PAUSED}\ncontinuing: the service decides again\n" in output
    assert sorted(bulk.statuses) == ["approved"] * 5 + ["unknown"] * 5


def test_interrupted_pause_leaves_the_waiting_rows_to_the_next_run(
    tmp_path: Path, served: Sandbox, when_printed: Callable[..., None]
) -> None:
    bulk = Bulk(tmp_path, served, *OUTAGE)
    when_printed(PAUSED, interrupt)
    assert bulk.run("--concurrency", "1", "--report", bulk.report)[0] == 130
    assert bulk.counts() == {"approved": 1, "unknown": 5, "to_be_sent": 4}
    assert (len(bulk.statuses), bulk.calls) == (6, 6)
    assert (bulk.run()[0], len(bulk.statuses), bulk.calls) == (3, 10, 10)


def test_run_of_a_shop_that_is_denied_from_the_beginning_stops(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["forbidden"] * 20)
    code, output = bulk.run("--concurrency", "1")
    assert f"stopped because {SHOP_DENIED}; run the same command to resume\n" in output
    assert (code, "paused" in output, len(bulk.statuses), bulk.calls) == (1, False, 5, 5)


def test_run_of_a_shop_that_is_denied_later_pauses(
    tmp_path: Path, served: Sandbox, when_printed: Callable[..., None]
) -> None:
    bulk = Bulk(tmp_path, served, "refused", *["forbidden"] * 20)
    when_printed(PAUSED_SHOP, interrupt)
    code, output = bulk.run("--concurrency", "1")
    assert (code, f"{PAUSED_SHOP}\n" in output) == (130, True)

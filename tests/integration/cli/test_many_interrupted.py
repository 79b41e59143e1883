"""Runs of ``approve-many`` that a signal ends, or that pause while the circuit breaker is open."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from loanasync import CircuitBreaker
from loanasync._runtime.breaker import Breaker
from loanasync.cli.console import print_message
from loanasync.sandbox import Sandbox
from support.cli import Bulk, start, statuses, wait_for
from support.ledger_file import listed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
WAITING = "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel them"
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


@pytest.mark.parametrize(
    "ending", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.scheduled) for name in ("SIGINT", "SIGHUP"))]
)
@pytest.mark.parametrize("has_terminal", [True, False])
def test_first_signal_waits_for_calls_and_the_same_command_resumes(
    tmp_path: Path, served: Sandbox, ending: str, *, has_terminal: bool
) -> None:
    bulk = Bulk(tmp_path, served, *["slow300after"] * 20)
    process = start(served, *bulk.command("--concurrency", "4"))
    for pipe in () if has_terminal else (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    wait_for(lambda: bulk.calls >= 6)
    process.send_signal(signal.Signals[ending])
    if has_terminal:
        errors = process.communicate(timeout=60)[1]
        assert [text in errors for text in (WAITING, "interrupted; run the same command to resume")] == [
            True
        ] * 2
    assert process.wait(60) == 130
    assert bulk.statuses == ["approved"] * bulk.calls
    assert bulk.calls < 20
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (0, ["approved"] * 20, 20)


def test_second_signal_makes_calls_in_progress_unknown(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["approved"] * 3, "hangafter", "hangafter", "approved", "approved")
    process = start(served, *bulk.command("--concurrency", "2"))
    wait_for(lambda: bulk.calls == 5)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "requesting 7 of 7 rows" in process.stderr.readline()
    assert WAITING in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert (process.returncode, "Traceback" in errors) == (130, False)
    assert "2 outcomes are unknown: run the same command first, it may find their decisions; then" in errors
    assert "ask the service, then run: loanasync ledger resolve --ledger" in errors
    assert sorted(statuses(bulk.out).values()) == ["approved"] * 3 + ["unknown"] * 2
    entries = sorted((each["state"], each["note"]) for each in listed(bulk.job))
    assert entries == [("approved", "")] * 3 + [("unknown", "ConnectionLostError")] * 2, (
        "unknown at once, before timeouts and leases expire"
    )
    assert bulk.run()[0] == 3
    assert sorted(statuses(bulk.out).values()) == ["approved"] * 5 + ["unknown"] * 2
    assert bulk.calls == 7

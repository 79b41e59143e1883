"""Runs of ``approve-many`` that a signal ends, or that pause while nothing can be sent."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loanasync import CircuitBreaker
from loanasync._runtime.breaker import Breaker
from loanasync.cli.console import print_message
from loanasync.sandbox import Sandbox
from support.cli import Bulk, make_row, read, start, statuses, wait_for, write
from support.ledger_file import listed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
WAITING = "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to give them up"
OUTAGE = ("approved", *["resetafter"] * 5, *["approved"] * 4)


def when_paused(monkeypatch: pytest.MonkeyPatch, action: Any) -> None:
    """Call a function when the command prints that it pauses."""

    def print_and_act(printed: str, *arguments: Any) -> None:
        print_message(printed, *arguments)
        if printed.startswith("paused: "):
            action()

    monkeypatch.setattr("loanasync.cli.approve_many.run.print_message", print_and_act)


def test_command_prints_when_it_pauses_and_continues(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker, calls = Breaker(CircuitBreaker()), list[int]()
    monkeypatch.setattr("loanasync._client.Breaker", lambda _: breaker)
    bulk = Bulk(tmp_path, served, *OUTAGE)

    def end_pause() -> None:
        calls.append(bulk.calls)
        breaker.open_until = 0.0

    when_paused(monkeypatch, end_pause)
    code, output = bulk.run("--concurrency", "1")
    assert (code, calls, bulk.calls) == (3, [6], 10)
    assert (
        "paused: approve: request not sent; the circuit breaker is open, because recent approvals" in output
    )
    assert "\ncontinuing: rows are sent again\n" in output
    assert sorted(bulk.statuses) == ["approved"] * 5 + ["unknown"] * 5


def test_interrupted_pause_leaves_the_waiting_rows_to_the_next_run(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk, rejected = Bulk(tmp_path, served, *OUTAGE, make_row("", amount=1)), tmp_path / "rejected.jsonl"
    with monkeypatch.context() as patched:
        when_paused(patched, lambda: os.kill(os.getpid(), signal.SIGINT))
        options = ("--concurrency", "1", "--skip-invalid", "--rejected", rejected)
        assert bulk.run(*options)[0] == 130
    assert bulk.statuses == ["approved", *["unknown"] * 5, *["not_sent"] * 4, "rejected"]
    assert (bulk.calls, len(read(rejected))) == (6, 1)
    assert (bulk.run("--skip-invalid")[0], bulk.statuses[6:], bulk.calls) == (
        1,
        ["approved"] * 4 + ["rejected"],
        10,
    )


@pytest.mark.parametrize(
    "ending", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.scheduled) for name in ("SIGINT", "SIGHUP"))]
)
@pytest.mark.parametrize("has_terminal", [True, False])
def test_first_signal_waits_for_calls_and_the_same_command_continues(
    tmp_path: Path, served: Sandbox, ending: str, *, has_terminal: bool
) -> None:
    bulk = Bulk(tmp_path, served, *["slow300after"] * 20, "approved")
    write(bulk.file, bulk.rows[20:])
    assert bulk.run()[0] == 0, "an earlier run decides the last row"
    write(bulk.file, bulk.rows)
    process = start(served, *bulk.command("--concurrency", "4"))
    for pipe in () if has_terminal else (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    wait_for(lambda: bulk.calls >= 7)
    process.send_signal(signal.Signals[ending])
    if has_terminal:
        errors = process.communicate(timeout=60)[1]
        shown = (WAITING, "interrupted; run the same command to continue")
        assert [text in errors for text in shown] == [True] * 2
    assert process.wait(60) == 130
    sent, left = ["approved"] * (bulk.calls - 1), ["not_sent"] * (21 - bulk.calls)
    assert (bulk.statuses, len(left) > 0) == ([*sent, *left, "approved"], True)
    assert (bulk.run()[0], bulk.statuses, bulk.calls) == (0, ["approved"] * 21, 21)


def test_second_signal_makes_calls_in_progress_unknown(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["approved"] * 3, "hangafter", "hangafter", "approved", "approved")
    process = start(served, *bulk.command("--concurrency", "2"))
    wait_for(lambda: bulk.calls == 5)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "requesting 7 rows" in process.stderr.readline()
    assert WAITING in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert (process.returncode, "Traceback" in errors) == (130, False)
    advice = f"ask the service, then run: loanasync ledger --ledger {bulk.ledger} resolve KEY."
    assert f"2 outcomes are unknown: {advice}" in errors
    assert bulk.statuses == ["approved"] * 3 + ["unknown"] * 2 + ["not_sent"] * 2
    entries = sorted((each["state"], each["note"]) for each in listed(bulk.ledger))
    assert entries == [("approved", "")] * 3 + [("unknown", "ConnectionLostError")] * 2, (
        "unknown at once, before timeouts and leases expire"
    )
    assert bulk.run()[0] == 3
    assert sorted(statuses(bulk.out).values()) == ["approved"] * 5 + ["unknown"] * 2
    assert bulk.calls == 7

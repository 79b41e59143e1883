"""Runs of ``approve-many`` that a signal ends, or that pause while the circuit breaker is open."""

import os
import signal
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import Bulk, start, statuses, wait_for
from support.ledger_file import listed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
WAITING = "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel them"


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

"""Runs of ``approve-many`` that are interrupted, aborted or killed: nothing is lost, and they can resume."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import RunningCommand, create, make_row, read, run, start, statuses, wait_for, write
from support.ledger_file import listed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def approve_calls(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


def wait_for_calls(sandbox: Sandbox, times: int) -> None:
    wait_for(lambda: approve_calls(sandbox) >= times)


def finish(process: RunningCommand) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return process.returncode, errors


@pytest.mark.parametrize(
    "ending", ["SIGTERM", *(pytest.param(name, marks=pytest.mark.scheduled) for name in ("SIGINT", "SIGHUP"))]
)
def test_first_signal_waits_for_calls_and_the_same_command_resumes(
    tmp_path: Path, served: Sandbox, ending: str
) -> None:
    rows = [make_row("slow300after") for _ in range(20)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "4")
    process = start(served, *command)
    wait_for_calls(served, 6)
    process.send_signal(signal.Signals[ending])
    code, errors = finish(process)
    assert code == 130
    assert (
        "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel them"
        in errors
    )
    assert "interrupted; run the same command to resume" in errors
    assert len(read(out)) == approve_calls(served) < 20
    assert set(statuses(out).values()) == {"approved"}
    assert run(served, *command).returncode == 0
    assert len(read(out)) == approve_calls(served) == 20
    assert served.findings == []


def test_deadline_after_a_signal_keeps_the_exit_code_of_the_signal(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("hangafter") for _ in range(4)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    process = start(served, "approve-many", file, "-o", out, "--concurrency", "2", "--deadline", "1")
    wait_for_calls(served, 2)
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)  # a deadline before the signal has the same result
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert (code, len(read(out))) == (130, 2)
    assert "\ninterrupted; run the same command to resume" in errors
    assert "stopped by --deadline" not in errors


def test_second_signal_makes_calls_in_progress_unknown(tmp_path: Path, served: Sandbox) -> None:
    tags = ["approved"] * 3 + ["hangafter"] * 2 + ["approved"] * 2
    rows = [make_row(tag) for tag in tags]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "2")
    process = start(served, *command)
    wait_for_calls(served, 5)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "requesting 7 of 7 rows" in process.stderr.readline()
    assert "no further row is sent" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130
    assert "2 outcomes are unknown: run the same command first, it may find their decisions; then" in errors
    assert "ask the service, then run: loanasync ledger resolve --ledger" in errors
    assert sorted(statuses(out).values()) == ["approved"] * 3 + ["unknown"] * 2
    entries = listed(tmp_path / "out.jsonl.ledger")
    assert sorted(each["state"] for each in entries) == ["approved"] * 3 + ["unknown"] * 2, (
        "unknown at once, and not in flight until their leases expire"
    )
    notes = {each["note"] for each in entries if each["state"] == "unknown"}
    assert notes == {"ConnectionLostError"}, "the calls were cancelled before their timeouts"
    assert run(served, *command).returncode == 3
    assert sorted(statuses(out).values()) == ["approved"] * 5 + ["unknown"] * 2
    codes = [call.fiscal_code for call in served.journal.calls(operation="approve")]
    assert len(set(codes)) == len(codes) == 7, "no customer is requested twice"


@pytest.mark.scheduled  # test_many_end_to_end.py does the same with `--ledger` and fewer rows
def test_run_with_faults_and_two_interruptions_keeps_every_decision(tmp_path: Path, served: Sandbox) -> None:
    source = random.Random(8)  # noqa: S311  (not a secret)
    tags = source.choices(
        ["approved", "refused", "500after", "resetafter", "slow20"], [60, 27, 2, 1, 10], k=600
    )
    rows = [make_row(tag) for tag in tags]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "8")
    first = start(served, *command)
    wait_for_calls(served, 100)
    first.send_signal(signal.SIGINT)
    assert finish(first)[0] == 130
    second = start(served, *command)
    wait_for_calls(served, 300)
    second.kill()
    second.communicate()
    done = run(served, *command)
    assert done.returncode == 3

    decided = {
        code: "approved" if customer["approved"] else "refused"
        for code, customer in customers_of(served).items()
        if customer["approved"] is not None
    }
    found = statuses(out)
    assert found.keys() == {row["fiscal_code"] for row in rows}
    known = {code: status for code, status in found.items() if status != "unknown"}
    unknown = found.keys() - known
    assert known.items() <= decided.items(), "the results contain the service's decisions"
    lost = {row["fiscal_code"] for row, tag in zip(rows, tags, strict=True) if "after" in tag}
    assert lost <= unknown
    assert len(unknown - lost) <= 8, "besides these, only requests in progress at the kill"
    assert (decided.keys() - unknown) == known.keys()
    assert served.findings == [], "no refusal was repeated"


def test_hangup_waits_for_calls_in_progress(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("slow50") for _ in range(20)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    file = write(tmp_path / "rows.jsonl", rows)
    process = start(served, "approve-many", file, "-o", out, "--concurrency", "2")
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    wait_for_calls(served, 4)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert len(read(out)) == approve_calls(served) < 20


def customers_of(sandbox: Sandbox) -> dict[str, dict[str, object]]:
    return {code: json.loads(record) for code, record in sandbox.snapshot().items()}

"""A run that is interrupted, given up or killed: nothing is lost, and the same command goes on."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import Started, begin, create, member, read, run, statuses, wait_for, write

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def asked(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


def wait_until_asked(sandbox: Sandbox, times: int) -> None:
    wait_for(lambda: asked(sandbox) >= times)


def ended(process: Started) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return process.returncode, errors


@pytest.mark.parametrize("ending", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_waits_for_answers_and_the_same_command_goes_on(
    tmp_path: Path, served: Sandbox, ending: str
) -> None:
    rows = [member("slow300after") for _ in range(20)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "4")
    process = begin(served, *command)
    wait_until_asked(served, 6)
    process.send_signal(signal.Signals[ending])
    code, errors = ended(process)
    assert code == 130
    assert (
        "no further row is sent; waiting for the calls in progress. Press Ctrl-C again to cancel them"
        in errors
    )
    assert "interrupted; run the same command to resume" in errors
    assert len(read(out)) == asked(served) < 20
    assert set(statuses(out).values()) == {"approved"}
    assert run(served, *command).returncode == 0
    assert len(read(out)) == asked(served) == 20
    assert served.findings == []


def test_the_second_signal_gives_up_and_who_was_under_way_is_unknown_and_never_asked_again(
    tmp_path: Path, served: Sandbox
) -> None:
    rows = [member("approved") for _ in range(3)] + [member("hangafter") for _ in range(5)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "2")
    for calls, unknown in ((5, 2), (7, 4)):
        process = begin(served, *command)
        wait_until_asked(served, calls)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "no further row is sent" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        code, errors = ended(process)
        assert code == 130
        assert (
            f"{unknown} outcomes are unknown: ask the service, then run: loanasync ledger resolve --ledger {out}"
            in errors
        )
        assert sorted(statuses(out).values()) == ["approved"] * 3 + ["unknown"] * unknown
        assert asked(served) == calls
    codes = [call.fiscal_code for call in served.journal.calls(operation="approve")]
    assert len(set(codes)) == len(codes), "nobody is asked twice"


def test_ten_in_a_hundred_faults_two_interruptions_and_every_decision_is_there(
    tmp_path: Path, served: Sandbox
) -> None:
    source = random.Random(8)  # noqa: S311  (no secret)
    words = source.choices(
        ["approved", "refused", "500after", "resetafter", "slow20"], [60, 27, 2, 1, 10], k=600
    )
    rows = [member(word) for word in words]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "8")
    first = begin(served, *command)
    wait_until_asked(served, 100)
    first.send_signal(signal.SIGINT)
    assert ended(first)[0] == 130
    second = begin(served, *command)
    wait_until_asked(served, 300)
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
    assert known.items() <= decided.items(), "what is said is what the service decided"
    lost = {row["fiscal_code"] for row, word in zip(rows, words, strict=True) if "after" in word}
    assert lost <= unknown
    assert len(unknown - lost) <= 8, "besides, those that were under way at the kill"
    assert (decided.keys() - unknown) == known.keys()
    assert served.findings == [], "no refusal was repeated"


def test_when_the_terminal_is_gone_the_run_goes_on_to_its_end(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("slow50") for _ in range(20)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    file = write(tmp_path / "rows.jsonl", rows)
    process = begin(served, "approve-many", file, "-o", out, "--concurrency", "2")
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    wait_until_asked(served, 4)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert len(read(out)) == asked(served) < 20


def test_two_runs_do_not_write_to_the_same_results_at_once(tmp_path: Path, served: Sandbox) -> None:
    rows = [member("hangafter")]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out)
    first = begin(served, *command)
    wait_until_asked(served, 1)
    second = run(served, *command)
    first.kill()
    first.communicate()
    assert (second.returncode, second.stderr) == (
        2,
        f"another run is writing to {out}: wait until it ends, then run this command again\n",
    )
    assert run(served, *command).returncode == 3, "after a kill, nobody does"
    assert asked(served) == 1


def customers_of(sandbox: Sandbox) -> dict[str, dict[str, object]]:
    return {code: json.loads(record) for code, record in sandbox.snapshot().items()}

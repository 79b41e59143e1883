"""``approve-many`` stops if its first rows all fail for the same cause, and only then."""

import json
from pathlib import Path
from unittest import mock

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, statuses, write

STOPPED = "stopped because the first 20 rows all failed for the same cause"


def approve_calls(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


def test_run_whose_first_rows_fail_alike_stops_and_resumes(tmp_path: Path, served: Sandbox) -> None:
    """Nobody has created the requests."""
    rows = [make_row("approved") for _ in range(60)]
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "4")
    done = run(served, *command)
    assert done.returncode == 1
    assert (
        f"{STOPPED} (UserNotFoundError); to send the other rows anyway, add --max-errors N; run the same "
        "command to resume\n"
    ) in done.stderr
    sent = approve_calls(served)
    assert 20 <= sent <= 28, "calls in progress finish, and as many results wait to be read"
    assert f"{sent} failed rows were not evaluated: correct the cause, then run the same" in done.stderr
    assert len(read(out)) == sent
    create(served, rows)
    assert run(served, *command).returncode == 0
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert approve_calls(served) == sent + 60


def test_run_with_a_wrong_address_continues_with_the_right_one(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(90)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    wrong = {
        "LOANASYNC_BASE_URL": "http://127.0.0.1:9",
        "LOANASYNC_SHOP_ID": served.shop_id,
        "LOANASYNC_AUTH_TOKEN": "wrong",
    }
    command = ("approve-many", file, "-o", out, "--concurrency", "8")  # so that some rows are not sent
    with mock.patch("support.cli.service", return_value=wrong):
        done = run(served, *command)
    # Either the circuit breaker opens first, or 20 rows have failed.
    assert (done.returncode, "stopped because" in done.stderr) == (1, True)
    assert len(read(out)) < 90
    done = run(served, *command)
    assert done.returncode == 0, done.stderr
    assert statuses(out) == {row["fiscal_code"]: "approved" for row in rows}
    assert len(read(out)) == 90
    with mock.patch("support.cli.service", return_value=wrong):
        done = run(served, *command)
    assert (done.returncode, "name a new results file with -o" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "tags",
    [
        ["nouser"] * 10 + ["invalid.city"] * 10,
        ["nouser"] * 19 + ["approved"],
        ["nouser"] * 19 + ["refused"] + ["nouser"] * 5,
        ["refused"] * 20,
        # Failures that arrive before the first decision.
        ["slow300"] + ["nouser"] * 25,
    ],
    ids=["other-causes", "approved", "refused", "refusals", "slow-decision"],
)
def test_run_with_a_decision_or_another_cause_continues(
    tmp_path: Path, served: Sandbox, tags: list[str]
) -> None:
    rows = [make_row(tag) for tag in [*tags, *["approved"] * 20]]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--concurrency", "2")
    assert "stopped" not in done.stderr
    assert len(read(out)) == len(rows)


def test_rows_that_failed_in_an_earlier_run_do_not_stop_the_next(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row(tag) for tag in ["approved", *["nouser"] * 25, *["approved"] * 30]]
    create(served, rows)
    file, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out, "--concurrency", "1")
    write(file, rows[:26])
    assert run(served, *command).returncode == 1
    write(file, rows)
    done = run(served, *command)
    assert "stopped" not in done.stderr
    assert sorted(statuses(out).values()) == ["approved"] * 31 + ["error"] * 25


def test_run_that_failed_and_still_fails_stops_again(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(60)]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    for sent in (20, 60):  # 20 rows again, and 20 others
        done = run(served, "approve-many", file, "-o", out, "--concurrency", "1")
        assert (STOPPED in done.stderr, approve_calls(served)) == (True, sent)


def test_run_with_max_errors_ignores_the_first_rows(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("nouser") for _ in range(30)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--concurrency", "2", "--max-errors", "31")
    assert (len(read(out)), "stopped" in done.stderr) == (30, False)


def test_run_that_has_sent_every_row_prints_no_stop(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("nouser") for _ in range(25)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    report = tmp_path / "report.json"
    done = run(served, "approve-many", file, "-o", out, "--report", report)
    assert (len(read(out)), "stopped" in done.stderr) == (25, False)
    assert json.loads(report.read_text(encoding="utf-8"))["interrupted"] is None
    assert "25 failed rows were not evaluated" in done.stderr


def test_run_whose_first_outcomes_are_unknown_names_no_other_results(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("conflict") for _ in range(40)]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "1")
    done = run(served, *command)
    assert (done.returncode, f"{STOPPED} (CannotCompleteError)" in done.stderr) == (3, True)
    assert "failed rows were not evaluated" not in done.stderr
    run(served, *command)
    codes = [call.fiscal_code for call in served.journal.calls(operation="approve")]
    assert len(set(codes)) == len(codes) == 40, "no customer is requested twice"

"""Runs of ``approve-many``: results, report, dead letters, exit codes, limits and the plan."""

import json
import os
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, statuses, write
from support.ledger_file import create_at


def approve_calls(sandbox: Sandbox) -> int:
    return len(sandbox.journal.calls(operation="approve"))


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        (("approved", "refused"), 0),
        (("approved", "invalid.city"), 1),
        (("approved", "forbidden"), 1),
        (("approved", "conflict"), 3),
        (("invalid.city", "resetafter"), 3),
        (("500after",), 3),
    ],
)
def test_exit_code_is_that_of_the_worst_row(
    tmp_path: Path, served: Sandbox, tags: tuple[str, ...], code: int
) -> None:
    rows = [make_row(tag) for tag in tags]
    create(served, rows)
    out = tmp_path / "out.jsonl"
    file = write(tmp_path / "rows.jsonl", rows)
    assert run(served, "approve-many", file, "-o", out).returncode == code
    calls = approve_calls(served)
    again = run(served, "approve-many", file, "-o", out, "--report", tmp_path / "report.json")
    assert again.returncode == code
    repeatable = sum(tag in ("invalid.city", "forbidden") for tag in tags)
    assert approve_calls(served) == calls + repeatable, (
        "only rows that were not evaluated are requested again"
    )
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["exit_code"] == code
    assert report["not_requested"] == 0
    assert report["earlier"]["decided"] == sum(tag in ("approved", "refused") for tag in tags)


def test_results_have_a_line_with_all_data_for_each_row(tmp_path: Path, served: Sandbox) -> None:
    rows = [
        make_row("approved", id="order 1"),
        make_row("refused", id=2),
        make_row("invalid.city"),
        make_row("approved", amount=1, id="order 4"),
    ]
    create(served, rows)
    out, dead, report = (tmp_path / name for name in ("out.jsonl", "dead.jsonl", "report.json"))
    file = write(tmp_path / "rows.jsonl", rows)
    options = ("--skip-invalid", "--dead-letters", dead, "--report", report)
    done = run(served, "approve-many", file, "-o", out, *options)
    assert done.returncode == 1
    by_line = {result["line"]: result for result in read(out)}
    first = by_line[1]
    assert (first["status"], first["id"], first["amount"], first["net_amount"]) == (
        *("approved", "order 1", 45_000, 43_650),
    )
    assert first["fiscal_code"] == rows[0]["fiscal_code"]
    assert first["redirect_url"].startswith(served.base_url)
    assert (by_line[2]["status"], by_line[2]["id"], by_line[2]["status_code"]) == ("refused", 2, 422)
    assert (by_line[3]["status"], by_line[3]["problems"][0]["field"]) == ("rejected", "city")
    assert (by_line[4]["status"], by_line[4]["problems"][0]["field"]) == ("rejected", "amount")
    assert by_line[3]["problems"][0]["code"] == "city.blank", "a message of the service"
    assert by_line[4]["problems"][0]["code"] == "amount.range"
    assert "fiscal_code" not in by_line[4], "it was not sent"
    assert by_line[4]["id"] == "order 4"
    assert [row["loanasync_line"] for row in read(dead)] == [4, 3]
    assert run(None, "approve-many", dead, "--validate-only").returncode == 2, "one row is still invalid"
    members = json.loads(report.read_text(encoding="utf-8"))
    assert members["results"] == {"approved": 1, "refused": 1, "rejected": 2, "unknown": 0, "error": 0}
    assert members["cents"]["approved"] == 45_000
    assert "approved" in done.stderr
    assert "450.00" in done.stderr
    assert f"the reasons of failed rows are in {out}\n" in done.stderr
    for personal in (rows[0]["fiscal_code"], "Prova", "example.com"):
        assert personal not in done.stderr
    if os.name == "posix":
        written = (out, dead, tmp_path / "out.jsonl.ledger", tmp_path / "out.jsonl.resume")
        assert {path.stat().st_mode & 0o077 for path in written} == {0}


def test_failed_rows_are_grouped_by_cause_in_output_and_report(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row(tag) for tag in ("approved", "forbidden", "resetafter", "forbidden", "invalid.city")]
    created = [*rows, make_row("approved")]
    create(served, created[:5])
    file, out, report = (tmp_path / name for name in ("rows.jsonl", "out.jsonl", "report.json"))
    command = ("approve-many", write(file, created), "-o", out, "--report", report)
    done = run(served, *command)
    assert done.returncode == 3
    failures = json.loads(report.read_text(encoding="utf-8"))["failures"]
    assert [(each["cause"].partition(":")[0], each["count"], each["lines"]) for each in failures[:1]] == [
        ("AccessDeniedError", 2, [2, 4])
    ]
    assert {each["cause"].partition(":")[0]: each["lines"] for each in failures[1:]} == {
        "ConnectionLostError": [3], "RejectedError": [5], "UserNotFoundError": [6]
    }  # fmt: skip
    for each in failures:
        assert f"{each['count']} × {each['cause']} (line" in done.stderr
    assert "(lines 2 and 4)\n" in done.stderr
    assert (
        "4 failed rows were not evaluated: correct the cause, then run the same command to send them again\n"
    ) in done.stderr
    create(served, created[5:])
    again = run(served, *command)
    assert "3 failed rows were not evaluated" in again.stderr
    assert statuses(out)[created[5]["fiscal_code"]] == "approved"
    shown = done.stderr + again.stderr + report.read_text(encoding="utf-8")
    assert not [row for row in rows if row["fiscal_code"] in shown or row["email"] in shown]


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv", "out.jsonl.gz"])
def test_id_with_a_lone_surrogate_keeps_the_result(tmp_path: Path, served: Sandbox, out: str) -> None:
    rows = [make_row("approved", id="a lone surrogate: \ud83d"), make_row("approved")]
    create(served, rows)
    command = ("approve-many", write(tmp_path / "rows.jsonl", rows), "-o", tmp_path / out)
    assert run(served, *command).returncode == 0
    assert run(served, *command).returncode == 0
    assert approve_calls(served) == 2
    if out == "out.jsonl":
        assert {row.get("id") for row in read(tmp_path / out)} == {"a lone surrogate: \ud83d", None}


def test_report_can_go_to_standard_output(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = make_row("approved")
    create(served, [row])
    file = write(tmp_path / "rows.jsonl", [row])
    done = run(served, "approve-many", file, "-o", "out.jsonl", "--report", "-")
    assert (done.returncode, json.loads(done.stdout)["results"]["approved"]) == (0, 1)
    assert not (tmp_path / "-").exists()


def test_results_on_standard_output_are_the_only_output_there(
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [make_row("approved") for _ in range(5)]
    create(served, rows)
    create_at("decisions.db", served.base_url)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    done = run(served, "approve-many", "-", "-o", "-", "--ledger", "decisions.db", stdin=lines)
    assert (done.returncode, done.stdout) == (0, "")
    printed = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["status"] for line in printed] == ["approved"] * 5
    assert {path.name for path in tmp_path.iterdir()} <= {
        f"decisions.db{end}" for end in ("", "-shm", "-wal")
    }


@pytest.mark.parametrize("out", ["-", os.devnull])
def test_run_without_a_lasting_ledger_is_refused(served: Sandbox, out: str) -> None:
    row = make_row("approved")
    create(served, [row])
    done = run(served, "approve-many", "-", "-o", out, stdin=json.dumps(row))
    assert done.returncode == 2
    assert "--ledger" in done.stderr
    assert not served.journal.calls(operation="approve")
    plan = run(served, "approve-many", "-", "-o", out, "--dry-run", stdin=json.dumps(row))
    assert plan.returncode == 0


def test_sandbox_option_starts_a_sandbox(tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("approved"), make_row("refused")])
    done = run(None, "approve-many", file, "-o", tmp_path / "out.jsonl", "--sandbox")
    assert done.returncode == 0
    assert sorted(statuses(tmp_path / "out.jsonl").values()) == ["approved", "refused"]


@pytest.mark.parametrize("command", [("approve", "-"), ("approve-many", "-", "-o", "-")])
def test_sandbox_option_with_a_ledger_reports_that_it_is_not_used(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    ledger, row = tmp_path / "decisions.db", json.dumps(make_row("approved"))
    done = run(None, *command, "--sandbox", "--ledger", ledger, stdin=row)
    assert done.returncode == 0
    assert "with --sandbox the ledger is not used" in done.stderr
    assert not ledger.exists()
    assert "ledger is not used" not in run(None, *command, "--sandbox", stdin=row).stderr


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, served: Sandbox) -> None:
    rows = [
        make_row("approved"),
        make_row("resetafter"),
        make_row("approved", amount=123_456),
        make_row("approved", amount=1),
    ]
    rows.append(rows[0])
    create(served, rows[:2])
    out = tmp_path / "out.jsonl"
    run(served, "approve-many", write(tmp_path / "some.jsonl", rows[:2]), "-o", out)
    calls, files = approve_calls(served), sorted(tmp_path.iterdir())
    file = write(tmp_path / "rows.jsonl", rows)
    done = run(served, "approve-many", file, "-o", out, "--dry-run", "--skip-invalid")
    assert done.returncode == 0
    cells = [line.replace("│", " ").split() for line in done.stderr.splitlines() if "│" in line]
    assert cells == [
        ["to", "be", "requested", "1", "1,234.56"],
        ["already", "decided", "1"],
        ["outcome", "unknown,", "will", "not", "be", "requested", "again", "1"],
        ["invalid,", "will", "not", "be", "sent", "2"],
        ["of", "these,", "duplicate", "customers", "1"],
        ["total", "5"],
    ]
    assert approve_calls(served) == calls
    assert sorted(tmp_path.iterdir()) == [*sorted([*files, file])]
    fresh = run(None, "approve-many", file, "--dry-run")
    assert fresh.returncode == 2, "without --skip-invalid nothing would be sent"
    none = run(None, "approve-many", "-", "--dry-run", stdin=",".join(rows[0]) + "\n")
    assert none.returncode == 2, "nothing would be sent from a file without rows"


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_canary_stops_the_run_unless_all_its_rows_are_decided(
    tmp_path: Path, served: Sandbox, bad: int
) -> None:
    rows = [make_row("invalid.city" if number == bad else "approved") for number in range(10)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--canary", "3")
    assert done.returncode == 1
    assert approve_calls(served) == (10 if bad == 3 else 3)
    assert ("stopped by --canary: of the first 3 rows, 1 failed" in done.stderr) == (bad < 3)


def test_max_errors_counts_the_calls_in_progress(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("invalid.city") for _ in range(50)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out, "--max-errors", "5", "--concurrency", "4")
    assert done.returncode == 1
    failed = approve_calls(served)
    assert 5 <= failed <= 9
    after = f" ({failed - 5} of them while the calls in progress finished)" if failed > 5 else ""
    reason = f"stopped by --max-errors: {failed} rows failed{after}; run the same command to resume\n"
    assert reason in done.stderr
    others = write(tmp_path / "others.jsonl", rows[failed : failed + 3])
    done = run(served, "approve-many", others, "-o", tmp_path / "others.out", "--max-errors", "3")
    assert "stopped by" not in done.stderr, "every row was sent"


def test_deadline_stops_the_run_and_the_same_command_resumes(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("slow50") for _ in range(40)]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    command = ("approve-many", file, "-o", out, "--concurrency", "2")
    done = run(served, *command, "--deadline", "0.2")
    assert done.returncode == 124, "not the code of an interruption by a person"
    assert 0 < len(read(out)) < 40
    assert "stopped by --deadline (0.2 s); run the same command to resume" in done.stderr
    assert run(served, *command).returncode == 0
    assert approve_calls(served) == len(read(out)) == 40


def test_deadline_after_the_last_row_has_stopped_nothing(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("slow500"), make_row("resetafter")]
    create(served, rows)
    file, report = write(tmp_path / "rows.jsonl", rows), tmp_path / "report.json"
    options = ("-o", tmp_path / "out.jsonl", "--deadline", "0.1", "--report", report)
    done = run(served, "approve-many", file, *options)
    assert (done.returncode, "--deadline" in done.stderr) == (3, False)
    assert json.loads(report.read_text(encoding="utf-8"))["interrupted"] is None


def test_run_without_a_terminal_begins_and_ends_with_a_line(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("invalid.city"), make_row("refused")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    first, second, *others = run(served, "approve-many", file, "-o", out).stderr.splitlines()
    assert first == (
        f"requesting 3 of 3 rows of {file}: 1,350.00 euro, 64 calls at a time; ledger: {out}.ledger"
    )
    assert second.startswith("3 of 3 rows: 1 approved, 1 refused, 1 failed; ")
    assert others[0].split() == ["results"]
    resumed = run(served, "approve-many", file, "-o", out, "--concurrency", "1", "--rate", "50")
    assert resumed.stderr.splitlines()[0] == (
        f"requesting 1 of 3 rows of {file}: 450.00 euro, 1 call at a time, at most 50 per second; "
        f"ledger: {out}.ledger"
    )
    text = "".join(json.dumps(row) + "\n" for row in rows)
    create_at(tmp_path / "decisions.db", served.base_url)
    for options, ledger in (
        (("--sandbox",), "none"),
        (("--ledger", tmp_path / "decisions.db"), f"{tmp_path}/decisions.db"),
    ):
        done = run(served, "approve-many", "-", "-o", "-", *options, stdin=text)
        assert done.stderr.splitlines()[0] == (
            f"requesting 3 of 3 rows of standard input: 1,350.00 euro, 64 calls at a time; ledger: {ledger}"
        )
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr


def test_progress_is_updated_while_no_result_arrives(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.cli.approve_many.report._LINE_INTERVAL", 0.2)
    row = make_row("slow1000")
    create(served, [row])
    done = run(served, "approve-many", write(tmp_path / "rows.jsonl", [row]), "-o", tmp_path / "out.jsonl")
    assert "0 of 1 row: 0 approved, 0 refused, 0 failed; 0.0 rows/s" in done.stderr.splitlines()[1:3]


def test_results_of_another_service_or_format_are_not_resumed(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    assert run(served, "approve-many", file, "-o", out).returncode == 0
    elsewhere = run(served, "approve-many", file, "-o", out, "--sandbox")
    assert elsewhere.returncode == 2
    assert "contains results of another service or shop: name a new results file" in elsewhere.stderr
    other = write(tmp_path / "other.jsonl", rows)
    over_another = run(served, "approve-many", file, "-o", other)
    assert over_another.returncode == 2
    assert "so the requested customers are not known" in over_another.stderr
    assert read(other) == rows
    out.write_text('{"other": 1}\n', encoding="utf-8")
    other_kind = run(served, "approve-many", file, "-o", out)
    assert other_kind.returncode == 2
    assert "line 1: not a result of this command" in other_kind.stderr
    assert approve_calls(served) == 1

"""Runs of ``approve-many``: results, report, dead letters, exit codes, limits and the plan."""

import json
import os
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, read, run, statuses, table, write
from support.ledger_file import create_at, listed


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
    assert report["counts"]["to_be_sent"]["rows"] == 0
    assert report["counts"]["earlier"]["rows"] == sum(tag in ("approved", "refused") for tag in tags)


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
    options = ("--skip-invalid", "--rejected", dead, "--report", report)
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
    assert [row["loanasync_line"] for row in read(dead)] == [3, 4]
    assert run(None, "approve-many", dead, "--validate-only").returncode == 2, "one row is still invalid"
    members = json.loads(report.read_text(encoding="utf-8"))
    counts = {kind: (each["rows"], each["cents"]) for kind, each in members["counts"].items() if each["rows"]}
    assert counts == {
        "approved": (1, 45_000), "refused": (1, 45_000), "refused_locally": (1, 0), "failed": (1, 45_000)
    }  # fmt: skip
    assert table(done.stderr) == {
        "approved": ("1", "450.00"), "refused": ("1", "450.00"), "refused locally": ("1", "0.00"),
        "failed": ("1", "450.00"), "total": ("4", "1,350.00"),
    }  # fmt: skip
    assert f"the reasons of failed rows are in {out}\n" in done.stderr
    for personal in (rows[0]["fiscal_code"], "Prova", "example.com"):
        assert personal not in done.stderr
    if os.name == "posix":
        written = (out, dead, report, tmp_path / "out.jsonl.ledger")
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
    tmp_path: Path,
    served: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    row = make_row("approved")
    create(served, [row])
    file = write(tmp_path / "rows.jsonl", [row])
    done = run(served, "approve-many", file, "-o", "out.jsonl", "--report", "-")
    assert (done.returncode, json.loads(capfd.readouterr().out)["counts"]["approved"]["rows"]) == (0, 1)
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
    assert table(done.stderr) == {
        "to be sent": ("1", "1,234.56"), "earlier": ("1", "450.00"), "refused locally": ("2", "0.00"),
        "unknown": ("1", "450.00"), "total": ("5", "2,134.56"),
    }  # fmt: skip
    assert approve_calls(served) == calls
    assert sorted(tmp_path.iterdir()) == [*sorted([*files, file])]
    fresh = run(None, "approve-many", file, "--dry-run")
    assert fresh.returncode == 2, "without --skip-invalid nothing would be sent"
    none = run(None, "approve-many", "-", "--dry-run", stdin=",".join(rows[0]) + "\n")
    assert none.returncode == 2, "nothing would be sent from a file without rows"


def test_rows_in_sequence_without_a_decision_stop_the_run(tmp_path: Path, served: Sandbox) -> None:
    """Rows that fail for different causes count, too. A run begins slowly, so few customers are concerned."""
    tags = [("invalid.city", "conflict", "nouser")[number % 3] for number in range(600)]
    rows = [make_row("approved"), *map(make_row, tags)]
    create(served, rows[:50])
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    done = run(served, "approve-many", file, "-o", out)
    assert done.returncode == 3
    assert 20 < approve_calls(served) <= 30
    reason = "stopped after 20 rows without a decision, the last with "
    assert reason in done.stderr
    assert (
        "; to send the other rows anyway, add --stop-after 0; run the same command to resume" in done.stderr
    )
    again = run(served, "approve-many", file, "-o", out, "--stop-after", "0")
    assert "stopped" not in again.stderr
    assert len(read(out)) == 601


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
    assert json.loads(report.read_text(encoding="utf-8"))["counts"]["to_be_sent"]["rows"] == 0


def test_run_without_a_terminal_begins_and_ends_with_a_line(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved"), make_row("invalid.city"), make_row("refused")]
    create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    first, second, *others = run(served, "approve-many", file, "-o", out).stderr.splitlines()
    assert first == (
        f"requesting 3 of 3 rows of {file}: 1,350.00 euro, 64 calls at a time; ledger: {out}.ledger"
    )
    assert second.startswith("3 of 3 rows: 1 approved, 1 refused, 0 unknown, 1 failed; ")
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
    assert (
        "0 of 1 row: 0 approved, 0 refused, 0 unknown, 0 failed; 0.0 rows/s" in done.stderr.splitlines()[1:3]
    )


def test_truncated_approval_is_decided_without_redirect(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("truncafter")
    create(served, [row])
    for out in ("out.jsonl", "out.jsonl", "other.jsonl"):
        file = write(tmp_path / "rows.jsonl", [row])
        ledger = ("--ledger", tmp_path / "out.jsonl.ledger") if out == "other.jsonl" else ()
        assert run(served, "approve-many", file, "-o", tmp_path / out, *ledger).returncode == 0
        (line,) = read(tmp_path / out)
        assert (line["status"], line["amount"], "redirect_url" in line) == ("approved", 45_000, False)
        assert line["message"] == "approved without a redirect: ask the service where to send the customer"
    assert approve_calls(served) == 1


def test_ledger_with_an_entry_for_each_order_is_used_as_it_states(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("approved", order_token="A1")
    create(served, [row])
    ledger, one = tmp_path / "decisions.db", tmp_path / "one.json"
    create_at(ledger, served.base_url, scope="order_token")
    one.write_text(json.dumps(row), encoding="utf-8")
    many = ("approve-many", one, "-o", tmp_path / "out.jsonl")
    for command in (("approve", one), many, many):
        done = run(served, *command, "--ledger", ledger)
        assert done.returncode == 0, done.stderr
    assert approve_calls(served) == 1
    assert [entry["state"] for entry in listed(ledger)] == ["approved"]


@pytest.mark.parametrize("created", [False, True])
def test_create_option_creates_each_request_once(tmp_path: Path, served: Sandbox, *, created: bool) -> None:
    rows = [make_row("approved", note=True) for _ in range(6)]
    if created:
        create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    options = ("--create", "--member", "privacy=note", "--ignore-unknown")
    command = ("approve-many", file, "-o", out, *options)
    assert run(served, *command).returncode == 0
    assert [line["status"] for line in read(out)] == ["approved"] * 6
    calls = served.journal.calls(operation="create_request")
    assert len(calls) == 6 * (1 + created)
    assert calls[-1].request == {"fiscalCode": calls[-1].fiscal_code, "privacy": True}
    assert run(served, *command).returncode == 0
    assert len(served.journal.calls(operation="create_request")) == len(calls)

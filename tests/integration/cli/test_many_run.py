"""Runs of ``approve-many``: results, report, exit codes, limits, progress and the plan."""

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from support.cli import Bulk, create, make_row, read, run, statuses, table, write
from support.ledger_file import create_at, listed


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
    bulk = Bulk(tmp_path, served, *tags)
    assert bulk.run()[0] == code
    calls = len(bulk.requests)
    assert bulk.run("--report", bulk.report)[0] == code
    assert len(bulk.requests) == calls + sum(tag in ("invalid.city", "forbidden") for tag in tags)
    assert json.loads(bulk.report.read_text(encoding="utf-8"))["exit_code"] == code
    assert bulk.counts().get("earlier", 0) == sum(tag in ("approved", "refused") for tag in tags)


def lines_of(file: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    raw = file.read_bytes()
    text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode().splitlines()
    return [*csv.DictReader(text, delimiter=delimiter)] if ".csv" in file.name else [*map(json.loads, text)]


@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz"])
def test_results_have_a_line_with_all_data_for_each_row(tmp_path: Path, served: Sandbox, out: str) -> None:
    order = 'order "1"; x,y \ud83d\nend'  # with a lone surrogate
    rows = [
        *(make_row("approved", id=order), make_row("refused", id="2"), make_row("invalid.city")),
        *(make_row("approved", amount=1, id="order 4"), make_row("reset")),
    ]
    bulk, dead = Bulk(tmp_path, served, *rows, out=out), tmp_path / "dead.jsonl"
    options = ("--skip-invalid", "--rejected", dead, "--report", bulk.report)
    code, output = bulk.run(*options)
    first, second, third, fourth, fifth = lines_of(bulk.out)
    shown = order.replace("\n", " ").replace("\ud83d", "\\ud83d") if "csv" in out else order
    assert (code, first["status"], first["id"], first["fiscal_code"]) == (3, "approved", shown, bulk.codes[0])
    assert (int(first["amount"]), int(first["net_amount"]), int(first["line"])) == (45_000, 43_650, 1)
    assert first["redirect_url"].startswith(served.base_url)
    assert 0 < float(first["elapsed"]) < 60
    assert first["repeatable"] == ("false" if "csv" in out else False)
    assert (second["status"], second["id"], int(second["status_code"])) == ("refused", "2", 422)
    assert [line["status"] for line in (third, fourth, fifth)] == ["rejected", "rejected", "unknown"]
    if "csv" not in out:
        problems = [(line["problems"][0]["field"], line["problems"][0]["code"]) for line in (third, fourth)]
        assert problems == [("city", "city.blank"), ("amount", "amount.range")]
    assert not fourth.get("fiscal_code"), "it was not sent"
    assert [row["loanasync_line"] for row in read(dead)] == [3, 4]
    kinds = dict.fromkeys(("approved", "refused", "refused_locally", "unknown", "failed"), 1)
    assert bulk.counts() == kinds
    euro = {kind.replace("_", " "): ("1", "450.00") for kind in kinds} | {"refused locally": ("1", "0.00")}
    assert table(output) == euro | {"total": ("5", "1,800.00")}
    assert f"the reasons of failed rows are in {bulk.out}\n" in output
    assert [each for each in (*bulk.codes, "Prova", "example.com") if each in output] == []
    if os.name == "posix":
        written = (bulk.out, dead, bulk.report, bulk.job)
        assert {path.stat().st_mode & 0o077 for path in written} == {0}
    assert bulk.run(*options)[0] == 3
    assert (len(bulk.requests), len(lines_of(bulk.out))) == (5, 5), "only the rejected row is sent again"


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_csv_results_keep_the_delimiter_of_the_rows(tmp_path: Path, served: Sandbox, delimiter: str) -> None:
    bulk = Bulk(tmp_path, served, "approved", "refused", out="out.csv")
    file = tmp_path / "rows.csv"
    cells = [map(str, part) for part in (bulk.rows[0], bulk.rows[0].values())]
    file.write_text("".join(f"{delimiter.join(line)}\n" for line in cells), encoding="utf-8")
    assert run(served, "approve-many", file, "-o", bulk.out).returncode == 0
    assert bulk.run()[0] == 0, "with another input"
    results = bulk.out.read_bytes()
    assert [line["status"] for line in lines_of(bulk.out, delimiter)] == ["approved", "refused"]
    code, output = bulk.export()
    assert (code, bulk.out.read_bytes()) == (0, results)
    assert table(output) == {
        "approved": ("1", "450.00"), "refused": ("1", "450.00"), "total": ("2", "900.00")
    }  # fmt: skip
    file.unlink()
    bulk.file.unlink()
    assert (bulk.export()[0], bulk.out.read_bytes()) == (0, results), "the fiscal codes are kept"


@pytest.mark.parametrize("command", ["approve", "approve-many"])
def test_requests_have_the_names_of_the_dialect(tmp_path: Path, served: Sandbox, command: str) -> None:
    bulk = Bulk(tmp_path, served, make_row("approved", order_token="o"))
    out = () if command == "approve" else ("-o", bulk.out)
    assert run(served, command, bulk.file, *out, "--dialect", "civic_number").returncode == 0
    [call] = served.journal.calls(operation="approve")
    assert call.request is not None
    assert {"civicNumber", "streetNumber"} & {*call.request} == {"civicNumber"}


def test_failed_rows_are_grouped_by_cause_in_output_and_report(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "forbidden", "resetafter", "forbidden", "invalid.city")
    late = make_row("approved")
    write(bulk.file, [*bulk.rows, late])
    code, output = bulk.run("--report", bulk.report)
    assert code == 3
    failures = json.loads(bulk.report.read_text(encoding="utf-8"))["failures"]
    assert failures[0]["count"] == 2
    assert {each["cause"].partition(":")[0]: each["lines"] for each in failures} == {
        "AccessDeniedError": [2, 4], "ConnectionLostError": [3],
        "RejectedError": [5], "UserNotFoundError": [6],
    }  # fmt: skip
    assert [line.get("attempts") for line in read(bulk.out)[1:4]] == [1, 1, 1]
    for each in failures:
        assert f"{each['count']} × {each['cause']} (line" in output
    assert "(lines 2 and 4)\n" in output
    again = (
        "failed rows were not evaluated: correct the cause, then run the same command to send them again\n"
    )
    assert f"4 {again}" in output
    create(served, [late])
    assert f"3 {again}" in bulk.run()[1]
    assert bulk.statuses[-1] == "approved"
    shown = output + bulk.report.read_text(encoding="utf-8")
    assert not [row for row in bulk.rows if row["fiscal_code"] in shown or row["email"] in shown]


def test_results_or_report_on_standard_output_are_the_only_output_there(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Bulk(tmp_path, served, *["approved"] * 5)
    assert bulk.run("--report", "-")[0] == 0
    assert json.loads(capfd.readouterr().out)["counts"]["approved"]["rows"] == 5
    files = {path.name for path in tmp_path.iterdir()}
    lines = bulk.file.read_text(encoding="utf-8")
    done = run(served, "approve-many", "-", "-o", "-", "--ledger", bulk.ledger, stdin=lines)
    assert (done.returncode, done.stdout) == (0, "")
    printed = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["status"] for line in printed] == ["approved"] * 5
    new = {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.iterdir()}
    assert new <= files, "no file is called -"


@pytest.mark.parametrize("out", ["-", os.devnull])
def test_run_without_a_lasting_ledger_is_refused(tmp_path: Path, served: Sandbox, out: str) -> None:
    bulk = Bulk(tmp_path, served, "approved")
    code, output = bulk.run(out=out)
    assert (code, "--ledger" in output, bulk.calls) == (2, True, 0)
    assert bulk.run("--dry-run", out=out)[0] == 0


@pytest.mark.parametrize("command", [("approve", "-"), ("approve-many", "-", "-o", "-")])
def test_sandbox_option_starts_a_sandbox_and_uses_no_ledger(
    tmp_path: Path, command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    ledger, row = tmp_path / "decisions.db", json.dumps(make_row("refused"))
    done = run(None, *command, "--sandbox", "--ledger", ledger, stdin=row)
    printed = json.loads(done.stdout or capfd.readouterr().out)
    assert (done.returncode, printed["status"], ledger.exists()) == (0, "refused", False)
    assert "with --sandbox the ledger is not used" in done.stderr
    assert "ledger is not used" not in run(None, *command, "--sandbox", stdin=row).stderr


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "resetafter")
    bulk.run()
    rows = [*bulk.rows, make_row("", amount=123_456), make_row("", amount=1), bulk.rows[0]]
    write(bulk.file, rows)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, output = bulk.run("--dry-run", "--skip-invalid")
    assert table(output) == {
        "to be sent": ("1", "1,234.56"), "earlier": ("1", "450.00"), "refused locally": ("2", "0.00"),
        "unknown": ("1", "450.00"), "total": ("5", "2,134.56"),
    }  # fmt: skip
    assert (code, bulk.calls) == (0, 2)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    fresh = run(None, "approve-many", bulk.file, "--dry-run")
    assert (fresh.returncode, table(fresh.stderr)["to be sent"]) == (2, ("3", "2,134.56"))
    none = run(None, "approve-many", "-", "--dry-run", stdin=",".join(rows[0]) + "\n")
    assert none.returncode == 2, "nothing would be sent from a file without rows"


def test_rows_in_sequence_without_a_decision_stop_the_run(tmp_path: Path, served: Sandbox) -> None:
    """Rows that fail for different causes count, too. A run begins slowly, so few customers are concerned."""
    tags = [("invalid.city", "conflict", "nouser")[number % 3] for number in range(90)]
    bulk = Bulk(tmp_path, served, "approved", *tags[:50])
    write(bulk.file, [*bulk.rows, *map(make_row, tags[50:])])
    code, output = bulk.run()
    assert (code, 20 < len(bulk.requests) <= 30) == (3, True)
    assert "stopped after 20 rows without a decision, the last with " in output
    assert "; to send the other rows anyway, add --stop-after 0; run the same command to resume" in output
    assert "stopped" not in bulk.run("--stop-after", "0")[1]
    assert len(bulk.statuses) == 91


def test_deadline_stops_the_run_and_the_same_command_resumes(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, *["slow50"] * 40)
    code, output = bulk.run("--concurrency", "2", "--deadline", "0.2")
    assert (code, 0 < len(bulk.statuses) < 40) == (124, True), "not the code of an interruption by a person"
    assert "stopped by --deadline (0.2 s); run the same command to resume" in output
    assert (bulk.run()[0], bulk.calls, len(bulk.statuses)) == (0, 40, 40)


def test_row_of_another_customer_gets_no_earlier_result(tmp_path: Path, served: Sandbox) -> None:
    """The second run stops before it sends the new row."""
    bulk = Bulk(tmp_path, served, "approved", "invalid.city")
    assert bulk.run()[0] == 1
    rows = [make_row("resetafter"), make_row("approved")]
    create(served, rows)
    write(bulk.file, rows)
    assert bulk.run("--concurrency", "1", "--stop-after", "1")[0] == 3
    assert bulk.statuses == ["approved", "unknown"]


def test_deadline_after_the_last_row_has_stopped_nothing(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "slow500", "resetafter")
    code, output = bulk.run("--deadline", "0.1", "--report", bulk.report)
    assert (code, "--deadline" in output, bulk.counts()) == (3, False, {"approved": 1, "unknown": 1})


def test_run_without_a_terminal_begins_and_ends_with_a_line(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "invalid.city", "refused")
    first, second, *others = bulk.run()[1].splitlines()
    begin, end = f"requesting 3 of 3 rows of {bulk.file}: 1,350.00 euro, ", f"; ledger: {bulk.job}"
    assert first == f"{begin}64 calls at a time{end}"
    assert second.startswith("3 of 3 rows: 1 approved, 1 refused, 0 unknown, 1 failed; ")
    assert others[0].split() == ["results"]
    again = bulk.run("--concurrency", "1", "--rate", "50")[1].splitlines()[0]
    assert again == (
        f"requesting 1 of 3 rows of {bulk.file}: 450.00 euro, 1 call at a time, at most 50 per second{end}"
    )
    create_at(ledger := tmp_path / "decisions.db", served.base_url)
    for options, name in ((("--sandbox",), "none"), (("--ledger", ledger), ledger)):
        output = bulk.run(*options, out="-")[1]
        assert output.splitlines()[0] == f"{begin}64 calls at a time; ledger: {name}"
        assert ("run the same command" in output) is (name == ledger), "nothing else remembers the customers"
    assert not {"\x1b", "\r"} & {*output}


def test_progress_is_updated_while_no_result_arrives(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.cli.approve_many.report._LINE_INTERVAL", 0.2)
    output = Bulk(tmp_path, served, "slow1000").run()[1].splitlines()
    assert "0 of 1 row: 0 approved, 0 refused, 0 unknown, 0 failed; 0.0 rows/s" in output[1:3]


def test_truncated_approval_is_decided_without_redirect(tmp_path: Path, served: Sandbox) -> None:
    bulk, other = Bulk(tmp_path, served, "truncafter"), tmp_path / "other.jsonl"
    for out, options in ((bulk.out, ()), (bulk.out, ()), (other, ("--ledger", bulk.job))):
        assert bulk.run(*options, out=out)[0] == 0
        (line,) = read(out)
        assert (line["status"], line["amount"], "redirect_url" in line) == ("approved", 45_000, False)
        assert line["message"] == "approved without a redirect: ask the service where to send the customer"
    assert bulk.calls == 1


def test_unknown_outcomes_beside_orphan_files_advise_to_import_them(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after a full disk: the decision may be in a file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    bulk = Bulk(tmp_path, served, "resetafter")
    ask = "1 outcome is unknown: ask the service, then run: loanasync ledger resolve"
    assert ask in bulk.run()[1]
    folder = tmp_path / "loanasync" / "orphans"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{listed(bulk.job)[0]['key']}.json").touch()
    advice = f"1 outcome is unknown: run loanasync ledger sweep --ledger {bulk.job} and the same"
    assert advice in bulk.run()[1]


def test_causes_beyond_the_first_ones_are_counted(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.cli.approve_many.run._MOST_GROUPS", 1)
    bulk = Bulk(tmp_path, served, "forbidden", "conflict", "invalid.city")
    assert f"and 2 other causes in {bulk.out}\n" in bulk.run()[1]


@pytest.mark.parametrize("created", [False, True])
def test_create_option_creates_each_request_once(tmp_path: Path, served: Sandbox, *, created: bool) -> None:
    rows = [make_row("approved", note=note) for note in (*[True] * 5, "")]
    if created:
        create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    options = ("--create", "--member", "privacy=note", "--ignore-unknown")
    for _ in range(2):
        assert run(served, "approve-many", file, "-o", out, *options).returncode == 0
        assert [*statuses(out).values()] == ["approved"] * 6
        calls = served.journal.calls(operation="create_request")
        assert len(calls) == 6 * (1 + created)
        bodies = {call.fiscal_code: call.request for call in calls}
        for row in rows:
            member = {"privacy": True} if row["note"] else {}
            assert bodies[row["fiscal_code"]] == {"fiscalCode": row["fiscal_code"], **member}

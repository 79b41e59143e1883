"""Runs of ``approve-many``: results, exit codes, limits, progress and the plan."""

import csv
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loanasync import InFlightError, LoanClient
from loanasync.cli.approve_many.results import COLUMNS
from loanasync.sandbox import Sandbox
from support.cli import Bulk, create, make_row, planned, read, run, statuses, table, write


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        (("approved", "refused"), 0),
        (("approved", "invalid.city"), 1),
        (("approved", "conflict"), 3),
        (("invalid.city", "resetafter"), 1),
        (("500after",), 3),
    ],
)
def test_exit_code_is_that_of_the_worst_row(
    tmp_path: Path, served: Sandbox, tags: tuple[str, ...], code: int
) -> None:
    bulk = Bulk(tmp_path, served, *tags)
    assert bulk.run()[0] == code
    calls = len(bulk.requests)
    assert bulk.run()[0] == code
    assert len(bulk.requests) == calls + tags.count("invalid.city"), "a rejected row is sent again"


def lines_of(file: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8").splitlines()
    if ".csv" in file.name:
        return [*csv.DictReader(text, delimiter=delimiter)]
    return [*map(json.loads, text)]


@pytest.mark.parametrize("out", ["out.jsonl", "out.csv"])
def test_results_have_a_line_with_all_members_for_each_row(tmp_path: Path, served: Sandbox, out: str) -> None:
    order = 'order "1"; x,y \ud83d\nend'  # with a lone surrogate
    rows = [
        *(make_row("approved", id=order), make_row("refused", id="2"), make_row("invalid.city")),
        *(make_row("approved", amount=1, id="order 4"), make_row("reset")),
    ]
    bulk, dead = Bulk(tmp_path, served, *rows, out=out), tmp_path / "dead.jsonl"
    options = ("--skip-invalid", "--rejected", dead)
    before = datetime.now(UTC)
    code, output = bulk.run(*options)
    first, second, third, fourth, fifth = lines_of(bulk.out)
    assert [tuple(line) for line in lines_of(bulk.out)] == [COLUMNS] * 5
    shown = order.replace("\n", " ").replace("\ud83d", "\\ud83d") if "csv" in out else order
    assert (code, first["status"], first["id"], first["fiscal_code"]) == (1, "approved", shown, bulk.codes[0])
    assert [line["order_id"] for line in lines_of(bulk.out)] == [row["order_id"] for row in rows]
    amounts = (int(first["amount_cents"]), int(first["net_amount_cents"]), int(first["line"]))
    assert amounts == (45_000, 43_650, 1)
    assert first["redirect_url"].startswith(served.base_url)
    assert 0 < float(first["elapsed"]) < 60
    at = datetime.strptime(first["at"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)  # as Excel reads it
    assert abs((at - before).total_seconds()) < 60
    assert (first["repeatable"], first["sent"]) == (("false", "true") if "csv" in out else (False, True))
    assert (second["status"], second["id"], int(second["status_code"])) == ("refused", "2", 422)
    assert [line["status"] for line in (third, fourth, fifth)] == ["rejected", "rejected", "unknown"]
    if "csv" not in out:
        problems = [(line["problems"][0]["field"], line["problems"][0]["code"]) for line in (third, fourth)]
        assert problems == [("city", "city.blank"), ("amount", "amount.range")]
    assert [row["loanasync_reason"].partition(":")[0] for row in read(dead)] == ["RejectedError", "amount"]
    assert table(output) == {
        "approved": (1, 1, "450.00"), "refused": (1, 1, "450.00"), "rejected": (2, 1, "450.01"),
        "unknown": (1, 1, "450.00"), "total": (5, 4, "1,800.01"),
    }  # fmt: skip
    assert [each for each in (*bulk.codes, "Prova", "example.com") if each in output] == []
    if os.name == "posix":
        written = (bulk.out, dead, Path(f"{bulk.out}.ledger"), bulk.ledger, bulk.ledger.parent)
        assert {path.stat().st_mode & 0o077 for path in written} == {0}
    assert bulk.run(*options)[0] == 1
    assert (len(bulk.requests), len(lines_of(bulk.out))) == (5, 5), "only the rejected row is sent again"
    assert str(lines_of(bulk.out)[0]["sent"]).lower() == "false"


def test_options_of_a_run_are_in_its_requests_and_its_first_line(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row(tag, order_token="o") for tag in ("approved", "invalid.city", "refused")]
    bulk = Bulk(tmp_path, served, *rows, out="out.csv")
    for delimiter in (";", "\t", ","):
        cells = [map(str, part) for part in (rows[0], *(row.values() for row in rows))]
        bulk.file.write_text("".join(f"{delimiter.join(line)}\n" for line in cells), encoding="utf-8")
        output = bulk.run("--dialect", "civic_number")[1]
        found = [line["status"] for line in lines_of(bulk.out, delimiter)]
        assert found == ["approved", "rejected", "refused"]
        if delimiter == ";":
            first, second, third, *_ = output.splitlines()
    request = served.journal.calls(operation="approve")[0].request
    assert request is not None
    assert {"civicNumber", "streetNumber"} & {*request} == {"civicNumber"}
    begin = f"requesting 3 rows of {bulk.file}: 1,350.00 euro, "
    assert first == f"{begin}64 calls at a time; ledger: {bulk.ledger} (new)"
    assert second.startswith("3 of 3 rows: 1 approved, 1 refused, 1 rejected; ")
    assert third.split() == ["results", "rows", "sent", "now", "euro"]
    again = bulk.run("--concurrency", "1", "--rate", "50", "--dialect", "civic_number")[1].splitlines()[0]
    assert again == f"{begin}1 call at a time, at most 50 per second; ledger: {bulk.ledger}"
    assert not {"\x1b", "\r"} & {*again}


def test_progress_is_updated_while_no_result_arrives(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.cli.approve_many.report._LINE_INTERVAL", 0.2)
    output = Bulk(tmp_path, served, "slow1000").run()[1].splitlines()
    assert "0 of 1 row: 0 approved, 0 refused; 0.0 rows/s" in output[1:3]


def test_rows_without_a_decision_are_grouped_by_cause(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk = Bulk(tmp_path, served, "approved", "forbidden", "resetafter", "forbidden", "invalid.city")
    write(bulk.file, [*bulk.rows, make_row("approved")])
    code, output = bulk.run("--concurrency", "1")
    assert code == 1
    assert re.search(r"2 × failed: AccessDeniedError: .* \(lines 2 and 4\)\n", output)
    for name, line in (
        ("unknown: ConnectionLostError", 3), ("rejected: RejectedError", 5), ("failed: UserNotFoundError", 6)
    ):  # fmt: skip
        assert re.search(rf"1 × {name}: .* \(line {line}\)\n", output)
    advice = f"ask the service, then run: loanasync ledger --ledger {bulk.ledger} resolve KEY."
    assert f"1 outcome is unknown: {advice}" in output
    assert not [row for row in bulk.rows if row["fiscal_code"] in output or row["email"] in output]
    monkeypatch.setattr("loanasync.cli.approve_many.report._SHOWN_CAUSES", 1)
    assert "and 3 others\n" in bulk.run("--concurrency", "1")[1]


def test_results_on_standard_output_are_the_only_output_there(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bulk = Bulk(tmp_path, served, *["approved"] * 5)
    done = run(served, "approve-many", "-", "-o", "-", stdin=bulk.file.read_text(encoding="utf-8"))
    assert (done.returncode, done.stdout) == (0, "")
    printed = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["status"] for line in printed] == ["approved"] * 5
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "loanasync"}, "no file is called -"


def test_dry_run_reads_the_ledger_and_writes_nothing(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", "resetafter", "refused")
    code, output = bulk.run("--dry-run")
    assert (code, table(output)["new"], [*tmp_path.iterdir()]) == (0, (3, 0, "1,350.00"), [bulk.file])
    bulk.run()
    changed = {**bulk.rows[2], "amount": 50_000}
    rows = [*bulk.rows[:2], changed, make_row("", amount=123_456), make_row("", amount=1), bulk.rows[0]]
    write(bulk.file, rows)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, output = bulk.run("--dry-run", "--skip-invalid")
    assert planned(output) == {
        "new": 1, "decided": 1, "decided with other data": 1, "unknown": 1, "wrong": 2, "total": 6
    }  # fmt: skip
    assert (code, bulk.calls, f"ledger: {bulk.ledger}" in output) == (1, 3, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert bulk.run("--dry-run")[0] == 2, "nothing would be sent"
    write(bulk.file, bulk.rows[:2])
    assert bulk.run("--dry-run")[0] == 3
    none = run(served, "approve-many", "-", "--dry-run", stdin=",".join(rows[0]) + "\n")
    assert none.returncode == 2, "nothing would be sent from a file without rows"


def test_rows_in_sequence_without_a_decision_stop_the_run(tmp_path: Path, served: Sandbox) -> None:
    """Rows that fail for different causes count, too. A run begins slowly, so few customers are concerned."""
    tags = [("invalid.city", "conflict", "nouser")[number % 3] for number in range(90)]
    bulk = Bulk(tmp_path, served, "approved", *tags)
    code, output = bulk.run()
    assert (code, 20 < len(bulk.requests) <= 30) == (1, True)
    [reason] = re.findall("stopped after 20 rows without a decision, the last with [A-Za-z]+", output)
    assert f"{reason}; run the same command to continue" in output
    assert (len(bulk.statuses), bulk.statuses.count("not_sent") > 50) == (91, True)
    assert [line["line"] for line in read(bulk.out)] == [*range(1, 92)]
    assert {line["message"] for line in read(bulk.out) if line["status"] == "not_sent"} == {
        f"not sent: {reason}; run the same command to continue"
    }
    assert "stopped" not in bulk.run("--stop-after", "0")[1]
    assert "not_sent" not in bulk.statuses


def test_row_that_another_run_released_is_not_called_interrupted(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_flight(*_: object, **__: object) -> None:
        raise InFlightError("approve", "c0ffee")

    late = iter(range(0, 10_000, 1_000))
    monkeypatch.setattr("loanasync.cli.approve_many.run.time", SimpleNamespace(monotonic=lambda: next(late)))
    bulk = Bulk(tmp_path, served, "approved")
    with monkeypatch.context() as patched:
        patched.setattr(LoanClient, "_approve_row", in_flight)
        assert bulk.run()[0] == 1
    reason = "another run was requesting this row, and did not send it"
    assert [line["message"] for line in read(bulk.out)] == [
        f"not sent: {reason}; run the same command to continue"
    ]
    assert (bulk.run()[0], bulk.statuses) == (0, ["approved"])


def test_refused_shop_stops_the_run_and_says_check_the_token(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "approved", *["forbidden"] * 20)
    code, output = bulk.run("--concurrency", "1")
    assert "the service refuses this shop: check the token, LOANASYNC_AUTH_TOKEN, and the shop" in output
    assert (code, bulk.calls) == (1, 6)
    assert bulk.statuses == ["approved", *["failed"] * 5, *["not_sent"] * 15]


def test_truncated_approval_is_decided_without_redirect(tmp_path: Path, served: Sandbox) -> None:
    bulk = Bulk(tmp_path, served, "truncafter")
    for _ in range(2):
        assert bulk.run()[0] == 0
        (line,) = read(bulk.out)
        assert (line["status"], line["amount_cents"], line["redirect_url"]) == ("approved", 45_000, None)
        assert line["message"] == "approved without a redirect: ask the service where to send the customer"
    assert bulk.calls == 1


@pytest.mark.parametrize("created", [False, True])
def test_create_option_creates_each_request_once(tmp_path: Path, served: Sandbox, *, created: bool) -> None:
    rows = [make_row("approved", note=note) for note in (*[True] * 5, "")]
    if created:
        create(served, rows)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('[members]\nprivacy = "note"\n', encoding="utf-8")
    for _ in range(2):
        done = run(served, "approve-many", file, "-o", out, "--create", "--mapping", mapping)
        assert done.returncode == 0, done.stderr
        assert [*statuses(out).values()] == ["approved"] * 6
        calls = served.journal.calls(operation="create_request")
        assert len(calls) == 6 * (1 + created)
        bodies = {call.fiscal_code: call.request for call in calls}
        for row in rows:
            member = {"privacy": True} if row["note"] else {}
            assert bodies[row["fiscal_code"]] == {"fiscalCode": row["fiscal_code"], **member}


def test_create_option_creates_a_request_for_each_order_of_a_customer(tmp_path: Path) -> None:
    row = make_row("approved")
    rows = [{**row, "order_id": order, "order_token": order} for order in ("A-1", "A-2")]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    with Sandbox.in_thread(evaluates="order") as sandbox:
        done = run(sandbox, "approve-many", file, "-o", out, "--create")
        assert (done.returncode, [line["status"] for line in read(out)]) == (0, ["approved"] * 2), done.stderr
        assert len(sandbox.journal.calls(operation="create_request", status=201)) == 2

"""``loanasync create``: one creation call for each row, and never a second one after an unknown outcome."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from loanasync.sandbox import Sandbox
from support.cli import RunningCommand, make_row, read, run, small_files, start, statuses, wait_for, write


def created(sandbox: Sandbox) -> list[str]:
    return [each.fiscal_code for each in sandbox.journal.calls(operation="create_request")]


def test_created_requests_can_be_approved_and_are_not_created_again(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved", id=f"order {number}") for number in range(3)]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "created.jsonl"
    for _ in range(2):
        done = run(served, "create", file, "-o", out)
        assert done.returncode == 0, done.stderr
        assert sorted(created(served)) == sorted(row["fiscal_code"] for row in rows)
        lines = sorted(read(out), key=lambda line: int(line["line"]))
        assert [(line["line"], line["id"], line["fiscal_code"]) for line in lines] == [
            (number + 1, f"order {number}", row["fiscal_code"]) for number, row in enumerate(rows)
        ]
        assert {(line["status"], line["outcome"]) for line in lines} == {("created", "done")}
    assert "0 requests to create; in an earlier run 3 were created, and 0 are unknown" in done.stderr
    assert run(served, "approve-many", file, "-o", tmp_path / "out.jsonl").returncode == 0
    for row in rows:
        assert row["fiscal_code"] not in done.stderr


@pytest.mark.parametrize("name", ["created.csv", "created.jsonl.gz"])
def test_body_has_the_chosen_columns_only(tmp_path: Path, served: Sandbox, name: str) -> None:
    file = tmp_path / "rows.csv"
    text = "Codice Cliente;Importo;Consenso\r\n tstxyz00a00a000a;450,00;true\r\nTSTXYZ00A00A000B;1;\r\n"
    file.write_bytes(text.encode("cp1252"))
    options = (
        "--column",
        "fiscal_code=Codice Cliente",
        "--member",
        "privacy=Consenso",
        "--encoding",
        "cp1252",
    )
    assert run(served, "create", file, "-o", tmp_path / name, *options).returncode == 0
    bodies = [each.request for each in served.journal.calls(operation="create_request")]
    assert sorted(bodies, key=str) == [
        {"fiscalCode": "TSTXYZ00A00A000A", "privacy": "true"},
        {"fiscalCode": "TSTXYZ00A00A000B"},
    ]
    assert run(served, "create", file, "-o", tmp_path / name, *options).returncode == 0
    assert len(created(served)) == 2


def test_json_member_is_sent_unchanged_and_mapping_names_the_fiscal_code(
    tmp_path: Path, served: Sandbox
) -> None:
    row = {"cliente": "TSTXYZ00A00A000A", "privacy": True, "shop": {"name": "x"}, "note": None}
    mapping = tmp_path / "mapping.toml"
    mapping.write_text('[columns]\nfiscal_code = "cliente"\n', encoding="utf-8")
    members = ("--member", "privacy=privacy", "--member", "origin=shop", "--member", "note=note")
    file = write(tmp_path / "rows.jsonl", [row])
    done = run(served, "create", file, "-o", tmp_path / "created.jsonl", "--mapping", mapping, *members)
    assert done.returncode == 0, done.stderr
    [call] = served.journal.calls(operation="create_request")
    assert call.request == {"fiscalCode": "TSTXYZ00A00A000A", "privacy": True, "origin": {"name": "x"}}


def test_invalid_rows_are_all_reported_and_nothing_is_created(tmp_path: Path, served: Sandbox) -> None:
    rows = [
        {"fiscal_code": "TSTXYZ00A00A000A"},
        {"fiscal_code": "TST"},
        {"fiscalCode": "tstxyz00a00a000a"},
        {},
    ]
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "created.jsonl"
    with file.open("a", encoding="utf-8") as more:
        more.write("5\n")
    done = run(served, "create", file, "-o", out)
    assert (done.returncode, out.exists()) == (2, False)
    duplicate = "duplicate of line 1: each customer may appear only once"
    assert done.stderr.splitlines() == [
        f"{file}: line 2: fiscal_code: must be 16 letters and digits",
        f"{file}: line 3, member 'fiscalCode': fiscal_code: {duplicate}",
        f"{file}: line 4: fiscal_code: is required",
        f"{file}: line 5: must be a JSON object",
        "nothing was sent: correct these rows",
    ]
    assert served.journal.calls() == []


def test_wrong_files_columns_and_options_send_nothing(tmp_path: Path, served: Sandbox) -> None:
    file, out = tmp_path / "rows.csv", tmp_path / "created.jsonl"
    file.write_text("Nome\nAnna\n", encoding="utf-8")
    for options, message in (
        (
            (file, "-o", out),
            f"{file}: line 1: fiscal_code: no column for this field; if it has another name, add",
        ),
        ((file, "-o", out, "--column", "fiscal_code=Nome", "--member", "a=B"), "fiscal_code: must be 16"),
        ((file, "-o", out, "--member", "a"), "'a' must be NAME=COLUMN"),
        ((file, "-o", out, "--member", "fiscalCode=Nome"), "use --column fiscal_code=COLUMN"),
        ((file, "-o", "-"), "name a file: it is the memory of what was sent"),
        ((file, "-o", os.devnull), "name a file: it is the memory of what was sent"),
        ((file, "-o", tmp_path), "name a file: it is the memory of what was sent"),
        ((file, "-o", out, "--problems", file), "is used for two purposes"),
        ((file, "-o", out, "--rate", "0"), "must be a number of calls per second greater than 0"),
        ((tmp_path / "none", "-o", out), f"{tmp_path / 'none'}: file not found"),
    ):
        done = run(served, "create", *options)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not out.exists()
    file.write_text("Codice fiscale\n", encoding="utf-8")
    empty = run(served, "create", file, "-o", out, "--member", "a=Codice fiscale")
    assert empty.stderr == "nothing was sent: the file contains no rows\n"
    file.write_text("Codice fiscale\nTSTXYZ00A00A000A\n", encoding="utf-8")
    missing = run(served, "create", file, "-o", tmp_path / "none" / "created.jsonl")
    assert (missing.returncode, f"the folder {tmp_path / 'none'} does not exist" in missing.stderr) == (
        2,
        True,
    )
    assert "LOANASYNC_BASE_URL" in run(None, "create", file, "-o", out).stderr
    assert served.journal.calls() == []


@pytest.mark.parametrize(
    "text",
    ['{"fiscal_code": "TSTXYZ00A00A000A", "total": 1}\n', "fiscal_code,total\nTSTXYZ00A00A000A,1\n"],
    ids=["json", "csv"],
)
def test_member_that_no_row_has_is_a_problem(tmp_path: Path, served: Sandbox, text: str) -> None:
    file, out = tmp_path / "rows.txt", tmp_path / "created.jsonl"
    file.write_text(text, encoding="utf-8")
    done = run(served, "create", file, "-o", out, "--member", "total=totael", "--member", "t=total")
    assert done.returncode == 2
    assert f"{file}: --member total=totael: no row has 'totael'\nnothing was sent" in done.stderr
    assert created(served) == []


def test_equal_problems_are_one_line_and_listed_in_a_file(tmp_path: Path, served: Sandbox) -> None:
    file, listed = write(tmp_path / "rows.jsonl", [{}] * 500), tmp_path / "problems.txt"
    done = run(served, "create", file, "-o", tmp_path / "created.jsonl", "--problems", listed)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{file}: 500 × fiscal_code: is required (lines 1, 2, 3 and 497 others)",
        f"500 problems, listed in {listed}",
        "nothing was sent: correct these rows",
    ]
    assert len(listed.read_text(encoding="utf-8").splitlines()) == 500


def test_results_of_approve_many_are_not_continued(tmp_path: Path, served: Sandbox) -> None:
    file, out = write(tmp_path / "rows.jsonl", [make_row("approved")]), tmp_path / "out.jsonl"
    assert run(served, "approve-many", file, "-o", out).returncode == 1
    done = run(served, "create", file, "-o", out)
    assert (done.returncode, "contains the results of another command" in done.stderr) == (2, True)
    assert created(served) == []


def test_dry_run_counts_the_requests_and_sends_nothing(tmp_path: Path, served: Sandbox) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("approved"), make_row("approved")])
    done = run(served, "create", file, "-o", tmp_path / "created.jsonl", "--dry-run")
    assert (done.returncode, done.stderr.partition(";")[0]) == (0, "2 requests to create")
    assert created(served) == []
    assert [*tmp_path.iterdir()] == [file]


def test_unknown_creation_is_not_repeated_and_a_failed_one_is(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(3)]
    codes = [row["fiscal_code"] for row in rows]
    served.on("create_request", fiscal_code=codes[0]).respond("reset", phase="after")
    served.on("create_request", fiscal_code=codes[1], call=1).respond(403)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "created.jsonl"
    done = run(served, "create", file, "-o", out)
    assert (done.returncode, "1 created, 1 failed, 1 unknown, 0 not sent" in done.stderr) == (3, True)
    assert statuses(out) == dict(zip(codes, ("unknown", "error", "created"), strict=True))
    assert len(read(out)) == 3
    unknown, failed = (line for line in sorted(read(out), key=lambda line: line["line"])[:2])
    assert (failed["outcome"], failed["status_code"]) == ("not_evaluated", 403)
    assert (unknown["outcome"], unknown["repeatable"]) == ("unknown", False)

    done = run(served, "create", file, "-o", out)
    assert (done.returncode, f"remove its line from {out}" in done.stderr) == (3, True)
    assert [created(served).count(code) for code in codes] == [1, 2, 1]
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(line for line in lines if codes[0] not in line), encoding="utf-8")
    run(served, "create", file, "-o", out)
    assert [created(served).count(code) for code in codes] == [2, 2, 1]


def test_run_whose_first_rows_fail_alike_stops_and_the_next_gets_further(
    tmp_path: Path, served: Sandbox
) -> None:
    rows = [make_row("approved") for _ in range(60)]
    for row in rows[:25]:
        served.on("create_request", fiscal_code=row["fiscal_code"]).respond(403)
    out = tmp_path / "created.jsonl"
    command = ("create", write(tmp_path / "rows.jsonl", rows), "-o", out, "--concurrency", "1")
    done = run(served, *command)
    assert (done.returncode, "0 created, 20 failed, 0 unknown, 40 not sent" in done.stderr) == (1, True)
    reason = "stopped because the first 20 rows all failed for the same cause (AccessDeniedError)"
    assert f"{reason}; run the same command to resume\n" in done.stderr
    done = run(served, *command)
    assert (done.returncode, "35 created, 25 failed, 0 unknown, 0 not sent" in done.stderr) == (1, True)
    assert "stopped" not in done.stderr


@pytest.mark.parametrize(
    ("responses", "rows"),
    [([403] * 19, 40), ([403] * 10 + [404] * 10, 40), ([None, *[403] * 25], 40), ([403] * 20, 20)],
    ids=["19-failures", "two-causes", "one-created", "no-row-left"],
)
def test_run_with_other_first_results_continues(
    tmp_path: Path, served: Sandbox, responses: list[int | None], rows: int
) -> None:
    orders = [make_row("approved") for _ in range(rows)]
    for row, status in zip(orders, responses, strict=False):
        if status:
            served.on("create_request", fiscal_code=row["fiscal_code"]).respond(status)
    file = write(tmp_path / "rows.jsonl", orders)
    done = run(served, "create", file, "-o", tmp_path / "created.jsonl", "--concurrency", "1")
    assert (len(created(served)), "stopped" in done.stderr) == (rows, False)


def test_evaluated_customer_is_not_created_again(tmp_path: Path, served: Sandbox) -> None:
    rows = [make_row("approved") for _ in range(2)]
    code = rows[0]["fiscal_code"]
    body = {"errors": {"domain": "User already evaluated for approval"}}
    served.on("create_request", fiscal_code=code).respond(400, body)
    file, out = write(tmp_path / "rows.jsonl", rows), tmp_path / "created.jsonl"
    advice = f"1 evaluated before (see {out}): ask the service for the decisions, "
    advice += f"and remove these rows from {file}"
    for _ in range(2):
        done = run(served, "create", file, "-o", out)
        assert (done.returncode, advice in done.stderr) == (1, True), done.stderr
    assert statuses(out) == {code: "evaluated", rows[1]["fiscal_code"]: "created"}
    assert len(created(served)) == 2
    write(file, rows[1:])
    assert run(served, "create", file, "-o", out).returncode == 0


def begin(
    tmp_path: Path, sandbox: Sandbox, rows: int = 10
) -> tuple[RunningCommand, tuple[object, ...], Path]:
    """Start a command whose fifth call hangs, and wait for that call."""
    file, out = tmp_path / "rows.jsonl", tmp_path / "created.jsonl"
    orders = [make_row("approved") for _ in range(rows)]
    sandbox.on("create_request", fiscal_code=orders[4]["fiscal_code"]).respond("hang", phase="after")
    write(file, orders)
    command = ("create", file, "-o", out, "--concurrency", "1")
    process = start(sandbox, *command)
    wait_for(lambda: len(created(sandbox)) == 5)
    return process, command, out


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_killed_run_leaves_the_call_in_progress_unknown(tmp_path: Path, served: Sandbox) -> None:
    process, command, out = begin(tmp_path, served)
    process.kill()
    process.communicate()
    assert [line["status"] for line in read(out)] == ["unknown", "created"] * 4 + ["unknown"]
    assert run(served, *command).returncode == 3
    assert len(created(served)) == len({*created(served)}) == 10
    assert sorted(line["status"] for line in read(out)) == ["created"] * 9 + ["unknown"]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_second_ctrl_c_gives_up_the_call_in_progress(tmp_path: Path, served: Sandbox) -> None:
    process, command, out = begin(tmp_path, served)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "10 requests to create" in process.stderr.readline()
    assert "no further row is sent; waiting for the calls" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    assert (process.returncode, "4 created, 0 failed, 1 unknown, 5 not sent" in errors) == (130, True), errors
    assert "interrupted; run the same command to resume" in errors
    assert sorted(line["status"] for line in read(out)) == ["created"] * 4 + ["unknown"]
    assert read(out)[-1]["message"] == "in progress when the run ended"
    assert run(served, *command).returncode == 3
    assert len(created(served)) == 10


def test_results_that_cannot_be_replaced_keep_all_lines(tmp_path: Path, served: Sandbox) -> None:
    # The name of the file that replaces the results would be too long.
    file, out = write(tmp_path / "rows.jsonl", [make_row("approved")]), tmp_path / ("x" * 239 + ".jsonl")
    done = run(served, "create", file, "-o", out)
    assert done.returncode == 0
    assert "1 created, 0 failed, 0 unknown, 0 not sent" in done.stderr
    assert f"{out} keeps earlier lines (File name too long)" in done.stderr
    assert [line["status"] for line in read(out)] == ["unknown", "created"]


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
@pytest.mark.parametrize("folder", ["elsewhere", "none"])
def test_results_that_cannot_be_written_stop_the_run_before_a_call(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    rows = [make_row("approved") for _ in range(2)]
    file, out = write(tmp_path / "rows.jsonl", rows[:1]), tmp_path / "created.jsonl"
    assert run(served, "create", file, "-o", out).returncode == 0
    write(file, rows)
    with small_files(out.stat().st_size):
        done = run(served, "create", file, "-o", out)
    assert done.returncode == 1
    assert "no file can be written" in done.stderr or "later results are in" in done.stderr
    assert "0 created, 0 failed, 0 unknown, 1 not sent" in done.stderr
    assert created(served) == [rows[0]["fiscal_code"]]


def test_rate_limits_the_starts_of_calls(tmp_path: Path, served: Sandbox) -> None:
    file = write(tmp_path / "rows.jsonl", [make_row("approved") for _ in range(6)])
    assert run(served, "create", file, "-o", tmp_path / "created.jsonl", "--rate", "20").returncode == 0
    times = [each.at for each in served.journal.calls(operation="create_request")]
    assert max(times) - min(times) > 5 / 20 - 0.03, "at least five intervals, apart from the timer's delay"

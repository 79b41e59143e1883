"""One customer from the command line."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Sandbox
from support.cli import PLAIN, Started, begin, create, member, run, wait_for

DATA: dict[str, Any] = {
    "documentOfType": "identity_card",
    "document_code": "AA00000AA",
    "documentIssueDate": "2022-05-17",
    "us_person": False,
}


def pretty(tmp_path: Path, members: object) -> Path:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(members, indent=2), encoding="utf-8")
    return file


def check(tmp_path: Path, members: object, *options: str) -> tuple[int, list[str]]:
    file = pretty(tmp_path, members)
    done = CliRunner(env=PLAIN).invoke(app, ["check", str(file), *options])
    return done.exit_code, [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]


def test_what_is_wrong_with_an_approval_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    assert check(tmp_path, member("approved")) == (0, ["valid"])
    assert check(tmp_path, member("approved", amount=450.5), "--euro")[0] == 0
    assert check(tmp_path, member("approved", order_token="o"), "--dialect", "civic_number")[0] == 0
    code, told = check(tmp_path, member("approved", amount=450.5, province=None))
    assert code == 2
    assert told[0].startswith("column 'amount': amount: must be whole euro cents")
    assert told[1].startswith("province: is required")


def test_what_is_wrong_with_a_completion_is_named(tmp_path: Path) -> None:
    good = {"fiscal_code": "TSTXYZ00A00A000A", **DATA}
    assert check(tmp_path, good)[0] == 0
    assert check(tmp_path, {**good, "us_person": "perhaps", "document_cty": "Roma", "fiscal_code": "?"}) == (
        *(
            2,
            [
                "us_person: must be true or false",
                "document_cty: unknown member; put members that this version does not know into 'extra'",
                "fiscal_code: must be 16 letters and digits",
            ],
        ),
    )


@pytest.mark.parametrize(
    ("word", "code", "status"),
    [
        *(("approved", 0, "approved"), ("refused", 0, "refused")),
        *(("invalid.city", 1, "rejected"), ("conflict", 3, "unknown"), ("500after", 3, "unknown")),
    ],
)
def test_one_approval_is_printed_as_json_and_its_exit_code_says_what_it_is(
    tmp_path: Path, served: Sandbox, word: str, code: int, status: str
) -> None:
    row = member(word, id="order 7")
    create(served, [row])
    done = run(served, "approve", pretty(tmp_path, row))
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"], told["id"], done.stderr) == (code, status, "order 7", "")
    assert told["outcome"] == ("not_evaluated" if status == "rejected" else status)
    assert told["repeatable"] is False
    assert "line" not in told


def test_an_id_that_is_no_whole_text_is_printed_with_its_answer(tmp_path: Path, served: Sandbox) -> None:
    row = member("approved", id="half a smile: \ud83d")
    create(served, [row])
    told = json.loads(run(served, "approve", pretty(tmp_path, row)).stdout)
    assert (told["status"], told["id"]) == ("approved", row["id"])


def test_an_approval_that_breaks_rules_is_not_sent(tmp_path: Path, served: Sandbox) -> None:
    done = run(served, "approve", pretty(tmp_path, member("approved", amount=1)))
    assert (done.returncode, done.stdout) == (2, "")
    assert "amount: must be between" in done.stderr
    assert served.journal.calls() == []


def test_a_sandbox_is_started_for_one_approval_too() -> None:
    done = run(None, "approve", "-", "--sandbox", given=json.dumps(member("refused")))
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "refused")


def test_data_are_completed_and_what_fails_says_so(tmp_path: Path, served: Sandbox) -> None:
    row = member("approved")
    data = {"fiscal_code": row["fiscal_code"], **DATA}
    create(served, [row])
    done = run(served, "complete", pretty(tmp_path, data))
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (1, "not_evaluated")
    assert run(served, "approve", pretty(tmp_path, row)).returncode == 0

    async def upload() -> None:
        async with served.client() as client:
            await client.upload_documents(row["fiscal_code"], {"front": "..."})

    asyncio.run(upload())
    done = run(served, "complete", pretty(tmp_path, data))
    assert (done.returncode, done.stderr) == (0, "the data are saved\n")
    assert json.loads(done.stdout) == {"outcome": "done", "repeatable": False}
    assert run(served, "complete", pretty(tmp_path, {**data, "us_person": 5})).returncode == 2
    assert run(served, "complete", pretty(tmp_path, {**data, "unread": ["iban"]})).returncode == 2
    served.on("complete").respond("trunc", phase="after")
    done = run(served, "complete", pretty(tmp_path, data))
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "done")
    assert done.stderr.endswith("has carried out the call, and its response could not be read\n")
    served.on("complete").respond("reset", phase="after")
    done = run(served, "complete", pretty(tmp_path, data))
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (3, "unknown")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"a": ', "line 1: invalid JSON at column 7"),
        ("{}\n{}\n", "line 2: invalid JSON at column 1"),
        ("", "contains no rows"),
        ("[]", "contains a JSON array"),
        ('"text"', "must be one JSON object; for several customers use loanasync approve-many"),
        ('{"amount": 45000, "amount": 99000}', "a JSON member appears more than once"),
        (f'{{"amount": {"1" * 5000}}}', "cannot be parsed as JSON"),
        (f'{{"amount": {"[" * 100_000}{"]" * 100_000}}}', "cannot be parsed as JSON"),
    ],
)
def test_what_is_no_object_says_so(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "one.json"
    file.write_text(content, encoding="utf-8")
    done = CliRunner(env=PLAIN).invoke(app, ["check", str(file)])
    assert done.exit_code == 2
    assert told in done.stderr


def interrupted(served: Sandbox, file: Path) -> Started:
    """The command while it waits for its answer, and knows that somebody pressed Ctrl-C."""
    process = begin(served, "approve", file)
    wait_for(lambda: '"approved": true' in "".join(served.snapshot().values()))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == (
        "waiting for the response. Press Ctrl-C again to cancel the call: its outcome becomes unknown\n"
    )
    return process


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_answer_that_comes_after_ctrl_c_is_not_lost(tmp_path: Path, served: Sandbox) -> None:
    row = member("slow3000after")
    create(served, [row])
    process = interrupted(served, pretty(tmp_path, row))
    told, errors = process.communicate(timeout=60)
    assert (process.returncode, json.loads(told)["status"], errors) == (0, "approved", "")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_second_ctrl_c_gives_the_answer_up_and_says_that_it_is_unknown(
    tmp_path: Path, served: Sandbox
) -> None:
    row = member("hangafter")
    create(served, [row])
    process = interrupted(served, pretty(tmp_path, row))
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)
    assert (process.returncode, json.loads(told)["status"], errors) == (3, "unknown", "")


def test_without_credentials_nothing_is_sent(tmp_path: Path) -> None:
    done = run(None, "approve", pretty(tmp_path, member("approved")))
    assert done.returncode == 2
    assert "LOANASYNC_BASE_URL" in done.stderr

"""``loanasync check``, ``approve`` and ``complete``."""

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loanasync.cli.app import app
from loanasync.sandbox import Sandbox
from support.cli import PLAIN, create, make_row, meanwhile, run, start, wait_for

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


def test_check_of_an_approval_prints_its_problems(tmp_path: Path) -> None:
    assert check(tmp_path, make_row("approved")) == (0, ["valid"])
    assert check(tmp_path, make_row("approved", amount="€ 450,50"))[0] == 0
    assert check(tmp_path, make_row("approved", order_token="o"), "--dialect", "civic_number")[0] == 0
    code, output = check(tmp_path, make_row("approved", amount=450.5, province=None))
    assert code == 2
    assert output[0].startswith("amount: must be whole euro cents")
    assert output[1].startswith("province: is required")
    spec_name = check(tmp_path, make_row("approved", instalments=None, installments="x"))
    assert spec_name == (2, ["member 'installments': instalments: must be a whole number, digits only"])
    assert check(tmp_path, make_row("approved", instalments=None)) == (
        *(2, ["instalments: is required: a whole number between 3 and 60"]),
    )


def test_check_of_a_completion_prints_its_problems(tmp_path: Path) -> None:
    good = {"fiscal_code": "TSTXYZ00A00A000A", **DATA}
    assert check(tmp_path, good)[0] == 0
    assert check(tmp_path, {**good, "us_person": "perhaps", "document_cty": "Roma", "fiscal_code": "?"}) == (
        *(
            2,
            [
                "document_cty: unknown member; put members that this version does not know into 'extra'",
                "fiscal_code: must be 16 letters and digits",
                "us_person: must be true or false",
            ],
        ),
    )


@pytest.mark.parametrize(
    ("tag", "code", "status"),
    [
        *(("approved", 0, "approved"), ("refused", 0, "refused")),
        *(("invalid.city", 1, "rejected"), ("conflict", 3, "unknown"), ("500after", 3, "unknown")),
    ],
)
def test_approve_prints_json_and_its_exit_code_follows_the_status(
    tmp_path: Path, served: Sandbox, tag: str, code: int, status: str
) -> None:
    row = make_row(tag, id="order 7")
    create(served, [row])
    done = run(served, "approve", pretty(tmp_path, row))
    output = json.loads(done.stdout)
    assert (done.returncode, output["status"], output["id"], done.stderr) == (code, status, "order 7", "")
    assert output["outcome"] == ("not_evaluated" if status == "rejected" else status)
    assert output["repeatable"] is False
    assert "line" not in output


def test_approve_prints_an_id_with_a_lone_surrogate(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("approved", id="a lone surrogate: \ud83d")
    create(served, [row])
    output = json.loads(run(served, "approve", pretty(tmp_path, row)).stdout)
    assert (output["status"], output["id"]) == ("approved", row["id"])


def test_approve_does_not_send_an_invalid_request(tmp_path: Path, served: Sandbox) -> None:
    done = run(served, "approve", pretty(tmp_path, make_row("approved", amount=1)))
    assert (done.returncode, done.stdout) == (2, "")
    assert "amount: must be a whole number between" in done.stderr
    assert served.journal.calls() == []


def test_approve_with_sandbox_starts_a_sandbox() -> None:
    done = run(None, "approve", "-", "--sandbox", stdin=json.dumps(make_row("refused")))
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "refused")


def test_complete_saves_the_data_or_prints_the_error(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("approved")
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
    assert done.stderr.endswith("the service has carried out the call; do not repeat it\n")
    served.on("complete").respond("reset", phase="after")
    done = run(served, "complete", pretty(tmp_path, data))
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (3, "unknown")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": ', "line 1: incomplete: the file ends in the middle of this row"),
        ('{"a": }\n', "line 1: invalid JSON at character 7"),
        ('{\n "a": }', "invalid JSON at line 2, character 7"),
        ("{}\n{}\n", "must be one JSON object; for several customers use loanasync approve-many"),
        ("", "contains no rows"),
        ("[]", "contains a JSON array"),
        ('{"amount": 45000, "amount": 99000}', "a JSON member appears more than once"),
        (f'{{"amount": {"1" * 5000}}}', "cannot be parsed as JSON"),
        (f'{{"amount": {"[" * 100_000}{"]" * 100_000}}}', "cannot be parsed as JSON"),
    ],
)
def test_check_of_invalid_json_prints_the_reason(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "one.json"
    file.write_text(content, encoding="utf-8")
    done = CliRunner(env=PLAIN).invoke(app, ["check", str(file)])
    assert done.exit_code == 2
    assert message in done.stderr


PROMPT = "waiting for the response. Press Ctrl-C again to cancel the call: its outcome becomes unknown\n"


def is_decided(sandbox: Sandbox) -> bool:
    return '"approved": true' in "".join(sandbox.snapshot().values())


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_approve_after_ctrl_c_waits_for_the_response(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("slow3000after")
    create(served, [row])
    with meanwhile(partial(is_decided, served), lambda: os.kill(os.getpid(), signal.SIGINT)):
        done = run(served, "approve", pretty(tmp_path, row))
    assert (done.returncode, json.loads(done.stdout)["status"], done.stderr) == (0, "approved", PROMPT)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_approve_after_a_second_ctrl_c_is_unknown(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("hangafter")
    create(served, [row])
    process = start(served, "approve", pretty(tmp_path, row))
    wait_for(partial(is_decided, served))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == PROMPT
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, json.loads(output)["status"], errors) == (3, "unknown", "")


def test_approve_without_credentials_sends_nothing(tmp_path: Path) -> None:
    done = run(None, "approve", pretty(tmp_path, make_row("approved")))
    assert done.returncode == 2
    assert "LOANASYNC_BASE_URL" in done.stderr

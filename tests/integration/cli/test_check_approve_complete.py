"""``loanasync check``, ``approve`` and ``complete``."""

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from support.cli import create, make_row, meanwhile, run, service, start, wait_for, write

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


REQUIRED = "instalments: is required: a whole number between 3 and 60"


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, ()),
        ({"amount": "€ 450,50"}, ()),
        ({"order_token": "o", "payment_day_of_month": 5}, ()),
        ({"amount": 450.5, "province": None}, ("amount: must be whole euro cents", "province: is required")),
        (
            {"instalments": None, "installments": "x"},
            ("member 'installments': instalments: must be a whole number, digits only",),
        ),
        ({"instalments": None}, (REQUIRED,)),
    ],
)
def test_check_of_an_approval_prints_its_problems(
    tmp_path: Path, changes: dict[str, Any], problems: tuple[str, ...]
) -> None:
    file = pretty(tmp_path, make_row("approved", **changes))
    done = run(None, "check", file)
    lines = [line.removeprefix(f"{file}: ") for line in done.stderr.splitlines()]
    assert done.returncode == (2 if problems else 0)
    assert [line.startswith(text) for line, text in zip(lines, problems or ["valid"], strict=True)] == [
        True
    ] * len(lines)


def test_check_of_a_completion_prints_its_problems(tmp_path: Path) -> None:
    good = {"fiscal_code": "TSTXYZ00A00A000A", **DATA}
    assert run(None, "check", pretty(tmp_path, good)).returncode == 0
    wrong = {**good, "us_person": "perhaps", "document_cty": "Roma", "fiscal_code": "?"}
    done = run(None, "check", pretty(tmp_path, wrong))
    assert (done.returncode, done.stderr.replace(f"{tmp_path / 'one.json'}: ", "").splitlines()) == (
        2,
        [
            "document_cty: unknown member; put members that this version does not know into 'extra'",
            "fiscal_code: must be 16 letters and digits",
            "us_person: must be true or false",
        ],
    )


def test_approve_prints_the_result_as_json(tmp_path: Path, served: Sandbox) -> None:
    row = make_row("conflict", id="è, and a lone surrogate: \ud83d")
    create(served, [row])
    done = run(served, "approve", pretty(tmp_path, row))
    assert "è" in done.stdout
    output = json.loads(done.stdout)
    assert (done.returncode, output["status"], output["id"], done.stderr) == (3, "unknown", row["id"], "")
    again = run(served, "approve", write(tmp_path / "one_line.json", [row]))
    assert "line" not in output | json.loads(again.stdout)


@pytest.mark.parametrize(
    ("has_service", "amount", "message"),
    [(True, 1, "amount: must be a whole number between"), (False, 45_000, "LOANASYNC_BASE_URL")],
)
def test_approve_of_an_invalid_request_or_without_a_token_sends_nothing(
    tmp_path: Path, served: Sandbox, *, has_service: bool, amount: int, message: str
) -> None:
    file = pretty(tmp_path, make_row("approved", amount=amount))
    done = run(served if has_service else None, "approve", file)
    assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True)
    assert served.journal.calls() == []


def test_complete_saves_the_data_or_prints_the_error(
    tmp_path: Path, served: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_row("approved")
    data = {"fiscal_code": row["fiscal_code"], **DATA}
    create(served, [row])

    async def upload() -> None:
        async with served.client() as client:
            await client.upload_documents(row["fiscal_code"], {"front": "..."})

    def complete(**changes: object) -> tuple[int, dict[str, Any], str]:
        done = run(served, "complete", pretty(tmp_path, data | changes))
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    assert complete()[1] == {"outcome": "not_evaluated", "repeatable": False, "error": "RejectedError"}
    with monkeypatch.context() as patch:
        nowhere = {**service(served), "LOANASYNC_BASE_URL": "http://127.0.0.1:9"}
        patch.setattr("support.cli.service", lambda _: nowhere)
        assert complete()[1] == {"outcome": "not_sent", "repeatable": True, "error": "ConnectError"}
    assert run(served, "approve", pretty(tmp_path, row)).returncode == 0
    asyncio.run(upload())
    done = (0, {"outcome": "done", "repeatable": False}, "the data are saved\n")
    assert complete(extra={"petName": "Fido"}) == done
    assert served.journal[-1].request is not None
    assert served.journal[-1].request["petName"] == "Fido"
    assert complete(us_person=5)[0] == complete(unread=["iban"])[0] == 2
    served.on("complete").respond("trunc", phase="after")
    code, output, errors = complete()
    assert (code, output["outcome"]) == (0, "done")
    assert errors.endswith("the service has carried out the call; do not repeat it\n")
    served.on("complete").respond("reset", phase="after")
    code, output, _ = complete()
    assert (code, output["outcome"]) == (3, "unknown")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": ', "line 1: incomplete: the file ends in the middle of this row"),
        ('{\n "a": }', "invalid JSON at line 2, character 7"),
        ("{}\n{}\n", "must be one JSON object; for several customers use loanasync approve-many"),
        ('{"amount": 45000, "amount": 99000}', "a JSON member appears more than once"),
        (f'{{"amount": {"1" * 5000}}}', "cannot be parsed as JSON"),
        (f'{{"amount": {"[" * 100_000}{"]" * 100_000}}}', "cannot be parsed as JSON"),
    ],
)
def test_check_of_invalid_json_prints_the_reason(content: str, message: str) -> None:
    done = run(None, "check", "-", stdin=content)
    assert (done.returncode, message in done.stderr) == (2, True)


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
    assert "no response (CancelledError)" in json.loads(output)["message"], "at once"

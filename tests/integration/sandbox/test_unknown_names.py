"""Calls with unknown or invalid arguments raise an error and change nothing."""

from pathlib import Path
from typing import Any

import pytest

from loanasync.sandbox import Sandbox
from support.raw_shop import CODE, Raw


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (None, TypeError, "takes a rule that on"),
        ("500", TypeError, "takes a rule that on"),
        (Sandbox().on().respond(500), ValueError, "rule #1 500 is not active"),
    ],
)
def test_off_with_an_unknown_rule_is_an_error(rule: Any, error: type[Exception], message: str) -> None:
    sandbox = Sandbox()
    kept = sandbox.on().respond(500)
    with pytest.raises(error, match=message):
        sandbox.off(rule)
    assert sandbox.rules == [kept]
    sandbox.off(kept)
    with pytest.raises(ValueError, match="is not active"):
        sandbox.off(kept)


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (None, TypeError, "fiscal_code must be a str, not NoneType"),
        (7, TypeError, "fiscal_code must be a str, not int"),
        ("", ValueError, "fiscal_code is empty"),
        ("TSTXYZ00A00A000B", KeyError, "unknown fiscal code"),
    ],
)
async def test_reset_of_an_unknown_code_is_an_error(
    raw: Raw, code: Any, error: type[Exception], message: str
) -> None:
    await raw.create()
    with pytest.raises(error, match=message):
        raw.sandbox.reset(code)
    assert list(raw.sandbox.snapshot()) == [CODE]


async def test_reset_ignores_case_and_spaces_of_the_code(raw: Raw) -> None:
    await raw.create()
    raw.sandbox.reset(f" {CODE.lower()} ")
    assert raw.sandbox.snapshot() == {}
    await raw("POST", f"/{CODE.lower()}", {})  # another client may send it like this
    raw.sandbox.reset(CODE.lower())


@pytest.mark.parametrize(
    ("which", "error", "message"),
    [
        ({"fiscal_code": ""}, ValueError, "fiscal_code is empty"),
        ({"fiscal_code": 7}, TypeError, "fiscal_code must be a str, not int"),
        ({"call": "2"}, TypeError, "call '2' must be a whole number"),
        ({"call": 1.5}, TypeError, "call 1.5 must be a whole number"),
        ({"call": True}, TypeError, "call True must be a whole number"),
        ({"rate": "0.1"}, TypeError, "rate '0.1' must be a number between 0 and 1"),
    ],
)
def test_rule_that_no_call_can_match_is_rejected(
    which: dict[str, Any], error: type[Exception], message: str
) -> None:
    sandbox = Sandbox()
    with pytest.raises(error, match=message):
        sandbox.on(**which)
    assert sandbox.rules == []


async def test_rule_matches_a_code_in_lower_case(raw: Raw) -> None:
    raw.sandbox.on("approve", fiscal_code=CODE).respond(503)
    assert (await raw("POST", f"/{CODE.lower()}", {}))[0] == 503


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({"fault": "500"}, "unknown fault '500', did you mean '500after'?"),
        ({"fault": "resetlater"}, "unknown fault 'resetlater', did you mean 'resetafter'?"),
        ({"findings": "post-after-402"}, "unknown findings 'post-after-402', did you mean 'post-after-4"),
    ],
)
async def test_criterion_with_an_unknown_name_is_an_error(
    raw: Raw, criteria: dict[str, str], message: str
) -> None:
    for method in ("calls", "assert_never"):
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            getattr(raw.sandbox.journal, method)(**criteria)


async def test_criteria_ignore_case_of_code_and_method(raw: Raw) -> None:
    raw.sandbox.on("create_request", call=2).respond(503, phase="after")
    await raw.create()
    await raw.create()
    journal = raw.sandbox.journal
    assert len(journal.calls(fiscal_code=CODE.lower(), method="post")) == 2
    assert journal.assert_once(fault="503after").number == 2
    assert journal.calls(fault="418before") == []


@pytest.mark.parametrize("count", [0, -1, "2", True, 1.5])
async def test_wait_with_a_wrong_count_is_an_error(raw: Raw, count: Any) -> None:
    await raw.create()
    with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
        raw.sandbox.journal.wait(count)
    with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
        await raw.sandbox.journal.wait_for(count)


@pytest.mark.parametrize("headers", [[("Retry-After", "7")], "Retry-After", {7: "a"}])
def test_headers_of_another_type_are_rejected(headers: Any) -> None:
    with pytest.raises(TypeError, match="headers must map names to strings"):
        Sandbox().on().respond(503, headers=headers)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"faults": [500]}, TypeError, "faults must be strings, such as 'approve=500', not int"),
        ({"faults": 500}, TypeError, "faults must be strings, such as 'approve=500', not int"),
        ({"faults": None}, TypeError, "faults must be strings"),
        ({"state": ""}, ValueError, "state '' is not a file"),
        ({"state": ":memory:"}, ValueError, "state ':memory:' is not a file"),
        ({"allow_remote": "false"}, TypeError, "allow_remote must be True or False, not str"),
        ({"shop_id": "demo", "auth_token": "demo"}, ValueError, "shop_id and auth_token are equal"),
    ],
)
def test_misleading_option_is_rejected(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Sandbox(**options)


def test_process_takes_one_fault_as_a_string(tmp_path: Path) -> None:
    with Sandbox.subprocess(faults="create_request=503", state=tmp_path / "state.sqlite") as process:
        assert process.calls() == []
    with pytest.raises(TypeError, match="faults must be strings"):
        Sandbox.subprocess(faults=[500])

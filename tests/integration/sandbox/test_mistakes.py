"""Mistakes in tests and arguments that raise immediately."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loanasync.sandbox import Sandbox
from loanasync.sandbox.sqlite import SqliteStore, StateFileError
from support.raw_shop import CODE, Raw


async def test_assert_never_within_raises_if_calls_were_dropped(raw: Raw) -> None:
    await raw.create()
    journal = raw.sandbox.journal
    journal.on = False
    with pytest.raises(RuntimeError, match="the journal is switched off"):
        journal.assert_never(within=60)
    async with Sandbox(journal=1) as sandbox:
        other = Raw(sandbox, raw.session)
        await other.create()
        sandbox.journal.assert_never(status=500, within=60)
        await other.create()
        with pytest.raises(RuntimeError, match="only the last 1 of 2 calls"):
            sandbox.journal.assert_never(status=500, within=60)
        sandbox.journal[0].at -= 61
        sandbox.journal.assert_never(status=500, within=60)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({"operation": "aprove"}, "did you mean 'approve'"),
        ({"status": "201"}, "status must be int or None, not str"),
        ({"status": True}, "not bool"),
        ({"evaluated": 1}, "evaluated must be bool"),
        ({"body": "refused"}, "body must be Mapping"),
    ],
)
async def test_criterion_that_no_call_can_match_raises(
    raw: Raw, criteria: dict[str, Any], message: str
) -> None:
    for method in (raw.sandbox.journal.calls, raw.sandbox.journal.assert_never, raw.sandbox.journal.wait):
        with pytest.raises((TypeError, ValueError), match=message):
            method(**criteria)
    assert (await raw.create())[0] == 201, "the service still works"


async def test_findings_criterion_takes_a_list_or_a_name(raw: Raw) -> None:
    await raw.approve()
    for wanted in (["approve-before-create"], "approve-before-create", ("approve-before-create",)):
        assert raw.sandbox.journal.assert_once(findings=wanted).number == 1


async def test_failed_start_releases_the_state_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    for _ in range(2):
        broken = Sandbox(port=70_000, state=file)
        for _ in range(2):
            with pytest.raises(OverflowError):
                await broken.start()
    store = SqliteStore(file)
    store.open()
    store.put(CODE, '{"approved": "maybe"}')
    store.close()
    for _ in range(2):
        with pytest.raises(StateFileError, match="does not contain customers of a sandbox"):
            await Sandbox(state=file).start()
    store.open()
    store.delete(CODE)
    store.close()
    async with Sandbox(state=file):
        pass


async def test_start_loads_the_current_state_file(tmp_path: Path) -> None:
    first, second = (Sandbox(state=tmp_path / "shop.sqlite") for _ in range(2))
    async with aiohttp.ClientSession() as session:
        for sandbox, code in ((first, CODE), (second, "TSTXYZ00A00A000B")):
            async with sandbox:
                await Raw(sandbox, session)("POST", "", {"fiscalCode": code})
    async with first:
        assert list(first.snapshot()) == [CODE, "TSTXYZ00A00A000B"]


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        ({}, {"Retry-After": 7}, "a string of one line, such as '7'"),
        ({}, {"X-A": "a\r\nX-B: b"}, "a string of one line"),
        ({}, {"X A": "b"}, "is not a valid header name"),
        ({}, {"Content-Length": "3"}, "is set by the server"),
        ({}, {"content-type": "text/html"}, "is set by the server"),
        ({"a": {1, 2}}, None, "cannot be sent as JSON"),
        ({"a": float("nan")}, None, "cannot be sent as JSON"),
        ([1], None, "must be a JSON object"),
    ],
)
def test_respond_rejects_a_response_that_cannot_be_sent(body: Any, headers: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Sandbox().on().respond(503, body, headers=headers)


async def test_respond_copies_the_body(raw: Raw) -> None:
    body = {"a": 1}
    raw.sandbox.on().respond(503, body)
    body["a"] = 2
    assert await raw.create() == (503, {"a": 1})


def test_process_ignores_proxy_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Sandbox.subprocess() as process:
        assert process.calls() == []
        with pytest.raises(ValueError, match="did you mean"):
            process.fault("refussed")
        with pytest.raises(ValueError, match="did you mean 'operation'"):
            process.calls(operatoin="approve")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shop_id": ""}, "shop_id"),
        ({"shop_id": "a/b"}, "shop_id"),
        ({"shop_id": ".."}, "shop_id"),
        ({"auth_token": " a "}, "printable ASCII"),
        ({"auth_token": "a\nb"}, "printable ASCII"),
        ({"shop_url": "javascript:alert(1)"}, "shop_url"),
        ({"faults": "nonsense"}, "did you mean"),
    ],
)
def test_invalid_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sandbox(**options)


def test_respond_rejects_a_body_for_204_and_304() -> None:
    for status in (204, 304):
        with pytest.raises(ValueError, match=f"status {status} has no body in HTTP"):
            Sandbox().on().respond(status, {"a": 1})

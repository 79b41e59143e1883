"""Unclassified responses are stored in the ledger or in an orphan file until a person resolves the entry."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from loanasync import (
    Approved,
    LoanError,
    OutcomeUnknownError,
    Refused,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._protocol.messages import Response
from loanasync.ledger import (
    Ledger,
    MemoryLedger,
    Settlement,
    SqliteLedger,
    State,
    import_orphans,
    resolve,
)
from loanasync.ledger.memory import MemoryStore
from loanasync.testing import ScriptedResponse, approved, refused, response
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop

ANOTHER = "TSTXYZ00A00A000Z"
REDIRECT = "https://pay.example.com/#t"


def about_another(*, is_approved: bool = True) -> ScriptedResponse:
    """Return a decision that echoes the fiscal code of another customer."""
    body = {
        "approved": is_approved,
        "fiscalCode": ANOTHER,
        "redirectUrl": REDIRECT,
        "firstName": "Berta",
    }
    return response(201 if is_approved else 422, json.dumps(body).encode())


def broken() -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return MemoryLedger() if request.param == "memory" else SqliteLedger(tmp_path / "decisions.db")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500])
async def test_kept_response_of_another_status_becomes_the_decision(status: int) -> None:
    shop = Shop(response(status, {"approved": True, "redirectUrl": REDIRECT}))
    assert isinstance(await shop.result(), UnexpectedResponseError)
    await resolve(shop.ledger, await shop.entry(), State.APPROVED, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert decision.redirect_url == REDIRECT
    assert len(shop.script.sent) == 1


@pytest.mark.parametrize("options", [{}, {"keep": "body"}, {"encrypt": Fernet(Fernet.generate_key())}])
async def test_kept_response_of_another_customer_becomes_the_decision(
    ledger: Ledger, options: dict[str, Any]
) -> None:
    shop = Shop(about_another(), ledger=ledger, **options)
    error = await shop.result()
    assert isinstance(error, UnexpectedResponseError)
    assert (error.outcome, error.reasons) == ("unknown", ("fiscalCode: belongs to another customer",))
    assert error.response is not None
    assert json.loads(error.response.body)["redirectUrl"] == REDIRECT
    assert ANOTHER not in str(error) + repr(error) + repr(error.response)

    entry = await shop.entry()
    assert (entry.state, entry.status, entry.fault) == (
        State.UNKNOWN,
        201,
        "fiscalCode: belongs to another customer",
    )
    assert isinstance(await shop.result(), OutcomeUnknownError)
    await resolve(ledger, entry, State.APPROVED, "ticket 17")

    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.fiscal_code) == (REDIRECT, FISCAL_CODE)
    assert (decision.meta.status, decision.meta.attempts) == (201, 0)
    assert len(shop.script.sent) == 1
    await ledger.aclose()


@pytest.mark.parametrize("status", [422, 202, 400])
async def test_kept_response_of_any_status_becomes_the_approval(status: int) -> None:
    """The service returned `approved: true` with a status that contradicts it (readings R1, R4)."""
    shop = Shop(response(status, {"approved": True, "redirectUrl": REDIRECT}))
    assert (await shop.result()).outcome == "unknown"  # type: ignore[union-attr]
    await resolve(shop.ledger, await shop.entry(), State.APPROVED, "ticket 17")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.status, decision.meta.unread) == (REDIRECT, status, ())


async def test_kept_response_has_no_data_of_the_other_customer() -> None:
    shop = Shop(about_another())
    await shop.result()
    body = (await shop.entry()).body
    assert body is not None
    assert json.loads(body) == {"approved": True, "redirectUrl": REDIRECT}


async def test_kept_response_of_a_refusal_becomes_the_refusal() -> None:
    shop = Shop(about_another(is_approved=False))
    assert isinstance(await shop.result(), UnexpectedResponseError)
    await resolve(shop.ledger, await shop.entry(), State.REFUSED, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, Refused)
    assert decision.meta.status == 422


async def test_kept_response_that_contradicts_is_not_in_the_decision() -> None:
    shop = Shop(about_another())
    await shop.result()
    await resolve(shop.ledger, await shop.entry(), State.REFUSED, "by telephone")
    decision = await shop.approve()
    assert isinstance(decision, Refused)
    assert decision.meta.unread == ("body",)


@pytest.mark.parametrize(
    ("step", "kind", "status"),
    [
        (response(422, {"errors": {"email": ["is taken"]}}), UnexpectedResponseError, 422),
        (response(400, {"message": "bad request"}), UnexpectedResponseError, 400),
        (response(202, {"amount": 45_000}), UnexpectedStatusError, 202),
        (response(201, b"<html>"), UnexpectedResponseError, 201),
        (Response(status=201, headers={}, body=b'{"app', fault="truncated"), UnexpectedResponseError, 201),
    ],
    ids=["422", "400", "202", "201 of another form", "201 that was cut off"],
)
async def test_kept_response_has_the_whole_body_with_keep_body(
    step: ScriptedResponse, kind: type[LoanError], status: int
) -> None:
    shop = Shop(step, keep="body")
    error = await shop.result()
    assert isinstance(error, UnexpectedResponseError | UnexpectedStatusError)
    assert type(error) is kind
    entry = await shop.entry()
    assert error.response is not None
    assert (entry.state, entry.status, entry.body) == (State.UNKNOWN, status, error.response.body)


async def test_kept_response_of_a_failing_ledger_is_in_an_orphan_file(tmp_path: Path) -> None:
    ledger = FailingLedger(settle=broken)
    shop = Shop(about_another(), ledger=ledger, orphan_folder=tmp_path)
    assert isinstance(await shop.result(), UnexpectedResponseError)
    [file] = tmp_path.iterdir()
    assert FISCAL_CODE not in file.read_text()
    assert ANOTHER not in file.read_text()

    ledger.faults.clear()
    assert await import_orphans(ledger, tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    entry = await shop.entry()
    assert (entry.state, entry.status) == (State.UNKNOWN, 201)
    await resolve(ledger, entry, State.APPROVED, "ticket 17")
    decision = await shop.approve()
    assert isinstance(decision, Approved)
    assert decision.redirect_url == REDIRECT


async def test_orphan_file_has_the_subject_of_its_approval(tmp_path: Path) -> None:
    shop = Shop(
        approved(), ledger=FailingLedger(settle=broken), orphan_folder=tmp_path, key=b"0123456789abcdef"
    )
    await shop.result(scope="spring")
    claimed = await shop.entry()
    assert isinstance(shop.ledger, FailingLedger)
    shop.ledger.faults.clear()
    assert isinstance(shop.ledger._store, MemoryStore)
    shop.ledger._store._entries.clear()
    assert await import_orphans(shop.ledger, tmp_path) == 1
    [entry] = await shop.ledger.find(customer=claimed.customer)
    assert (entry.scope, entry.state) == ("spring", State.APPROVED)


async def test_kept_response_that_cannot_be_encrypted_is_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cipher = Fernet(Fernet.generate_key())
    shop = Shop(about_another(), encrypt=cipher)
    await shop.open_ledger()
    cipher.encrypt = lambda _: broken()  # type: ignore[method-assign, assignment, return-value]
    assert isinstance(await shop.result(), UnexpectedResponseError)
    entry = await shop.entry()
    assert (entry.state, entry.body) == (State.UNKNOWN, None)
    assert "was not stored" in caplog.text


@pytest.mark.parametrize(("state", "kind"), [(State.APPROVED, Approved), (State.REFUSED, Refused)])
async def test_entry_without_a_body_is_a_decision_without_redirect(
    state: State, kind: type[Approved | Refused]
) -> None:
    shop = Shop()
    entry = await shop.put(State.UNKNOWN)
    settlement = Settlement(state=state, note="by telephone", source="person")
    await shop.ledger.settle(entry.key, token=entry.token, payload=entry.payload, settlement=settlement)
    decision = await shop.approve()
    assert isinstance(decision, kind)
    assert (decision.raw, decision.amount, decision.meta.unread) == ({}, None, ("body",))
    assert decision.meta.entry == entry.key
    if isinstance(decision, Approved):
        assert decision.redirect_url is None


async def test_entry_of_an_incomplete_refusal_is_replayed() -> None:
    cut_off = Response(status=422, headers={}, body=b'{"approved": false, "am', fault="truncated")
    shop = Shop(cut_off, refused())
    first, again = await shop.approve(), await shop.approve()
    assert isinstance(first, Refused)
    assert isinstance(again, Refused)
    assert first.meta.unread == again.meta.unread == ("body",)
    assert shop.script.left == 1
